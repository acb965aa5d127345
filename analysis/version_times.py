"""The times over which two versions of one service are compared: the same time, or one time after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

# Two versions overlap for some minutes in every rollout: that is no time in which both served.
ROLLOUT = timedelta(minutes=5)
_QUANTILE = 0.99


@dataclass(frozen=True, slots=True)
class Life:
    """When a version served, or a part of that time.

    Args:
        start: The first request.
        end: The end of the last bucket, itself outside.
    """

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class VersionTimes:
    """Over which time each of two versions is compared.

    Args:
        a: The time of A.
        b: The time of B.
        together: Whether both are the same time, in which both served.
    """

    a: Life
    b: Life
    together: bool


def version_times(a: Life, b: Life, requests: Callable[[Life, Life], int]) -> VersionTimes:
    """Return the time both served in; of versions that followed each other, the earlier one until the later one began.

    Versions overlap in a rollout too, and after a rollback the older one has a gap where the newer one served. Such an overlap has
    too few requests for p99 where the times after each other have more.

    Args:
        a: When A served.
        b: When B served.
        requests: Returns the number of requests of the side that has fewer, for a time of A and a time of B.
    """
    first, second = _consecutive(a, b)
    shared = Life(max(a.start, b.start), min(a.end, b.end))
    if shared.end - shared.start > ROLLOUT:
        count = requests(shared, shared)
        if has_enough_samples(count, _QUANTILE) or count >= requests(first, second):
            return VersionTimes(shared, shared, together=True)
    return VersionTimes(first, second, together=False)


def _consecutive(a: Life, b: Life) -> tuple[Life, Life]:
    if a.start == b.start:
        return a, b
    return (_until(a, b.start), b) if a.start < b.start else (a, _until(b, a.start))


def _until(life: Life, end: datetime) -> Life:
    return Life(life.start, min(life.end, end))
