"""How much each client has sent lately: token buckets, a bounded number of them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable

from .clients import Limits

# An agent posts every 10 s: its rate is kept over that time, and not within each second.
BURST_SECONDS = 10.0
# Of addresses that are remembered at once. [about 300 bytes each]
MAX_METERS = 10_000
# Whoever comes just when it was told to finds the bucket full but for the rounding of floating point. [seconds]
_ROUNDING_SECONDS = 1e-9
# How many idle ones a new one may clear away: more than one, so that a flood that is over is forgotten.
_CLEARED = 2


class Bucket:
    """What a client may still send; it fills up again with time and may be overdrawn.

    Args:
        per_second: How fast it fills.
        now: Seconds of a monotonic clock.
    """

    __slots__ = ("_at", "_level", "_per_second", "_size")

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._size = max(per_second * BURST_SECONDS, 1.0)
        self._level, self._at = self._size, now

    def wait_seconds(self, least: float, now: float) -> float:
        """Return how long it takes until the bucket holds *least*; 0 if it does already."""
        wait_seconds = (least - self._filled(now)) / self._per_second
        return wait_seconds if wait_seconds > _ROUNDING_SECONDS else 0.0

    def take(self, amount: float, now: float) -> None:
        """Take *amount*, even what is not there yet."""
        self._level, self._at = self._filled(now) - amount, now

    def is_full(self, now: float) -> bool:
        """Say whether it is as good as a new one."""
        return self._filled(now) >= self._size

    def _filled(self, now: float) -> float:
        return min(self._size, self._level + (now - self._at) * self._per_second)


class Meter:
    """What one client may still send of each kind. Not thread-safe by itself."""

    __slots__ = ("_bytes", "_requests")

    def __init__(self, limits: Limits, now: float) -> None:
        self._requests, self._bytes = (
            None if rate is None else Bucket(rate, now)
            for rate in (limits.requests_per_second, limits.bytes_per_second)
        )

    def request(self, now: float) -> float:
        """Count a request, or return after how many seconds it may be sent again; what is refused costs nothing."""
        requests = self._requests.wait_seconds(1.0, now) if self._requests else 0.0
        # How large a body is shows when it is here: it may overdraw, and the next one waits for it.
        size = self._bytes.wait_seconds(0.0, now) if self._bytes else 0.0
        wait_seconds = max(requests, size)
        if not wait_seconds and self._requests:
            self._requests.take(1.0, now)
        return wait_seconds

    def body(self, size_bytes: int, now: float) -> None:
        """Count the body of a request."""
        if self._bytes:
            self._bytes.take(size_bytes, now)

    def is_idle(self, now: float) -> bool:
        """Say whether it is as good as a new one."""
        return all(bucket is None or bucket.is_full(now) for bucket in (self._requests, self._bytes))


class Meters:
    """The meters of all clients. Not thread-safe by itself.

    No meter that still says something is forgotten: who could make it forget could send without limits. When there
    are too many, clients that are new share one until others have become idle.

    Args:
        most: How many meters there may be.
    """

    def __init__(self, most: int = MAX_METERS) -> None:
        self._most = most
        # Least lately used first, and so about the first to be idle.
        self._meters: OrderedDict[Hashable, Meter] = OrderedDict()
        self._shared: dict[Limits, Meter] = {}

    def __len__(self) -> int:
        return len(self._meters)

    def of(self, client: Hashable, limits: Limits, now: float) -> Meter:
        """Return the meter of *client*; other limits than before begin a new one."""
        key = (client, limits)
        if key in self._meters:
            self._meters.move_to_end(key)
            return self._meters[key]
        self._clear(now)
        if len(self._meters) >= self._most:
            return self._shared.get(limits) or self._shared.setdefault(limits, Meter(limits, now))
        return self._meters.setdefault(key, Meter(limits, now))

    def _clear(self, now: float) -> None:
        for _ in range(min(_CLEARED, len(self._meters))):
            key = next(iter(self._meters))
            if not self._meters[key].is_idle(now):
                # One that is slow to fill must not hide the idle ones behind it.
                self._meters.move_to_end(key)
                continue
            del self._meters[key]


def whole_seconds(wait_seconds: float) -> int:
    """Return *wait_seconds* as `Retry-After` has it: whole, and at least one.

    >>> whole_seconds(0.2), whole_seconds(3.01)
    (1, 4)
    """
    return max(math.ceil(wait_seconds), 1)
