"""Who guesses secrets waits: longer with every wrong guess from the same address."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

# Everybody mistypes; from here on each wrong guess doubles the wait.
_FREE = 5
_LONGEST_SECONDS = 300.0
_MAX_ADDRESSES = 4096


class Patience:
    """Counts wrong guesses by address. Thread-safe, and bounded: the address that was quiet longest is forgotten.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        # Address to wrong guesses and the time until which it waits.
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait_seconds(self, address: str) -> float:
        """Return how long *address* has to wait before its next guess; 0 for not at all."""
        with self._lock:
            _, until = self._known.get(address, (0, 0.0))
            return max(0.0, until - self._clock())

    def failed(self, address: str) -> None:
        """Take note of a wrong guess."""
        with self._lock:
            wrong = self._known.pop(address, (0, 0.0))[0] + 1
            wait = min(2.0 ** (wrong - _FREE), _LONGEST_SECONDS) if wrong >= _FREE else 0.0
            self._known[address] = (wrong, self._clock() + wait)
            if len(self._known) > _MAX_ADDRESSES:
                self._known.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """Forget the wrong guesses of *address*."""
        with self._lock:
            self._known.pop(address, None)
