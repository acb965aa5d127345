"""Confidence intervals of quantiles: coverage, order of their bounds, and unknown bounds."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.core.histogram import CONFIDENCE, Estimate, Histogram, confidence_interval, has_enough_samples, ranks


def test_the_interval_contains_the_true_quantile() -> None:
    rng = random.Random(5)
    for quantile, true in ((0.5, 0.5), (0.95, 0.95), (0.99, 0.99)):
        held = 0
        for _ in range(300):
            histogram = Histogram()
            for _ in range(1200):
                histogram.record(rng.random())
            found = confidence_interval(histogram, quantile)
            assert found is not None
            held += found.low <= true <= found.high

        assert held >= 0.95 * 300


@given(values=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=200), quantile=st.floats(0.01, 0.99))
def test_the_interval_encloses_the_value(values: list[float], quantile: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    found, surer = confidence_interval(histogram, quantile, 0.8), confidence_interval(histogram, quantile, 0.99)
    assert found is not None
    assert surer is not None

    assert found.low <= found.value <= found.high
    assert surer.low <= found.low
    assert surer.high >= found.high


def test_a_bound_beyond_the_sample_is_unknown() -> None:
    histogram = Histogram()
    for step in range(1, 11):
        histogram.record(step)
    top, bottom = confidence_interval(histogram, 0.99), confidence_interval(histogram, 0.01)
    assert top is not None
    assert bottom is not None

    assert (top.high, bottom.low) == (math.inf, 0.0)
    assert confidence_interval(Histogram(), 0.5) is None


def test_zero_values_have_zero_bounds() -> None:
    histogram = Histogram()
    histogram.record(0.0, 1000)
    found = confidence_interval(histogram, 0.5)

    assert found == Estimate(0.0, 0.0, 0.0)


@pytest.mark.stacks
@given(st.integers(1, 5000), st.floats(0.01, 0.999))
@settings(deadline=None)
def test_the_ranks_are_the_closest_for_the_confidence(count: int, quantile: float) -> None:
    from scipy.stats import binom  # noqa: PLC0415 - installed only for the second tier of tests

    if count * quantile * (1 - quantile) > 1000:
        return
    first, last = ranks(count, quantile)
    missed = (1 - CONFIDENCE) / 2 * (1 + 1e-9)

    assert binom.cdf(first - 1, count, quantile) <= missed < binom.cdf(first, count, quantile) * (1 + 1e-6)
    assert binom.sf(last - 1, count, quantile) <= missed < binom.sf(last - 2, count, quantile) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("count", "quantile", "enough"),
    [(0, 0.99, False), (999, 0.99, False), (1000, 0.99, True), (19, 0.5, False), (20, 0.5, True)],
)
def test_a_quantile_needs_ten_requests_beyond_it(count: int, quantile: float, *, enough: bool) -> None:
    assert has_enough_samples(count, quantile) is enough
