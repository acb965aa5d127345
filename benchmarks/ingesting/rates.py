"""What an agent costs its collector, by the requests that its process serves: its own recorder, fold, exporter and bodies."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from storage.engines import cpu_seconds

from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.agent import worker as agent_module
from stagelens.instrumentors.agent.worker import Agent
from stagelens.instrumentors.config import AgentConfig
from stagelens.instrumentors.export.exporter import ExportBatch, Exporter

from .systems import Running

INTERVAL_SECONDS = 10
ROUTES = 10
STAGES = ("queue", "preprocess", "tokenize", "forward", "postprocess", "serialize", "network")
_IDLE_SECONDS = 5.0


class _Weighed(Exporter):
    """The exporter, which also notes how large bodies are."""

    sizes: tuple[int, ...] = ()

    def offer(self, batch: ExportBatch) -> None:
        type(self).sizes += (len(batch.body),)
        super().offer(batch)


@dataclass(frozen=True)
class Cost:
    """Of one agent and interval of 10 s.

    Args:
        rate: Requests a second.
        body_bytes: Of all its posts.
        agent_ms: CPU time of the agent's process: folding, writing, sending. [milliseconds]
        collector_ms: CPU time of the collector, without what it takes when nobody sends. [milliseconds]
    """

    rate: int
    body_bytes: float
    agent_ms: float
    collector_ms: float


def cost(target: Running, rate: int, intervals: int) -> Cost:
    """Let an agent whose process serves *rate* requests a second export so many *intervals* to *target*."""
    agent_module.Exporter = _Weighed
    _Weighed.sizes = ()
    config = replace(AgentConfig(), metrics_url=f"{target.url}/v1/metrics", traces_url=f"{target.url}/v1/traces")
    agent = Agent(replace(config, resource={"service.name": f"rate-{rate}", "service.version": "1"}))
    rng = random.Random(rate)
    _serve(agent, rng, rate)  # series are new only once
    _Weighed.sizes = ()
    idle = _taken(target, lambda: time.sleep(_IDLE_SECONDS)) / _IDLE_SECONDS
    began, spent = time.perf_counter(), list[float]()
    taken = _taken(target, lambda: spent.extend(_serve(agent, rng, rate) for _ in range(intervals)))
    taken -= idle * (time.perf_counter() - began)
    return Cost(rate, sum(_Weighed.sizes) / intervals, 1000 * sum(spent) / intervals, 1000 * taken / intervals)


def _serve(agent: Agent, rng: random.Random, rate: int) -> float:
    """Export an interval; return the CPU seconds of this process."""
    recorder.pending.extend(_records(rng, rate * INTERVAL_SECONDS))
    began = time.process_time()
    if not agent.flush(120):
        msg = "the collector did not take an agent's export"
        raise RuntimeError(msg)
    return time.process_time() - began


def _records(rng: random.Random, count: int) -> Iterator[records.Record]:
    """Yield so many finished requests, as the recorder leaves them."""
    now = records.clock()
    for _ in range(count):
        end = now - rng.randrange(INTERVAL_SECONDS * 10**9)
        own = [int(rng.lognormvariate(16 - place / 2, 0.5)) for place in range(len(STAGES))]
        start = at = end - int(1.05 * sum(own))
        marks: list[object] = [records.CLOSED, now, 0, "@model", "model", 0]
        for stage, spent in zip(STAGES, own, strict=True):
            marks += (stage, at, at + spent)
            at += spent
        yield (marks, start, end, f"/predict/{rng.randrange(ROUTES)}", "", 200, "server")


def _taken(target: Running, work: Callable[[], None]) -> float:
    """Return the CPU seconds that the collector takes meanwhile."""
    before = cpu_seconds(target.process.pid)
    work()
    return cpu_seconds(target.process.pid) - before
