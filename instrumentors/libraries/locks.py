"""Locks and semaphores: times the wait of a request for a lock or semaphore, such as one that limits the calls of a model.

The wait counts as `queue`, also that of a batcher's worker for each request of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any, Final

from ..instrumentor import Hook, Instrumentor, Probed, TimedCall, log_failure
from ..records import OPEN, clock, current, has_capacity
from .executors import attributes

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
        return {"asyncio.locks": self._asyncio, "threading": self._threading}

    def _asyncio(self, module: ModuleType) -> None:
        for owner in (module.Lock, module.Semaphore):
            self.replace(owner, "acquire", Probed.until_end(_acquire, 1))

    def _threading(self, module: ModuleType) -> None:
        for name in ("acquire", "__enter__"):
            self.replace(module.Semaphore, name, Probed.until_end(_acquire, 2))


class _Wait(TimedCall):
    __slots__ = ()

    def end(self) -> None:
        now = clock()
        if now - self.started >= MIN_WAIT and has_capacity(self.marks):
            self.marks.extend(("queue", self.started, now))


def _acquire(lock: Any, blocking: Any = None) -> _Wait | None:
    marks = current.get()
    if marks is None or marks[0] != OPEN or blocking is False:
        return None
    try:
        # A lock that is free is no wait, however long the thread is suspended meanwhile. One that was just released may go to a
        # task that waited before. `locked` may be a method of the user.
        state = attributes(lock) or {}
        waiters = state.get("_waiters")
        waits = waiters and not all(each.cancelled() for each in waiters)
        if waits or state.get("_locked") or state.get("_value") == 0:
            return _Wait(marks, "queue")
    except Exception:
        log_failure("timing the wait for a lock")
    return None
