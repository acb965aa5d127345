"""Distributions known only as intervals: each value lies in a bucket, and nobody knows where in it.

They are two histograms, of the lower and of the upper edges. Both merge by addition like any other. The k-th smallest value is
at least the k-th smallest lower edge and at most the k-th smallest upper one, so that the true quantile lies between the
quantiles of the two, for certain and without a guess about what is inside a bucket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .histogram import Histogram

# Stands for the upper edge of a last bucket, which has none: longer than anything lasts, and not so far away that tables of
# buckets would become large. [seconds]
ENDLESS = 2.0**40


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a value is: not below *low*, and not above *high*, which is infinite where the last bucket has no end."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values of which only intervals, their number and their sum are known.

    Args:
        lows: The lower edges; its sum is that of the values.
        highs: The upper edges.
    """

    lows: Histogram = field(default_factory=Histogram)
    highs: Histogram = field(default_factory=Histogram)

    @property
    def count(self) -> int:
        """How many values there are."""
        return self.lows.count

    @property
    def mean(self) -> float | None:
        """Their exact mean; None without any."""
        return self.lows.sum / self.count if self.count else None

    def add(self, low: float, high: float, count: int) -> None:
        """Count *count* values in (*low*, *high*]; their sum is told by `set_sum`."""
        self.lows.record(min(low, ENDLESS), count)
        self.highs.record(min(high, ENDLESS), count)

    def set_sum(self, total: float) -> None:
        """Say what the values add up to; without it the sums are those of the edges, which mean nothing."""
        self.lows.sum = self.highs.sum = total

    def quantile(self, quantile: float) -> Interval | None:
        """Return where the value at *quantile* (nearest rank) is, in [0..1]; None without any.

        >>> two = Distribution()
        >>> two.add(0.5, 1.0, 2)
        >>> two.quantile(0.99).high
        1.0
        """
        low, high = self.lows.quantile(quantile), self.highs.quantile(quantile)
        if low is None or high is None:
            return None
        return Interval(low.low, math.inf if high.high >= ENDLESS else high.high)
