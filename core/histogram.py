"""Mergeable base-2 exponential histograms, scale 5, confidence intervals of their quantiles, and the size buckets of batches and tokens.

Bucket i holds values in (2**(i/32), 2**((i+1)/32)]: 32 buckets per doubling, each 2.19 % wide. The middle of a bucket is
therefore within 1.1 % of the recorded value (`MAX_RELATIVE_ERROR`), for any value from one nanosecond up. Merging adds
bucket counts, so it is exact, commutative and associative over threads, processes, replicas, time and databases.

`Distribution` holds values known only as intervals: one histogram of the lower edges and one of the upper edges. The k-th smallest
value is at least the k-th smallest lower edge and at most the k-th smallest upper edge, so the true quantile lies between the
quantiles of the two.

Confidence intervals use order statistics: the number of requests below the true quantile is binomial, for any distribution, so the
requests at two ranks around it enclose the true value with the wanted confidence. Each end is widened to the edge of its bucket. It
assumes independent requests; because a burst of slow requests is one event, the interval is a lower bound of the uncertainty.

Source: OpenTelemetry metrics data model, "ExponentialHistogram" (base = 2**(2**-scale), upper-inclusive buckets);
H. A. David, H. N. Nagaraja, Order Statistics, 3rd ed., section 7.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from math import ceil, log2
from statistics import NormalDist
from typing import Any

SCALE = 5
BUCKETS_A_DOUBLING = 2**SCALE
# OpenTelemetry allows scales from -10 to 20.
MIN_SCALE, MAX_SCALE = -10, 20
# Durations below a nanosecond, the resolution of clocks, count as zero.
ZERO_THRESHOLD = 1e-9
# Half a bucket, relative to its lower edge: (2**(1/32) - 1) / 2.
MAX_RELATIVE_ERROR = (2 ** (1 / 32) - 1) / 2
# Upper edge that replaces an infinite one: above any duration, and small enough to keep tables of buckets small. [seconds]
ENDLESS = 2.0**40
# Minimum number of requests beyond a percentile that is shown or evaluated.
MIN_TAIL = 10
CONFIDENCE = 0.95
# Variance from which the normal approximation is as good as the binomial, and fast.
_MANY = 1000
# Number of standard deviations beyond which the mass of a binomial distribution is negligible.
_REACH = 10


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value read from a histogram, with its error bounds."""

    value: float
    low: float
    high: float


def bucket_index(value: float, scale: int = SCALE) -> int:
    """Return the index of the bucket that holds *value*, which must be above zero.

    >>> bucket_index(1.0), bucket_index(2.0), bucket_index(2.0001)
    (-1, 31, 32)
    """
    return math.ceil(math.ldexp(math.log2(value), scale)) - 1


def bucket_bounds(index: int, scale: int = SCALE) -> tuple[float, float]:
    """Return the edges (low, high] of bucket *index*; edges outside the range of a float are cut to it."""
    return _edge(index, scale), _edge(index + 1, scale)


def bucket_middle(index: int, scale: int = SCALE) -> float:
    """Return the middle of bucket *index*: the point with the smallest maximum relative error."""
    low, high = bucket_bounds(index, scale)
    return low + (high - low) / 2


def rank_of(quantile: float, count: int) -> int:
    """Return the rank, counted from 1 in order of latency, of the request at *quantile* (nearest rank).

    >>> rank_of(0.99, 100), rank_of(0.5, 1), rank_of(0.07, 100)
    (99, 1, 7)
    """
    # The small term compensates rounding errors of floats: 0.07 * 100 is 7.000000000000001.
    return min(max(1, math.ceil(quantile * count - 1e-9)), count)


@dataclass(slots=True)
class Histogram:
    """Counts of non-negative values in exponential buckets."""

    scale: int = SCALE  # Binary logarithm of the number of buckets per doubling. [-10..20]
    buckets: dict[int, int] = field(default_factory=dict[int, int])  # Count by bucket index; only counts above zero
    zero: int = 0  # Number of values below `ZERO_THRESHOLD`
    sum: float = 0.0  # Exact sum of all values. [unit of the values]

    @property
    def count(self) -> int:
        return self.zero + sum(self.buckets.values())

    def record(self, value: float, count: int = 1) -> None:
        """Count *value*, *count* times; ValueError unless both are finite and not negative."""
        if not (0 <= value < math.inf):
            msg = f"a histogram accepts finite values from 0 up, got {value!r}"
            raise ValueError(msg)
        if count < 0:
            msg = f"a count must not be negative, got {count!r}"
            raise ValueError(msg)
        if count == 0:
            return
        self.sum += value * count
        if value < ZERO_THRESHOLD:
            self.zero += count
            return
        index = bucket_index(value, self.scale)
        self.buckets[index] = self.buckets.get(index, 0) + count

    def count_one(self, value: float) -> None:
        """Count *value* once, faster than `record`; *value* must be finite and >= 0, and the scale must be `SCALE`."""
        self.sum += value
        if value < ZERO_THRESHOLD:
            self.zero += 1
            return
        # `bucket_index` inlined; scaling by a power of two is exact.
        index = ceil(log2(value) * BUCKETS_A_DOUBLING) - 1
        buckets = self.buckets
        buckets[index] = buckets.get(index, 0) + 1

    def merge(self, other: Histogram) -> None:
        """Add *other* to this histogram; the result has the coarser of the two scales."""
        if self.scale > other.scale:
            self.downscale(other.scale)
        shift = other.scale - self.scale
        for index, count in other.buckets.items():
            self.buckets[index >> shift] = self.buckets.get(index >> shift, 0) + count
        self.zero += other.zero
        self.sum += other.sum

    def downscale(self, scale: int) -> None:
        """Make the buckets coarser, to *scale*; counts stay exact. ValueError for a finer scale."""
        if scale > self.scale:
            msg = f"a histogram of scale {self.scale} cannot be refined to scale {scale}"
            raise ValueError(msg)
        shift = self.scale - scale
        coarse: dict[int, int] = {}
        for index, count in self.buckets.items():
            coarse[index >> shift] = coarse.get(index >> shift, 0) + count
        self.buckets, self.scale = coarse, scale

    def quantile(self, quantile: float) -> Estimate | None:
        """Return the value at *quantile* (nearest rank) as the middle of its bucket, bounded by the bucket; None for an empty histogram."""
        if not 0 <= quantile <= 1:
            msg = f"a quantile lies between 0 and 1, got {quantile!r} (write p99 as 0.99)"
            raise ValueError(msg)
        total = self.count
        if total == 0:
            return None
        left = rank_of(quantile, total) - self.zero
        if left <= 0:
            return Estimate(0.0, 0.0, ZERO_THRESHOLD)
        for index in sorted(self.buckets):
            left -= self.buckets[index]
            if left <= 0:
                return Estimate(bucket_middle(index, self.scale), *bucket_bounds(index, self.scale))
        raise AssertionError  # the counts add up to `total`

    def count_above(self, threshold: float) -> Estimate:
        """Return the number of values above *threshold*.

        The bucket that contains the threshold is split log-linearly for `value`; `low` excludes this bucket, `high` includes it.
        """
        if threshold < ZERO_THRESHOLD:
            above = self.count - self.zero
            return Estimate(above, above, above)
        split = bucket_index(threshold, self.scale)
        beyond = sum(count for index, count in self.buckets.items() if index > split)
        inside = self.buckets.get(split, 0)
        share = 1 - (math.ldexp(math.log2(threshold), self.scale) - split)
        # Upper edges are inclusive: if the threshold is an upper edge, no value of its bucket is above it.
        high = beyond if share <= 0 else beyond + inside
        return Estimate(beyond + inside * max(share, 0.0), beyond, high)

    def fraction_below(self, threshold: float) -> Estimate | None:
        """Return the share of values at or below *threshold*; None for an empty histogram."""
        total = self.count
        if total == 0:
            return None
        above = self.count_above(threshold)
        return Estimate(1 - above.value / total, 1 - above.high / total, 1 - above.low / total)

    def to_otlp(self) -> dict[str, Any]:
        """Return the fields of an OTLP ExponentialHistogramDataPoint in its JSON form (64-bit integers as strings)."""
        offset, counts = dense(self.buckets)
        return {
            "count": str(self.count),
            "sum": self.sum,
            "scale": self.scale,
            "zeroCount": str(self.zero),
            "zeroThreshold": ZERO_THRESHOLD,
            "positive": {"offset": offset, "bucketCounts": [str(count) for count in counts]},
        }


def dense(buckets: Mapping[int, int]) -> tuple[int, list[int]]:
    """Return sparse *buckets* as in OTLP: the index of the first bucket, and the counts from that bucket to the last.

    >>> dense({3: 1, 5: 2})
    (3, [1, 0, 2])
    """
    if not buckets:
        return 0, []
    first = min(buckets)
    counts = [0] * (max(buckets) - first + 1)
    for index, count in buckets.items():
        counts[index - first] = count
    return first, counts


def _edge(index: int, scale: int) -> float:
    exponent = math.ldexp(index, -scale)
    if exponent >= 1024:  # noqa: PLR2004 - 2**1024 is past the largest float
        return math.nextafter(math.inf, 0)
    return 2.0**exponent


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of a value: at least *low* and at most *high*, which is infinite in a last bucket without upper edge."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of values of which only intervals, their number and their sum are known."""

    lows: Histogram = field(default_factory=Histogram)  # Histogram of the lower edges; its sum is the sum of the values
    highs: Histogram = field(default_factory=Histogram)  # Histogram of the upper edges

    @property
    def count(self) -> int:
        return self.lows.count

    @property
    def mean(self) -> float | None:
        return self.lows.sum / self.count if self.count else None

    def add(self, low: float, high: float, count: int) -> None:
        """Count *count* values in (*low*, *high*]; their sum must be set with `set_sum`."""
        self.lows.record(min(low, ENDLESS), count)
        self.highs.record(min(high, ENDLESS), count)

    def set_sum(self, total: float) -> None:
        self.lows.sum = self.highs.sum = total

    def quantile(self, quantile: float) -> Interval | None:
        """Return the bounds of the value at *quantile* (nearest rank), in [0..1]; None without values.

        >>> two = Distribution()
        >>> two.add(0.5, 1.0, 2)
        >>> two.quantile(0.99).high
        1.0
        """
        low, high = self.lows.quantile(quantile), self.highs.quantile(quantile)
        if low is None or high is None:
            return None
        return Interval(low.low, math.inf if high.high >= ENDLESS else high.high)


class SizeBuckets:
    """Labelled buckets for one kind of size, each one doubling wide: 1, 2-3, 4-7, …, 512-1023, 1024+."""

    def __init__(self, doublings: int) -> None:
        between = (f"{1 << power}-{(2 << power) - 1}" for power in range(1, doublings))
        self.names = ("1", *between, f"{1 << doublings}+")

    def bucket_of(self, size: int) -> str:
        """Return the label of the bucket that holds *size*, which must be at least one.

        >>> BATCH_SIZES.bucket_of(1), BATCH_SIZES.bucket_of(3), BATCH_SIZES.bucket_of(32), BATCH_SIZES.bucket_of(5000)
        ('1', '2-3', '32-63', '1024+')
        """
        return self.names[min(size.bit_length(), len(self.names)) - 1]

    def position(self, name: str) -> int:
        return self.names.index(name) if name in self.names else len(self.names)


# Buckets for the number of items in a batch of a model: 1 to 1024 and more.
BATCH_SIZES = SizeBuckets(10)
# Buckets for the number of tokens of a prompt or a completion: 1 to 131,072 and more.
TOKEN_COUNTS = SizeBuckets(17)


def has_enough_samples(count: int, quantile: float) -> bool:
    """Return whether *count* requests are enough for *quantile*: at least `MIN_TAIL` of them lie beyond it.

    >>> has_enough_samples(1000, 0.99), has_enough_samples(999, 0.99)
    (True, False)
    """
    return count * (1 - quantile) >= MIN_TAIL - 1e-9


def value_at(histogram: Histogram, quantile: float) -> float | None:
    """Return the value at *quantile*; None with too few requests, see `has_enough_samples`."""
    estimate = histogram.quantile(quantile) if has_enough_samples(histogram.count, quantile) else None
    return estimate.value if estimate else None


def samples_needed(quantile: float) -> int:
    """Return the number of requests that is enough for *quantile*, see `has_enough_samples`.

    >>> samples_needed(0.999)
    10000
    """
    return round(MIN_TAIL / (1 - quantile))


def confidence_interval(histogram: Histogram, quantile: float, confidence: float = CONFIDENCE) -> Estimate | None:
    """Return the value at *quantile* with its confidence interval; None for an empty histogram."""
    n = histogram.count
    middle = histogram.quantile(quantile)
    if middle is None:
        return None
    first, last = ranks(n, quantile, confidence)
    low = _edges_at(histogram, first)[0] if first >= 1 else 0.0
    high = _edges_at(histogram, last)[1] if last <= n else math.inf
    return Estimate(middle.value, low, high)


@lru_cache(maxsize=1024)
def ranks(count: int, quantile: float, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """Return the two ranks, in order of latency and counted from 1, whose requests enclose the true quantile.

    The probability of missing the true quantile is at most (1 - *confidence*) / 2 at each end. With too few requests the first
    rank is 0 or below, or the last rank is above *count*, which means that this end is unknown.

    >>> ranks(10, 0.5), ranks(5, 0.5), ranks(1000, 0.99)
    ((2, 9), (0, 6), (983, 997))
    """
    variance = count * quantile * (1 - quantile)
    middle, missed = count * quantile, (1 - confidence) / 2
    if variance > _MANY:
        reach = NormalDist().inv_cdf(1 - missed) * math.sqrt(variance)
        return math.floor(middle - reach), math.ceil(middle + reach) + 1
    reach = math.ceil(_REACH * (math.sqrt(variance) + 1))
    below, above = max(math.floor(middle) - reach, 0), min(math.ceil(middle) + reach, count)
    chances = [_chance(number, count, quantile) for number in range(below, above + 1)]
    first = next((index for index, sum_ in enumerate(accumulate(chances)) if sum_ > missed), 0)
    last = next((index for index, sum_ in enumerate(accumulate(reversed(chances))) if sum_ > missed), 0)
    return below + first, above - last + 1


def _chance(number: int, count: int, quantile: float) -> float:
    if not 0 < quantile < 1:
        return float(number == count * quantile)
    logs = math.lgamma(count + 1) - math.lgamma(number + 1) - math.lgamma(count - number + 1)
    return math.exp(logs + number * math.log(quantile) + (count - number) * math.log1p(-quantile))


def _edges_at(histogram: Histogram, rank: int) -> tuple[float, float]:
    left = rank - histogram.zero
    if left <= 0:
        return (0.0, 0.0)
    for index in sorted(histogram.buckets):
        left -= histogram.buckets[index]
        if left <= 0:
            return bucket_bounds(index, histogram.scale)
    raise AssertionError  # the ranks of the caller exist
