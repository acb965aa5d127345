"""Stalls: what held up the requests of this process, and kernel counters of the time around a request.

A stall is a garbage collection, a stalled event loop, a missing CPU, or a compilation by torch.compile. It overlaps the stage that was
running. Each is noted at its end, without a lock, and sorted into a ring in which each instant has the cause of its innermost stall.

A heartbeat in each event loop measures its delay; the time without a CPU comes from the kernel. Heartbeats are frequent only after
a request that may have waited for its loop. Counters (context switches, page faults, allocator retries) belong to the whole process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
from asyncio import AbstractEventLoop, get_running_loop
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter, itemgetter
from threading import get_ident
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakSet

from ..core import names
from ..core.partition import Interval, segments
from ..core.stages import STALL_CPU, STALL_GC, STALL_LOOP, holds_up
from . import recorder
from .instrumentor import log_failure
from .loads import on_and_off_cpu
from .probes import without_signals
from .records import clock

# Measured: one reading takes 5 µs.
READ_EVERY_NS: Final = 500_000_000
# Ten minutes; retained traces are at most one export interval old.
MAX_COUNTER_READINGS: Final = 1200
# Shorter stalls do not explain tail latency, and there are hundreds per second.
MIN_STALL_NS: Final = 1_000_000
# Ten garbage collections per second fill the ring in 100 seconds; retained traces are at most one export interval old.
MAX_STALLS: Final = 1000
T = TypeVar("T", bound=tuple[str, int, int])
_TIMES: Final = iter(clock, None)
# How long heartbeats stay frequent after the last request that may have waited.
CLOSELY_NS: Final = 10 * 10**9
# The timer of a loop without stalls is up to two milliseconds late.
MIN_LATE_NS: Final = 5_000_000
# Length of the three numbers of a schedstat file.
_SCHEDSTAT_BYTES: Final = 64


class CounterReading(NamedTuple):
    at: int  # Time of the reading. [nanoseconds by `clock`]
    switches: int  # Number of involuntary context switches
    major_faults: int  # Number of pages that were read from a disk
    allocator_retries: int  # Number of times torch ran out of device memory and released its cache


class ProcessCounters:
    def __init__(self) -> None:
        self._readings: deque[CounterReading] = deque(maxlen=MAX_COUNTER_READINGS)

    def read(self, *, again: bool = False) -> None:
        """Read the counters, unless they were just read; *again* forces a reading. Never raises."""
        now = clock()
        if self._readings and now - self._readings[-1].at < READ_EVERY_NS and not again:
            return
        try:
            used = resource.getrusage(resource.RUSAGE_SELF)
            self._readings.append(CounterReading(now, used.ru_nivcsw, used.ru_majflt, _allocator_retries()))
        except Exception:
            log_failure("reading stalls of the process")

    def increase_around(self, start: int, end: int) -> dict[str, int]:
        """Return the increase of the counters around a request as span attributes; none without an increase or readings."""
        readings = list(self._readings)
        before = bisect_right(readings, start, key=attrgetter("at")) - 1
        after = bisect_left(readings, end, key=attrgetter("at"))
        if before < 0 or after == len(readings):
            return {}
        grown = [last - first for first, last in zip(readings[before], readings[after], strict=True)]
        return {key: more for key, more in zip(names.AROUND, grown, strict=True) if more > 0} if any(grown[1:]) else {}


def _allocator_retries() -> int:
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    return sum(cuda.memory_stats(device).get("num_alloc_retries", 0) for device in range(cuda.device_count()))


class Stall(NamedTuple):
    cause: str  # A key of `core.stages.STALL_CAUSES`
    start: int  # Start. [nanoseconds by `clock`]
    end: int  # End. [nanoseconds by `clock`]


_START, _END = itemgetter(1), itemgetter(2)


class Stalls:
    """The latest stalls of this process, at most `MAX_STALLS`. Thread-safe for many writers and one reader."""

    def __init__(self) -> None:
        self._noted: deque[tuple[str, int, int]] = deque(maxlen=MAX_STALLS)
        # Sorted, without overlaps.
        self._ring: list[Stall] = []
        self._since = 0

    def watch(self) -> None:
        if self._collection not in gc.callbacks:
            gc.callbacks.append(self._collection)

    def note(self, cause: str, start: int, end: int) -> None:
        """Record a stall that has just ended, with times in nanoseconds by `clock`."""
        if end - start >= MIN_STALL_NS:
            self._noted.append((cause, start, end))

    def during(self, start: int, end: int) -> Sequence[Stall]:
        """Return the stalls that overlap the time from *start* to *end*, sorted, without overlaps among themselves."""
        while self._noted:
            self._insert(Stall(*self._noted.popleft()))
        return overlapping(self._ring, start, end)

    def _insert(self, stall: Stall) -> None:
        started = stall.start
        for other in [*overlapping(self._ring, stall.start, stall.end), Stall("", stall.end, stall.end)]:
            if started < other.start:
                insort(self._ring, Stall(stall.cause, started, other.start), key=_END)
            started = max(started, other.end)
        del self._ring[:-MAX_STALLS]

    # No other Python code runs in between: a collection holds the interpreter lock and does not nest. A collection may begin
    # inside of C code during which a signal came: what its handler raises would end here. So this calls nothing.
    @without_signals
    def _collection(self, phase: str, _: dict[str, Any]) -> None:
        now = 0
        for now in _TIMES:  # noqa: B007 - a call of the clock would look for signals
            break
        if phase == "start":
            self._since = now
        elif now - self._since >= MIN_STALL_NS:
            self._noted += ((STALL_GC.key, self._since, now),)


def overlapping(intervals: Sequence[T], start: int, end: int) -> Sequence[T]:
    """Return those of *intervals* (sorted, without overlaps) that overlap the time from *start* to *end*."""
    return intervals[bisect_right(intervals, start, key=_END) : bisect_left(intervals, end, key=_START)]


def by_stage(met: Iterable[Stall], intervals: Collection[Interval], start: int, end: int) -> dict[tuple[str, str], int]:
    """Return the stall time of a request in nanoseconds, by cause and by the stage that was running."""
    time_by_stage: dict[tuple[str, str], int] = {}
    parts = segments(intervals, start, end)
    for cause, started, ended in met:
        for stage, first, last in overlapping(parts, started, ended):
            if holds_up(cause, stage):
                shared = min(last, ended) - max(first, started)
                time_by_stage[cause, stage] = time_by_stage.get((cause, stage), 0) + shared
    return time_by_stage


def overlaps(met: Sequence[Stall], stage: str, start: int, end: int) -> dict[str, int]:
    return {
        cause: spent
        for (cause, _), spent in by_stage(overlapping(met, start, end), [(stage, start, end)], start, end).items()
    }


stalls: Final = Stalls()


# Time between two heartbeats: while requests may wait for their loop, and otherwise. Measured after a model has run: a heartbeat
# takes 40 µs, because it wakes up the thread of the loop.
HEARTBEAT_SECONDS, IDLE_SECONDS = 0.02, 0.1

_watched: WeakSet[AbstractEventLoop] = WeakSet()


class LoopLag:
    def __init__(self) -> None:
        self._worst_ns = -1
        self._closely_until = 0

    def note(self, late_ns: int) -> None:
        """Record the delay of a heartbeat. If two loops do so at once, one delay is lost, which is rare and harmless."""
        self._worst_ns = max(self._worst_ns, late_ns)

    def take(self) -> int | None:
        """Return and reset the delay in nanoseconds; None without a heartbeat."""
        worst, self._worst_ns = self._worst_ns, -1
        return worst if worst >= 0 else None

    def watch_closely(self) -> None:
        self._closely_until = clock() + CLOSELY_NS

    def seconds(self) -> float:
        # Pending records mean that there were requests within the last two seconds.
        return HEARTBEAT_SECONDS if recorder.pending and clock() < self._closely_until else IDLE_SECONDS


loop_lag: Final = LoopLag()


class ThreadStatistics:
    def __init__(self) -> None:
        self._file = -1
        # Process and thread that opened the file, and what identifies the file.
        self._opener: tuple[int, int] | None = None
        self._identity: tuple[int, int] | None = None

    def read(self) -> tuple[int, int]:
        """Return the run time and the CPU wait time of this thread in nanoseconds; zeros if unknown."""
        opener = os.getpid(), get_ident()
        try:
            if opener != self._opener:
                self._open(opener)
            ran, waited, _ = os.pread(self._file, _SCHEDSTAT_BYTES, 0).split()
            return int(ran), int(waited)
        except (OSError, ValueError):
            # Not Linux, or the file was closed by a program that became a daemon.
            self._opener = None
            return on_and_off_cpu()

    def _open(self, opener: tuple[int, int]) -> None:
        self._close()
        self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._opener, self._identity = opener, _identity(self._file)

    def _close(self) -> None:
        file, self._file = self._file, -1
        # The number may belong to another file by now.
        with contextlib.suppress(OSError):
            if file >= 0 and _identity(file) == self._identity:
                os.close(file)

    def __del__(self) -> None:
        self._close()


def _identity(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def watch_loop() -> None:
    """Start the heartbeat in the running event loop of asyncio, if any; never raises."""
    try:
        loop = get_running_loop()
    except RuntimeError:
        # Trio has none, nor has any other library.
        return
    try:
        if loop not in _watched:
            _watched.add(loop)
            _schedule_heartbeat(loop, ThreadStatistics())
    except Exception:
        log_failure("watching an event loop")


def _schedule_heartbeat(loop: AbstractEventLoop, statistics: ThreadStatistics) -> None:
    seconds = loop_lag.seconds()
    loop.call_later(seconds, _heartbeat, loop, clock() + int(seconds * 1e9), statistics, statistics.read())


def _heartbeat(loop: AbstractEventLoop, due: int, statistics: ThreadStatistics, before: tuple[int, int]) -> None:
    now = clock()
    loop_lag.note(max(0, now - due))
    if now - due >= MIN_LATE_NS:
        # Not below zero: the loop may have moved to another thread, whose counters differ.
        ran, waited = (max(0, after - earlier) for after, earlier in zip(statistics.read(), before, strict=True))
        # The position of the wait for a CPU within the interval is unknown. A loop sleeps only before the heartbeat is due; in the
        # rest of the interval the wait is assumed to be evenly distributed.
        late = now - due
        without = min(late, waited if ran + waited <= late else waited * late // (ran + waited))
        stalls.note(STALL_CPU.key, due, due + without)
        stalls.note(STALL_LOOP.key, due + without, now)
    _schedule_heartbeat(loop, statistics)
