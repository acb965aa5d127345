"""The whole agent against a real service that knows its own times: what was planted is what is reported."""

from __future__ import annotations

import json
import math
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.instrumentors.conftest import Service, Sink, until

pytestmark = pytest.mark.stacks

REQUESTS = 15
WAITED_NS = 40_000_000
PREFIX = "stagelens.stage."


def _is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_planted_stages_are_reported(sink: Sink, serve: Callable[..., Service], kind: str) -> None:
    service = serve("planted_service:app", STAGELENS_TRUSTED_PROXIES="127.0.0.1")
    # The first request does not wait for the start of the server.
    until(lambda: _is_listening(service.port), "the server")
    planted: dict[str, dict[str, tuple[int, int]]] = {}
    for number in range(1, REQUESTS + 1):
        trace_id = f"{number:032x}"
        # A constant wait would be the difference of two clocks.
        sent_at = time.time_ns() - WAITED_NS * (1 + number % 4)
        headers = {
            "Content-Type": "application/json",
            "X-Request-Start": f"t={sent_at // 1000}",
            "traceparent": f"00-{trace_id}-{1:016x}-01",
        }
        measured = service.send_request(f"/{kind}/{number}", json.dumps({"text": "x" * 1000}).encode(), headers)
        stages = {stage: (spent, spent) for stage, spent in measured["stages"].items()}
        # A plain function waits for its thread as well, somewhere between arriving and its first line.
        queued_until = measured["arrived"] if kind == "async" else measured["began"]
        planted[trace_id] = stages | {"queue": (measured["arrived"] - sent_at, queued_until - sent_at)}
    until(lambda: sink.requests() == REQUESTS and len(roots(sink)) == REQUESTS, "every request")
    reported = {trace_id: own_times(root) for trace_id, root in roots(sink).items()}

    for trace_id, root in roots(sink).items():
        assert sum(reported[trace_id].values()) == int(root["endTimeUnixNano"]) - int(root["startTimeUnixNano"])
        assert root["attributes"]["http.route"] == f"/{kind}/{{name}}"
        assert root["attributes"]["inference.model.name"] == "Sleepy"
    for stage in ("preprocess", "forward", "postprocess", "queue"):
        errors = [
            max(low - reported[trace_id][stage], reported[trace_id][stage] - high, 0)
            for trace_id, (low, high) in ((trace_id, stages[stage]) for trace_id, stages in planted.items())
        ]
        assert statistics.median(errors) <= 2_000_000 + 0.02 * statistics.median(
            low for low, _ in (stages[stage] for stages in planted.values())
        )
        assert math.isclose(
            sum(float(point["sum"]) for point in stage_points(sink, stage)),
            sum(stages[stage] for stages in reported.values()) / 1e9,
        )


def own_times(root: dict[str, Any]) -> dict[str, int]:
    """Return the nanoseconds of each stage that a root span reports."""
    return {key.removeprefix(PREFIX): spent for key, spent in root["attributes"].items() if key.startswith(PREFIX)}


def stage_points(sink: Sink, stage: str) -> list[dict[str, Any]]:
    points = [point for name, _, point in sink.points() if name == "inference.stage.duration"]
    return [point for point in points if point["attributes"]["inference.stage"] == stage]


def roots(sink: Sink) -> dict[str, dict[str, Any]]:
    return {span["traceId"]: span for span in sink.spans() if span["parentSpanId"] == f"{1:016x}"}
