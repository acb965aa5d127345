"""Locks and semaphores: times the wait of a request for a lock or semaphore, such as one that limits the calls of a model.

The wait counts as `queue`, also that of a batcher's worker for each request of the batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any, Final

from ..instrumentor import Hook, Instrumentor, Probed, Target, TimedCall, log_failure
from ..records import OPEN, STATE, clock, current, has_capacity
from .executors import attributes

# Shorter waits are not recorded: of a lock of this process, and of a file, which takes some time to open. [nanoseconds]
MIN_WAIT: Final = 20_000
MIN_FILE_WAIT: Final = 5_000_000


class LockInstrumentor(Instrumentor):
    library = "asyncio"
    title = "Locks and semaphores"
    stages = MappingProxyType(
        {
            "queue": "the wait for an `asyncio.Lock`, an `asyncio.Semaphore`, a `threading.Semaphore`, a lock, semaphore or "
            "capacity limiter of anyio, a lock of filelock, and their subclasses; for a lock or semaphore of `multiprocessing` "
            "in a `with` block; under gevent for a `threading.Lock`; and as sampled about every 5 to 20 ms for a lock in C that a "
            "thread waits for, such as a `threading.Lock` or `threading.RLock`, in the time of no other stage"
        }
    )
    not_timed = (
        "the wait for a `threading.Lock` in a coroutine, in a thread that a request starts itself, and with `STAGELENS_PROFILE=off`",
        "the locks of `gevent.lock`. *Your code* names the function that waits.",
    )

    def targets(self) -> Iterable[Target]:
        return (
            ("asyncio.locks:Lock Semaphore", _of(_acquire), "acquire"),
            ("anyio._backends._asyncio:Lock Semaphore", _of(_acquire), "acquire"),
            ("anyio._backends._asyncio:CapacityLimiter", _of(_acquire), "acquire_on_behalf_of"),
            ("threading:Semaphore", _of(_acquire, 2), "acquire __enter__"),
            ("multiprocessing.synchronize:SemLock", _of(_process_lock), "__enter__"),
            ("gevent.thread:LockType", _of(_gevent_lock, 2), "acquire"),
        )

    def hooks(self) -> Mapping[str, Hook]:
        return {**super().hooks(), **dict.fromkeys(("filelock", "filelock.asyncio"), self._filelock)}

    def _filelock(self, module: ModuleType) -> None:
        for name in ("BaseFileLock", "BaseAsyncFileLock"):
            # Not those that the module would import now.
            for owner in vars(module).get(name, object).__mro__:
                self.replace(owner, "acquire", _of(_file_lock))


def _of(enter: Callable[..., object], parameters: int = 1) -> Probed:
    return Probed.until_end(enter, parameters)


class _Wait(TimedCall):
    __slots__ = ()
    least = MIN_WAIT

    def end(self) -> None:
        now = clock()
        if now - self.started >= self.least and has_capacity(self.marks):
            self.marks.extend(("queue", self.started, now))


class _FileWait(_Wait):
    __slots__ = ()
    least = MIN_FILE_WAIT


def _acquire(lock: Any, blocking: Any = None) -> _Wait | None:
    return None if blocking is False else _wait(lock, _is_taken)


def _process_lock(lock: Any) -> _Wait | None:
    return _wait(lock, lambda lock: lock._semlock._is_zero() and not lock._semlock._is_mine())  # noqa: SLF001 - the C type


def _gevent_lock(lock: Any, blocking: Any) -> _Wait | None:
    if blocking is False or lock.counter:
        return None
    # Not what Python's own `Condition` or `Thread` waits in.
    caller = sys._getframe(2)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    is_inner = caller.f_globals.get("__name__") == "threading" and caller.f_code.co_name not in {"acquire", "__enter__"}
    return None if is_inner else _wait(lock, bool)


def _file_lock(_: Any) -> _Wait | None:
    marks = current.get()
    return None if marks is None or marks[STATE] != OPEN else _FileWait(marks, "queue")


def _wait(lock: Any, is_taken: Callable[[Any], object]) -> _Wait | None:
    marks = current.get()
    if marks is None or marks[STATE] != OPEN:
        return None
    try:
        # A lock that is free is no wait, however long the thread is suspended meanwhile.
        return _Wait(marks, "queue") if is_taken(lock) else None
    except Exception:
        log_failure("timing the wait for a lock")
    return None


def _is_taken(lock: Any) -> bool:
    """Return whether *lock* is taken, or was just released and may go to a task that waited before."""
    # `locked` may be a method of the user. The types of anyio have slots.
    state = attributes(lock)
    read = partial(getattr, lock) if state is None else state.get
    waiters: Any = read("_waiters", None) or ()
    limit: Any = read("_total_tokens", None)
    return bool(
        any(not waiter.cancelled() for waiter in waiters if hasattr(waiter, "cancelled"))
        or read("_wait_queue", None)
        or read("_locked", None)
        or read("_value", None) == 0
        or read("_owner_task", None)
        or (limit is not None and len(read("_borrowers", ())) >= limit)
    )
