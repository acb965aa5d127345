"""Open requests of a worker in memory that its supervisor reads, so that they count as failed if the worker is killed.

The background thread of the worker writes them. gunicorn creates the memory before the fork, and reads it when the worker has died.
Other supervisors find that of a child of `multiprocessing` below /proc just before they kill it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import mmap
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from . import recorder
from .instrumentor import log_failure
from .recorder import OpenRequest
from .records import ARRIVAL, OPEN, Marks, clock

_logger = logging.getLogger("stagelens")
# Two copies, of which one is complete at any time, and before them the number of the complete one.
_COPY_BYTES: Final = 131_072
_BYTES: Final = 1 + 2 * _COPY_BYTES
_NAME: Final = "stagelens-open-requests"
# Those beyond count with the start of the last one and without a route.
_MAX_REQUESTS: Final = 256
_MAX_ROUTE: Final = 64
KILLED: Final = "WorkerKilled"


class SharedRequests:
    """Memory with the open requests of one process."""

    def __init__(self) -> None:
        file = os.memfd_create(_NAME)
        os.ftruncate(file, _BYTES)
        self._memory = mmap.mmap(file, _BYTES)
        os.close(file)

    def write(self, requests: list[OpenRequest]) -> None:
        named = [(start, route[:_MAX_ROUTE]) for start, route in requests[:_MAX_REQUESTS]]
        body = json.dumps([os.getpid(), len(requests), named]).encode() + b"\n"
        other = 1 - self._memory[0]
        place = 1 + other * _COPY_BYTES
        self._memory[place : place + len(body)] = body
        self._memory[0] = other

    def read(self, pid: int) -> list[OpenRequest]:
        return _decode(self._memory[:], pid)


def read_open_requests(pid: int) -> list[OpenRequest]:
    """Return the open requests of a running process, as it has written them last."""
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            # It may also be one that the process has inherited.
            if _NAME in os.readlink(file) and (requests := _decode(file.read_bytes(), pid)):  # noqa: PTH115 - no file
                return requests
    return []


def _decode(memory: bytes, pid: int) -> list[OpenRequest]:
    if not memory:  # it was created at this moment
        return []
    place = 1 + memory[0] * _COPY_BYTES
    line, found, _ = memory[place : place + _COPY_BYTES].partition(b"\n")
    writer, count, named = json.loads(line) if found else (pid, 0, [])
    if writer != pid:
        return []
    requests = [OpenRequest(start, route) for start, route in named]
    return requests + [OpenRequest(each.start, "") for each in requests[-1:]] * (count - len(requests))


class Supervised(NamedTuple):
    """Duties of a process towards its supervisor."""

    shared: SharedRequests
    is_overdue: Callable[[], bool]
    check_seconds: float


# Of this process; None if no supervisor reads its open requests.
supervised: Supervised | None = None


def _in_child() -> None:
    global supervised  # noqa: PLW0603 - the children of a worker are not supervised
    supervised = None


os.register_at_fork(after_in_child=_in_child)


def supervise(by: Supervised) -> None:
    """Write the open requests of this process for its supervisor from now on."""
    global supervised  # noqa: PLW0603 - of this process
    supervised = by


def supervise_child() -> None:
    """Write the open requests of this process, if it is a child of `multiprocessing` without another supervisor."""
    processes = sys.modules.get("multiprocessing.process")
    try:
        if supervised is None and processes is not None and processes.parent_process() is not None:
            supervise(Supervised(SharedRequests(), bool, math.inf))
    except Exception:
        log_failure("sharing memory with a supervisor")


def note_open_requests() -> None:
    """Write the requests that are open now, if a supervisor reads them."""
    if supervised is not None:
        supervised.shared.write(recorder.open_requests())


class FailedRequests:
    """Requests of killed workers that wait for a process that reports them."""

    def __init__(self) -> None:
        self._failed: list[tuple[OpenRequest, int]] = []

    def add(self, pid: int, requests: Iterable[OpenRequest]) -> None:
        ended = clock()
        failed = [(request, ended) for request in requests]
        if failed:
            _logger.warning("stagelens: process %s died; its %d open requests count as failed", pid, len(failed))
        self._failed += failed

    def record(self) -> None:
        for (start, route), ended in self._failed:
            marks: Marks = [OPEN, clock(), 0, ARRIVAL, next(recorder.arrivals), 0]
            recorder.finish(marks, start, ended, route, KILLED)
        self._failed.clear()

    def clear(self) -> None:
        self._failed.clear()
