"""OTLP over gRPC: responses to calls, and ingestion equal to HTTP."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import grpc
import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.collector.server import grpc_server
from stagelens.core.errors import StagelensError, StoreError
from stagelens.store import Store
from tests.collector.traces.otlp import as_protobuf

OTLP = "opentelemetry.proto.collector"
METRICS, TRACES, LOGS = (
    f"/{OTLP}.{service}/Export"
    for service in ("metrics.v1.MetricsService", "trace.v1.TraceService", "logs.v1.LogsService")
)
Serve: TypeAlias = Callable[..., Any]


def channel(collector: Collector, compression: grpc.Compression | None = None) -> grpc.Channel:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    return grpc.insecure_channel(f"127.0.0.1:{collector.grpc_port}", options, compression)


def call(
    served: Any,
    message: bytes | Message,
    method: str = METRICS,
    compression: grpc.Compression | None = None,
    **metadata: str,
) -> bytes:
    body = message if isinstance(message, bytes) else message.SerializeToString()
    headers = tuple((key.replace("_", "-"), value) for key, value in metadata.items())
    with channel(served.collector, compression) as to:
        return to.unary_unary(method)(body, timeout=30, metadata=headers)


def refusal(served: Any, *arguments: Any, **metadata: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(served, *arguments, **metadata)
    return caught.value


def details(error: Any) -> Status:
    return Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])


def retry_seconds(error: Any) -> int:
    (found,) = details(error).details
    info = RetryInfo()
    assert found.Unpack(info)
    assert RetryInfo.FromString(dict(error.trailing_metadata())["google.rpc.retryinfo-bin"]) == info
    return info.retry_delay.seconds


@pytest.fixture
def metrics(bodies: Any) -> ExportMetricsServiceRequest:
    return ParseDict(bodies.metrics(bodies.point()), ExportMetricsServiceRequest())


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
def test_acknowledged_exports_of_all_signals_are_in_the_store(
    serve: Serve, bodies: Any, metrics: Any, compression: grpc.Compression | None
) -> None:
    served = serve(grpc_port=0)
    points = metrics.resource_metrics[0].scope_metrics[0].metrics[0].exponential_histogram.data_points
    points.add().CopyFrom(points[0])
    points[1].scale = 99
    logs = ExportLogsServiceRequest()
    logs.resource_logs.add().scope_logs.add().log_records.add()
    trace = as_protobuf(bodies.spans(*bodies.trace({"forward": 5, "overhead": 1})))
    exports: list[tuple[Any, ...]] = [(metrics,), (trace, TRACES), (logs, LOGS)]
    responses = [call(served, *export, compression=compression) for export in exports]
    partial = ExportMetricsServiceResponse.FromString(responses[0]).partial_success
    declined = ExportLogsServiceResponse.FromString(responses[2]).partial_success

    assert (partial.rejected_data_points, served.counted()) == (1, 1)
    assert "scale must lie between" in partial.error_message
    assert (responses[1], served.store.read.trace("ab" * 16).duration_ns) == (b"", 6)
    assert (declined.rejected_log_records, "OTEL_LOGS_EXPORTER=none" in declined.error_message) == (1, True)
    for signal in ("metrics", "traces", "logs"):
        assert served.metric(f'stagelens_collector_requests_total{{code="200",signal="{signal}"}}') == 1


@pytest.mark.parametrize(
    ("message", "compression", "code", "reason"),
    [
        (b"\xff\xff", None, grpc.StatusCode.INVALID_ARGUMENT, "not a valid ExportMetricsServiceRequest"),
        (gzip.compress(b"", mtime=0)[:-2], None, grpc.StatusCode.INVALID_ARGUMENT, "ends early"),
        (bytes(50_000_000), grpc.Compression.Gzip, grpc.StatusCode.INVALID_ARGUMENT, "larger than 1000000 bytes"),
        (bytes(300_000), None, grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"),
        (b"", grpc.Compression.Deflate, grpc.StatusCode.UNIMPLEMENTED, "deflate"),
    ],
)
def test_unreadable_bodies_are_refused_with_a_reason(
    serve: Serve, message: bytes, compression: grpc.Compression | None, code: grpc.StatusCode, reason: str
) -> None:
    served = serve(grpc_port=0, max_body_bytes=200_000, max_inflated_bytes=1_000_000)
    error: Any = refusal(served, message, METRICS, compression)

    assert error.code() == code
    assert reason in error.details()
    assert "google.rpc.retryinfo-bin" not in dict(error.trailing_metadata())
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        status = details(error)
        assert (status.code, status.message, list(status.details)) == (3, error.details(), [])
    assert call(served, b"") == b""


@pytest.mark.parametrize(
    "method", ["/a.B/C", f"/{OTLP}.metrics.v1.MetricsService/Import", "/grpc.health.v1.Health/Watch"]
)
def test_other_methods_are_not_implemented(serve: Serve, method: str) -> None:
    error: Any = refusal(serve(grpc_port=0), b"", method)

    assert error.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "MetricsService" in error.details()


def test_the_health_service_reports_whether_commits_succeed(
    serve_slow: Serve, slow: Any, metrics: Any, until: Callable[..., None]
) -> None:
    served = serve_slow(grpc_port=0)
    check = "/grpc.health.v1.Health/Check"
    healthy = call(served, b"", check)
    slow.failure = StoreError("the disk is full")
    error: Any = refusal(served, metrics)
    sick = call(served, b"\x0a\x01x", check)
    slow.failure = None
    until(lambda: call(served, b"", check) == healthy)

    assert (healthy, sick) == (b"\x08\x01", b"\x08\x02")  # SERVING, NOT_SERVING
    assert (error.code(), retry_seconds(error)) == (grpc.StatusCode.UNAVAILABLE, 5)
    assert "the disk is full" in error.details()


def test_calls_over_the_limit_get_a_retry_delay(serve: Serve, metrics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(grpc_port=0)
    with monkeypatch.context() as patch:
        patch.setattr(grpc_server, "MAX_CALLS", 0)
        error: Any = refusal(served, metrics)

    assert (error.code(), retry_seconds(error)) == (grpc.StatusCode.UNAVAILABLE, 1)
    assert (call(served, metrics), served.counted()) == (b"", 1)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def half_messages(collector: Collector, number: int) -> socket.socket:
    pairs = ((":method", "POST"), (":scheme", "http"), (":path", METRICS), ("content-type", "application/grpc"))
    head = b"".join(
        b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in pair)
        for pair in (*pairs, (":authority", "x"), ("te", "trailers"))
    )
    body = b"\0" + (1000).to_bytes(4, "big") + b"half"
    connection = socket.create_connection(("127.0.0.1", collector.grpc_port or 0), timeout=60)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
    for stream in range(1, 2 * number, 2):
        connection.sendall(frame(1, 4, stream, head) + frame(0, 0, stream, body))
    return connection


@pytest.mark.parametrize("most_calls", [1000, 40])
def test_unfinished_messages_do_not_block_senders(
    serve: Serve, metrics: Any, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None], most_calls: int
) -> None:
    monkeypatch.setattr(grpc_server, "MAX_RECEIVE_SECONDS", 600.0)
    monkeypatch.setattr(grpc_server, "MAX_CALLS", most_calls)
    served = serve(grpc_port=0)
    calls = served.collector._server._grpc._calls
    with half_messages(served.collector, 80):
        until(lambda: len(calls) >= 30)
        responses = [call(served, metrics, x_stagelens_batch=f"a:{number}") for number in range(3)]

    assert (responses, served.counted()) == ([b""] * 3, 3)


def test_a_batch_counts_once_over_both_protocols(serve: Serve, bodies: Any, metrics: Any) -> None:
    served = serve(grpc_port=0)
    call(served, metrics, x_stagelens_batch="pod-1:7")
    served.post("/v1/metrics", bodies.metrics(bodies.point((0.1, 0.2))), x_stagelens_batch="pod-1:7")
    call(served, metrics, compression=grpc.Compression.Gzip)
    served.post("/v1/metrics", metrics.SerializeToString(), content_type="application/x-protobuf")

    assert served.counted() == 2
    assert served.metric('stagelens_collector_batches_total{outcome="duplicate"}') == 2


def test_a_cancelled_call_is_still_committed(
    serve_slow: Serve, slow: Any, metrics: Any, until: Callable[..., None]
) -> None:
    served = serve_slow(grpc_port=0)
    slow.open.clear()
    with channel(served.collector) as to:
        future = to.unary_unary(METRICS).future(metrics.SerializeToString(), metadata=(("x-stagelens-batch", "a:1"),))
        assert slow.entered.acquire(timeout=60)
        future.cancel()
    slow.open.set()
    until(lambda: served.counted() == 1)

    assert call(served, metrics, x_stagelens_batch="a:1") == b""
    assert (served.counted(), served.metric("stagelens_collector_receiving_bytes")) == (1, 0)


def test_stopping_acknowledges_accepted_batches(
    serve_slow: Serve, slow: Any, bodies: Any, metrics: Any, until: Callable[..., None]
) -> None:
    served = serve_slow(grpc_port=0)
    slow.open.clear()
    with ThreadPoolExecutor(3) as pool:
        called = pool.submit(call, served, metrics)
        posted = pool.submit(served.post, "/v1/metrics", bodies.metrics(bodies.point()))
        until(lambda: served.metric("stagelens_collector_queue_batches") == 2)
        stopped = pool.submit(served.collector.stop)
        slow.open.set()
        stopped.result(timeout=60)

        assert (called.result(), posted.result().status_code, served.counted()) == (b"", 200, 2)
    error: Any = refusal(served, metrics)
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(served.collector.address, timeout=1)


def test_a_port_in_use_is_reported_with_the_fix(serve: Serve, store: Store) -> None:
    taken = serve(grpc_port=0).collector.grpc_port
    with pytest.raises(StagelensError, match=rf"127\.0\.0\.1:{taken} for gRPC[\s\S]*STAGELENS_COLLECTOR_GRPC_PORT"):
        Collector(CollectorConfig(port=0, grpc_port=taken), store).start()
