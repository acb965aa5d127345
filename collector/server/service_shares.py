"""Share of each sender in the services, so that invented service names do not use up the limit of the whole store."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeAlias

from ...store import SeriesCaps

# Services with data within a day that all senders share. [count]
SERVICES = SeriesCaps().services
# New services of a sender within a day that always have a place; those of all senders fit in the store beside `SERVICES`. [count]
MIN_SERVICES = 4
# A service that a sender has not used for this time no longer counts towards its share. [seconds]
FORGOTTEN_SECONDS = 86_400.0
# Senders that are tracked separately; all others have one limit in common. A service takes about 300 bytes. [count]
_MAX_SENDERS = 1000
_DROP_SECONDS = 60.0

# How a sender is identified (`token`, `certificate` or `address`), and its name.
Sender: TypeAlias = tuple[str, str]


class ServiceShares:
    """Services that each sender has added recently. Thread-safe.

    A sender may add a service while it has added fewer than there are free ones of all *places*, so that a later sender
    always finds some.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, places: int = SERVICES) -> None:
        self._clock, self._places = clock, places
        self._known: frozenset[str] = frozenset()
        # Services with data within a day, and those added since.
        self._active: set[str] = set()
        self._dropped_at = float("-inf")
        self._lock = threading.Lock()
        # By sender (None for all untracked senders): services and time of last use, the least recently used first.
        self._named: OrderedDict[Sender | None, OrderedDict[str, float]] = OrderedDict()
        # Senders that exceeded their share, and when last.
        self._greedy: dict[Sender | None, float] = {}

    def update(self, services: Iterable[str], active: Iterable[str]) -> None:
        """Replace the services in the store: all of them, which are always admitted, and those with data within a day."""
        now = self._clock()
        with self._lock:
            for named in self._named.values():
                _drop_expired(named, now)
            self._known, self._active = frozenset(services), set(active).union(*self._named.values())

    def admit(self, sender: Sender | None, service: str) -> bool:
        """Return whether *sender* may use *service*: it is known or was used recently, or the sender has a share left."""
        if service in self._known:
            return True
        now = self._clock()
        with self._lock:
            if sender not in self._named and len(self._named) >= _MAX_SENDERS:
                self._drop_idle_senders(now)
                sender = sender if len(self._named) < _MAX_SENDERS else None
            named = self._named.setdefault(sender, OrderedDict())
            _drop_expired(named, now)
            if service not in named and len(named) >= max(self._places - len(self._active), MIN_SERVICES):
                self._greedy[sender] = now
                return False
            named[service] = now
            named.move_to_end(service)
            self._active.add(service)
            return True

    def greedy(self) -> list[str]:
        now = self._clock()
        with self._lock:
            self._greedy = {sender: at for sender, at in self._greedy.items() if now - at < FORGOTTEN_SECONDS}
            return [" ".join(sender) if sender else "many addresses" for sender in self._greedy]

    def _drop_idle_senders(self, now: float) -> None:
        """Drop senders without recent services, at most once a minute because all senders are checked."""
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
