"""Who guesses secrets waits: longer with every wrong guess from the same address or IPv6 network."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from ..core.addresses import owner_of

# Everybody mistypes; from here on each wrong guess doubles the wait.
_FREE = 5
_LONGEST_SECONDS = 300.0
_MAX_ADDRESSES = 4096


class LoginThrottle:
    """Counts wrong guesses by address. Thread-safe, and bounded: the address that was quiet longest is forgotten.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        # Address to wrong guesses and the time until which it waits.
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def attempt(self, address: str) -> float:
        """Return how long *address* has to wait before it may guess, in seconds; 0 where it may now.

        Such a guess counts as a wrong one until `succeeded`: of many at once no more are looked at than of as many one after the other.
        """
        owner, now = owner_of(address), self._clock()
        with self._lock:
            wrong, until = self._known.get(owner, (0, 0.0))
            if until > now:
                return until - now
            wrong += 1
            wait = min(2.0 ** (wrong - _FREE), _LONGEST_SECONDS) if wrong >= _FREE else 0.0
            self._known[owner] = (wrong, now + wait)
            self._known.move_to_end(owner)
            if len(self._known) > _MAX_ADDRESSES:
                self._known.popitem(last=False)
            return 0.0

    def succeeded(self, address: str) -> None:
        """Forget the wrong guesses of *address*."""
        with self._lock:
            self._known.pop(owner_of(address), None)
