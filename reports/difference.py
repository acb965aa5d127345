"""How much slower one set of requests is than another at a quantile, and how sure that is.

A quantile of either side lies between two of its requests whose ranks the binomial gives, whatever the shape of the distribution
(`core.confidence`). From both intervals comes that of the difference. Each end of it is as far off as the ends that it is made
of, added up as squares: it is unlikely that chance is at its worst on both sides at once. What is not known within a bucket is no
chance, and adds up as it is. Where there are too few requests for an end, it is not known.

Source: G. Y. Zou, A. Donner, Construction of confidence limits about effect measures: a general approach, Statistics in Medicine 27
(2008), 1693-1702 (MOVER).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..core.confidence import CONFIDENCE, FailureDifference, interval, ranks
from ..core.histogram import Estimate, Histogram
from .thresholds import Threshold

Outcome: TypeAlias = Literal["passed", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The same quantile of both sides, in seconds.

    Args:
        quantile: Which one. [0..1]
        a: Of the one, with the interval it lies in.
        b: Of the other.
        low: B is at least so much slower; -inf where that is not known.
        high: B is at most so much slower; inf where that is not known.
    """

    quantile: float
    a: Estimate
    b: Estimate
    low: float
    high: float

    @property
    def value(self) -> float:
        """How much slower B is."""
        return self.b.value - self.a.value

    @property
    def ratio(self) -> float | None:
        """The same as a share of A; None where that has no time."""
        return self.value / self.a.value if self.a.value else None

    @property
    def is_clear(self) -> bool:
        """Whether one side is slower beyond what chance explains."""
        return self.low > 0 or self.high < 0


def difference(a: Histogram, b: Histogram, quantile: float) -> Difference:
    """Return how much slower *b* is than *a* at *quantile*; neither may be empty.

    >>> from stagelens.core.histogram import Histogram
    >>> difference(Histogram(zero=5), Histogram(zero=5), 0.99).high
    inf
    """
    (before, a_low, a_high), (after, b_low, b_high) = _at(a, quantile), _at(b, quantile)
    low = b_low - a_high - math.hypot(b_low - after.low, before.high - a_high)
    high = b_high - a_low + math.hypot(after.high - b_high, a_low - before.low)
    return Difference(
        quantile,
        before,
        after,
        low if _has_low(b, quantile) else -math.inf,
        high if _has_low(a, quantile) else math.inf,
    )


def _at(histogram: Histogram, quantile: float) -> tuple[Estimate, float, float]:
    """Return the value at *quantile* with its interval, and the bounds of the bucket it is in."""
    found, bucket = interval(histogram, quantile), histogram.quantile(quantile)
    if found is None or bucket is None:
        msg = "both sides must have requests"
        raise ValueError(msg)
    return found, max(bucket.low, found.low), min(bucket.high, found.high)


def _has_low(histogram: Histogram, quantile: float) -> bool:
    return ranks(histogram.count, quantile)[0] >= 1


def needed(quantile: float) -> int:
    """Return how many requests a side must have for an interval at *quantile*.

    >>> needed(0.5), needed(0.99)
    (6, 368)
    """
    missed = (1 - CONFIDENCE) / 2
    return math.ceil(math.log(missed) / math.log(max(quantile, 1 - quantile)))


def judge(threshold: Threshold, found: Difference | FailureDifference, *, strict: bool) -> Outcome:
    """Say whether *found* is beyond *threshold*.

    Args:
        threshold: What is allowed.
        found: What there is.
        strict: Take the estimates as they are, however few requests they come from.
    """
    before = found.a if isinstance(found, FailureDifference) else found.a.value
    beyond = found.value > threshold.allowed(before)
    if strict:
        return "failed" if beyond else "passed"
    if math.isinf(found.low):
        return "unknown"
    return "failed" if beyond and found.low > 0 else "passed"
