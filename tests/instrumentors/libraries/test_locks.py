"""Locks and semaphores: the wait of a request for one is its `queue`."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import anyio
import filelock
import pytest

from stagelens.instrumentors.api import request
from stagelens.instrumentors.libraries import locks
from stagelens.instrumentors.libraries.locks import MIN_WAIT, LockInstrumentor
from stagelens.instrumentors.request_marks import read_marks

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Finished

INSTRUMENTOR = LockInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")
LOCKS = [asyncio.Lock, lambda: asyncio.Semaphore(1), lambda: asyncio.BoundedSemaphore(1)]
ANYIO_LOCKS = [anyio.Lock, lambda: anyio.Semaphore(1), lambda: anyio.CapacityLimiter(1)]
SEMAPHORES = [threading.Semaphore, threading.BoundedSemaphore]


def queued(finished: Finished) -> dict[str, list[str]]:
    """Return the stages of each request by its name."""
    return {route: [key for key, _, _ in read_marks(marks)[1]] for marks, _, _, route, *_ in finished}


@pytest.mark.parametrize("make", [*LOCKS, *ANYIO_LOCKS])
def test_only_a_request_that_waits_has_a_queue(finished: Finished, make: Any) -> None:
    async def use(lock: Any, name: str) -> None:
        with request(name):
            async with lock:
                await asyncio.sleep(2 * MIN_WAIT / 1e9)

    async def main() -> None:
        lock = make()
        await asyncio.gather(use(lock, "holds"), use(lock, "waits"))

    asyncio.run(main())

    assert queued(finished) == {"holds": [], "waits": ["queue"]}


@pytest.mark.parametrize("make", LOCKS)
def test_the_wait_behind_a_task_that_was_woken_counts(finished: Finished, make: Any) -> None:
    async def main() -> None:
        lock = make()
        await lock.acquire()

        async def first() -> None:
            async with lock:
                await asyncio.sleep(2 * MIN_WAIT / 1e9)

        task = asyncio.create_task(first())
        await asyncio.sleep(0)
        lock.release()
        with request("second"):
            async with lock:
                pass
        await task

    asyncio.run(main())

    assert queued(finished) == {"second": ["queue"]}


@pytest.mark.parametrize("make", [*LOCKS, *ANYIO_LOCKS])
def test_a_cancelled_wait_counts_and_holds_nothing(finished: Finished, make: Any) -> None:
    async def main() -> None:
        lock = make()
        await lock.acquire()

        async def wait() -> None:
            with request("waits"):
                await lock.acquire()

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.create_task(wait()), 2 * MIN_WAIT / 1e9)
        lock.release()
        await asyncio.wait_for(lock.acquire(), 30)

    asyncio.run(main())

    assert queued(finished) == {"waits": ["queue"]}


@pytest.mark.parametrize("make", SEMAPHORES)
def test_a_thread_that_waits_has_a_queue(finished: Finished, make: Any) -> None:
    semaphore = make(1)
    waits = threading.Event()

    def wait() -> None:
        with request("waits"):
            assert not semaphore.acquire(timeout=2 * MIN_WAIT / 1e9)
            waits.set()
            with semaphore:
                pass

    with request("holds"), semaphore:
        thread = threading.Thread(target=wait)
        thread.start()
        waits.wait(30)
    thread.join(30)

    assert queued(finished)["holds"] == []
    assert queued(finished)["waits"][0] == "queue"


@pytest.mark.parametrize("make", LOCKS)
def test_a_wait_that_was_cancelled_is_no_wait_of_others(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    monkeypatch.setattr(locks, "MIN_WAIT", 0)

    async def main() -> None:
        lock = make()
        await lock.acquire()
        task = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        task.cancel()
        lock.release()
        with request("takes"):
            async with lock:
                pass
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())

    assert queued(finished) == {"takes": []}


@pytest.mark.parametrize("make", SEMAPHORES)
def test_a_free_semaphore_is_no_wait(finished: Finished, monkeypatch: pytest.MonkeyPatch, make: Any) -> None:
    monkeypatch.setattr(locks, "MIN_WAIT", 0)
    semaphore = make(2)
    with request("takes"), semaphore:
        assert semaphore.acquire(timeout=30)
        assert not semaphore.acquire(blocking=False)
        with pytest.raises(ValueError, match="non-blocking"):
            semaphore.acquire(False, 30)

    assert queued(finished) == {"takes": []}


def test_no_method_of_the_lock_is_called(finished: Finished) -> None:
    class Counted(asyncio.Lock):
        looks = 0

        def locked(self) -> bool:
            self.looks += 1
            return super().locked()

    async def main() -> int:
        async with (lock := Counted()):
            return lock.looks

    with request("looks"):
        assert asyncio.run(main()) == 0

    assert queued(finished) == {"looks": []}


def holding(lock: Any) -> tuple[threading.Thread, threading.Event]:
    """Hold *lock* in another thread until the event is set."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    return thread, release


@pytest.mark.parametrize("make", [multiprocessing.Lock, multiprocessing.RLock, multiprocessing.Semaphore, None])
def test_a_wait_for_a_lock_of_processes_or_of_a_file_counts(finished: Finished, tmp_path: Path, make: Any) -> None:
    lock, other = [filelock.FileLock(tmp_path / "model.lock") for _ in "ab"] if make is None else [make()] * 2
    thread, release = holding(other)
    timer = threading.Timer(0.02, release.set)
    with request("waits"):
        timer.start()
        with lock:
            pass
    thread.join(30)
    with request("takes"), lock if make else nullcontext(), lock if make is multiprocessing.RLock else nullcontext():
        pass

    assert queued(finished) == {"waits": ["queue"], "takes": []}


UNDER_GEVENT = """
from gevent import monkey
monkey.patch_all()
import threading
import gevent
from stagelens.instrumentors import recorder
from stagelens.instrumentors.api import request
from stagelens.instrumentors.libraries.locks import LockInstrumentor
LockInstrumentor().instrument()
recorder.background.wake_at = 1000

def run(name, lock, event):
    with request(name):
        with lock:
            event.wait(0.005)

for make in (threading.Lock, threading.RLock):
    lock = make()
    gevent.joinall([gevent.spawn(run, name, lock, threading.Event()) for name in "ab"])
print([[key for key in marks[::3] if key[0] != "@"] for marks, *_ in recorder.pending])
"""


def test_a_lock_of_threads_under_gevent_is_a_queue() -> None:
    done = subprocess.run([sys.executable, "-c", UNDER_GEVENT], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == "[[], ['queue'], [], ['queue']]"
