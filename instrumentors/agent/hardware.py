"""Hardware metrics of this process, read once per export: CPU, memory, threads, throttling, GPUs, and torch's device memory.

The process metrics come from five small files of /proc and of the control group, which take 0.1 ms together. Systems without
these files, such as macOS, export none of them.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from ...core.hardware import (
    CPU,
    CPU_SHARE,
    HOST_CPU,
    LOOP_LAG,
    MEMORY,
    THREADS,
    THROTTLED,
    TORCH_ALLOCATED,
    TORCH_RESERVED,
    Reading,
)
from ..instrumentor import log_failure
from ..stalls import loop_lag
from .gpus import Gpus

# Of less time shares say nothing: the kernel counts in hundredths of a second.
MIN_SECONDS: Final = 0.05
# https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html: num_threads and rss, counted from the field after the name.
_THREADS, _PAGES = 17, 21
# https://man7.org/linux/man-pages/man5/proc_stat.5.html: idle and iowait; guests are counted in user and nice already.
_IDLE, _COUNTED = slice(3, 5), slice(0, 8)
_CGROUPS: Final = "/sys/fs/cgroup"


class _Counters(NamedTuple):
    at_ns: int
    cpu_ns: int
    host: tuple[int, int]
    periods: tuple[int, int]


class Process:
    """CPU, memory and thread metrics of this process."""

    def __init__(self) -> None:
        self._before = _counters()

    def take(self) -> Iterator[Reading]:
        """Yield what is known; nothing where that was asked for just now."""
        before, now = self._before, _counters()
        seconds = (now.at_ns - before.at_ns) / 1e9
        if seconds < MIN_SECONDS:
            return
        self._before = now
        cpus = (now.cpu_ns - before.cpu_ns) / 1e9 / seconds
        yield Reading(CPU, cpus)
        yield Reading(CPU_SHARE, cpus / available_cpus())
        for measure, then, since in (
            (HOST_CPU, before.host, now.host),
            (THROTTLED, before.periods, now.periods),
        ):
            part, whole = (after - earlier for earlier, after in zip(then, since, strict=True))
            if whole > 0:
                # What the kernel says of iowait may go down, and the whole with it.
                yield Reading(measure, min(part / whole, 1.0))
        yield from _size()
        late_ns = loop_lag.take()
        if late_ns is not None:
            yield Reading(LOOP_LAG, late_ns / 1e9)


def available_cpus() -> float:
    """Return the number of CPUs this process may use, from its affinity and the quota of its container."""
    affinity = getattr(os, "sched_getaffinity", None)
    mine = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota, _, period = _cgroup("cpu.max").partition(" ")
    if not quota.isdigit():
        return mine
    return min(mine, int(quota) / int(period))


def _counters() -> _Counters:
    return _Counters(time.monotonic_ns(), time.process_time_ns(), _host(), _periods())


def _host() -> tuple[int, int]:
    """Return how long the CPUs of the machine were busy, and how long that is measured."""
    words = _read("/proc/stat").partition("\n")[0].split()[1:]
    times = [int(word) for word in words[_COUNTED]]
    return sum(times) - sum(times[_IDLE]), sum(times)


def _periods() -> tuple[int, int]:
    """Return in how many of the scheduler's periods the container was stopped, and how many there were."""
    told = dict(line.split(" ", 1) for line in _cgroup("cpu.stat").splitlines())
    return int(told.get("nr_throttled", 0)), int(told.get("nr_periods", 0))


def _size() -> Iterator[Reading]:
    # Behind the name of the program, which may hold anything.
    words = _read("/proc/self/stat").rpartition(")")[2].split()
    if words:
        yield Reading(MEMORY, int(words[_PAGES]) * os.sysconf("SC_PAGE_SIZE"))
        yield Reading(THREADS, int(words[_THREADS]))


def _cgroup(name: str) -> str:
    """Return the content of file *name* of the process's control group; "" without one (version 2 only)."""
    own = next((line[3:] for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    # In a container that sees the names of its host, its own group stands at the top all the same.
    return _read(f"{_CGROUPS}{own}/{name}") or _read(f"{_CGROUPS}/{name}")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib costs the host its import
            return file.read()
    except OSError:
        return ""


class Hardware:
    """Everything that is read of the machine."""

    def __init__(self) -> None:
        self._gpus = Gpus()
        self._sources: tuple[Callable[[], Iterable[Reading]], ...] = (Process().take, self._gpus.take, torch_memory)

    def watch(self) -> None:
        """Start the threads that read continuously; never raises."""
        try:
            self._gpus.watch()
        except Exception:
            log_failure("starting a thread that reads GPUs")

    def take(self) -> list[Reading]:
        """Return what can be said of the time since the last call; never raises."""
        found: list[Reading] = []
        for source in self._sources:
            try:
                found += source()
            except Exception:
                log_failure("reading what the machine does")
        return [each for each in found if 0 <= each.value < math.inf]


def torch_memory() -> Iterator[Reading]:
    """Yield torch's memory on each device; nothing if CUDA is not initialized, which this never does."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    for device in range(cuda.device_count()):
        told = cuda.memory_stats(device)
        if told.get("reserved_bytes.all.peak"):
            yield Reading(TORCH_ALLOCATED, told["allocated_bytes.all.current"], f"cuda:{device}")
            yield Reading(TORCH_RESERVED, told["reserved_bytes.all.current"], f"cuda:{device}")
