"""Waits in C and for futures, by the instruction at which a function is."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from stagelens.instrumentors.agent.frames import is_lock_wait, wait_at


class Model:
    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[int] = queue.SimpleQueue()

    def take(self) -> int:
        return self.jobs.get()

    def read(self) -> int:
        return next(iter(map(self.jobs.get, ())), 0) or sum(map(ord, iter(self.take_text, "")))

    def take_text(self) -> str:
        return str(self.jobs.get())[:0]


@pytest.mark.parametrize(("method", "expected"), [(Model.take, ["get"]), (Model.read, ["get", None])])
def test_a_thread_waits_in_c(method: Callable[[Model], Any], expected: list[str | None]) -> None:
    model, found = Model(), list[str | None]()
    thread = threading.Thread(target=method, args=(model,))
    thread.start()
    until = time.monotonic() + 30
    while found != expected and time.monotonic() < until:
        found = []
        frame = sys._current_frames()[thread.ident or 0]  # pyright: ignore[reportPrivateUsage]
        while frame is not None and frame.f_code.co_filename == __file__:
            wait = wait_at(frame.f_code, frame.f_lasti)
            found.append(None if wait is None else wait.function)
            frame = frame.f_back
    model.jobs.put(0)
    thread.join(30)

    assert found == expected


def test_a_task_waits_for_a_future() -> None:
    async def wait(future: asyncio.Future[None]) -> None:
        await future

    async def main() -> Any:
        future = asyncio.get_running_loop().create_future()
        task: Any = asyncio.create_task(wait(future))
        await asyncio.sleep(0)
        frame = task.get_coro().cr_frame
        future.set_result(None)
        found = wait_at(frame.f_code, frame.f_lasti)
        await task
        return found

    assert asyncio.run(main()).function == "await"


class Locks:
    def __init__(self) -> None:
        self.lock, self.again, self.condition = threading.Lock(), threading.RLock(), threading.Condition()
        self.process = multiprocessing.Lock()
        self.all = self.lock, self.again, self.condition, self.process
        for each in self.all:
            each.acquire()

    def block(self) -> None:
        with contextlib.nullcontext(), self.lock:
            pass

    def recursive(self) -> None:
        with self.again:
            pass

    def condition_block(self) -> None:
        with self.condition:
            pass

    def call(self) -> None:
        self.lock.acquire()
        self.lock.release()

    def process_call(self) -> None:
        self.process.acquire(timeout=60)
        self.process.release()

    def stack(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.lock)


def _waits_for_lock(work: Callable[[], Any], wanted: bool) -> bool:
    """Return whether *work* is seen to wait for a lock: at once if so, else after it has been seen in another wait."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    until, seen = time.monotonic() + 30, 0
    while time.monotonic() < until and seen < 100:
        frame = sys._current_frames()[thread.ident or 0]  # pyright: ignore[reportPrivateUsage]
        if wanted and is_lock_wait(frame.f_code, frame.f_lasti):
            return True
        seen += not wanted and wait_at(frame.f_code, frame.f_lasti) is not None
    return is_lock_wait(frame.f_code, frame.f_lasti)  # pyright: ignore[reportPossiblyUnboundVariable]


@pytest.mark.parametrize(
    "method", [Locks.block, Locks.recursive, Locks.condition_block, Locks.call, Locks.process_call, Locks.stack]
)
def test_the_wait_for_a_lock_in_c(method: Callable[[Locks], None]) -> None:
    locks = Locks()
    try:
        assert _waits_for_lock(lambda: method(locks), wanted=True)
    finally:
        for each in locks.all:
            each.release()


@pytest.mark.parametrize(
    ("make", "wait", "end"),
    [
        (threading.Event, threading.Event.wait, threading.Event.set),
        (lambda: threading.Semaphore(0), threading.Semaphore.acquire, threading.Semaphore.release),
        (queue.Queue, queue.Queue[Any].get, lambda items: items.put(0)),
        (queue.SimpleQueue, lambda items: items.get(), lambda items: items.put(0)),
        (Future, Future[Any].result, lambda future: future.set_result(0)),
    ],
)
def test_the_wait_for_an_event_or_item_is_none_for_a_lock(
    make: Callable[[], Any], wait: Callable[[Any], Any], end: Callable[[Any], Any]
) -> None:
    waited_for = make()
    try:
        assert not _waits_for_lock(lambda: wait(waited_for), wanted=False)
    finally:
        end(waited_for)
