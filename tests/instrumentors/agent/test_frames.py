"""Waits in C and for futures, by the instruction at which a function is."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from stagelens.instrumentors.agent.frames import wait_at


class Model:
    """A model with what protects it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.jobs: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.results = {1: 2}

    def predict(self) -> None:
        """Wait in a `with` block."""
        with self.lock:
            pass

    def predict_later(self) -> None:
        """Wait in a call, beside calls that are no waits."""
        self.lock.acquire(bool(self.results.get(1)))

    def take(self) -> int:
        """Wait for an item of a queue in C."""
        return self.jobs.get()

    def read(self) -> int:
        """Work."""
        return next(iter(map(self.jobs.get, ())), 0) or sum(map(ord, iter(self.take_text, "")))

    def take_text(self) -> str:
        """Wait in a function that another one calls."""
        return str(self.jobs.get())[:0]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (Model.predict, ["with lock"]),
        (Model.predict_later, ["acquire"]),
        (Model.take, ["get"]),
        (Model.read, ["get", None]),
    ],
)
def test_a_thread_waits_in_c(method: Callable[[Model], Any], expected: list[str | None]) -> None:
    """The function that waits names its wait; the one that called it does not."""
    model = Model()
    thread = threading.Thread(target=method, args=(model,))
    thread.start()
    assert thread.ident is not None
    found: list[str | None] = []
    until = time.monotonic() + 30
    while found != expected and time.monotonic() < until:
        frame = sys._current_frames()[thread.ident]  # pyright: ignore[reportPrivateUsage]
        found = []
        while frame is not None and frame.f_code.co_filename == __file__:
            wait = wait_at(frame.f_code, frame.f_lasti)
            found.append(None if wait is None else wait.function)
            frame = frame.f_back
    model.lock.release()
    model.jobs.put(0)
    thread.join(30)

    assert found == expected


def test_a_task_waits_for_a_future() -> None:
    async def wait(future: asyncio.Future[None]) -> None:
        await future

    async def main() -> Any:
        future = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(wait(future))
        await asyncio.sleep(0)
        frame: Any = task.get_coro()
        frame = frame.cr_frame
        future.set_result(None)
        found = wait_at(frame.f_code, frame.f_lasti)
        await task
        return found

    assert asyncio.run(main()).function == "await"
