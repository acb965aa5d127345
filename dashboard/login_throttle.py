"""Login throttle: delays repeated failed logins from one address or IPv6 network."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from ..core.addresses import client_of

# Failed attempts without a delay; each further one doubles it.
_FREE = 5
_LONGEST_SECONDS = 300.0
# Beyond `_LONGEST_SECONDS`; without a bound the power overflows.
_MAX_DOUBLINGS = 10
_MAX_ADDRESSES = 4096


class LoginThrottle:
    """Failed logins by address. Thread-safe and bounded: the least recently used address is dropped.

    Args:
        clock: Monotonic time. [seconds]
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        # Address to its failed attempts and the end of its delay.
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def attempt(self, address: str) -> float:
        """Return how long *address* has to wait before its next attempt, in seconds; 0 if it may try now.

        An allowed attempt counts as failed until `succeeded`, so that concurrent attempts are limited like consecutive ones.
        """
        owner, now = client_of(address), self._clock()
        with self._lock:
            wrong, until = self._known.get(owner, (0, 0.0))
            if until > now:
                return until - now
            wrong += 1
            wait = min(2.0 ** min(wrong - _FREE, _MAX_DOUBLINGS), _LONGEST_SECONDS) if wrong >= _FREE else 0.0
            self._known[owner] = (wrong, now + wait)
            self._known.move_to_end(owner)
            if len(self._known) > _MAX_ADDRESSES:
                self._known.popitem(last=False)
            return 0.0

    def succeeded(self, address: str) -> None:
        """Reset the failed attempts of *address*."""
        with self._lock:
            self._known.pop(client_of(address), None)
