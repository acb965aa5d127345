"""Confidence intervals of quantiles.

The intervals use order statistics and make no assumption about the shape of the distribution. The number of requests below
the true quantile is binomial, so the requests at two ranks around it enclose the true value with the wanted confidence.
Each end is widened to the edge of the histogram bucket of its request. The binomial distribution is used for few requests,
its normal approximation for many.

The binomial distribution assumes independent requests. Requests in a queue are not independent: a burst of slow requests is one
event. The interval is therefore a lower bound of the uncertainty; check a small difference over time before acting on it.

Source: H. A. David, H. N. Nagaraja, Order Statistics, 3rd ed., section 7.1.
"""

from __future__ import annotations

import math
from itertools import accumulate
from statistics import NormalDist

from .histogram import Estimate, Histogram, bucket_bounds

# Minimum number of requests beyond a percentile that is shown or evaluated.
MIN_TAIL = 10
CONFIDENCE = 0.95
# Variance from which the normal approximation is as good as the binomial, and fast.
_MANY = 1000
# Number of standard deviations beyond which the mass of a binomial distribution is negligible.
_REACH = 10


def has_enough_samples(count: int, quantile: float) -> bool:
    """Return whether *count* requests are enough for *quantile*: at least `MIN_TAIL` of them lie beyond it.

    >>> has_enough_samples(1000, 0.99), has_enough_samples(999, 0.99)
    (True, False)
    """
    return count * (1 - quantile) >= MIN_TAIL - 1e-9


def value_at(histogram: Histogram, quantile: float) -> float | None:
    """Return the value at *quantile*; None with too few requests, see `has_enough_samples`.

    >>> few = Histogram()
    >>> few.record(0.1, 999)
    >>> value_at(few, 0.99) is None, value_at(few, 0.5) is None
    (True, False)
    """
    found = histogram.quantile(quantile) if has_enough_samples(histogram.count, quantile) else None
    return found.value if found else None


def samples_needed(quantile: float) -> int:
    """Return the number of requests that is enough for *quantile*, see `has_enough_samples`.

    >>> samples_needed(0.999)
    10000
    """
    return round(MIN_TAIL / (1 - quantile))


def interval(histogram: Histogram, quantile: float, confidence: float = CONFIDENCE) -> Estimate | None:
    """Return the value at *quantile* with its confidence interval; None for an empty histogram."""
    n = histogram.count
    middle = histogram.quantile(quantile)
    if middle is None:
        return None
    first, last = ranks(n, quantile, confidence)
    low = _edges_at(histogram, first)[0] if first >= 1 else 0.0
    high = _edges_at(histogram, last)[1] if last <= n else math.inf
    return Estimate(middle.value, low, high)


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
    first = next((place for place, sum_ in enumerate(accumulate(chances)) if sum_ > missed), 0)
    last = next((place for place, sum_ in enumerate(accumulate(reversed(chances))) if sum_ > missed), 0)
    return below + first, above - last + 1


def _chance(number: int, count: int, quantile: float) -> float:
    """Return the probability that exactly *number* of *count* requests are at or below the true quantile."""
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
