"""A program with one slow function, `guilty_…`, in one of twenty requests: `python planted_lines.py STYLE KIND`.

It prints the time of that function in the requests around p99, by its own clock. [milliseconds]
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import sys
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import stagelens

REQUESTS, WORKERS, SLOW_EVERY = 1000, 4, 20
SLOW_SECONDS, QUICK_SECONDS = 0.08, 0.003
took_ms: list[float] = []
lock = threading.Lock()
data = bytes(range(256)) * 4096


def guilty_cpu(seconds: float) -> None:
    """Compute in Python."""
    until = time.thread_time() + seconds / 4
    while time.thread_time() < until:
        sum(range(200))


def guilty_c(seconds: float) -> None:
    """Compute in C, without the interpreter lock."""
    until = time.thread_time() + seconds / 4
    while time.thread_time() < until:
        zlib.compress(data, 1)


def guilty_sleep(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)


def guilty_lock(seconds: float) -> None:
    """Wait for a lock that another thread holds."""
    threading.Thread(target=hold, args=(mine := threading.Lock(), held := threading.Event(), seconds)).start()
    held.wait()
    with mine:
        pass


def hold(mine: threading.Lock, held: threading.Event, seconds: float) -> None:
    """Hold a lock."""
    with mine:
        held.set()
        time.sleep(seconds)


def guilty_io(seconds: float) -> None:
    """Wait for bytes that never come."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(seconds)
        try:
            ours.recv(1)
        except TimeoutError:
            return


async def guilty_task_sleep(seconds: float) -> None:
    """Sleep in a task."""
    await asyncio.sleep(seconds)


async def guilty_task_lock(seconds: float) -> None:
    """Wait for a lock of the event loop."""
    mine = asyncio.Lock()
    await mine.acquire()
    asyncio.get_running_loop().call_later(seconds, mine.release)
    async with mine:
        pass


async def guilty_task_io(seconds: float) -> None:
    """Wait for a byte in a task."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    asyncio.get_running_loop().call_later(seconds, theirs.send, b"x")
    await asyncio.get_running_loop().sock_recv(ours, 1)
    ours.close()
    theirs.close()


KINDS: dict[str, Callable[[float], None]] = {
    "cpu": guilty_cpu,
    "sleep": guilty_sleep,
    "lock": guilty_lock,
    "io": guilty_io,
    "c": guilty_c,
}
TASKS = {"sleep": guilty_task_sleep, "lock": guilty_task_lock, "io": guilty_task_io}


def be_slow(wait: Callable[[float], None]) -> None:
    """Call the slow function and note its time."""
    started = time.perf_counter()
    wait(SLOW_SECONDS)
    took_ms.append(1e3 * (time.perf_counter() - started))


async def be_slow_in_a_task(kind: str) -> None:
    """Call the slow function, which waits or blocks the event loop, and note its time."""
    started = time.perf_counter()
    if kind in TASKS:
        await TASKS[kind](SLOW_SECONDS)
    else:
        KINDS[kind](SLOW_SECONDS)
    took_ms.append(1e3 * (time.perf_counter() - started))


def in_threads(serve: Callable[..., None]) -> None:
    """Serve requests in threads."""

    def work() -> None:
        for number in range(REQUESTS // WORKERS):
            serve(slow=number % SLOW_EVERY == SLOW_EVERY // 2)

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def serve_in_threads(style: str, wait: Callable[[float], None]) -> None:
    """Serve all requests in threads, the slow function there or in an executor."""
    pool = ThreadPoolExecutor(WORKERS)

    def serve(*, slow: bool) -> None:
        with stagelens.request("serve"):
            time.sleep(QUICK_SECONDS)
            if slow and style == "executor":
                pool.submit(be_slow, wait).result()
            elif slow:
                be_slow(wait)

    in_threads(serve)


async def serve_in_tasks(style: str, kind: str) -> None:
    """Serve all requests in tasks, the slow function there or in a thread."""

    async def serve(*, slow: bool) -> None:
        async with stagelens.request("serve"):
            await asyncio.sleep(QUICK_SECONDS)
            if slow and style == "to_thread":
                await asyncio.to_thread(be_slow, KINDS[kind])
            elif slow:
                await be_slow_in_a_task(kind)

    # A function that blocks the event loop would delay the other requests, whose time it does not have.
    workers = 1 if style == "task" and kind not in TASKS else WORKERS

    async def work() -> None:
        for number in range(REQUESTS // workers):
            await serve(slow=number % SLOW_EVERY == SLOW_EVERY // 2)

    await asyncio.gather(*(work() for _ in range(workers)))


def main(style: str, kind: str) -> None:
    """Serve all requests."""
    stagelens.instrument()
    if style in {"thread", "executor"}:
        serve_in_threads(style, KINDS[kind])
    else:
        asyncio.run(serve_in_tasks(style, kind))
    tenth = REQUESTS // 100
    print(statistics.fmean(sorted(took_ms)[-tenth - 5 : -tenth + 5]))


if __name__ == "__main__":
    main(*sys.argv[1:])
