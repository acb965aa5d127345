"""Confidence intervals of quantiles, of the ratio of two quantiles, and of the difference between two failure rates.

Quantiles use order statistics and make no assumption about the shape of the distribution. The number of requests below
the true quantile is binomial, so the requests at two ranks around it enclose the true value with the wanted confidence.
Each end is widened to the edge of the histogram bucket of its request. Few requests are counted with the binomial itself,
many with its normal approximation.

The binomial assumes independent requests. In a queue they are not: a burst of slow requests is one event. Treat the
interval as a lower bound of the uncertainty, and look at the difference over time before you act on a small one.

Failure rates use Wilson's score interval, which also holds where nothing failed. The interval of their difference is
combined from both as Newcombe's method 10 does.

Sources:
    H. A. David, H. N. Nagaraja, Order Statistics, 3rd ed., section 7.1.
    R. G. Newcombe, Interval estimation for the difference between independent proportions: comparison of eleven methods,
    Statistics in Medicine 17 (1998), 873-890, method 10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist

from .histogram import Estimate, Histogram, bucket_bounds

# Minimum number of requests beyond a percentile to show or evaluate it.
MIN_TAIL = 10
CONFIDENCE = 0.95
# Variance from which the normal approximation is as good as the binomial, and fast.
_MANY = 1000
# Number of standard deviations beyond which a binomial has no mass.
_REACH = 10


def has_enough_samples(count: int, quantile: float) -> bool:
    """Return whether *count* requests are enough for *quantile*: at least `MIN_TAIL` of them lie beyond it.

    >>> has_enough_samples(1000, 0.99), has_enough_samples(999, 0.99)
    (True, False)
    """
    return count * (1 - quantile) >= MIN_TAIL - 1e-9


def interval(histogram: Histogram, quantile: float, confidence: float = CONFIDENCE) -> Estimate | None:
    """Return the value at *quantile* with its confidence interval; None when nothing was recorded."""
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
    rank is 0 or below, or the last is above *count*: that end is unknown.

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


def ratio(a: Estimate | None, b: Estimate | None) -> Estimate | None:
    """Return b / a with conservative bounds; None unless both are known and *a* is above zero.

    Args:
        a: A value with its interval, from `interval`.
        b: The other value.

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


_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


@dataclass(frozen=True, slots=True)
class FailureDifference:
    """Share of failed requests on both sides, between 0 and 1, and the confidence interval of the difference.

    Args:
        a: Share of side A.
        b: Share of side B.
        low: Lower bound of b - a.
        high: Upper bound of b - a.
    """

    a: float
    b: float
    low: float
    high: float

    @property
    def value(self) -> float:
        """The estimate of b - a."""
        return self.b - self.a

    @property
    def are_more(self) -> bool:
        """Whether B fails more than chance explains."""
        return self.low > 0


def compare_failures(a_failed: int, a_requests: int, b_failed: int, b_requests: int) -> FailureDifference:
    """Return the difference in failure rate between B and A; both sides must have requests.

    >>> found = compare_failures(48, 80, 56, 70)
    >>> round(found.low, 4), round(found.high, 4)
    (0.0524, 0.3339)
    """
    (a, a_low, a_high), (b, b_low, b_high) = _wilson(a_failed, a_requests), _wilson(b_failed, b_requests)
    return FailureDifference(a, b, b - a - math.hypot(b - b_low, a_high - a), b - a + math.hypot(b_high - b, a - a_low))


def _wilson(failed: int, requests: int) -> tuple[float, float, float]:
    """Return the share that failed and its score interval."""
    share, square = failed / requests, _Z**2 / requests
    middle = share + square / 2
    reach = math.sqrt(square * (share * (1 - share) + square / 4))
    return share, max((middle - reach) / (1 + square), 0.0), min((middle + reach) / (1 + square), 1.0)
