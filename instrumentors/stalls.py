"""Stalls: what held up the requests of this process, and kernel counters of the time around a request.

A stall is a garbage collection, a stalled event loop, a missing CPU, or a compilation by torch.compile. It overlaps the stage
that was running and explains its duration. The code that sees a stall notes it at its end, without a lock; the background
thread sorts the notes into a ring, so that each instant has one cause: that of the innermost stall, which ended first.

A heartbeat callback in each watched event loop measures stalls of the loop: the delay from when a beat was due to when it ran.
The time without a CPU comes from the kernel. A loop that stalled before the beat was due stalled longer than that, by at most
the time between two beats.

Process counters (context switches, page faults, allocator retries) are read about once a second. A trace gets their increase
between the last reading before its request and the first one after it. They belong to the whole process and are no stalls.
"""

from __future__ import annotations

import gc
import resource
import sys
from asyncio import AbstractEventLoop, get_running_loop
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakSet

from ..core import names
from ..core.hardware import CPU
from ..core.partition import Interval, segments
from ..core.stages import holds_up
from ..core.stalls import LOOP
from . import recorder
from .instrumentor import log_failure
from .loads import on_and_off_cpu
from .records import clock

# Measured: a reading takes 5 µs.
READ_EVERY_NS: Final = 500_000_000
# Ten minutes; kept traces are at most an export old.
MAX_COUNTER_READINGS: Final = 1200


class CounterReading(NamedTuple):
    """One reading, in the order of `names.AROUND`.

    Args:
        at: When, by the recorder's clock. [nanoseconds]
        switches: How often a thread was taken off its CPU though it had more to do.
        major_faults: How many pages had to be read from a disk.
        allocator_retries: How often torch had no memory left on a device, and gave back what it had cached.
    """

    at: int
    switches: int
    major_faults: int
    allocator_retries: int


class ProcessCounters:
    """The latest readings of this process."""

    def __init__(self) -> None:
        self._looks: deque[CounterReading] = deque(maxlen=MAX_COUNTER_READINGS)

    def look(self, *, again: bool = False) -> None:
        """Read the counters, *again* also where that was done just now; never raises."""
        now = clock()
        if self._looks and now - self._looks[-1].at < READ_EVERY_NS and not again:
            return
        try:
            used = resource.getrusage(resource.RUSAGE_SELF)
            self._looks.append(CounterReading(now, used.ru_nivcsw, used.ru_majflt, _allocator_retries()))
        except Exception:
            log_failure("reading what the process goes through")

    def around(self, start: int, end: int) -> dict[str, int]:
        """Return what happened around a request as attributes of its root; none where nothing did, or nobody looked.

        Args:
            start: When it began, by the recorder's clock. [nanoseconds]
            end: When it ended. [nanoseconds]
        """
        looks = list(self._looks)
        before = bisect_right(looks, start, key=attrgetter("at")) - 1
        after = bisect_left(looks, end, key=attrgetter("at"))
        if before < 0 or after == len(looks):
            return {}
        grown = [last - first for first, last in zip(looks[before], looks[after], strict=True)]
        return {key: more for key, more in zip(names.AROUND, grown, strict=True) if more > 0} if any(grown[1:]) else {}


def _allocator_retries() -> int:
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    return sum(cuda.memory_stats(device).get("num_alloc_retries", 0) for device in range(cuda.device_count()))


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


# Measured: a beat takes 8 µs of a busy loop, 0.04 % of it; waking an idle one up, it takes 0.2 % of a core.
BEAT_SECONDS, IDLE_SECONDS = 0.02, 0.1
# A timer of a loop that nothing keeps comes up to two milliseconds late.
MIN_LATE_NS: Final = 5_000_000

_watched: WeakSet[AbstractEventLoop] = WeakSet()


class LoopLag:
    """How late the worst beat came since that was last asked."""

    def __init__(self) -> None:
        self._worst_ns = -1

    def note(self, late_ns: int) -> None:
        """Note a beat. Two loops may do so at once: one of the two is lost then, seldom, and the other as true."""
        self._worst_ns = max(self._worst_ns, late_ns)

    def take(self) -> int | None:
        """Return it in nanoseconds, None where there was no beat."""
        worst, self._worst_ns = self._worst_ns, -1
        return worst if worst >= 0 else None


loop_lag: Final = LoopLag()


def watch_loop() -> None:
    """Note from here on when the running loop is stalled; never raises."""
    try:
        loop = get_running_loop()
        if loop not in _watched:
            _watched.add(loop)
            _next_beat(loop)
    except Exception:
        log_failure("watching an event loop")


def _next_beat(loop: AbstractEventLoop) -> None:
    # Requests that the background thread has yet to take tell that there were some within the last second.
    seconds = BEAT_SECONDS if recorder.pending else IDLE_SECONDS
    loop.call_later(seconds, _beat, loop, clock() + int(seconds * 1e9), on_and_off_cpu())


def _beat(loop: AbstractEventLoop, due: int, before: tuple[int, int]) -> None:
    now = clock()
    loop_lag.note(max(0, now - due))
    if now - due >= MIN_LATE_NS:
        # Of another thread, where the loop has been taken to one, nothing is known.
        ran, waited = (max(0, after - earlier) for after, earlier in zip(on_and_off_cpu(), before, strict=True))
        # When in that time is not known. What a loop has slept it slept before the beat was due; the rest is taken for even.
        late = now - due
        without = min(late, waited if ran + waited <= late else waited * late // (ran + waited))
        stalls.note(CPU.key, due, due + without)
        stalls.note(LOOP.key, due + without, now)
    _next_beat(loop)
