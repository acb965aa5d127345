"""One process, from its finished requests to what arrives at the collector."""

from __future__ import annotations

import contextvars
import dataclasses
import itertools
import os
import random
import socket
from collections import Counter, deque
from typing import Any

import pytest

import stagelens
from stagelens.core import names
from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.agent import exports
from stagelens.instrumentors.agent.aggregate import NO_FACTS, REQUESTS_ONLY
from stagelens.instrumentors.agent.worker import Agent, Schedule
from stagelens.instrumentors.config import AgentConfig
from stagelens.instrumentors.export import exporter
from tests.instrumentors.conftest import Post, Sink

pytestmark = pytest.mark.usefixtures("finished")


def agent_for(sink: Sink, **changes: Any) -> Agent:
    config = AgentConfig(f"{sink.address}/v1/metrics", f"{sink.address}/v1/traces", timeout_seconds=60)
    return Agent(dataclasses.replace(config, **changes))


def serve(count: int, name: str = "predict") -> None:
    for _ in range(count):
        with stagelens.request(name), stagelens.stage("forward"):
            pass


def test_each_request_arrives_exactly_once(sink: Sink) -> None:
    agent = agent_for(sink)
    for count in (300, 5, 0):
        serve(count)

        assert agent.flush(60)
    # A point for each stage that dominates: where the machine is busy, some requests are mostly nobody's time.
    counted = [sum(int(each["count"]) for each in post.points("inference.request.duration")) for post in sink.metrics()]
    assert counted == [300, 5]
    first, second = (post.points("inference.request.duration")[0] for post in sink.metrics())
    assert first["timeUnixNano"] == second["startTimeUnixNano"] < second["timeUnixNano"]
    assert [post.name for post in sink.posts] == [f"{agent.instance}:{number}" for number in range(1, 7)]
    assert sink.metrics()[0].resource() == {
        "service.name": "python",
        "service.instance.id": agent.instance,
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
    }


def by_attribute(post: Post) -> dict[str, int]:
    found: Counter[str] = Counter()
    for point in post.points(names.REQUEST_BY_ATTRIBUTE):
        found[point["attributes"][names.ATTRIBUTE]] += int(point["count"])
    return dict(found)


def test_attributes_have_intervals_of_their_own(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_for(sink)
    monkeypatch.setattr(agent, "_attribute_schedule", Schedule(10**12, 0.0))
    serve(2)
    agent._aggregate_pending()  # pyright: ignore[reportPrivateUsage] - one round of the background thread
    agent._export(due=True)  # pyright: ignore[reportPrivateUsage] - as above
    serve(3)

    assert agent.flush(60)

    serve(1)

    assert agent.flush(60)
    assert agent.flush(60)

    (first, second), counted = sink.attributes(), sink.metrics()
    points = [post.points(names.REQUEST_BY_ATTRIBUTE)[0] for post in (first, second)]
    assert [by_attribute(post) for post in (first, second)] == [{"replica=": 5}, {"replica=": 1}]
    assert points[0]["timeUnixNano"] == points[1]["startTimeUnixNano"]
    assert points[0]["startTimeUnixNano"] == counted[0].points(names.REQUEST_DURATION)[0]["startTimeUnixNano"]
    assert points[0]["timeUnixNano"] == counted[1].points(names.REQUEST_DURATION)[0]["timeUnixNano"]
    assert all(point["attributes"] for point in first.points(names.REPLICA_STAGE_TIME))


def test_requests_are_counted_by_concurrency_without_those_that_left_no_record(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "arrivals", itertools.count())
    monkeypatch.setattr(recorder, "abandoned", recorder.Counter())
    agent = agent_for(sink)
    for _ in range(2):
        opened = recorder.begin()
        assert opened is not None
        recorder.abandon(opened[1])
    agent._aggregate_pending()  # pyright: ignore[reportPrivateUsage] - one round of the background thread
    serve(1)
    with stagelens.request("predict"):
        serve(2)
        contextvars.Context().run(serve, 5)

    assert agent.flush(60)
    assert by_attribute(sink.attributes()[0]) == {"concurrency=1": 2, "concurrency=2": 5, "replica=": 7}


@pytest.mark.parametrize("level", [NO_FACTS, REQUESTS_ONLY])
def test_the_replica_is_counted_at_every_level(sink: Sink, level: int) -> None:
    agent = agent_for(sink)
    agent._aggregator.level = level  # pyright: ignore[reportPrivateUsage] - as the governor does
    serve(3)

    assert agent.flush(60)
    assert by_attribute(sink.attributes()[0]) == {"replica=": 3}


def test_uncounted_requests_are_reported(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_for(sink)

    assert agent.flush(60)  # takes note of what other tests dropped

    sink.posts.clear()
    monkeypatch.setattr(recorder, "MAX_PENDING", 4)
    serve(6)
    recorder.pending[0][0].append("torn")
    sink.answers.append((400, {}, b""))

    assert agent.flush(60)

    refused = sink.metrics()[0]
    serve(1)

    assert agent.flush(60)
    assert agent.flush(60)
    assert {point["asInt"] for point in refused.points("stagelens.requests.dropped")} == {"1", "2"}

    sink.posts.remove(refused)

    # Three counted, one torn and two that found no room were in the refused batch.
    assert sink.dropped() == {"rejected": 6}
    assert sink.requests() == 1


def test_an_overloaded_agent_still_exports(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(deque[records.Record]):
        def popleft(self) -> records.Record:
            self.append(self[0])
            return super().popleft()

    monkeypatch.setattr(recorder, "pending", Endless())
    serve(100)

    assert agent_for(sink).flush(60)
    assert sink.requests() >= 100


def test_many_series_are_split_over_posts_of_bounded_size(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "POINTS_A_BODY", 10)
    agent = agent_for(sink)
    for number in range(120):
        serve(2, f"route-{number}")

    assert agent.flush(60)
    assert (len(sink.metrics()), sink.requests()) == (3, 240)
    assert len(sink.attributes()) > 12
    assert sum(by_attribute(post)["replica="] for post in sink.attributes()) == 240


def test_requests_wait_for_an_unreachable_collector(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "BACKOFF_BASE_SECONDS", 30)
    monkeypatch.setattr(random.Random, "uniform", lambda _self, _low, high: high)
    sink.answers.extend([(503, {}, b"")] * 3)
    agent = agent_for(sink)
    for count in (1, 2, 3):
        serve(count)

        assert not agent.flush(60)

    assert agent.flush(60)
    assert sink.requests() == 6
    assert len({(post.name, post.body) for post in sink.posts}) == len({post.name for post in sink.posts})


def test_an_export_is_due_on_multiples_of_the_interval_and_when_the_clock_was_set_back() -> None:
    schedule = Schedule(10.0, now=993.0)

    assert not schedule.due(999.9)
    assert schedule.due(1003.0)
    assert schedule.left_seconds(1003.0) == 7
    assert schedule.due(500.0)
    assert schedule.left_seconds(500.0) == 10


def test_a_trace_that_cannot_be_encoded_is_dropped_alone(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    written = exports.build_trace

    def build_trace(request: Any) -> Any:
        if request.record[3] == "broken":
            raise RuntimeError
        return written(request)

    monkeypatch.setattr(exports, "build_trace", build_trace)
    agent = agent_for(sink)
    serve(1, "broken")
    serve(1, "sound")

    assert agent.flush(60)
    assert len(sink.metrics()[0].points("inference.request.duration")) == 2
    assert [post.path for post in sink.posts if "traces" in post.path] == ["/v1/traces"]
