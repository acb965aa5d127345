"""How many services each sender may name: one that invents names must not take the places of all others."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

# Half of the places a store has (`SeriesCaps.services`): what comes through one gateway has enough of them, and nobody has all.
MAX_SERVICES = 250
# Whoever was not named for so long gives its place up; so does a service in the store, see `series.ACTIVE_SECONDS`. [seconds]
FORGOTTEN_SECONDS = 86_400.0
# Of senders that are remembered at once; all others share one share. Each name takes about 300 bytes.
_MAX_SENDERS = 1000

# What it is known by, and its name: `token`, `certificate` or `address`.
Sender: TypeAlias = tuple[str, str]


class ServiceShares:
    """What each sender has named lately. Thread-safe.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # Of each sender (None for those there is no room to tell apart) the services, the one that was named longest ago first, and when that was.
        self._named: OrderedDict[Sender | None, OrderedDict[str, float]] = OrderedDict()
        # Who wanted more, and when last.
        self._greedy: dict[Sender | None, float] = {}

    def admit(self, sender: Sender | None, service: str) -> bool:
        """Say whether *sender* may name *service*: it has done so lately, or has places left."""
        now = self._clock()
        with self._lock:
            if sender not in self._named and len(self._named) >= _MAX_SENDERS:
                self._forget(now)
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
        """Return the senders that wanted more than their share lately."""
        now = self._clock()
        with self._lock:
            self._greedy = {who: at for who, at in self._greedy.items() if now - at < FORGOTTEN_SECONDS}
            return [" ".join(who) if who else "many addresses" for who in self._greedy]

    def _forget(self, now: float) -> None:
        """Forget the senders that have named nothing lately."""
        for sender, named in list(self._named.items()):
            _clear(named, now)
            if not named:
                del self._named[sender]


def _clear(named: OrderedDict[str, float], now: float) -> None:
    while named and now - next(iter(named.values())) >= FORGOTTEN_SECONDS:
        named.popitem(last=False)
