"""Properties of the histogram for any input: relative error, exact merging, and complete counts."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.core.histogram import (
    BATCH_SIZES,
    CONFIDENCE,
    MAX_RELATIVE_ERROR,
    TOKEN_COUNTS,
    Estimate,
    Histogram,
    SizeBuckets,
    bucket_bounds,
    bucket_index,
    confidence_interval,
    rank_of,
    ranks,
)

# From a nanosecond to thirty years.
DURATIONS = st.floats(min_value=1e-9, max_value=1e9)
ANY_VALUE = st.one_of(st.just(0.0), st.floats(min_value=0, allow_infinity=False, allow_nan=False))
SAMPLES = st.lists(DURATIONS, min_size=1, max_size=200)


def histogram_of(values: Sequence[float], scale: int = 5) -> Histogram:
    histogram = Histogram(scale=scale)
    for value in values:
        histogram.record(value)
    return histogram


@given(SAMPLES, st.floats(min_value=0, max_value=1))
def test_quantile_is_within_the_stated_error_of_the_exact_order_statistic(values: list[float], quantile: float) -> None:
    exact = sorted(values)[rank_of(quantile, len(values)) - 1]

    estimate = histogram_of(values).quantile(quantile)

    assert estimate is not None
    assert abs(estimate.value - exact) <= exact * (MAX_RELATIVE_ERROR + 1e-12)
    assert estimate.low * (1 - 1e-12) <= exact <= estimate.high * (1 + 1e-12)


@given(st.lists(ANY_VALUE, max_size=50), st.lists(ANY_VALUE, max_size=50), st.lists(ANY_VALUE, max_size=50))
def test_merge_is_commutative_associative_and_loses_nothing(a: list[float], b: list[float], c: list[float]) -> None:
    left = histogram_of(a)
    left.merge(histogram_of(b))
    left.merge(histogram_of(c))
    right = histogram_of(c)
    inner = histogram_of(b)
    inner.merge(histogram_of(a))
    right.merge(inner)
    whole = histogram_of(a + b + c)

    assert left.buckets == right.buckets == whole.buckets
    assert left.zero == right.zero == whole.zero
    assert left.count == len(a) + len(b) + len(c)


@given(SAMPLES, st.integers(min_value=-10, max_value=5))
def test_downscaling_equals_recording_at_the_coarser_scale(values: list[float], scale: int) -> None:
    histogram = histogram_of(values)
    histogram.downscale(scale)

    assert histogram.count == len(values)
    for value, (low, high) in ((v, bucket_bounds(bucket_index(v, scale), scale)) for v in values):
        assert low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
    assert histogram.buckets.keys() == {bucket_index(value) >> (5 - scale) for value in values}


@given(SAMPLES, SAMPLES)
def test_histograms_of_different_scales_merge_to_the_coarser(fine: list[float], coarse: list[float]) -> None:
    merged = histogram_of(fine)
    merged.merge(histogram_of(coarse, scale=2))

    assert merged.scale == 2
    assert merged.count == len(fine) + len(coarse)


@given(ANY_VALUE)
def test_every_finite_value_is_counted_inside_its_bucket(value: float) -> None:
    histogram = histogram_of([value])
    estimate = histogram.quantile(0.5)

    assert histogram.count == 1
    assert estimate is not None
    assert math.isfinite(estimate.value)
    assert estimate.low * (1 - 1e-9) <= value <= estimate.high * (1 + 1e-9)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, -math.inf])
def test_values_that_cannot_be_durations_are_refused(value: float) -> None:
    histogram = Histogram()

    with pytest.raises(ValueError, match="finite values from 0 up"):
        histogram.record(value)
    assert histogram.count == 0


@given(SAMPLES, DURATIONS)
def test_count_above_a_threshold_is_within_its_bounds(values: list[float], threshold: float) -> None:
    exact = sum(value > threshold for value in values)

    estimate = histogram_of(values).count_above(threshold)

    assert estimate.low <= exact <= estimate.high
    assert estimate.low <= estimate.value <= estimate.high


def test_quantiles_of_nothing_of_zeros_and_of_a_percentage() -> None:
    empty, zeros = Histogram(), Histogram(zero=1000)

    assert (empty.quantile(0.99), empty.fraction_below(1.0), confidence_interval(empty, 0.5)) == (None, None, None)
    assert confidence_interval(zeros, 0.5) == Estimate(0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"write p99 as 0\.99"):
        empty.quantile(99)


def test_a_bound_beyond_the_sample_is_unknown() -> None:
    histogram = histogram_of([*range(1, 11)])
    top, bottom = confidence_interval(histogram, 0.99), confidence_interval(histogram, 0.01)
    assert top is not None
    assert bottom is not None

    assert (top.high, bottom.low) == (math.inf, 0.0)


def test_the_interval_contains_the_true_quantile() -> None:
    rng = random.Random(5)
    for quantile, true in ((0.5, 0.5), (0.95, 0.95), (0.99, 0.99)):
        held = 0
        for _ in range(300):
            found = confidence_interval(histogram_of([rng.random() for _ in range(1200)]), quantile)
            assert found is not None
            held += found.low <= true <= found.high

        assert held >= 0.95 * 300


@given(values=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=200), quantile=st.floats(0.01, 0.99))
def test_the_interval_encloses_the_value(values: list[float], quantile: float) -> None:
    histogram = histogram_of(values)
    found, surer = confidence_interval(histogram, quantile, 0.8), confidence_interval(histogram, quantile, 0.99)
    assert found is not None
    assert surer is not None

    assert found.low <= found.value <= found.high
    assert surer.low <= found.low
    assert surer.high >= found.high


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


KINDS = pytest.mark.parametrize("buckets", [BATCH_SIZES, TOKEN_COUNTS])


def bounds(name: str) -> tuple[int, int | None]:
    low, _, high = name.partition("-")
    return int(low.rstrip("+")), None if low.endswith("+") else int(high or low)


@KINDS
@given(size=st.integers(1, 2**40))
def test_a_size_is_in_the_bucket_named_by_its_bounds(buckets: SizeBuckets, size: int) -> None:
    low, high = bounds(buckets.bucket_of(size))

    assert low <= size
    assert high is None or size <= high


def test_size_buckets_sort_by_size() -> None:
    ascending = ["1", "8-15", "128-255", "1024+", "__other__"]

    assert sorted({*ascending}, key=BATCH_SIZES.position) == ascending
