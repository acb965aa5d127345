"""Locks and semaphores: times the wait of a request for a lock or semaphore, such as one that limits the calls of a model.

The wait counts as `queue`, also that of a batcher's worker for each request of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any, Final

from ..instrumentor import Hook, Instrumentor, log_failure
from ..records import MAX_MARKS, OPEN, Marks, clock, current

# Shorter waits are not recorded. [nanoseconds]
MIN_WAIT: Final = 20_000


class LockInstrumentor(Instrumentor):
    """Instrumentor of `asyncio.Lock`, `asyncio.Semaphore` and `threading.Semaphore`."""

    library = "asyncio"
    title = "Locks and semaphores"
    stages = MappingProxyType(
        {
            "queue": "the wait for an `asyncio.Lock`, an `asyncio.Semaphore` or a `threading.Semaphore`, and their subclasses"
        }
    )
    not_timed = ("`threading.Lock` and `threading.RLock`. Their types cannot be instrumented.",)

    def hooks(self) -> Mapping[str, Hook]:
        """Return the patch functions by module."""
        return {"asyncio.locks": self._asyncio, "threading": self._threading}

    def _asyncio(self, module: ModuleType) -> None:
        for owner in (module.Lock, module.Semaphore):
            self.replace(owner, "acquire", _acquire_later)

    def _threading(self, module: ModuleType) -> None:
        for name in ("acquire", "__enter__"):
            self.replace(module.Semaphore, name, _acquire)


def _acquire(original: Any) -> Any:
    def acquire(self: Any, blocking: bool = True, timeout: float | None = None) -> Any:
        marks = current.get()
        if marks is None or marks[0] != OPEN or not blocking:
            return original(self, blocking, timeout)
        # A semaphore that is free is no wait, however long the thread is suspended meanwhile.
        if original(self, False):
            return True
        started = clock()
        try:
            return original(self, True, timeout)
        finally:
            _record(marks, started)

    return acquire


def _acquire_later(original: Any) -> Any:
    async def acquire(self: Any) -> Any:
        marks = current.get()
        started = 0
        try:
            if marks is not None and marks[0] == OPEN and (self.locked() or _has_waiters(self)):
                started = clock()
        except Exception:
            log_failure("timing the wait for a lock")
        try:
            return await original(self)
        finally:
            if started and marks is not None:
                _record(marks, started)

    return acquire


def _has_waiters(lock: Any) -> bool:
    """Return whether *lock*, which may just be released, goes to a task that waited before."""
    return any(not waiter.cancelled() for waiter in getattr(lock, "_waiters", None) or ())


def _record(marks: Marks, started: int) -> None:
    now = clock()
    if now - started >= MIN_WAIT and len(marks) < MAX_MARKS:
        marks.extend(("queue", started, now))
