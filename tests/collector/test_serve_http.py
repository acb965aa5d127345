"""OTLP over HTTP: responses to requests, and no changes by refused ones."""

from __future__ import annotations

import gzip
import json
import random
import socket
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from google.protobuf.json_format import MessageToJson, Parse, ParseDict
from google.rpc.status_pb2 import Status
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from stagelens.collector.ingest import pipeline
from stagelens.collector.otlp.model import JSON, PROTOBUF, BodyTooLargeError
from stagelens.collector.server.bodies import inflate
from stagelens.core.names import COLLECTOR_LOST
from tests.collector.conftest import last_day
from tests.collector.metrics import length_delimited

# A zstd frame that requires a window of 1 GiB (RFC 8878, 3.1.1.1.2) and has no content.
WIDE = b"\x28\xb5\x2f\xfd\x00\xa0\x01\x00\x00"


BOMBS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstandard.compress}


@pytest.mark.parametrize("content_type", ["Application/JSON; charset=utf-8", PROTOBUF])
@pytest.mark.parametrize("encoding", ["identity", "GZIP", "x-gzip", "Zstd", "chunked"])
def test_an_export_gets_a_response_in_its_encoding(served: Any, bodies: Any, content_type: str, encoding: str) -> None:
    body = bodies.metrics(bodies.point(), bodies.point(scale=99))
    is_json = content_type != PROTOBUF
    text = json.dumps(body).encode() if is_json else ParseDict(body, ExportMetricsServiceRequest()).SerializeToString()
    sent = {"identity": bytes, "Zstd": zstandard.compress, "chunked": bytes}.get(encoding, gzip.compress)(text)
    headers = {"content-type": content_type} | ({"content-encoding": encoding} if encoding != "chunked" else {})
    content = iter([sent[:10], sent[10:]]) if encoding == "chunked" else sent
    response = served.client.post("/v1/metrics", content=content, headers=headers)
    empty = served.post("/v1/metrics", b"{}" if is_json else b"", content_type=content_type)
    message = ExportMetricsServiceResponse()
    partial = (Parse(response.text, message) if is_json else message.FromString(response.content)).partial_success

    assert (response.status_code, partial.rejected_data_points, served.counted()) == (200, 1, 1)
    assert partial.error_message.startswith("inference.request.duration[1]: scale must lie between")
    assert (empty.status_code, empty.content) == (200, b"{}" if is_json else b"")
    assert response.headers["content-type"] == empty.headers["content-type"] == (JSON if is_json else PROTOBUF)


def test_agent_traces_and_foreign_spans_are_stored_together(served: Any, bodies: Any) -> None:
    body = bodies.spans(*bodies.trace({"forward": 5, "overhead": 1}))
    other = bodies.trace({"forward": 5})
    body["resourceSpans"] += bodies.spans(*other, other[0] | {"spanId": "00"}, scope="other")["resourceSpans"]
    partial = served.post("/v1/traces", body).json()["partialSuccess"]
    # A ResourceSpans with a ScopeSpans that contains an empty span.
    declined = served.post("/v1/traces", b"\x0a\x04\x12\x02\x12\x00", content_type=PROTOBUF)

    assert ExportTraceServiceResponse.FromString(declined.content).partial_success.rejected_spans == 1
    assert partial["rejectedSpans"] == "1"
    assert "spanId must be 8 bytes" in partial["errorMessage"]
    assert served.store.read.trace("ab" * 16).duration_ns == 6


UNREADABLE: tuple[tuple[bytes, dict[str, str], int, str], ...] = (
    (b"garbage", {}, 400, "not valid JSON"),
    (b"\xff\xff", {"content_type": PROTOBUF}, 400, "not a valid ExportMetricsServiceRequest"),
    (b"garbage", {"content_encoding": "gzip"}, 400, "not valid gzip"),
    (gzip.compress(b"{}", mtime=0)[:-4], {"content_encoding": "gzip"}, 400, "ends early"),
    (gzip.compress(b"{}", mtime=0) + b"more", {"content_encoding": "gzip"}, 400, "follow the end"),
    (b"", {"content_encoding": "gzip"}, 400, "ends early"),
    (b"garbage", {"content_encoding": "zstd"}, 400, "not valid zstd"),
    (zstandard.compress(b"{}")[:-1], {"content_encoding": "zstd"}, 400, "ends early"),
    (zstandard.compress(b"{}") * 2, {"content_encoding": "zstd"}, 400, "send one frame"),
    (WIDE, {"content_encoding": "zstd"}, 400, "a window of more than 8388608 bytes"),
    (b"", {"content_encoding": "zstd"}, 400, "ends early"),
    (zlib.compress(b"{}"), {"content_encoding": "deflate"}, 415, "send gzip, zstd or identity"),
    (b"{}", {"content_encoding": "gzip, gzip"}, 415, "send gzip, zstd or identity"),
    (b"{}", {"content_type": "text/plain"}, 415, "send application/x-protobuf or application/json"),
    (b"{}", {"content_type": ""}, 415, "send application/x-protobuf or application/json"),
    (b"{}", {"x_stagelens_batch": "x" * 201}, 400, "X-Stagelens-Batch must be"),
    (b"{}", {"x_stagelens_batch": ""}, 400, "X-Stagelens-Batch must be"),
)


def test_unreadable_bodies_are_refused_with_a_reason(served: Any) -> None:
    for body, headers, status, reason in UNREADABLE:
        response = served.post("/v1/metrics", body, **headers)
        is_protobuf = headers.get("content_type") == PROTOBUF
        failure = Status.FromString(response.content) if is_protobuf else Parse(response.text, Status())

        assert (response.status_code, failure.code) == (status, 3)
        assert reason in failure.message
    assert served.metric('stagelens_collector_batches_total{outcome="counted"}') == 0


def named(encoding: str, service: bytes = b"prompts") -> bytes:
    value = length_delimited(2, length_delimited(1, service))
    resource = length_delimited(1, length_delimited(1, length_delimited(1, b"service.name") + value))
    body = b"\n\xff\x7f" + resource + random.Random(1).randbytes(9000)
    return {"": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}[encoding](body)


def test_refused_exports_are_counted_by_service_or_sender(serve: Callable[..., Any], bodies: Any) -> None:
    served = serve(max_body_bytes=8000)
    in_json = json.dumps(bodies.metrics(bodies.point(), service="from json")).encode()
    partly = bodies.metrics(bodies.point(), bodies.point(count="7"), service="partly")
    statuses = [
        *(
            served.post("/v1/traces", named(each), content_encoding=each, content_type=PROTOBUF).status_code
            for each in ("", "gzip", "zstd")
        ),
        served.post("/v1/metrics", in_json + b" " * 9000, content_type="application/json").status_code,
        served.post("/v1/metrics", in_json[:-40], content_type="application/json").status_code,
        served.post("/v1/metrics", partly).status_code,
        served.post("/v1/traces", b"\xff", content_type=PROTOBUF).status_code,
        served.post("/v1/traces", b"x", content_type="text/plain").status_code,
    ]
    too_large = served.post("/v1/metrics", b"x" * 9000).json()["message"]
    served.collector.stop()
    fleet_counts = served.store.read.fleet_counts(last_day(), COLLECTOR_LOST)

    assert too_large == "the body is larger than 8000 bytes; send smaller batches or raise STAGELENS_MAX_BODY"
    assert statuses == [413, 413, 413, 413, 400, 200, 400, 415]
    assert fleet_counts == {
        "prompts": {"too_large": 3},
        "from json": {"too_large": 1, "invalid": 1},
        "partly": {"rejected": 1},
    }
    assert served.collector.metrics.losses.of_senders == {
        "127.0.0.1: an export refused: too large": 1,
        "127.0.0.1: an export refused: not valid": 1,
        "127.0.0.1: Content-Type 'text/plain' is not supported": 1,
    }


def test_an_endless_body_is_cut_off(serve: Callable[..., Any]) -> None:
    served = serve(max_body_bytes=1000)
    with socket.create_connection(served.collector.address, timeout=60) as connection:
        connection.sendall(b"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        with pytest.raises(OSError, match=r"reset|pipe"):  # noqa: PT012 - either of the two calls may fail
            for _ in range(100_000):
                connection.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")


@pytest.mark.parametrize("encoding", list(BOMBS))
def test_a_decompression_bomb_is_refused(serve: Callable[..., Any], encoding: str) -> None:
    served = serve(max_inflated_bytes=1_000_000)
    response = served.post("/v1/metrics", BOMBS[encoding](bytes(100_000_000)), content_encoding=encoding)

    assert response.status_code == 413
    assert "larger than 1000000 bytes once inflated" in response.json()["message"]


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=300_000), st.integers(1, 22), st.sampled_from(list(BOMBS)))
def test_a_body_of_exactly_the_limit_is_decompressed(body: bytes, level: int, encoding: str) -> None:
    packed = gzip.compress(body, level % 10) if encoding == "gzip" else zstandard.compress(body, level)
    for sent, packing in ((packed, encoding), (body, "")):
        assert inflate(sent, packing, len(body)) == body
        with pytest.raises(BodyTooLargeError):
            inflate(sent, packing, len(body) - 1)


@pytest.mark.parametrize("media_type", [JSON, PROTOBUF])
def test_logs_are_acknowledged_declined_and_counted(served: Any, media_type: str) -> None:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    records.add()
    records.add().body.string_value = "secret"
    body = request.SerializeToString() if media_type == PROTOBUF else MessageToJson(request).encode()
    response = served.post("/v1/logs", zstandard.compress(body), content_type=media_type, content_encoding="zstd")
    message = ExportLogsServiceResponse()
    is_json = media_type == JSON
    partial = (Parse(response.text, message) if is_json else message.FromString(response.content)).partial_success
    invalid = [b"garbage", b"[]", b'{"resourceLogs": 1}', b'{"resourceLogs": [{"scopeLogs": [0]}]}']

    assert (response.status_code, response.headers["content-type"]) == (200, media_type)
    assert partial.rejected_log_records == 2
    assert "OTEL_LOGS_EXPORTER=none" in partial.error_message
    assert served.metric('stagelens_collector_ignored_total{signal="logs"}') == 2
    assert served.metric('stagelens_collector_requests_total{code="200",signal="logs"}') == 1
    for each in invalid:
        refused = served.post("/v1/logs", each if is_json else b"\xff" + each, content_type=media_type)
        assert refused.status_code == 400


def test_a_wrong_address_gets_a_hint(serve: Callable[..., Any]) -> None:
    served = serve(dashboard_url="http://stagelens.example")
    for method, path, status, hint in (
        ("GET", "/v1/logs", 405, "accepts POST"),
        ("POST", "/livez", 405, "accepts GET"),
        ("POST", "/v1/metrics/v1/metrics", 404, "set the endpoint of exporters without a path"),
        ("POST", "/", 405, "accepts GET"),
        ("PUT", "/v1/traces", 405, "accepts POST"),
        ("GET", "/favicon.ico", 404, "/v1/metrics"),
    ):
        response = served.client.request(method, path)

        assert response.status_code == status
        assert hint in response.json()["message"]
        assert (status == 405) == ("allow" in response.headers)
    front = served.client.get("/")

    assert (front.status_code, "The dashboard is at http://stagelens.example" in front.text) == (200, True)


def test_an_early_disconnect_is_harmless(served: Any, bodies: Any, until: Callable[..., None]) -> None:
    with socket.create_connection(served.collector.address, timeout=60) as connection:
        connection.sendall(
            b"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        )
    until(lambda: served.metric('stagelens_collector_requests_total{code="400",signal="metrics"}'))

    assert served.post("/v1/metrics", bodies.metrics(bodies.point())).status_code == 200


def test_bodies_in_transfer_are_bounded_together(
    serve: Callable[..., Any], bodies: Any, until: Callable[..., None]
) -> None:
    body = json.dumps(bodies.metrics(bodies.point())).encode()
    served = serve(queue_bytes=len(body) + 100)
    with socket.create_connection(served.collector.address, timeout=60) as connection:
        head = f"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body[:-1])
        until(lambda: served.metric("stagelens_collector_receiving_bytes") == len(body) - 1)
        refused = served.post("/v1/metrics", body)
        connection.sendall(body[-1:])

        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert served.post("/v1/metrics", body + b" ").status_code == 200
    assert served.metric("stagelens_collector_receiving_bytes") == 0


def test_an_internal_error_is_a_500_without_details(served: Any, bodies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        msg = "secret"
        raise ArithmeticError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "parse_export", broken)
        response = served.post("/v1/metrics", bodies.metrics(bodies.point()))

    assert (response.status_code, response.json()["code"], "secret" in response.text) == (500, 13, False)
    assert served.post("/v1/metrics", bodies.metrics(bodies.point())).status_code == 200


def test_invalid_http_is_refused(served: Any) -> None:
    with socket.create_connection(served.collector.address, timeout=60) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00 this is TLS, or worse\r\n\r\n")

        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_collector_metrics_add_up(served: Any, bodies: Any) -> None:
    dropped = {"aggregationTemporality": 1, "isMonotonic": True, "dataPoints": [{"asInt": 4}]}
    body = bodies.metrics(bodies.point(), bodies.point(scale=99))
    body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"] += [
        {"name": "stagelens.requests.dropped", "sum": dropped},
        {"name": "other", "gauge": {"dataPoints": [{}, {}]}},
    ]
    for _ in range(2):
        served.post("/v1/metrics", body)
    served.post("/v1/metrics", b"garbage")
    expected = {
        'requests_total{code="200",signal="metrics"}': 2,
        'requests_total{code="400",signal="metrics"}': 1,
        'points_total{metric="inference.request.duration"}': 1,
        'rejected_total{reason="scale",signal="metrics"}': 1,
        'ignored_total{signal="metrics"}': 2,
        "agent_dropped_requests_total": 4,
        'batches_total{outcome="counted"}': 1,
        'batches_total{outcome="duplicate"}': 1,
        "commit_seconds_count": 2,
        "queue_batches": 0,
        "healthy": 1,
    }

    assert {name: served.metric(f"stagelens_collector_{name}") for name in expected} == expected
