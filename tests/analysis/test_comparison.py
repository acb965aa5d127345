"""Comparison of two sets of requests: coverage of its intervals, their agreement, verdicts, and the stage that grew."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.comparison import (
    CONFIDENCE,
    MIN_CHANGE,
    ROLLOUT,
    QuantileComparison,
    ServingPeriod,
    compare_failures,
    compare_means,
    compare_quantile,
    mean_latency,
    rank_stage_growth,
    requests_needed,
    stage_growth,
    version_times,
)
from stagelens.core.histogram import MIN_TAIL, Histogram

ROUNDS = 200
# Deviation of the share of ROUNDS that miss, exceeded once in a thousand times.
DEVIATION = 3.3 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / ROUNDS)
LATENCIES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60)
QUANTILES = st.sampled_from((0.5, 0.9, 0.99))


def histogram(latencies: Sequence[float]) -> Histogram:
    made = Histogram()
    for latency in latencies:
        made.record(latency)
    return made


def simulated(quantile: float, counts: tuple[int, int], means: tuple[float, float]) -> list[QuantileComparison]:
    """Compare two samples of exponential latencies, `ROUNDS` times, the same ones in each run."""
    rng = random.Random(20261126)

    def sample(side: int) -> Histogram:
        return histogram([rng.expovariate(1 / means[side]) for _ in range(counts[side])])

    return [compare_quantile(sample(0), sample(1), quantile) for _ in range(ROUNDS)]


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("counts", [(8, 8), (50, 600)])
def test_intervals_contain_the_truth(quantile: float, counts: tuple[int, int]) -> None:
    difference = -math.log(1 - quantile) * (0.15 - 0.1)

    found = simulated(quantile, counts, (0.1, 0.15))

    at_least = (CONFIDENCE - DEVIATION) * ROUNDS
    assert sum(each.low <= difference <= each.high for each in found) >= at_least
    assert sum((each.ratio_low or 0) <= 1.5 <= (each.ratio_high or 0) for each in found) >= at_least


@pytest.mark.parametrize(
    ("quantile", "after", "kind"), [(0.5, 0.1, "same"), (0.99, 0.1, "same"), (0.99, 0.2, "regression")]
)
def test_releases_are_rarely_misjudged(quantile: float, after: float, kind: str) -> None:
    found = [number.kind for number in simulated(quantile, (1000, 1000), (0.1, after))]

    assert found.count(kind) >= 0.99 * ROUNDS


@given(LATENCIES, LATENCIES, QUANTILES)
def test_ratio_and_difference_agree(a: list[float], b: list[float], quantile: float) -> None:
    found = compare_quantile(histogram(a), histogram(b), quantile)

    assert found.ratio is not None
    assert found.ratio_low is not None
    assert found.ratio_high is not None
    assert found.low <= found.difference <= found.high
    assert found.ratio_low <= found.ratio <= found.ratio_high
    # Rounding alone may tell 1 from nearly 1.
    if abs(found.low) > 1e-9 * max(a + b):
        assert (found.low > 0) == (found.ratio_low > 1)
    if abs(found.high) > 1e-9 * max(a + b):
        assert (found.high < 0) == (found.ratio_high < 1)


@given(LATENCIES, LATENCIES, QUANTILES)
def test_swapped_sides_give_the_opposite(a: list[float], b: list[float], quantile: float) -> None:
    there = compare_quantile(histogram(a), histogram(b), quantile)
    back = compare_quantile(histogram(b), histogram(a), quantile)

    assert (back.low, back.high) == pytest.approx((-there.high, -there.low))
    assert there.ratio is not None
    assert back.ratio is not None
    assert there.ratio * back.ratio == pytest.approx(1)


def test_too_few_requests_beyond_the_quantile_are_no_verdict() -> None:
    needed = MIN_TAIL * 100

    assert compare_quantile(histogram([0.1] * (needed - 1)), histogram([0.5] * needed), 0.99).kind == "not_enough"
    assert compare_quantile(histogram([0.1] * needed), histogram([0.5] * needed), 0.99).kind == "regression"


def test_a_certain_change_that_is_too_small_is_the_same() -> None:
    a, b = histogram([0.1] * 5000), histogram([0.1 * (1 + MIN_CHANGE / 2)] * 5000)

    assert compare_quantile(a, b, 0.5).kind == "same"


def test_a_side_without_requests_has_no_result() -> None:
    found = compare_quantile(Histogram(), histogram([0.1]), 0.99)

    assert (found.kind, found.a_value, found.ratio) == ("not_enough", None, None)
    assert (found.low, found.high) == (-math.inf, math.inf)


def test_requests_without_time_have_no_ratio() -> None:
    found = compare_quantile(Histogram(zero=1000), histogram([0.1] * 1000), 0.5)

    assert found.ratio is None
    assert found.is_certain


@pytest.mark.parametrize("quantile", [0.01, 0.5, 0.9, 0.99, 0.999])
def test_an_interval_needs_a_minimum_of_requests(quantile: float) -> None:
    enough, short = (Histogram(buckets={0: requests_needed(quantile) - missing}) for missing in (0, 1))
    found = compare_quantile(enough, enough, quantile)

    assert math.isfinite(found.low)
    assert math.isfinite(found.high)
    assert math.isinf(compare_quantile(short, short, quantile).low)


@pytest.mark.parametrize("shares", [(0.0, 0.02), (0.01, 0.01), (0.1, 0.3)])
def test_failure_intervals_contain_the_truth(shares: tuple[float, float]) -> None:
    rng = random.Random(20261122)

    def failed(count: int, share: float) -> int:
        return sum(rng.random() < share for _ in range(count))

    found = [compare_failures(failed(60, shares[0]), 60, failed(400, shares[1]), 400) for _ in range(ROUNDS)]

    at_least = (CONFIDENCE - DEVIATION) * ROUNDS
    assert sum(each.low <= shares[1] - shares[0] <= each.high for each in found) >= at_least


def test_the_ratio_of_means_has_the_normal_interval() -> None:
    values = np.random.default_rng(4).lognormal(-3, 0.4, 5000)
    found = compare_means(histogram(values.tolist()), histogram((values * 1.5).tolist()))
    reach = 2.576 * values.std() / math.sqrt(5000) / values.mean()

    assert mean_latency(histogram(values.tolist())) == pytest.approx(values.mean(), rel=0.01)
    assert found is not None
    assert found.value == pytest.approx(1.5, rel=0.01)
    assert found.high - found.low == pytest.approx(2 * 1.5 * math.sqrt(2) * reach, rel=0.05)
    assert (mean_latency(Histogram()), compare_means(Histogram(), histogram([0.1]))) == (None, None)


def test_blame_orders_stages_by_added_time() -> None:
    compared = pd.DataFrame(
        {"stage": ["queue", "forward", "preprocess"], "delta_seconds": [0.02, -0.03, 0.11], "share": 0.0}
    )
    shrunk = compared.assign(delta_seconds=[0.01, -0.03, 0.01])
    stages = rank_stage_growth(compared)

    assert [row.stage for row in stages] == ["preprocess", "queue"]
    # More than the whole growth, because another stage shrank.
    assert stages[0].share == pytest.approx(1.1)
    assert rank_stage_growth(shrunk) == stage_growth({"queue": 2.0}, {"queue": 1.0}) == ()


START = datetime(2026, 11, 1, tzinfo=UTC)
lives = st.tuples(st.integers(0, 1000), st.integers(1, 1000)).map(
    lambda pair: ServingPeriod(START + timedelta(minutes=pair[0]), START + timedelta(minutes=pair[0] + pair[1]))
)


@given(lives, lives, st.integers(0, 100))
def test_compared_periods_are_within_version_lifetimes(a: ServingPeriod, b: ServingPeriod, rate: int) -> None:
    def requests(first: ServingPeriod, second: ServingPeriod) -> int:
        return int(min((each.end - each.start).total_seconds() * rate for each in (first, second)))

    times = version_times(a, b, requests)

    for life, time in ((a, times.a), (b, times.b)):
        assert life.start <= time.start < time.end <= life.end
    shared = min(a.end, b.end) - max(a.start, b.start)
    if times.together:
        assert times.a == times.b
        assert times.a.end - times.a.start == shared > ROLLOUT
    elif a.start != b.start:
        assert times.a.end <= times.b.start or times.b.end <= times.a.start
    if rate >= 4 and shared > ROLLOUT:
        assert times.together


def test_an_overlap_with_too_few_requests_uses_consecutive_periods() -> None:
    a, b = (
        ServingPeriod(START, START + timedelta(hours=3)),
        ServingPeriod(START + timedelta(hours=1), START + timedelta(hours=2)),
    )

    times = version_times(a, b, lambda first, _: 0 if first == b else 5000)

    assert not times.together
    assert (times.a, times.b) == (ServingPeriod(a.start, b.start), b)
    assert version_times(a, b, lambda *_: 50).together
