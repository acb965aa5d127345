"""How sure a quantile is, and the ratio of two: order statistics, no assumption on the shape of the distribution.

How many of n requests lie below the true quantile is binomial, whatever the distribution, so the requests at two ranks
around it enclose the true value with the wanted confidence. Each end is widened to the edge of the bucket its request
lies in.

The binomial takes requests for independent. In a queue they are not: a burst of slow requests is one event. Read the
interval as the least there is, and see the difference over time before you act on a small one.

Source: H. A. David, H. N. Nagaraja, Order Statistics, 3rd ed., section 7.1. Few requests are counted by the binomial itself, many
by its normal approximation.
"""

from __future__ import annotations

import math
from itertools import accumulate
from statistics import NormalDist

from .histogram import Estimate, Histogram, bucket_bounds

# A percentile is drawn, and judged, with at least so many requests beyond it.
MIN_TAIL = 10
CONFIDENCE = 0.95
# From this variance on the normal approximation is as good as the binomial, and takes no time.
_MANY = 1000
# Beyond so many standard deviations, and some for good measure, there is nothing of a binomial.
_REACH = 10


def has_enough_samples(count: int, quantile: float) -> bool:
    """Say whether *count* requests are enough for *quantile*: at least `MIN_TAIL` of them lie beyond it.

    >>> has_enough_samples(1000, 0.99), has_enough_samples(999, 0.99)
    (True, False)
    """
    return count * (1 - quantile) >= MIN_TAIL - 1e-9


def interval(histogram: Histogram, quantile: float, confidence: float = CONFIDENCE) -> Estimate | None:
    """Return the value at *quantile* with the interval the true one lies in; None when nothing was recorded."""
    n = histogram.count
    middle = histogram.quantile(quantile)
    if middle is None:
        return None
    first, last = ranks(n, quantile, confidence)
    low = _edges_at(histogram, first)[0] if first >= 1 else 0.0
    high = _edges_at(histogram, last)[1] if last <= n else math.inf
    return Estimate(middle.value, low, high)


def ranks(count: int, quantile: float, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """Return which two of *count* requests, in order of latency and counted from 1, enclose the true quantile.

    Each end is missed with half of what *confidence* leaves at the most. Where there are too few requests for that the first is
    0 or below, or the last is beyond *count*: that end is not known.

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
    """Return how likely it is that *number* of *count* requests are not above the true quantile."""
    if not 0 < quantile < 1:
        return float(number == count * quantile)
    logs = math.lgamma(count + 1) - math.lgamma(number + 1) - math.lgamma(count - number + 1)
    return math.exp(logs + number * math.log(quantile) + (count - number) * math.log1p(-quantile))


def ratio(a: Estimate | None, b: Estimate | None) -> Estimate | None:
    """Return b / a, as sure as both together are at least; None unless both are known and *a* is above zero.

    Args:
        a: A value with its interval, as `interval` gives it.
        b: Another.

    >>> ratio(Estimate(2.0, 1.0, 4.0), Estimate(4.0, 2.0, 8.0))
    Estimate(value=2.0, low=0.5, high=8.0)
    """
    if a is None or b is None or a.value <= 0:
        return None
    return Estimate(b.value / a.value, b.low / a.high, b.high / a.low if a.low > 0 else math.inf)


def _edges_at(histogram: Histogram, rank: int) -> tuple[float, float]:
    left = rank - histogram.zero
    if left <= 0:
        return (0.0, 0.0)
    for index in sorted(histogram.buckets):
        left -= histogram.buckets[index]
        if left <= 0:
            return bucket_bounds(index, histogram.scale)
    raise AssertionError  # the caller asks for ranks that exist
