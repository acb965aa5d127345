"""How sure a quantile is: intervals that hold the truth, and ratios no surer than they."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.confidence import has_enough_samples, interval, ratio
from stagelens.core.histogram import Estimate, Histogram


def test_the_interval_holds_the_true_quantile() -> None:
    """In at least 95 % of samples the true quantile lies in the interval, at the median and in the tail."""
    rng = random.Random(5)
    for quantile, true in ((0.5, 0.5), (0.95, 0.95), (0.99, 0.99)):
        held = 0
        for _ in range(300):
            histogram = Histogram()
            for _ in range(1200):
                histogram.record(rng.random())
            found = interval(histogram, quantile)
            assert found is not None
            held += found.low <= true <= found.high

        assert held >= 0.95 * 300


@given(
    values=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=200),
    quantile=st.floats(0.01, 0.99),
)
def test_the_interval_encloses_the_value(values: list[float], quantile: float) -> None:
    """Whatever was recorded, low <= value <= high, and more confidence is never narrower."""
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    found, surer = interval(histogram, quantile, 0.8), interval(histogram, quantile, 0.99)
    assert found is not None
    assert surer is not None

    assert found.low <= found.value <= found.high
    assert surer.low <= found.low
    assert surer.high >= found.high


def test_the_interval_says_so_where_a_sample_ends() -> None:
    """Too few requests on one side of the quantile leave that side open; without any there is no interval."""
    histogram = Histogram()
    for step in range(1, 11):
        histogram.record(step)
    top, bottom = interval(histogram, 0.99), interval(histogram, 0.01)
    assert top is not None
    assert bottom is not None

    assert (top.high, bottom.low) == (math.inf, 0.0)
    assert interval(Histogram(), 0.5) is None


def test_values_of_no_length_have_an_interval_of_none() -> None:
    """What lies below a nanosecond is zero, also as an edge; nothing is a multiple of it."""
    histogram = Histogram()
    histogram.record(0.0, 1000)
    found = interval(histogram, 0.5)

    assert found == Estimate(0.0, 0.0, 0.0)
    assert ratio(found, Estimate(1.0, 1.0, 1.0)) is None
    assert ratio(Estimate(1.0, 0.5, 2.0), found) == Estimate(0.0, 0.0, 0.0)


@given(low=st.floats(0, 1), a=st.floats(1, 10), b=st.floats(1, 10), high=st.floats(10, 1e6), other=st.floats(0.1, 1))
def test_the_ratio_is_no_surer_than_its_sides(low: float, a: float, b: float, high: float, other: float) -> None:
    """Every ratio of a value of one interval to one of the other lies in the interval of the ratio."""
    first, second = Estimate(a, low, high), Estimate(b, other, high)
    found = ratio(first, second)
    assert found is not None

    for above in (second.low, second.value, second.high):
        for below in (first.low, first.value, first.high):
            assert below == 0 or found.low * (1 - 1e-12) <= above / below <= found.high * (1 + 1e-12)


def test_without_requests_there_is_no_ratio() -> None:
    """One side alone says nothing."""
    one = Estimate(1.0, 1.0, 1.0)

    assert ratio(None, one) is ratio(one, None) is None


@pytest.mark.parametrize(("count", "enough"), [(0, False), (999, False), (1000, True)])
def test_ten_requests_beyond_it_bear_a_quantile(count: int, enough: bool) -> None:
    """Whatever float dust 1 - 0.99 leaves."""
    assert has_enough_samples(count, 0.99) is enough
