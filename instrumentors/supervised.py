"""Open requests of a worker in memory that its supervisor reads, so that they count as failed if the worker is killed.

The background thread of the worker writes them. gunicorn, and parents of `multiprocessing`, create the memory before the worker starts,
and read it when the worker was killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from . import exits, recorder
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
# Attribute of a worker of gunicorn and of a child of `multiprocessing`, in the parent.
SHARED: Final = "stagelens_shared"


class SharedRequests:
    """Memory with the open requests of one process; in *file* if another process has created it there."""

    def __init__(self, file: int | None = None) -> None:
        self.file = os.memfd_create(_NAME) if file is None else file
        os.ftruncate(self.file, _BYTES)
        self._memory = mmap.mmap(self.file, _BYTES)

    def close_file(self) -> SharedRequests:
        os.close(self.file)
        return self

    def write(self, requests: list[OpenRequest]) -> None:
        named = [(start, route[:_MAX_ROUTE]) for start, route in requests[:_MAX_REQUESTS]]
        body = json.dumps([os.getpid(), clock(), len(requests), named]).encode() + b"\n"
        other = 1 - self._memory[0]
        offset = 1 + other * _COPY_BYTES
        self._memory[offset : offset + len(body)] = body
        self._memory[0] = other

    def read(self, pid: int) -> tuple[int, list[OpenRequest]]:
        """Return the open requests of a process, as it has written them last, and when that was."""
        offset = 1 + self._memory[0] * _COPY_BYTES
        line, is_complete, _ = self._memory[offset : offset + _COPY_BYTES].partition(b"\n")
        writer, written, count, named = json.loads(line) if is_complete else (pid, 0, 0, [])
        requests = [OpenRequest(start, route) for start, route in named] if writer == pid else []
        return written, requests + [OpenRequest(request.start, "") for request in requests[-1:]] * (
            count - len(requests)
        )


class Supervised(NamedTuple):
    shared: SharedRequests
    is_overdue: Callable[[], bool]
    check_seconds: float


# Of this process; None if no supervisor reads its open requests.
supervised: Supervised | None = None
# Memory for children of `multiprocessing` that are being forked, by the thread that forks; in such a child, its own.
_forking: dict[int, SharedRequests] = {}
_inherited: SharedRequests | None = None
# The started children: objects of `multiprocessing`.
_children: WeakSet[Any] = WeakSet()
_next_check = 0


def _in_child() -> None:
    global supervised, _inherited
    supervised, _inherited = None, _forking.pop(threading.get_ident(), None)
    _forking.clear()
    _children.clear()


os.register_at_fork(after_in_child=_in_child)


def supervise(by: Supervised) -> None:
    global supervised  # noqa: PLW0603 - of this process
    supervised = by


def supervise_child() -> None:
    """Write the open requests of this process, if its parent has created the memory, and no other supervisor has."""
    processes = sys.modules.get("multiprocessing.process")
    try:
        if supervised is None and processes is not None and processes.parent_process() is not None:
            shared = _inherited or next(_find_memory(), None)
            if shared is not None:
                supervise(Supervised(shared, bool, math.inf))
    except Exception:
        log_failure("sharing memory with a supervisor")


def _find_memory() -> Iterator[SharedRequests]:
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if _NAME in os.readlink(file):  # noqa: PTH115 - no file
                yield SharedRequests(int(file.name)).close_file()


def starting_child(child: Any) -> Any:
    """Create the memory of a child of `multiprocessing`, which inherits it."""
    exits.await_end()
    try:
        if hasattr(os, "memfd_create"):
            shared = SharedRequests()
            setattr(child, SHARED, shared)
            if child.method == "fork":
                _forking[threading.get_ident()] = shared
            else:
                child._fds.append(shared.file)  # noqa: SLF001 - there is no public name for it
    except Exception:
        log_failure("sharing memory with a process")
    return child


def started_child(child: Any, _: object) -> None:
    """Note that the child has its memory, or could not be started."""
    _forking.pop(threading.get_ident(), None)
    if hasattr(child, SHARED):
        getattr(child, SHARED).close_file()
        if hasattr(child, "pid"):
            _children.add(child)


def children() -> list[int]:
    return [child.pid for child in tuple(_children)]


def record_killed() -> None:
    """Record the open requests of all children that a signal has ended; at most once a second."""
    global _next_check  # noqa: PLW0603 - of this process
    now = clock()
    if now < _next_check:
        return
    _next_check = now + 1_000_000_000
    for child in tuple(_children):
        with contextlib.suppress(ChildProcessError):
            # Without taking the status, for which the host waits.
            ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                child_ended(child, -ended.si_status if ended.si_code != os.CLD_EXITED else 0)


def child_ended(child: Any, code: int | None, killed: int = 0) -> None:
    """Record the open requests of a child if a signal has ended it: at *killed*, else after it has written them last."""
    shared = None if code is None else vars(child).pop(SHARED, None)
    if shared is None:
        return
    _children.discard(child)
    try:
        # A first thread of this process would change its later forks.
        if code and code < 0 and (child.method != "fork" or threading.active_count() > 1):
            written, requests = shared.read(child.pid)
            failed = FailedRequests()
            failed.add(child.pid, requests, killed or written)
            failed.record()
    except Exception:
        log_failure("reading the open requests of a process that was killed")


def note_open_requests() -> None:
    if supervised is not None:
        supervised.shared.write(recorder.open_requests())


class FailedRequests:
    def __init__(self) -> None:
        self._failed: list[tuple[OpenRequest, int]] = []

    def add(self, pid: int, requests: Iterable[OpenRequest], ended: int) -> None:
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
