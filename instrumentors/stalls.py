"""When the whole process stood still: garbage collections, kept in a ring, so that a trace can say what it met.

A stall is no stage: it lies on top of whatever stage was running, and says why that took so long. The collector calls
back at the start and the end of each collection; a short one is not worth a line.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from .recorder import clock

GC: Final = "gc"
# Shorter ones explain no tail, and there are hundreds a second.
MIN_STALL_NS: Final = 1_000_000
# A process that collects ten times a second fills it in a minute and a half; kept traces are at most an export old.
MAX_STALLS: Final = 1000


class Stall(NamedTuple):
    """One time the process stood still.

    Args:
        cause: What stopped it.
        start: By the recorder's clock. [nanoseconds]
        end: By the recorder's clock. [nanoseconds]
    """

    cause: str
    start: int
    end: int


class Stalls:
    """The latest stalls of this process, at most `MAX_STALLS`."""

    def __init__(self) -> None:
        self._ring: deque[Stall] = deque(maxlen=MAX_STALLS)
        self._since = 0

    def __len__(self) -> int:
        return len(self._ring)

    def watch(self) -> None:
        """Note the garbage collections from here on."""
        if self._collection not in gc.callbacks:
            gc.callbacks.append(self._collection)

    def during(self, start: int, end: int) -> list[Stall]:
        """Return those that touch the time from *start* to *end*."""
        return [stall for stall in list(self._ring) if stall.end > start and stall.start < end]

    def _collection(self, phase: str, _: dict[str, Any]) -> None:
        # No other Python code runs in between: a collection holds the interpreter's lock and does not nest.
        if phase == "start":
            self._since = clock()
        elif clock() - self._since >= MIN_STALL_NS:
            self._ring.append(Stall(GC, self._since, clock()))


def overlaps(met: Iterable[Stall], start: int, end: int) -> dict[str, int]:
    """Return how long the process stood still between *start* and *end*, in nanoseconds by cause."""
    found: dict[str, int] = {}
    for cause, begun, ended in met:
        shared = min(end, ended) - max(start, begun)
        if shared > 0:
            found[cause] = found.get(cause, 0) + shared
    return found


stalls: Final = Stalls()
