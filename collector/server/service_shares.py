"""Limit of services for each sender: a sender that invents service names must not use up the limit of the whole store."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import TypeAlias

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
            _clear(named, now)
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
            _clear(named, now)
            if not named:
                del self._named[sender]


def _clear(named: OrderedDict[str, float], now: float) -> None:
    while named and now - next(iter(named.values())) >= FORGOTTEN_SECONDS:
        named.popitem(last=False)
