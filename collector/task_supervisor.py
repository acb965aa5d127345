"""One thread with an event loop, and in it a task for each thing that is named: a target to read, a destination to send to."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

_log = logging.getLogger(__name__)

Target = TypeVar("Target")
Result = TypeVar("Result")


class TaskSupervisor(Generic[Target]):
    """Keeps one task for each thing that is wanted, until the end.

    Args:
        name: Of the thread.
        wanted: The things by name; asked again and again, so that they may change. What has changed gets a new task.
        tend: What to do for one of them, until it is cancelled.
        forget: Told the name of what is not wanted any more.
        look_seconds: The time between two looks. [seconds]
        looked: Called after each look, with what is wanted.
        grace_seconds: How long tasks may take to end by themselves once `ended` is set. [seconds]
        threads: How many threads there are for what waits or computes.

    Attributes:
        ended: Set when the end has come.
        thread: The thread.
        threads: For what waits or computes.
    """

    def __init__(
        self,
        name: str,
        *,
        wanted: Callable[[], Mapping[str, Target]],
        tend: Callable[[Target], Coroutine[Any, Any, None]],
        forget: Callable[[str], None],
        look_seconds: float,
        looked: Callable[[Mapping[str, Target]], Awaitable[None]] | None = None,
        grace_seconds: float = 0.0,
        threads: int = 1,
    ) -> None:
        self._wanted, self._tend, self._forget, self._looked = wanted, tend, forget, looked
        self._look_seconds, self._grace_seconds = look_seconds, grace_seconds
        self._tasks: dict[str, tuple[Target, asyncio.Task[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self.ended = asyncio.Event()
        self.threads = ThreadPoolExecutor(threads, name)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def stop(self) -> bool:
        """End the tasks and the thread; return whether there was one to end."""
        if self.thread.ident is None:
            return False
        # Before the loop is looked for: where it is not there yet, it will see this.
        self._stopping = True
        loop = self._loop
        if loop is not None and self.thread.is_alive():
            loop.call_soon_threadsafe(self.ended.set)
        self.thread.join()
        self.threads.shutdown()
        return True

    async def in_thread(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Call *function* in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, function, *arguments)

    async def rest(self, seconds: float) -> None:
        """Wait, or until the end."""
        try:
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        except TimeoutError:
            pass

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except Exception:  # noqa: BLE001 - it must not end in silence
            _log.exception("the thread %s ended by a fault of its own; restart the collector", self.thread.name)

    async def _watch(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._stopping:
            self.ended.set()
        while not self.ended.is_set():
            wanted = self._wanted()
            await self._renew(wanted)
            if self._looked is not None:
                await self._looked(wanted)
            await self.rest(self._look_seconds)
        tasks = [task for _, task in self._tasks.values()]
        if tasks and self._grace_seconds:
            await asyncio.wait(tasks, timeout=self._grace_seconds)
        for task in tasks:
            await _cancel(task)

    async def _renew(self, wanted: Mapping[str, Target]) -> None:
        """End the tasks of what is not as it was, and begin those that are missing."""
        for name in [name for name, (known, _) in self._tasks.items() if wanted.get(name) != known]:
            await _cancel(self._tasks.pop(name)[1])
            if name not in wanted:
                self._forget(name)
        for name, thing in wanted.items():
            if name not in self._tasks:
                self._tasks[name] = thing, asyncio.create_task(self._tend(thing))


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
