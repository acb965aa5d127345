"""Counting minutes for questions, and what the questions are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stagelens.analysis.regression.policy import default_tail_policy
from stagelens.analysis.regression.scoring import total_histograms
from stagelens.analysis.regression.statistic import (
    END_TO_END,
    MEAN,
    MinuteHistograms,
    count_beyond,
    growth_to_count,
    join_tallies,
    rows_of,
)
from stagelens.core.histogram import Histogram, bucket_bounds

POLICY = default_tail_policy()


def minutes_of(seconds: NDArray[np.float64], stage_seconds: NDArray[np.float64]) -> MinuteHistograms:
    """One minute for each row of *seconds*, with the same requests' times in one stage."""
    index = np.arange(-400, 200)
    total = np.array([np.bincount(_place(row), minlength=600) for row in seconds])
    own = np.array([[np.bincount(_place(row), minlength=600) for row in stage_seconds]])
    return MinuteHistograms(1000, index, total, ("forward",), own)


def _place(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.ceil(np.log2(values) * 32).astype(int) - 1 + 400


def part_of(minutes: MinuteHistograms, start: int, end: int) -> MinuteHistograms:
    own = minutes.own[:, start:end]
    return replace(minutes, start=minutes.start + start, total=minutes.total[start:end], own=own)


@pytest.fixture(scope="module")
def drawn() -> tuple[NDArray[np.float64], MinuteHistograms]:
    rng = np.random.default_rng(1)
    seconds = rng.lognormal(-3, 0.5, (50, 400))
    return seconds, minutes_of(seconds, seconds / 2)


def test_a_row_counts_requests_beyond_a_bucket_edge(drawn: tuple[NDArray[np.float64], MinuteHistograms]) -> None:
    seconds, minutes = drawn
    total, own = total_histograms([minutes])
    rows = rows_of(POLICY, total, own)
    counted = count_beyond(rows, minutes)

    for number, row in enumerate(rows):
        if row.stage == END_TO_END and row.at != MEAN:
            edge = bucket_bounds(row.edge)[1]
            assert counted.beyond[number].tolist() == (seconds > edge).sum(axis=1).tolist()
            assert row.expected == pytest.approx((seconds > edge).mean())
            assert row.expected == pytest.approx(1 - row.at, rel=0.15)


def test_the_mean_is_a_count_of_seconds(drawn: tuple[NDArray[np.float64], MinuteHistograms]) -> None:
    seconds, minutes = drawn
    rows = rows_of(POLICY, *total_histograms([minutes]))
    number = next(n for n, row in enumerate(rows) if row.at == MEAN)
    counted = count_beyond(rows, minutes)
    against = counted.beyond[number] / (counted.n[number] * rows[number].expected)
    most = np.minimum(seconds, np.quantile(seconds, 0.99))

    assert against == pytest.approx(most.mean(axis=1) / most.mean(), rel=0.005)


def test_a_few_cold_starts_do_not_outweigh_the_others(drawn: tuple[NDArray[np.float64], MinuteHistograms]) -> None:
    seconds, minutes = drawn
    rows = rows_of(POLICY, *total_histograms([minutes]))
    number = next(n for n, row in enumerate(rows) if row.at == MEAN)
    cold = np.concatenate((seconds[:1, :396], np.full((1, 4), 1.0)), axis=1)
    warm, with_cold = (count_beyond(rows, minutes_of(each, each / 2)).beyond[number, 0] for each in (seconds[:1], cold))

    assert warm < with_cold < 1.05 * warm


@given(cut=st.integers(1, 49))
def test_counts_of_parts_add_up_to_the_whole(drawn: tuple[NDArray[np.float64], MinuteHistograms], cut: int) -> None:
    _, minutes = drawn
    rows = rows_of(POLICY, *total_histograms([minutes]))
    whole = count_beyond(rows, minutes)
    joined = join_tallies(*(count_beyond(rows, part_of(minutes, *part)) for part in ((0, cut), (cut, 50))))

    assert joined.start == whole.start
    assert np.allclose(joined.beyond, whole.beyond, rtol=1e-12)
    assert np.array_equal(joined.n, whole.n)
    assert np.array_equal(joined.requests, whole.requests)


def test_a_gap_has_no_requests_and_a_repeat_counts_once(drawn: tuple[NDArray[np.float64], MinuteHistograms]) -> None:
    _, minutes = drawn
    rows = rows_of(POLICY, *total_histograms([minutes]))
    one, later, again = (count_beyond(rows, part_of(minutes, *part)) for part in ((0, 2), (4, 5), (1, 2)))

    assert join_tallies(one, later).requests.tolist() == [400, 400, 0, 0, 400]
    assert np.allclose(join_tallies(one, again).beyond, one.beyond, rtol=1e-12)


def test_a_missing_stage_of_a_minute_counts_zero(drawn: tuple[NDArray[np.float64], MinuteHistograms]) -> None:
    _, minutes = drawn
    rows = rows_of(POLICY, *total_histograms([minutes]))
    without = count_beyond(rows, MinuteHistograms(1000, minutes.index, minutes.total, (), minutes.own[:0]))
    forward = next(n for n, row in enumerate(rows) if row.stage == "forward")

    assert without.n[forward].sum() == 0
    assert without.requests.sum() == minutes.total.sum()


def test_stages_have_statistics_by_kind(drawn: tuple[NDArray[np.float64], MinuteHistograms]) -> None:
    _, minutes = drawn
    total, own = total_histograms([minutes])

    rows = rows_of(POLICY, total, dict.fromkeys(("h2d", "load", "queue"), own["forward"]))

    assert [(row.stage, row.at) for row in rows if row.stage != END_TO_END] == [
        ("h2d", 0.5),
        ("h2d", 0.99),
        ("queue", 0.9),
        ("queue", 0.99),
    ]


def test_growth_is_expressed_in_counts(drawn: tuple[NDArray[np.float64], MinuteHistograms]) -> None:
    seconds, minutes = drawn
    total, own = total_histograms([minutes])
    row = rows_of(POLICY, total, own)[0]
    edge = bucket_bounds(row.edge)[1]

    assert growth_to_count(row, total, 1.0) == pytest.approx(
        np.log((2 * seconds > edge).mean() / row.expected), abs=0.02
    )
    assert growth_to_count(row, total, 0.0) == pytest.approx(0.0)


def test_an_empty_reference_has_no_statistics() -> None:
    assert rows_of(POLICY, Histogram(), {}) == ()
