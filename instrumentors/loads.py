"""Loads: what this process loaded and warmed up, during requests and before them, as phases of its cold start.

A load may contain others: `from_pretrained` copies weights, a first run compiles. Each phase is noted with its own time, so that
the phases of a process add up. Libraries read files and create objects from them in one call; reading is the part of that call
in which the process waited and did not compute. Only long phases are noted, and at most `MAX_LOADS`. A forked child also
reports what its parent had loaded and not yet reported.

    token = loads.begin(reading=True)
    try:
        ...
    finally:
        loads.end(token, READ.key, "resnet50")
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from .records import clock


def on_and_off_cpu() -> tuple[int, int]:
    """Return for how long this thread ever had a CPU, and was ready and had none, in nanoseconds; zeros where the kernel does not tell."""
    try:
        # https://docs.kernel.org/scheduler/sched-stats.html. Opened each time: a program that becomes a daemon closes what it
        # does not know.
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:  # noqa: PTH123 - a Path costs half as much again
            ran, waited, _ = file.read().split()
        return int(ran), int(waited)
    except (OSError, ValueError):
        return 0, 0


def worked() -> int:
    """Return for how long this process has computed, and this thread has waited to, in nanoseconds.

    What a thread did beside that, it waited for something else: a disk, a network, a lock. While other threads compute, more was
    worked than that thread did, on several CPUs even more than time went by.
    """
    return time.process_time_ns() + on_and_off_cpu()[1]


# What is shorter makes nobody wait, and there may be thousands.
MIN_LOAD_NS: Final = 1_000_000
# Of a process: one that loads something for every request has shown what it does by then.
MAX_LOADS: Final = 200
MAX_SHAPE: Final = 80


class Load(NamedTuple):
    """One phase of a cold start.

    Args:
        phase: A key of `core.stages.LOAD_PHASES`.
        model: Of which model, "" where nobody knows.
        shape: The shapes of what a first run was given, as `1x3x224x224`.
        start: By the recorder's clock. [nanoseconds]
        end: By the recorder's clock. [nanoseconds]
        own_ns: Of it, what was not spent in another phase. [nanoseconds]
    """

    phase: str
    model: str
    shape: str
    start: int
    end: int
    own_ns: int


class _Thread(threading.local):
    """The phase that runs in this thread: what it has spent and worked in others, in nanoseconds, and of which model it is."""

    inside_ns = 0
    inside_work_ns = 0
    model = ""


# When a phase began, what had been worked by then, and what was in `_Thread` before.
Token: TypeAlias = tuple[int, int, int, int, str]


class Loads:
    """The loads of this process, the first `MAX_LOADS` of them."""

    def __init__(self) -> None:
        self._thread = _Thread()
        self._noted: deque[Load] = deque()
        self._room = MAX_LOADS

    def begin(self, model: str = "", *, reading: bool = False) -> Token:
        """Begin a phase in this thread, of *model* or of that around it; only one that is *reading* may end as `LOAD_READ`."""
        thread = self._thread
        token = clock(), worked() if reading else 0, thread.inside_ns, thread.inside_work_ns, thread.model
        thread.inside_ns, thread.inside_work_ns, thread.model = 0, 0, model or thread.model
        return token

    def end(self, token: Token, phase: str, model: str = "", shape: str = "") -> None:
        """End the phase that gave *token*; an empty *phase* was none after all."""
        thread = self._thread
        inside, inside_work, model = thread.inside_ns, thread.inside_work_ns, model or thread.model
        begun, before, thread.inside_ns, thread.inside_work_ns, thread.model = token
        ended = clock()
        # Whoever copies, compiles or runs is taken to work all the time: to ask costs more than most of them.
        work = worked() - before if phase == LOAD_READ.key else ended - begun
        thread.inside_ns += ended - begun if phase else inside
        thread.inside_work_ns += work if phase else inside_work
        own = ended - begun - inside
        waited = _waited(own, work - inside_work) if phase == LOAD_READ.key else own
        if phase and waited:
            self._keep(Load(phase, model, shape, begun, ended, waited))
        if phase and waited < own:
            self._keep(Load(LOAD_DESERIALISE.key, model, shape, begun, ended, own - waited))

    def note(self, phase: str, model: str, shape: str, begun: int, ended: int) -> None:
        """Note a phase that had no other inside."""
        self._thread.inside_ns += ended - begun
        self._thread.inside_work_ns += ended - begun
        self._keep(Load(phase, model, shape, begun, ended, ended - begun))

    def _keep(self, load: Load) -> None:
        if load.own_ns >= MIN_LOAD_NS and self._room > 0:
            self._room -= 1
            self._noted.append(load)

    def take(self) -> list[Load]:
        """Return what was noted since the last call."""
        return [self._noted.popleft() for _ in range(len(self._noted))]


loads: Final = Loads()


def _waited(own_ns: int, work_ns: int) -> int:
    """Return how much of a time was no work; none of it, or all, where one of the two is too short to be noted."""
    waited = min(max(own_ns - work_ns, 0), own_ns)
    if waited < MIN_LOAD_NS:
        return 0
    return own_ns if own_ns - waited < MIN_LOAD_NS else waited


def shapes_of(values: Iterable[Any]) -> str:
    """Return the shapes of those of *values* that have one; never raises.

    >>> shapes_of([memoryview(b"abc"), 7, memoryview(bytes(6)).cast("B", (2, 3))])
    '3, 2x3'
    """
    try:
        shapes = [getattr(value, "shape", None) for value in values]
        told = ["x".join(str(int(size)) for size in shape) for shape in shapes if isinstance(shape, tuple) and shape]
    except Exception:
        # Whatever a model was given, it may be of a kind that answers by raising.
        return ""
    return ", ".join(told)[:MAX_SHAPE]


def _born() -> int:
    """Return when this process began, by the recorder's clock, in nanoseconds; now, where the system does not say."""
    now = clock()
    try:
        # https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html: field 22, in ticks since the machine began.
        with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:  # noqa: PTH123 - pathlib is not loaded by every host
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        return now - int((since_boot - ticks / os.sysconf("SC_CLK_TCK")) * 1e9)
    except (OSError, ValueError, IndexError, AttributeError):
        return now


# By the recorder's clock. [nanoseconds]
born = _born()


def _forked() -> None:
    global born  # noqa: PLW0603 - a child is as old as itself
    born = clock()


os.register_at_fork(after_in_child=_forked)
