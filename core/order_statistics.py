"""How sure a quantile is, and the ratio of two: order statistics, no assumption on the shape of the distribution.

How many of n requests lie below the true quantile is binomial, whatever the distribution, so the requests at two ranks
around it enclose the true value with the wanted confidence. Each end is widened to the edge of the bucket its request
lies in.

The binomial takes requests for independent. In a queue they are not: a burst of slow requests is one event. Read the
interval as the least there is, and see the difference over time before you act on a small one.

Source: H. A. David, H. N. Nagaraja, Order Statistics, 3rd ed., section 7.1; normal approximation of the binomial, which
`MIN_TAIL` keeps good enough.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from .histogram import Estimate, Histogram, bucket_bounds

# A percentile is drawn, and judged, with at least so many requests beyond it.
MIN_TAIL = 10
CONFIDENCE = 0.95


def bears(count: int, quantile: float) -> bool:
    """Say whether *count* requests are enough for *quantile*: at least `MIN_TAIL` of them lie beyond it.

    >>> bears(1000, 0.99), bears(999, 0.99)
    (True, False)
    """
    return count * (1 - quantile) >= MIN_TAIL - 1e-9


def interval(histogram: Histogram, quantile: float, confidence: float = CONFIDENCE) -> Estimate | None:
    """Return the value at *quantile* with the interval the true one lies in; None when nothing was recorded."""
    n = histogram.count
    middle = histogram.quantile(quantile)
    if middle is None:
        return None
    reach = NormalDist().inv_cdf(0.5 + confidence / 2) * math.sqrt(n * quantile * (1 - quantile))
    first = math.floor(n * quantile - reach)
    last = math.ceil(n * quantile + reach) + 1
    low = _edges_at(histogram, first)[0] if first >= 1 else 0.0
    high = _edges_at(histogram, last)[1] if last <= n else math.inf
    return Estimate(middle.value, low, high)


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
