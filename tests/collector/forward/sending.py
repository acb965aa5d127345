"""Exports for tests of forwarding, and queries of the collector and its store."""

from __future__ import annotations

from typing import Any

import httpx
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from stagelens.collector.serve import Collector
from stagelens.store import Store
from stagelens.store.collectors import Backlog, read_backlogs
from stagelens.store.engines import database

PROTOBUF = "application/x-protobuf"


def post(collector: Collector, path: str, body: bytes, media_type: str = PROTOBUF, **headers: str) -> httpx.Response:
    host, port = collector.address
    named = {"content-type": media_type} | {key.replace("_", "-"): value for key, value in headers.items()}
    return httpx.post(f"http://{host}:{port}{path}", content=body, headers=named, timeout=60)


def metrics(bodies: Any, number: int = 0) -> bytes:
    """Return a unique export of metrics."""
    point = bodies.point((0.1 + number / 1000,))
    return json_format.ParseDict(bodies.metrics(point), ExportMetricsServiceRequest()).SerializeToString()


def spans(number: int) -> bytes:
    """Return an export of a span of another program."""
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id, span.name = number.to_bytes(16, "big"), b"12345678", "GET /"
    span.start_time_unix_nano, span.end_time_unix_nano, span.kind = 1, 2, Span.SPAN_KIND_SERVER
    return request.SerializeToString()


def logs(*texts: str) -> bytes:
    """Return an export of log records."""
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for text in texts:
        scope.log_records.add().body.string_value = text
    return request.SerializeToString()


def waiting(store: Store) -> Backlog:
    """Return the bodies that wait for the destination."""
    with database.reading(store.engine) as connection:
        return read_backlogs(connection).get("backend", Backlog())


def counted(store: Store) -> int:
    """Return the number of counted requests."""
    query = "SELECT coalesce(sum(count), 0) FROM points WHERE tier = 10 AND metric = 1"
    with database.reading(store.engine) as connection:
        return int(connection.exec_driver_sql(query).scalar_one())


def metric_value(collector: Collector, name: str, **labels: str) -> float:
    """Return a value of /metrics."""
    host, port = collector.address
    wanted = {"destination": "backend", **labels}
    for row in httpx.get(f"http://{host}:{port}/metrics", timeout=60).text.splitlines():
        start = f"stagelens_collector_forward_{name}{{"
        if row.startswith(start) and all(f'{key}="{value}"' in row for key, value in wanted.items()):
            return float(row.rpartition(" ")[2])
    return 0.0
