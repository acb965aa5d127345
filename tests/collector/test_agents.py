"""Our own agent and the collector, over HTTP: what was counted in the process is what the store counts."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stagelens.collector.store import Selection
from stagelens.core.histogram import Histogram
from stagelens.instrumentors import recorder
from stagelens.instrumentors.agent import Agent
from stagelens.instrumentors.config import AgentConfig, Keep

if TYPE_CHECKING:
    from conftest import Served

STAGES = ("queue", "preprocess", "forward")


def finished(rng: random.Random) -> recorder.Record:
    """A request of one of a hundred series, as the recorder leaves it."""
    start = at = recorder.clock()
    marks: list[Any] = [recorder.CLOSED, start, 0]
    for stage in STAGES:
        marks += (stage, at, at := at + int(rng.lognormvariate(15, 1)))
    return (
        marks,
        start,
        at + rng.randrange(1000),
        f"/predict/{rng.randrange(50)}",
        "",
        rng.choice((200, 503)),
        "server",
    )


@pytest.mark.parametrize("exports", [1, 3])
def test_what_an_agent_counted_is_in_the_store(served: Served, monkeypatch: pytest.MonkeyPatch, exports: int) -> None:
    """Every request, in the bucket of its latency and under its series, and every trace it kept; nothing was refused."""
    config = AgentConfig(metrics_url=f"{served.url}/v1/metrics", traces_url=f"{served.url}/v1/traces")
    agent = Agent(replace(config, resource={"service.name": "shop"}, keep=Keep(slow=100, errors=100)))
    rng = random.Random(exports)
    expected, series = Histogram(), Counter[tuple[str, str]]()
    for _ in range(exports):
        monkeypatch.setattr(recorder, "pending", deque(finished(rng) for _ in range(1000)))
        for _, start, end, route, _, status, _ in recorder.pending:
            expected.record((end - start) / 1e9)
            series[route, "error" if status == 503 else "ok"] += 1

        assert agent.flush(30)

    now = datetime.now(UTC)
    all_of_it = Selection(now - timedelta(hours=1), now + timedelta(minutes=1))
    found = served.store.read.latency(all_of_it)

    assert (found.buckets, found.zero, found.count) == (expected.buckets, 0, 1000 * exports)
    assert found.sum == pytest.approx(expected.sum)
    assert {
        (route, status): served.store.read.latency(replace(all_of_it, route=route, status=status)).count
        for route, status in series
    } == series
    assert len(served.store.read.exemplars(all_of_it, limit=10_000)) == 1000 * exports
    assert "stagelens_collector_rejected_total{" not in served.client.get("/metrics").text
