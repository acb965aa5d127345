"""Rate limits: token buckets for each client, in bounded number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from .access_config import RateLimits

# An agent posts every 10 s, so a rate applies to that interval and not to each second.
BURST_SECONDS = 10.0
# Clients with a rate limit that are tracked at once, about 300 bytes each. [count]
MAX_METERS = 10_000
# Floating-point rounding: a client that retries exactly after its delay must be admitted. [seconds]
_ROUNDING_SECONDS = 1e-9
# Idle meters that a new one may remove: more than one, so that the number decreases after a flood.
_MAX_CLEARED = 2


class TokenBucket:
    __slots__ = ("_at", "_level", "_per_second", "_size")

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._size = max(per_second * BURST_SECONDS, 1.0)
        self._level, self._at = self._size, now

    def wait_seconds(self, least: float, now: float) -> float:
        wait_seconds = (least - self._filled(now)) / self._per_second
        return wait_seconds if wait_seconds > _ROUNDING_SECONDS else 0.0

    def take(self, amount: float, now: float) -> None:
        self._level, self._at = self._filled(now) - amount, now

    def is_full(self, now: float) -> bool:
        return self._filled(now) >= self._size

    def _filled(self, now: float) -> float:
        return min(self._size, self._level + (now - self._at) * self._per_second)


class ClientMeter:
    __slots__ = ("_bytes", "_requests")

    def __init__(self, limits: RateLimits, now: float) -> None:
        self._requests, self._bytes = (
            None if rate is None else TokenBucket(rate, now)
            for rate in (limits.requests_per_second, limits.bytes_per_second)
        )

    def request(self, now: float) -> float:
        """Count an allowed request and return 0, or return the retry delay of a refused request in seconds."""
        requests = self._requests.wait_seconds(1.0, now) if self._requests else 0.0
        # The size of a body is known only after receipt: a large body may overdraw the bucket and delay the next request.
        size = self._bytes.wait_seconds(0.0, now) if self._bytes else 0.0
        wait_seconds = max(requests, size)
        if not wait_seconds and self._requests:
            self._requests.take(1.0, now)
        return wait_seconds

    def body(self, size_bytes: int, now: float) -> None:
        if self._bytes:
            self._bytes.take(size_bytes, now)

    def is_idle(self, now: float) -> bool:
        """Return whether all buckets are full, so that the meter can be replaced by a new one."""
        return all(bucket is None or bucket.is_full(now) for bucket in (self._requests, self._bytes))


class ClientMeters:
    """Rate limits of all clients. Not thread-safe.

    Only idle meters are removed; otherwise a client with many addresses could reset its limit. Beyond *most* meters, new clients
    share one meter until others become idle.
    """

    def __init__(self, most: int = MAX_METERS) -> None:
        self._most = most
        # Least recently used first.
        self._meters: OrderedDict[Hashable, ClientMeter] = OrderedDict()
        self._shared: dict[RateLimits, ClientMeter] = {}

    def __len__(self) -> int:
        return len(self._meters)

    def of(self, client: Hashable, limits: RateLimits, now: float) -> ClientMeter:
        key = (client, limits)
        if key in self._meters:
            self._meters.move_to_end(key)
            return self._meters[key]
        self._clear(now)
        if len(self._meters) >= self._most:
            return self._shared.get(limits) or self._shared.setdefault(limits, ClientMeter(limits, now))
        return self._meters.setdefault(key, ClientMeter(limits, now))

    def _clear(self, now: float) -> None:
        for _ in range(min(_MAX_CLEARED, len(self._meters))):
            key = next(iter(self._meters))
            if not self._meters[key].is_idle(now):
                # A meter that refills slowly must not block the idle ones behind it.
                self._meters.move_to_end(key)
                continue
            del self._meters[key]
