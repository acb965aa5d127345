"""How much each client has sent lately: token buckets, a bounded number of them.

Limit of services for each sender: a sender that invents service names must not use up the limit of the whole store.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from typing import TypeAlias

from .access_config import Limits

# Half of the limit of a store (`SeriesCaps.services`): enough for a gateway that forwards for many services. [count]
MAX_SERVICES = 250
# A service that a sender has not used for so long no longer counts; the store does the same, see `series.ACTIVE_SECONDS`. [seconds]
FORGOTTEN_SECONDS = 86_400.0
# Senders that are tracked separately; all others have one limit in common. A service takes about 300 bytes. [count]
_MAX_SENDERS = 1000
_DROP_SECONDS = 60.0

# How a sender is identified (`token`, `certificate` or `address`), and its name.
Sender: TypeAlias = tuple[str, str]


class ServiceShares:
    """Services that each sender has used recently. Thread-safe.

    Args:
        clock: Monotonic time. [seconds]
        known: Services that the store has already; they are always admitted, and count for no sender.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, known: Collection[str] = ()) -> None:
        self._clock, self._known = clock, frozenset(known)
        self._dropped_at = float("-inf")
        self._lock = threading.Lock()
        # By sender (None for all untracked ones): its services and when each was used last, the least recently used first.
        self._named: OrderedDict[Sender | None, OrderedDict[str, float]] = OrderedDict()
        # Senders that exceeded the limit, and when last.
        self._greedy: dict[Sender | None, float] = {}

    def admit(self, sender: Sender | None, service: str) -> bool:
        """Return whether *sender* may use *service*: it has done so recently, or is below its limit."""
        if service in self._known:
            return True
        now = self._clock()
        with self._lock:
            if sender not in self._named and len(self._named) >= _MAX_SENDERS:
                self._drop_idle_senders(now)
                sender = sender if len(self._named) < _MAX_SENDERS else None
            named = self._named.setdefault(sender, OrderedDict())
            _drop_expired(named, now)
            if service not in named and len(named) >= MAX_SERVICES:
                self._greedy[sender] = now
                return False
            named[service] = now
            named.move_to_end(service)
            return True

    def greedy(self) -> list[str]:
        """Return the senders that exceeded their limit recently."""
        now = self._clock()
        with self._lock:
            self._greedy = {sender: at for sender, at in self._greedy.items() if now - at < FORGOTTEN_SECONDS}
            return [" ".join(sender) if sender else "many addresses" for sender in self._greedy]

    def _drop_idle_senders(self, now: float) -> None:
        """Drop senders without recent services; at most once a minute, because it visits all of them."""
        if now - self._dropped_at < _DROP_SECONDS:
            return
        self._dropped_at = now
        for sender, named in list(self._named.items()):
            _drop_expired(named, now)
            if not named:
                del self._named[sender]


def _drop_expired(named: OrderedDict[str, float], now: float) -> None:
    while named and now - next(iter(named.values())) >= FORGOTTEN_SECONDS:
        named.popitem(last=False)


# An agent posts every 10 s: its rate is kept over that time, and not within each second.
BURST_SECONDS = 10.0
# Of addresses that are remembered at once. [about 300 bytes each]
MAX_METERS = 10_000
# Whoever comes just when it was told to finds the bucket full but for the rounding of floating point. [seconds]
_ROUNDING_SECONDS = 1e-9
# How many idle ones a new one may clear away: more than one, so that a flood that is over is forgotten.
_MAX_CLEARED = 2


class TokenBucket:
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


class ClientMeter:
    """What one client may still send of each kind. Not thread-safe by itself."""

    __slots__ = ("_bytes", "_requests")

    def __init__(self, limits: Limits, now: float) -> None:
        self._requests, self._bytes = (
            None if rate is None else TokenBucket(rate, now)
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


class ClientMeters:
    """The meters of all clients. Not thread-safe by itself.

    No meter that still says something is forgotten: who could make it forget could send without limits. When there
    are too many, clients that are new share one until others have become idle.

    Args:
        most: How many meters there may be.
    """

    def __init__(self, most: int = MAX_METERS) -> None:
        self._most = most
        # Least lately used first, and so about the first to be idle.
        self._meters: OrderedDict[Hashable, ClientMeter] = OrderedDict()
        self._shared: dict[Limits, ClientMeter] = {}

    def __len__(self) -> int:
        return len(self._meters)

    def of(self, client: Hashable, limits: Limits, now: float) -> ClientMeter:
        """Return the meter of *client*; other limits than before begin a new one."""
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
