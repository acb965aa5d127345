"""A service that runs for long, in a process of its own: many requests that end in every way there is.

    python -m tests.instrumentors.soak REQUESTS WARM

Prints, as JSON, what the process held after *WARM* of them and at the end, and how many were counted, dropped and sent.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from stagelens.core import names
from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.agent import exports, worker
from stagelens.instrumentors.agent.worker import Agent
from stagelens.instrumentors.api import request, stage
from stagelens.instrumentors.config import AgentConfig
from stagelens.instrumentors.export.outbox import ExportBatch
from stagelens.instrumentors.libraries.executors import ExecutorInstrumentor
from tests.support.otlp_bodies import read_metrics


class Collector:
    def __init__(self) -> None:
        self.counted = self.dropped = self.cpu_ns = 0

    def offer(self, batch: ExportBatch) -> None:
        if not batch.url.endswith("/v1/metrics"):
            return
        (of_process,) = read_metrics(batch.body)["resourceMetrics"]
        for metric in of_process["scopeMetrics"][0]["metrics"]:
            if metric["name"] == names.REQUEST_DURATION:
                self.counted += sum(int(point["count"]) for point in metric["exponentialHistogram"]["dataPoints"])
            elif metric["name"] == names.REQUESTS_DROPPED:
                self.dropped += sum(int(point["asInt"]) for point in metric["sum"]["dataPoints"])

    def drain(self, timeout_seconds: float) -> bool:
        return timeout_seconds >= 0


class DeferredMark:
    """Mark of a device that is known later, or never."""

    def __init__(self, *, known: bool) -> None:
        self._known = known

    def ready(self) -> bool:
        return self._known

    def marks(self) -> records.Marks:
        return ["forward@gpu", records.clock(), records.clock()]


@stage("forward")
def forward() -> None:
    """Work."""


@request("returns")
def returns() -> None:
    forward()


@request("raises")
def raises() -> None:
    forward()
    raise LookupError


@request("recursive")
def recursive(depth: int = 3) -> None:
    forward()
    if depth:
        recursive(depth - 1)


@request("stream")
def stream() -> Generator[int]:
    for number in range(3):
        forward()
        yield number


@request("async stream")
async def stream_later() -> AsyncGenerator[int]:
    for number in range(3):
        forward()
        yield number


@request("cancelled")
async def cancelled() -> None:
    with stage("dependency"):
        await asyncio.sleep(60)


class Load:
    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._held: list[Any] = []
        self._go = threading.Event()
        self.sent = 0
        self.sent_by_threads = recorder.Counter()

    async def some(self, scale: int) -> None:
        kinds: list[tuple[Callable[[], Awaitable[None] | None], int]] = [
            (returns, 40),
            (self._raises, 10),
            (recursive, 10),
            (self._streams, 20),
            (self._writes, 10),
            (self._has_a_name_of_its_own, 6),
            (self._abandons_later, 4),
            (self._cancels, 3),
            (self._hands_a_job_over, 3),
            (self._hands_a_job_over_and_leaves, 2),
            (self._starts_a_thread_and_leaves, 1),
        ]
        for send, share in kinds:
            for _ in range(share * scale):
                self.sent += 1
                waiting = send()
                if waiting is not None:
                    await waiting
        await self._to_the_end()

    def marks_too_much(self) -> None:
        self.sent += 1
        with request("huge"):
            for _ in range(records.MAX_MARKS // 2):
                forward()

    def _raises(self) -> None:
        with pytest.raises(LookupError):
            raises()

    def _streams(self) -> None:
        running = stream()
        next(running)
        # Some are read to the end or closed, some fail, some are freed, some only much later.
        match self.sent % 5:
            case 0:
                list(running)
            case 1:
                running.close()
            case 2:
                with pytest.raises(LookupError):
                    running.throw(LookupError())
            case 3:
                self._held.append(running)
            case _:
                del running

    async def _abandons_later(self) -> None:
        running = stream_later()
        await anext(running)
        if self.sent % 2:
            self._held.append(running)

    def _writes(self) -> None:
        marks = [("@force", 1, 0), *(("@late", DeferredMark(known=known), 0) for known in (True, False))]
        with request("forced or late"):
            forward()
            cast("recorder.Marks", records.current.get()).extend(marks[self.sent % 3])

    def _has_a_name_of_its_own(self) -> None:
        with request(f"number {self.sent}"):
            forward()

    async def _cancels(self) -> None:
        task = asyncio.ensure_future(cancelled())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def _hands_a_job_over(self) -> None:
        async with request("pool"):
            await asyncio.get_running_loop().run_in_executor(self._pool, forward)

    def _hands_a_job_over_and_leaves(self) -> None:
        with request("job"):
            self._held.append(self._pool.submit(self._stay))
            self._held.append(job := self._pool.submit(forward))
            if self.sent % 2:
                job.cancel()

    def _starts_a_thread_and_leaves(self) -> None:
        with request("thread"):
            thread = threading.Thread(target=self._stay)
            thread.start()
        self._held.append(thread)

    def _stay(self) -> None:
        self._go.wait(30)
        forward()
        with request("of a thread"):
            pass
        self.sent_by_threads.add()

    async def _to_the_end(self) -> None:
        self._go.set()
        for item in self._held:
            if isinstance(item, threading.Thread):
                item.join(30)
            elif isinstance(item, Future) and not item.cancelled():
                cast("Future[None]", item).result(30)
        self._held.clear()
        self._go.clear()
        # The loop closes abandoned async generators in tasks of its own.
        for _ in range(3):
            await asyncio.sleep(0)


class Footprint(NamedTuple):
    blocks: int
    resident_bytes: int
    requests: int
    series: int
    threads: list[str]

    @classmethod
    def of(cls, agent: Agent) -> Footprint:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        requests = sum(type(item) is list and bool(item) and item[0] is records.CLOSED for item in gc.get_objects())
        series = len(agent._aggregator._known)  # pyright: ignore[reportPrivateUsage] - nothing else tells
        threads = sorted(thread.name for thread in threading.enumerate())
        return cls(sys.getallocatedblocks(), pages * resource.getpagesize(), requests, series, threads)


async def serve(agent: Agent, load: Load, requests: int, warm_after: int) -> tuple[Footprint, Footprint]:
    """Send *requests*; return what is held after *warm_after* of them, and at the end."""
    warm, rounds = None, 0
    while load.sent < requests:
        await load.some(5)
        rounds += 1
        # Every tenth time we are late, and what comes next does not fit.
        if rounds % 10:
            agent._count_pending()  # pyright: ignore[reportPrivateUsage] - what the background does meanwhile
        if rounds % 40 == 0:
            load.marks_too_much()
            agent.flush(60)
        if warm is None and load.sent >= warm_after and rounds % 40 == 0:
            warm = Footprint.of(agent)
    agent.flush(60)
    return warm or Footprint.of(agent), Footprint.of(agent)


def main(requests: int, warm_after: int) -> None:
    collector = Collector()
    recorder.MAX_PENDING = 1000
    recorder.background.wake_at = sys.maxsize
    worker.PAUSE_SECONDS = 0
    exports.Exporter = lambda **_: collector  # pyright: ignore[reportAttributeAccessIssue]
    ExecutorInstrumentor().instrument()
    with ThreadPoolExecutor(2) as pool:
        load = Load(pool)
        warm, last = asyncio.run(serve(Agent(AgentConfig()), load, requests, warm_after))
    found = {"counted": collector.counted, "dropped": collector.dropped, "left open": bool(records.current.get())}
    found |= {"sent": load.sent + load.sent_by_threads.read(), "warm": warm._asdict(), "last": last._asdict()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
