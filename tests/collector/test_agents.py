"""Agent and collector over HTTP: the store has the counts of the process."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections import Counter, deque
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stagelens.collector import open_processes
from stagelens.core import names
from stagelens.core.histogram import Histogram
from stagelens.instrumentors import loads, recorder, records
from stagelens.instrumentors.agent.worker import Agent
from stagelens.instrumentors.config import AgentConfig, SamplingLimits
from tests.collector.conftest import last_day

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Served

STAGES = ("queue", "preprocess", "forward")


def agent_of(served: Served, instance: str | None = None, **settings: Any) -> Agent:
    config = AgentConfig(metrics_url=f"{served.url}/v1/metrics", traces_url=f"{served.url}/v1/traces")
    return Agent(replace(config, resource={"service.name": "shop"}, **settings), instance=instance)


def environment(served: Served, interval: str, **more: str) -> dict[str, str]:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": served.url, "OTEL_SERVICE_NAME": "shop"}
    return {**os.environ, **endpoint, "STAGELENS_EXPORT_INTERVAL": interval, **more}


def finished(rng: random.Random) -> records.Record:
    """Return a finished request of one of a hundred series, as from the recorder."""
    start = at = records.clock()
    marks: list[Any] = [records.CLOSED, start, 0]
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
def test_counts_of_an_agent_are_in_the_store(served: Served, monkeypatch: pytest.MonkeyPatch, exports: int) -> None:
    agent = agent_of(served, keep=SamplingLimits(slow=100, errors=100))
    rng = random.Random(exports)
    expected, series = Histogram(), Counter[tuple[str, str]]()
    for _ in range(exports):
        monkeypatch.setattr(recorder, "pending", deque(finished(rng) for _ in range(1000)))
        for _, start, end, route, _, status, _ in recorder.pending:
            expected.record((end - start) / 1e9)
            series[route, "error" if status == 503 else "ok"] += 1

        assert agent.flush(30)

    all_of_it = last_day("shop")
    found = served.store.read.latency(all_of_it)

    assert (found.buckets, found.zero, found.count) == (expected.buckets, 0, 1000 * exports)
    assert found.sum == pytest.approx(expected.sum)
    assert {
        (route, status): served.store.read.latency(replace(all_of_it, route=route, status=status)).count
        for route, status in series
    } == series
    assert len(served.store.read.exemplars(all_of_it, limit=10_000)) == 1000 * exports
    assert served.rejected() == 0


SERVING = """
import sys, time
import stagelens
for line in sys.stdin:
    with stagelens.request("only"):
        pass
"""


@pytest.mark.parametrize(
    ("setting", "expected"), [("true", {"cpu", "cpu_share", "memory", "threads"}), ("false", set())]
)
def test_an_idle_process_reports_its_gauges(
    served: Served, until: Callable[[Callable[[], object]], None], setting: str, expected: set[str]
) -> None:
    env = environment(served, "200ms", STAGELENS_HARDWARE=setting)
    selection = last_day("shop")

    def measured() -> set[tuple[str, str]]:
        found = served.store.read.hardware(selection, timedelta(minutes=3))
        return set(zip(found["measure"], found["place"], strict=True))

    def ask(requests: int) -> None:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        until(lambda: served.store.read.latency(selection).count == requests)

    with subprocess.Popen([sys.executable, "-c", SERVING], env=env, stdin=subprocess.PIPE) as process:
        own = {(each, f"{socket.gethostname()}:{process.pid}") for each in expected}
        ask(1)
        until(lambda: own <= measured())
        # At least one more export was due by then.
        ask(2)
        process.communicate()

    assert bool(measured()) == bool(expected)
    assert served.store.read.latency(selection).count == 2
    assert served.rejected() == 0


def test_the_start_of_a_replica_is_in_the_store(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of(served, instance="replica-1")
    now = records.clock()
    loads.loads.take()
    monkeypatch.setattr(loads.loads, "_free_loads", 1)
    loads.loads.note("first_run", "resnet", "1x3x224x224", now - 9_000_000_000, now - 7_000_000_000)
    for stage in ("load", "forward"):
        marks: list[Any] = [records.CLOSED, now, 0, stage, now, now + 1_000_000]
        monkeypatch.setattr(recorder, "pending", deque([(marks, now, now + 2_000_000, "/a", "", 200, "server")]))

        assert agent.flush(30)

    read, around = served.store.read, last_day("shop")
    rows = read.loads("shop")
    exemplars = read.exemplars(replace(around, cold="1"))
    trace = read.trace(f"{exemplars['trace_id'][0]}-{exemplars['span_id'][0]}")

    assert list(zip(rows["instance"], rows["phase"], rows["model"], rows["shape"], strict=True)) == [
        ("replica-1", "start", "", ""),
        ("replica-1", "first_run", "resnet", "1x3x224x224"),
    ]
    assert rows["seconds"].tolist() == pytest.approx([(now - loads.born) / 1e9, 2.0])
    assert [read.latency(replace(around, cold=cold)).count for cold in (None, "0", "1")] == [2, 1, 1]
    assert trace is not None
    assert (trace.series.cold, trace.attributes[names.REPLICA_AGE]) == ("1", now - loads.born)
    assert rows["heard"].notna().all()
    assert served.rejected() == 0


def test_reports_within_one_second_are_in_order(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of(served)
    marks: list[Any] = [records.OPEN, records.clock(), 0, records.ARRIVAL, 0, 0]
    monkeypatch.setattr(recorder, "started", deque([marks] * 3))
    opened: list[int] = []
    for status in (records.OPEN, records.OPEN, records.CLOSED):
        marks[0] = status
        if status == records.CLOSED:
            record = (marks, marks[1], records.clock(), "/a", "", 200, "server")
            monkeypatch.setattr(recorder, "pending", deque([record]))

        assert agent.flush(30)

        opened.append(served.collector.metrics.processes.open_requests())

    assert opened == [3, 3, 0]


OPEN = """
import sys, threading
import stagelens
def hang():
    with stagelens.request("hangs"):
        threading.Event().wait()
with stagelens.request("ends"):
    pass
if sys.argv[1] == "open":
    threading.Thread(target=hang, daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a signal sends the last report on Linux")
def test_a_killed_process_with_open_requests_is_known(
    served: Served, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_processes, "STOPPED_AFTER", 0)
    processes = served.collector.metrics.processes
    commands = [[sys.executable, "-c", OPEN, kind] for kind in ("open", "open", "idle")]
    killed, ended, idle = [subprocess.Popen(command, env=environment(served, "1s")) for command in commands]
    until(lambda: processes.open_requests() == 2)
    until(lambda: served.store.read.dimensions(last_day("shop"))["route"].get("ends") == 3)
    for process, number in ((killed, signal.SIGKILL), (ended, signal.SIGTERM), (idle, signal.SIGKILL)):
        process.send_signal(number)
        process.wait()

    def stopped() -> list[int]:
        served.collector._reporter.report()  # pyright: ignore[reportPrivateUsage]
        return [int(place.partition(":")[2]) for place in served.store.read.stopped(last_day("shop"))["place"]]

    assert processes.open_requests() == 1
    until(stopped)
    assert stopped() == [killed.pid]
    assert served.store.read.dimensions(last_day("shop"))["status"] == {"ok": 3, "error": 1}
