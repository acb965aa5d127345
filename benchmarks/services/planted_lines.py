"""A program with one slow function, `guilty`, in one of twenty requests: `python planted_lines.py STYLE KIND`.

It prints the mean time of the slow calls of `guilty`, by its own clock. [milliseconds]
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


def compute(seconds: float) -> None:
    """Compute in Python."""
    until = time.thread_time() + seconds / 4
    while time.thread_time() < until:
        sum(range(200))


def compress(seconds: float) -> None:
    """Compute in C, without the interpreter lock."""
    until = time.thread_time() + seconds / 4
    while time.thread_time() < until:
        zlib.compress(data, 1)


def wait_for_lock(seconds: float) -> None:
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


def receive(seconds: float) -> None:
    """Wait for bytes that never come."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(seconds)
        try:
            ours.recv(1)
        except TimeoutError:
            return


KINDS: dict[str, Callable[[float], None]] = {
    "cpu": compute,
    "sleep": time.sleep,
    "lock": wait_for_lock,
    "io": receive,
    "c": compress,
}


def guilty(wait: Callable[[float], None]) -> None:
    """Be slow."""
    started = time.perf_counter()
    wait(SLOW_SECONDS)
    took_ms.append(1e3 * (time.perf_counter() - started))


async def guilty_task(kind: str) -> None:
    """Be slow in a task: wait, or block the event loop."""
    started = time.perf_counter()
    if kind == "sleep":
        await asyncio.sleep(SLOW_SECONDS)
    elif kind == "lock":
        mine = asyncio.Lock()
        await mine.acquire()
        asyncio.get_running_loop().call_later(SLOW_SECONDS, mine.release)
        async with mine:
            pass
    elif kind == "io":
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        asyncio.get_running_loop().call_later(SLOW_SECONDS, theirs.send, b"x")
        await asyncio.get_running_loop().sock_recv(ours, 1)
        ours.close()
        theirs.close()
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
                pool.submit(guilty, wait).result()
            elif slow:
                guilty(wait)

    in_threads(serve)


async def serve_in_tasks(style: str, kind: str) -> None:
    """Serve all requests in tasks, the slow function there or in a thread."""

    async def serve(*, slow: bool) -> None:
        async with stagelens.request("serve"):
            await asyncio.sleep(QUICK_SECONDS)
            if slow and style == "to_thread":
                await asyncio.to_thread(guilty, KINDS[kind])
            elif slow:
                await guilty_task(kind)

    async def work() -> None:
        for number in range(REQUESTS // WORKERS):
            await serve(slow=number % SLOW_EVERY == SLOW_EVERY // 2)

    await asyncio.gather(*(work() for _ in range(WORKERS)))


def main(style: str, kind: str) -> None:
    """Serve all requests."""
    stagelens.instrument()
    if style in {"thread", "executor"}:
        serve_in_threads(style, KINDS[kind])
    else:
        asyncio.run(serve_in_tasks(style, kind))
    print(statistics.fmean(took_ms))


if __name__ == "__main__":
    main(*sys.argv[1:])
