"""Recorded exports of other senders (payloads/README.md): each is accepted as it was sent, and its requests count exactly."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from stagelens.collector import serve as servers
from stagelens.core import names
from stagelens.store import Selection

PAYLOADS = Path(__file__).parent / "payloads"
TRACES = sorted(path.stem for path in PAYLOADS.glob("*-traces.bin"))
METRICS = sorted(path.stem for path in PAYLOADS.glob("*-metrics.bin"))


def content(name: str) -> bytes:
    body = (PAYLOADS / f"{name}.bin").read_bytes()
    return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body


def send(served: Any, name: str) -> None:
    head, body = json.loads((PAYLOADS / f"{name}.json").read_text()), (PAYLOADS / f"{name}.bin").read_bytes()
    path, headers = head["path"], head["headers"]
    if path.startswith("/v1/"):
        is_chunked = headers.get("transfer-encoding") == "chunked"
        response = served.client.post(
            path, content=iter([body[:100], body[100:]]) if is_chunked else body, headers=headers
        )
        assert (response.status_code, response.content) == (200, b"")
        return
    with grpc.insecure_channel(f"127.0.0.1:{served.collector.grpc_port}") as channel:
        call: Any = channel.unary_unary(path)
        metadata = [(key, value) for key, value in headers.items() if key != "user-agent"]
        assert call(body, timeout=30, metadata=metadata, compression=grpc.Compression.Gzip) == b""


def spans_of(name: str) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(content(name))
    found = [span for each in request.resource_spans for scope in each.scope_spans for span in scope.spans]
    return [span for span in found if span.kind == Span.SPAN_KIND_SERVER]


def points_of(name: str) -> list[tuple[str, Any]]:
    request = ExportMetricsServiceRequest.FromString(content(name))
    found = [metric for each in request.resource_metrics for scope in each.scope_metrics for metric in scope.metrics]
    return [
        (metric.name, point)
        for metric in found
        for point in getattr(metric, metric.WhichOneof("data") or "").data_points
    ]


def around(recorded: float) -> Selection:
    at, hour = datetime.fromtimestamp(recorded, UTC), timedelta(hours=1)
    return Selection(at - hour, at + hour, service="shop", version="1", environment="production")


@pytest.mark.parametrize("name", TRACES)
def test_requests_of_recorded_spans_are_counted(
    serve: Callable[..., Any], ahead: Any, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(servers, "_AGGREGATION_SECONDS", 0.05)
    recorded = spans_of(name)
    ended = max(span.end_time_unix_nano for span in recorded) / 1e9
    ahead.seconds = ended - time()
    served = serve(grpc_port=0)
    send(served, name)
    # The inbox waits for further spans of each trace.
    ahead.seconds += 60
    read, window = served.store.read, around(ended)
    until(lambda: read.latency(window).count)
    latency = read.latency(window)
    spent = sum(span.end_time_unix_nano - span.start_time_unix_nano for span in recorded)

    assert latency.count == len(recorded) == 4
    assert read.latency(replace(window, status="error")).count == 1
    assert latency.sum * 1e9 == pytest.approx(spent)


@pytest.mark.parametrize("name", METRICS)
def test_recorded_metrics_are_acknowledged(serve: Callable[..., Any], ahead: Any, name: str) -> None:
    points = points_of(name)
    ours = [point for metric, point in points if metric == names.REQUEST_DURATION]
    recorded = points[0][1].time_unix_nano / 1e9
    ahead.seconds = recorded - time()
    served = serve(grpc_port=0)
    send(served, name)

    assert served.metric('stagelens_collector_ignored_total{signal="metrics"}') == len(points) - len(ours)
    assert served.rejected() == 0
    assert served.store.read.latency(around(recorded)).count == (50 if name.startswith("java") else 0)
    assert sum(point.count for point in ours) == (50 if name.startswith("java") else 0)
