"""The arithmetic: blocks, their excess, windows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stagelens.analysis.regression.policy import Window, default_tail_policy
from stagelens.analysis.regression.scoring import Reference, robust_spread, total_histograms
from stagelens.analysis.regression.statistic import (
    END_TO_END,
    MEAN,
    Expectation,
    ExpectationModel,
    MinuteHistograms,
    PrefixSums,
    Row,
    TailCounts,
    block_excess,
    count_beyond,
    fit_model,
    growth_to_count,
    join_tallies,
    rows_of,
    trimmed_mean,
)
from stagelens.core.histogram import Histogram, bucket_bounds

POLICY = default_tail_policy()
DAY = 1440


def counted(days: list[MinuteHistograms]) -> tuple[tuple[Row, ...], TailCounts]:
    rows = rows_of(POLICY, *total_histograms(days))
    return rows, reduce(join_tallies, (count_beyond(rows, day) for day in days))


@given(st.lists(st.integers(0, 50), min_size=2, max_size=60), st.data())
def test_blocks_add_up(counts: list[int], data: st.DataObject) -> None:
    values = np.array(counts, float)
    sums = PrefixSums(TailCounts(0, values, values[None], values[None] / 2))
    end = data.draw(st.integers(1, len(counts)))
    length = data.draw(st.integers(1, end))
    requests, n, beyond = sums.of(np.array([end]), np.array([length]), np.array([0]))

    assert requests[0] == n[0, 0] == sum(counts[end - length : end])
    assert beyond[0, 0] == pytest.approx(sum(counts[end - length : end]) / 2)


@given(st.permutations([5.0, 1.0, 4.0, 2.0, 3.0]))
def test_a_window_is_the_mean_of_its_smallest_blocks(values: list[float]) -> None:
    window = Window(block=5, blocks=5, drop=2, required=())
    raised = [value * 1e6 if value >= 4 else value for value in values]

    assert trimmed_mean(window, np.array(values)) == pytest.approx(2.0)
    assert trimmed_mean(window, np.array(raised)) == pytest.approx(2.0)


def test_the_daily_load_pattern_is_expected(make_service: Callable[..., Any]) -> None:
    service = make_service(day_swing=0.4, load_swing=0.5)
    rows, whole = counted([service.minutes(day * DAY, DAY) for day in range(4)])
    ends = np.arange(30, len(whole) + 1, 30)
    lengths = np.full(len(ends), 30)
    known, flat = (fit_model(rows, whole, (30,), rhythm=rhythm) for rhythm in (True, False))
    left = {
        name: block_excess(PrefixSums(whole), Expectation(model, rows, [0]), ends, lengths)[1][0].std()
        for name, model in (("known", known), ("flat", flat))
    }

    assert left["known"] < 0.4 * left["flat"]


def test_counting_noise_is_standard_normal(service: Any) -> None:
    rows, whole = counted([service.minutes(day * DAY, DAY) for day in range(3)])
    model = fit_model(rows, whole, (10,), rhythm=True)
    ends = np.arange(10, len(whole) + 1, 10)
    units, _, expected = block_excess(PrefixSums(whole), Expectation(model, rows, [0]), ends, np.full(len(ends), 10))

    assert float(robust_spread(units)[0]) == pytest.approx(1.0, abs=0.12)
    assert expected.mean() == pytest.approx(6000 * rows[0].expected, rel=0.02)


def test_peaks_of_the_load_have_a_wider_baseline() -> None:
    rng = np.random.default_rng(5)
    minutes = np.arange(7 * DAY)
    requests = 600 * (1 + 0.5 * np.sin(2 * np.pi * minutes / DAY))
    busiest = requests >= np.quantile(requests, 0.9)
    slower = np.repeat(rng.normal(0, 0.4, 7 * DAY // 30), 30) * busiest
    beyond = rng.poisson(requests * 0.05 * np.exp(slower)).astype(float)
    rows = (Row("", 0.95, 0, 1.0, 0.05, 0.2),)
    counts = TailCounts(0, requests, requests[None], beyond[None])
    model = fit_model(rows, counts, (10,), rhythm=True)
    ends = np.arange(10, len(counts) + 1, 10)
    units, _, _ = block_excess(PrefixSums(counts), Expectation(model, rows, [0]), ends, np.full(len(ends), 10))

    assert model.strained[0][0] == pytest.approx(0.4, rel=0.3)
    assert model.scatter[0][0] < 0.1
    assert float(robust_spread(units[:, busiest[ends - 5]])[0]) == pytest.approx(1.0, abs=0.3)


def test_blocks_without_requests_have_no_excess(service: Any) -> None:
    rows, whole = counted([service.minutes(0, DAY)])
    model = fit_model(rows, whole, (10,), rhythm=False)
    silent = join_tallies(whole, TailCounts(DAY + 30, np.zeros(1), np.zeros((len(rows), 1)), np.zeros((len(rows), 1))))
    units, _, expected = block_excess(
        PrefixSums(silent), Expectation(model, rows, [0]), np.array([DAY + 20]), np.array([10])
    )

    assert expected[0, 0] == 0
    assert abs(units[0, 0]) < 1


def test_outliers_do_not_widen_the_spread() -> None:
    values = np.random.default_rng(2).standard_normal((1, 5000))
    spoilt = values.copy()
    spoilt[0, :200] = math.pow(10, 6)

    assert float(robust_spread(values)[0]) == pytest.approx(1.0, abs=0.05)
    assert float(robust_spread(spoilt)[0]) == pytest.approx(1.0, abs=0.15)


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


Drawn = tuple[NDArray[np.float64], MinuteHistograms, tuple[Row, ...]]


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    seconds = np.random.default_rng(1).lognormal(-3, 0.5, (50, 400))
    minutes = minutes_of(seconds, seconds / 2)
    return seconds, minutes, rows_of(POLICY, *total_histograms([minutes]))


def test_a_row_counts_requests_beyond_a_bucket_edge(drawn: Drawn) -> None:
    seconds, minutes, rows = drawn
    counted = count_beyond(rows, minutes)

    for number, row in enumerate(rows):
        if row.stage == END_TO_END and row.at != MEAN:
            edge = bucket_bounds(row.edge)[1]
            assert counted.beyond[number].tolist() == (seconds > edge).sum(axis=1).tolist()
            assert row.expected == pytest.approx((seconds > edge).mean())
            assert row.expected == pytest.approx(1 - row.at, rel=0.15)


def test_the_mean_is_a_count_of_seconds(drawn: Drawn) -> None:
    seconds, minutes, rows = drawn
    number = next(n for n, row in enumerate(rows) if row.at == MEAN)
    counted = count_beyond(rows, minutes)
    against = counted.beyond[number] / (counted.n[number] * rows[number].expected)
    most = np.minimum(seconds, np.quantile(seconds, 0.99))

    assert against == pytest.approx(most.mean(axis=1) / most.mean(), rel=0.005)


def test_a_few_cold_starts_do_not_outweigh_the_others(drawn: Drawn) -> None:
    seconds, _, rows = drawn
    number = next(n for n, row in enumerate(rows) if row.at == MEAN)
    cold = np.concatenate((seconds[:1, :396], np.full((1, 4), 1.0)), axis=1)
    warm, with_cold = (count_beyond(rows, minutes_of(each, each / 2)).beyond[number, 0] for each in (seconds[:1], cold))

    assert warm < with_cold < 1.05 * warm


@given(cut=st.integers(1, 49))
def test_counts_of_parts_add_up_to_the_whole(drawn: Drawn, cut: int) -> None:
    _, minutes, rows = drawn
    whole = count_beyond(rows, minutes)
    joined = join_tallies(*(count_beyond(rows, part_of(minutes, *part)) for part in ((0, cut), (cut, 50))))

    assert joined.start == whole.start
    assert np.allclose(joined.beyond, whole.beyond, rtol=1e-12)
    assert np.array_equal(joined.n, whole.n)
    assert np.array_equal(joined.requests, whole.requests)


def test_a_gap_has_no_requests_and_a_repeat_counts_once(drawn: Drawn) -> None:
    _, minutes, rows = drawn
    one, later, again = (count_beyond(rows, part_of(minutes, *part)) for part in ((0, 2), (4, 5), (1, 2)))

    assert join_tallies(one, later).requests.tolist() == [400, 400, 0, 0, 400]
    assert np.allclose(join_tallies(one, again).beyond, one.beyond, rtol=1e-12)


def test_a_missing_stage_of_a_minute_counts_zero(drawn: Drawn) -> None:
    _, minutes, rows = drawn
    without = count_beyond(rows, MinuteHistograms(1000, minutes.index, minutes.total, (), minutes.own[:0]))
    forward = next(n for n, row in enumerate(rows) if row.stage == "forward")

    assert without.n[forward].sum() == 0
    assert without.requests.sum() == minutes.total.sum()


def test_stages_have_statistics_by_kind(drawn: Drawn) -> None:
    _, minutes, _ = drawn
    total, own = total_histograms([minutes])
    rows = rows_of(POLICY, total, dict.fromkeys(("h2d", "load", "queue"), own["forward"]))

    assert [(row.stage, row.at) for row in rows if row.stage != END_TO_END] == [
        ("h2d", 0.5),
        ("h2d", 0.99),
        ("queue", 0.9),
        ("queue", 0.99),
    ]


def test_growth_is_expressed_in_counts(drawn: Drawn) -> None:
    seconds, minutes, (row, *_) = drawn
    total, _ = total_histograms([minutes])
    edge = bucket_bounds(row.edge)[1]

    assert growth_to_count(row, total, 1.0) == pytest.approx(
        np.log((2 * seconds > edge).mean() / row.expected), abs=0.02
    )
    assert growth_to_count(row, total, 0.0) == pytest.approx(0.0)


def test_an_empty_reference_has_no_statistics() -> None:
    assert rows_of(POLICY, Histogram(), {}) == ()


ROWS = (Row("", 0.95, 0, 1.0, 0.05, 0.2),)


def simulated(slower: NDArray[Any], seed: int = 1) -> TailCounts:
    """Return three weeks; *slower* is the log ratio of requests beyond the threshold of each minute."""
    rng = np.random.default_rng(seed)
    minutes = np.arange(21 * DAY)
    requests = 600 * (1 + 0.5 * np.sin(2 * np.pi * minutes / DAY))
    noise = np.repeat(rng.normal(0, 0.05, 21), DAY) + np.repeat(rng.normal(0, 0.1, 21 * 48), 30)
    beyond = rng.poisson(requests * 0.05 * np.exp(slower + noise)).astype(float)
    return TailCounts(0, requests, requests[None], beyond[None])


def first_weeks(counts: TailCounts) -> TailCounts:
    end = 14 * DAY
    return TailCounts(0, counts.requests[:end], counts.n[:, :end], counts.beyond[:, :end])


def learnt(counts: TailCounts, *, week: bool = True) -> ExpectationModel:
    return fit_model(ROWS, first_weeks(counts), (30,), rhythm=True, week=week)


def spread_of_days(counts: TailCounts, model: ExpectationModel) -> float:
    """Return the spread of the mean excess of the days of the third week."""
    ends = np.arange(14 * DAY + 30, 21 * DAY + 1, 30)
    _, logs, _ = block_excess(PrefixSums(counts), Expectation(model, ROWS, [0]), ends, np.full(len(ends), 30))
    return float(logs.reshape(7, 48).mean(axis=1).std())


def pattern(night: int = 0) -> NDArray[Any]:
    """Return a week with slow weekends and a slow Monday; days begin at minute *night*. The epoch was a Thursday."""
    weekday = ((np.arange(21 * DAY) - night) // DAY + 3) % 7
    return np.select([weekday >= 5, weekday == 0], [0.5, 0.25], 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_slow_weekends_and_a_slow_weekday_are_expected(seed: int) -> None:
    counts = simulated(pattern(), seed)

    assert spread_of_days(counts, learnt(counts, week=False)) > 0.15
    assert spread_of_days(counts, learnt(counts)) < 0.09


def test_the_beginning_of_the_day_is_found() -> None:
    assert learnt(simulated(pattern(17 * 60))).night == 17 * 60


def test_without_a_pattern_nothing_is_learnt() -> None:
    counts = [simulated(np.zeros(21 * DAY), seed) for seed in range(5)]
    models = [learnt(count) for count in counts]
    with_, without = (
        np.mean([spread_of_days(count, learnt(count, week=week)) for count in counts]) for week in (True, False)
    )

    assert np.std([model.weekdays for model in models]) < 0.02
    assert with_ < 1.15 * without


def test_one_slow_day_is_no_weekday() -> None:
    slow = np.where(np.arange(21 * DAY) // DAY == 8, 0.6, 0.0)

    assert np.abs(learnt(simulated(slow)).weekdays).max() < 0.06


def test_references_of_older_versions_have_no_weekdays() -> None:
    reference = Reference(14 * DAY, ROWS, learnt(simulated(pattern())), (), ())
    old = json.loads(reference.to_json())
    del old["model"]["weekdays"], old["model"]["night"]
    loaded = Reference.from_json(json.dumps(old))

    assert Reference.from_json(reference.to_json()) == reference
    assert not Expectation(loaded.model, ROWS, [0]).weekdays.any()
