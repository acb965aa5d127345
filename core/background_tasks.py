"""Background threads: a thread that repeats one step, and a thread with an event loop that runs one task for each target.

Both survive exceptions of their steps and tasks. Targets are, for example, scrape targets.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, Generic, TypeVar

Target = TypeVar("Target")
Result = TypeVar("Result")


class TaskSupervisor(Generic[Target]):
    """Supervisor of one task for each wanted target, in a thread with an event loop.

    *wanted* returns the targets by name every *check_seconds*, and a changed one gets a new task. Tasks run until they are
    cancelled, *grace_seconds* after `ended` is set. `threads` are for blocking calls.
    """

    def __init__(
        self,
        name: str,
        *,
        wanted: Callable[[], Mapping[str, Target]],
        run_task: Callable[[Target], Coroutine[Any, Any, None]],
        on_removed: Callable[[str], None],
        check_seconds: float,
        on_checked: Callable[[Mapping[str, Target]], Awaitable[None]] | None = None,
        grace_seconds: float = 0.0,
        threads: int = 1,
    ) -> None:
        self._wanted, self._run_task, self._on_removed, self._on_checked = wanted, run_task, on_removed, on_checked
        self._check_seconds, self._grace_seconds = check_seconds, grace_seconds
        self._tasks: dict[str, tuple[Target, asyncio.Task[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self.ended = asyncio.Event()
        self.threads = ThreadPoolExecutor(threads, name)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> bool:
        """Stop the tasks and the thread; return whether it was started."""
        if self.thread.ident is None:
            return False
        # Set before the loop is read: a loop that starts later checks it.
        self._stopping = True
        loop = self._loop
        if loop is not None and self.thread.is_alive():
            loop.call_soon_threadsafe(self.ended.set)
        self.thread.join()
        self.threads.shutdown()
        return True

    async def in_thread(self, function: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self.threads, function, *arguments)

    async def rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        except TimeoutError:
            pass

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except Exception:  # noqa: BLE001 - the end of the thread must be logged
            _log.exception("the thread %s stopped with an unexpected error; restart the collector", self.thread.name)

    async def _watch(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._stopping:
            self.ended.set()
        while not self.ended.is_set():
            wanted = self._wanted()
            await self._renew(wanted)
            if self._on_checked is not None:
                await self._on_checked(wanted)
            await self.rest(self._check_seconds)
        tasks = [task for _, task in self._tasks.values()]
        if tasks and self._grace_seconds:
            await asyncio.wait(tasks, timeout=self._grace_seconds)
        for task in tasks:
            await _cancel(task)

    async def _renew(self, wanted: Mapping[str, Target]) -> None:
        for name in [name for name, (known, _) in self._tasks.items() if wanted.get(name) != known]:
            await _cancel(self._tasks.pop(name)[1])
            if name not in wanted:
                self._on_removed(name)
        for name, target in wanted.items():
            if name not in self._tasks:
                self._tasks[name] = target, asyncio.create_task(self._run_task(target))


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


_log = logging.getLogger(__name__)

# Delay after a failed step. [seconds]
RETRY_SECONDS = 2.0


class PeriodicThread(ABC):
    """A daemon thread that repeats one task until it is stopped: first after *rest_seconds*, then not before *gap_seconds*."""

    def __init__(self, name: str, gap_seconds: float = 0.0, *, rest_seconds: float = 0.0) -> None:
        self._gap_seconds, self._rest_seconds = gap_seconds, rest_seconds
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"stagelens-{name}", daemon=True)

    @abstractmethod
    def step(self) -> float:
        """Run the task once, and return the delay before the next step, in seconds; exceptions are passed to `failed`."""

    def failed(self, error: Exception) -> float:
        """Log *error*, an exception of a step, and return the delay before the next step, in seconds."""
        _log.exception("%s failed with an unexpected error and is retried: %s", self.thread.name, type(error).__name__)
        return RETRY_SECONDS

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self.thread.start()

    def wake(self) -> None:
        """End the current wait early, because there is new work."""
        self._awake.set()

    def stop(self) -> None:
        """Stop the thread after the running step; does nothing before `start`."""
        self._stopping.set()
        self._awake.set()
        if self.thread.ident is not None:
            self.thread.join()

    def _run(self) -> None:
        self._rest(self._rest_seconds)
        while not self._stopping.is_set():
            try:
                seconds = self.step()
            except Exception as error:  # noqa: BLE001 - nothing must end the thread
                seconds = self.failed(error)
            self._rest(seconds)

    def _rest(self, seconds: float) -> None:
        """Wait for the delay; `wake` ends the wait, but not before the minimum gap."""
        gap = min(seconds, self._gap_seconds)
        if gap:
            self._stopping.wait(gap)
        if seconds > gap and not self._stopping.is_set():
            self._awake.wait(seconds - gap)
        self._awake.clear()


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and the first Ctrl-C set; a second Ctrl-C ends the process immediately."""
    stopped = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        stopped.set()
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stopped
