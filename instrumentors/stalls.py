"""What held the requests of this process up: garbage collections, a stalled event loop, torch.compile; kept in a ring.

A stall is no stage: it lies on top of whatever stage was running, and says why that took so long. It is noted where it
ends, by whoever saw it, without a lock: by the collector's callback, in the middle of anything. The background thread
sorts out what was noted when it reads, so that each instant is one cause's: the innermost's, which ended first. A
collection that keeps a loop is a collection.
"""

from __future__ import annotations

import gc
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from ..core.partition import Interval, segments
from ..core.stages import STALL_GC, holds_up
from .recorder import clock

# Shorter ones explain no tail, and there are hundreds a second.
MIN_STALL_NS: Final = 1_000_000
# A process that collects ten times a second fills it in a minute and a half; kept traces are at most an export old.
MAX_STALLS: Final = 1000


class Stall(NamedTuple):
    """A time in which requests were held up.

    Args:
        cause: By what: a key of `core.stages.STALL_CAUSES`.
        start: By the recorder's clock. [nanoseconds]
        end: By the recorder's clock. [nanoseconds]
    """

    cause: str
    start: int
    end: int


T = TypeVar("T", bound=tuple[str, int, int])
_START, _END = itemgetter(1), itemgetter(2)


class Stalls:
    """The latest stalls of this process, at most `MAX_STALLS`. Any thread notes them; one at a time reads."""

    def __init__(self) -> None:
        self._noted: deque[Stall] = deque(maxlen=MAX_STALLS)
        # Sorted, and no two of them at the same time.
        self._ring: list[Stall] = []
        self._since = 0

    def watch(self) -> None:
        """Note the garbage collections from here on."""
        if self._collection not in gc.callbacks:
            gc.callbacks.append(self._collection)

    def note(self, cause: str, start: int, end: int) -> None:
        """Note what has just ended; times in nanoseconds by the recorder's clock."""
        if end - start >= MIN_STALL_NS:
            self._noted.append(Stall(cause, start, end))

    def during(self, start: int, end: int) -> Sequence[Stall]:
        """Return those that touch the time from *start* to *end*: sorted, and no two of them at the same time."""
        while self._noted:
            self._take_in(self._noted.popleft())
        return touching(self._ring, start, end)

    def _take_in(self, stall: Stall) -> None:
        """Keep of *stall* what is no other's yet."""
        begun = stall.start
        for other in [*touching(self._ring, stall.start, stall.end), Stall("", stall.end, stall.end)]:
            if begun < other.start:
                insort(self._ring, Stall(stall.cause, begun, other.start), key=_END)
            begun = max(begun, other.end)
        del self._ring[:-MAX_STALLS]

    def _collection(self, phase: str, _: dict[str, Any]) -> None:
        # No other Python code runs in between: a collection holds the interpreter's lock and does not nest.
        if phase == "start":
            self._since = clock()
        else:
            self.note(STALL_GC.key, self._since, clock())


def touching(apart: Sequence[T], start: int, end: int) -> Sequence[T]:
    """Return those of *apart*, sorted and no two at the same time, that share time with *start* to *end*."""
    return apart[bisect_right(apart, start, key=_END) : bisect_left(apart, end, key=_START)]


def by_stage(met: Iterable[Stall], intervals: Collection[Interval], start: int, end: int) -> dict[tuple[str, str], int]:
    """Return for how many nanoseconds a request was held up, by cause and by the stage that was its own just then.

    Args:
        met: The stalls it met, as `Stalls.during` returns them.
        intervals: Its stages.
        start: When it began, by the recorder's clock. [nanoseconds]
        end: When it ended; not before *start*. [nanoseconds]
    """
    found: dict[tuple[str, str], int] = {}
    parts = segments(intervals, start, end)
    for cause, begun, ended in met:
        for stage, first, last in touching(parts, begun, ended):
            if holds_up(cause, stage):
                shared = min(last, ended) - max(first, begun)
                found[cause, stage] = found.get((cause, stage), 0) + shared
    return found


def overlaps(met: Sequence[Stall], stage: str, start: int, end: int) -> dict[str, int]:
    """Return how long the *stage* was held up that ran from *start* to *end*, in nanoseconds by cause.

    Args:
        met: Stalls, as `Stalls.during` returns them.
        stage: Which.
        start: By the recorder's clock. [nanoseconds]
        end: By the recorder's clock. [nanoseconds]
    """
    found: dict[str, int] = {}
    for cause, begun, ended in touching(met, start, end):
        if holds_up(cause, stage):
            found[cause] = found.get(cause, 0) + min(end, ended) - max(start, begun)
    return found


stalls: Final = Stalls()
