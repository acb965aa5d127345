"""Which share of the requests failed, of both sides, and how sure the difference is: a build that fails at once is fast.

Each share lies in Wilson's score interval, which also holds where nothing failed; the interval of the difference is made of both as
that of a quantile is (`difference`).

Source: R. G. Newcombe, Interval estimation for the difference between independent proportions: comparison of eleven methods,
Statistics in Medicine 17 (1998), 873-890, method 10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from .order_statistics import CONFIDENCE

_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


@dataclass(frozen=True, slots=True)
class FailureDifference:
    """The share of failed requests of both sides, between 0 and 1.

    Args:
        a: Of the one.
        b: Of the other.
        low: That of B is at least so much larger.
        high: That of B is at most so much larger.
    """

    a: float
    b: float
    low: float
    high: float

    @property
    def value(self) -> float:
        """How much larger the share of B is."""
        return self.b - self.a

    @property
    def are_more(self) -> bool:
        """Whether B fails more, beyond what chance explains."""
        return self.low > 0


def compare_failures(a_failed: int, a_requests: int, b_failed: int, b_requests: int) -> FailureDifference:
    """Return how many more of B failed; neither side may be empty.

    >>> found = compare_failures(48, 80, 56, 70)
    >>> round(found.low, 4), round(found.high, 4)
    (0.0524, 0.3339)
    """
    (a, a_low, a_high), (b, b_low, b_high) = _wilson(a_failed, a_requests), _wilson(b_failed, b_requests)
    return FailureDifference(a, b, b - a - math.hypot(b - b_low, a_high - a), b - a + math.hypot(b_high - b, a - a_low))


def _wilson(failed: int, requests: int) -> tuple[float, float, float]:
    """Return the share that failed, and the interval it lies in."""
    share, square = failed / requests, _Z**2 / requests
    middle = share + square / 2
    reach = math.sqrt(square * (share * (1 - share) + square / 4))
    return share, max((middle - reach) / (1 + square), 0.0), min((middle + reach) / (1 + square), 1.0)
