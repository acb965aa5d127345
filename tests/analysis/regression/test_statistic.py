"""The arithmetic: blocks, their excess, windows."""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.regression.policy import Window, default_tail_policy
from stagelens.analysis.regression.scoring import robust_spread, total_histograms
from stagelens.analysis.regression.statistic import (
    Expectation,
    MinuteHistograms,
    PrefixSums,
    Row,
    TailCounts,
    block_excess,
    count_beyond,
    fit_model,
    join_tallies,
    rows_of,
    trimmed_mean,
)

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
