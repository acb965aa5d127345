"""Loads: what this process loaded and warmed up, during requests and before them, as phases of its cold start.

Each phase is recorded with its own time, so that the phases of a process add up. Libraries read files and create objects from them in
one call; reading is the part of it in which the process waited and did not compute.

    token = loads.begin(reading=True)
    try:
        ...
    finally:
        loads.end(token, LOAD_READ.key, "resnet50")
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from numbers import Integral
from typing import Any, Final, NamedTuple, TypeAlias

from ..core.stages import LOAD_DESERIALISE, LOAD_READ
from .records import clock

# Shorter loads are not noticeable, and there may be thousands.
MIN_LOAD_NS: Final = 1_000_000
# Limit per process, enough to show that a process loads something for every request.
MAX_LOADS: Final = 200
MAX_SHAPE: Final = 80


def on_and_off_cpu() -> tuple[int, int]:
    """Return the run time and the CPU wait time of this thread in nanoseconds; zeros if unknown."""
    try:
        # https://docs.kernel.org/scheduler/sched-stats.html. Opened each time: a program that becomes a daemon closes unknown
        # files.
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:  # noqa: PTH123 - a Path would cost 50 % more
            ran, waited, _ = file.read().split()
        return int(ran), int(waited)
    except (OSError, ValueError):
        return 0, 0


def worked() -> int:
    """Return the CPU time of this process plus the time that this thread waited for a CPU, in nanoseconds."""
    return time.process_time_ns() + on_and_off_cpu()[1]


class LoadRecord(NamedTuple):
    phase: str
    model: str
    shape: str
    start: int
    end: int
    own_ns: int


class _Thread(threading.local):
    inside_ns = 0
    inside_work_ns = 0
    model = ""


# Start of a phase, work until then, and the previous values of `_Thread`.
Token: TypeAlias = tuple[int, int, int, int, str]


class LoadLog:
    def __init__(self) -> None:
        self._thread = _Thread()
        self._noted: deque[LoadRecord] = deque()
        self._free_loads = MAX_LOADS

    def begin(self, model: str = "", *, reading: bool = False) -> Token:
        """Begin a phase of *model* (default: that of the enclosing phase); set *reading* for `LOAD_READ`."""
        thread = self._thread
        token = clock(), worked() if reading else 0, thread.inside_ns, thread.inside_work_ns, thread.model
        thread.inside_ns, thread.inside_work_ns, thread.model = 0, 0, model or thread.model
        return token

    def end(self, token: Token, phase: str, model: str = "", shape: str = "") -> None:
        thread = self._thread
        inside, inside_work, model = thread.inside_ns, thread.inside_work_ns, model or thread.model
        started, before, thread.inside_ns, thread.inside_work_ns, thread.model = token
        ended = clock()
        # Copying, compiling and running count completely as work: measuring them would cost more than most of them take.
        work = worked() - before if phase == LOAD_READ.key else ended - started
        thread.inside_ns += ended - started if phase else inside
        thread.inside_work_ns += work if phase else inside_work
        self_ns = ended - started - inside
        waited = _waited(self_ns, work - inside_work) if phase == LOAD_READ.key else self_ns
        if phase and waited:
            self._keep(LoadRecord(phase, model, shape, started, ended, waited))
        if phase and waited < self_ns:
            self._keep(LoadRecord(LOAD_DESERIALISE.key, model, shape, started, ended, self_ns - waited))

    def note(self, phase: str, model: str, shape: str, started: int, ended: int) -> None:
        self._thread.inside_ns += ended - started
        self._thread.inside_work_ns += ended - started
        self._keep(LoadRecord(phase, model, shape, started, ended, ended - started))

    def _keep(self, load: LoadRecord) -> None:
        if load.own_ns >= MIN_LOAD_NS and self._free_loads > 0:
            self._free_loads -= 1
            self._noted.append(load)

    def take(self) -> list[LoadRecord]:
        return [self._noted.popleft() for _ in range(len(self._noted))]


loads: Final = LoadLog()


def _waited(own_ns: int, work_ns: int) -> int:
    waited = min(max(own_ns - work_ns, 0), own_ns)
    if waited < MIN_LOAD_NS:
        return 0
    return own_ns if own_ns - waited < MIN_LOAD_NS else waited


def shapes_of(values: Iterable[Any]) -> str:
    """Return the shapes of *values*, except values without a shape; never raises.

    >>> shapes_of([memoryview(b"abc"), 7, memoryview(bytes(6)).cast("B", (2, 3))])
    '3, 2x3'
    """
    try:
        shapes = [getattr(value, "shape", None) for value in values]
        # That of a tensor that PyTorch traces has tensors, which must not become numbers.
        integer_shapes = [
            shape for shape in shapes if isinstance(shape, tuple) and all(isinstance(size, Integral) for size in shape)
        ]
        texts = ["x".join(map(str, map(int, shape))) for shape in integer_shapes if shape]
    except Exception:
        # An input of a model may be an object whose attributes raise.
        return ""
    return ", ".join(texts)[:MAX_SHAPE]


def _born() -> int:
    now = clock()
    try:
        # https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html: field 22, in clock ticks since boot.
        with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:  # noqa: PTH123 - importing pathlib would cost the host time
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        return now - int((since_boot - ticks / os.sysconf("SC_CLK_TCK")) * 1e9)
    except (OSError, ValueError, IndexError, AttributeError):
        return now


# Start of this process. [nanoseconds by `clock`]
born = _born()


def _forked() -> None:
    global born  # noqa: PLW0603 - a forked child starts at the fork
    born = clock()


os.register_at_fork(after_in_child=_forked)
