"""Any request gets a 2xx or 4xx response, and only a 200 changes the store."""

from __future__ import annotations

import copy
import gzip
import json
import time
from collections.abc import Generator
from typing import Any, Literal

import httpx
import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from stagelens.collector import serve
from stagelens.collector.ingest.pipeline import read_export
from stagelens.collector.ingest.validation import TimeWindow
from stagelens.collector.otlp.model import JSON, PROTOBUF
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.collector.server.inflate import inflate
from stagelens.collector.traces.span_reader import SpanReader
from stagelens.core import names
from stagelens.core.errors import WireError
from stagelens.store import Store

Signal = Literal["metrics", "traces"]
NOW = time.time_ns()

_ATTRIBUTES = [
    {"key": names.STATUS, "value": {"stringValue": "ok"}},
    {"key": names.STAGE, "value": {"stringValue": "forward"}},
    {"key": "number", "value": {"intValue": "7"}},
    {"key": "list", "value": {"arrayValue": {"values": [{"doubleValue": 0.5}, {"boolValue": True}]}}},
]
_POINT = {
    "attributes": _ATTRIBUTES,
    "startTimeUnixNano": str(NOW - 10**10),
    "timeUnixNano": str(NOW),
    "count": "3",
    "sum": 0.3,
    "scale": 5,
    "zeroCount": "0",
    "positive": {"offset": -107, "bucketCounts": ["1", "2"]},
}
_METRICS = [
    {"name": name, "exponentialHistogram": {"aggregationTemporality": 1, "dataPoints": [_POINT]}}
    for name in names.METRICS
] + [
    {
        "name": names.REQUESTS_DROPPED,
        "sum": {"aggregationTemporality": 1, "isMonotonic": True, "dataPoints": [{"asInt": "1"}]},
    }
]
_RESOURCE = {"attributes": [{"key": names.SERVICE_NAME, "value": {"stringValue": "fuzz"}}]}
METRICS: dict[str, Any] = {
    "resourceMetrics": [{"resource": _RESOURCE, "scopeMetrics": [{"scope": {"name": "s"}, "metrics": _METRICS}]}]
}
_SPANS = [
    {
        "traceId": "ab" * 16,
        "spanId": "01" * 8,
        "startTimeUnixNano": str(NOW - 100),
        "endTimeUnixNano": str(NOW),
        "status": {"code": 2},
        "attributes": [
            {"key": names.KEPT_BECAUSE, "value": {"stringValue": "slow"}},
            {"key": names.STAGE_SELF_PREFIX + "forward", "value": {"intValue": "100"}},
        ],
    },
    {
        "traceId": "ab" * 16,
        "spanId": "02" * 8,
        "parentSpanId": "01" * 8,
        "name": "forward",
        "startTimeUnixNano": str(NOW - 100),
        "endTimeUnixNano": str(NOW),
        "attributes": _ATTRIBUTES,
    },
]
TRACES: dict[str, Any] = {
    "resourceSpans": [{"resource": _RESOURCE, "scopeSpans": [{"scope": {"name": names.SCOPE}, "spans": _SPANS}]}]
}
VALID: dict[Signal, dict[str, Any]] = {"metrics": METRICS, "traces": TRACES}
BINARY = ParseDict(METRICS, ExportMetricsServiceRequest()).SerializeToString()

READER = SpanReader()
SIGNALS: st.SearchStrategy[Signal] = st.sampled_from(["metrics", "traces"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70).map(str)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["NaN", "Infinity", "-1", "\ud800", "1e400", "\x00"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(node: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all values in *node*."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [way, *(place for key, value in items for place in places(value, (*way, key)))][0 if way else 1 :]


@st.composite
def broken_json(draw: st.DrawFn, signal: Signal) -> bytes:
    """Generate a valid request with some values replaced, removed or duplicated."""
    root = copy.deepcopy(VALID[signal])
    for _ in range(draw(st.integers(1, 3))):
        where = places(root)
        if not where:
            break
        *way, last = draw(st.sampled_from(where))
        node: Any = root
        for key in way:
            node = node[key]
        match draw(st.sampled_from(["replace", "replace", "drop", "double"])):
            case "replace":
                node[last] = draw(VALUES)
            case "drop":
                del node[last]
            case _:
                node[last] = [node[last], node[last]]
    return json.dumps(root).encode()


@st.composite
def broken_bytes(draw: st.DrawFn, whole: bytes) -> bytes:
    """Generate a valid body with bytes changed, removed or inserted."""
    body = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        match draw(st.sampled_from(["change", "cut", "insert", "truncate"])):
            case "change":
                body[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "cut":
                del body[at : at + draw(st.integers(1, 20))]
            case "insert":
                body[at:at] = draw(st.binary(max_size=10))
            case _:
                del body[at:]
    return bytes(body)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Signal, str, bytes]:
    """Generate a request between valid and random bytes."""
    signal = draw(SIGNALS)
    match draw(st.sampled_from(["garbage", "json", "json bytes", "protobuf bytes"])):
        case "garbage":
            return signal, draw(st.sampled_from([JSON, PROTOBUF])), draw(st.binary(max_size=200))
        case "json":
            return signal, JSON, draw(broken_json(signal))
        case "json bytes":
            return signal, JSON, draw(broken_bytes(json.dumps(VALID[signal]).encode()))
        case _:
            return signal, PROTOBUF, draw(broken_bytes(BINARY))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Store, httpx.Client]]:
    """Collector for all examples, with its store and a client."""
    store = Store.open(f"sqlite:///{tmp_path_factory.mktemp('garbage')}/stagelens.db")
    with pytest.MonkeyPatch.context() as patch:
        # Only requests change the store: background processing and rollups are disabled.
        patch.setattr(serve, "_FOLD_SECONDS", 3600.0)
        collector = Collector(CollectorConfig(port=0, max_inflated_bytes=100_000), store, maintenance_seconds=3600.0)
    collector.start()
    host, port = collector.address
    with httpx.Client(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield store, client
    collector.stop()
    store.close()


def rows(store: Store) -> list[int]:
    """Return the number of rows in the tables that a request may write to."""
    with store.engine.connect() as connection:
        tables = ("points", "traces", "batches", "series", "events")
        return [connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() for table in tables]  # noqa: S608 - constants


@settings(max_examples=300, deadline=None)
@given(requests())
def test_any_input_is_a_batch_or_a_wire_error(request: tuple[Signal, str, bytes]) -> None:
    signal, media_type, body = request
    try:
        export = read_export(signal, media_type, body, None, TimeWindow(0, 2**40), READER)
    except WireError:
        return

    assert all(point.histogram.count > 0 and -(2**63) <= point.at < 2**63 for point in export.batch.points)
    assert all(sum(trace.stages_ns.values()) == trace.duration_ns for trace in export.batch.traces)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests())
def test_any_body_gets_a_response_and_only_a_200_changes_the_store(
    served: tuple[Store, httpx.Client], request: tuple[Signal, str, bytes]
) -> None:
    store, client = served
    signal, media_type, body = request
    before = rows(store)
    response = client.post(f"/v1/{signal}", content=body, headers={"content-type": media_type})

    assert response.status_code == 200 or (response.status_code == 400 and response.content)
    assert response.status_code == 200 or rows(store) == before
    assert client.get("/healthz").status_code == 200


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["/v1/metrics", "/v1/traces", "/v1/events"]),
    body=broken_bytes(gzip.compress(json.dumps(METRICS).encode()))
    | broken_bytes(b'{"text": "v2 is out", "service": "shop", "kind": "deploy"}')
    | st.binary(max_size=50),
    encoding=st.sampled_from(["gzip", "identity", "deflate", "br", "x\x7f", ""]),
    media_type=st.sampled_from([JSON, PROTOBUF, "text/html", "application/json;;;", "/"]),
    name=st.none() | st.text(st.characters(max_codepoint=255, exclude_categories=["Cc"]), max_size=300),
)
def test_any_headers_get_a_response(
    served: tuple[Store, httpx.Client], *, path: str, body: bytes, encoding: str, media_type: str, name: str | None
) -> None:
    store, client = served
    before = rows(store)
    headers = {"content-type": media_type, "content-encoding": encoding}
    if name is not None:
        headers[names.BATCH_HEADER] = name.strip()
    encoded = [(key.encode(), value.encode("latin-1")) for key, value in headers.items()]
    response = client.post(path, content=body, headers=encoded)

    assert response.status_code in (200, 400, 413, 415)
    assert response.status_code == 200 or rows(store) == before


@settings(max_examples=100, deadline=None)
@given(broken_bytes(gzip.compress(json.dumps(METRICS).encode())))
def test_any_gzip_stream_is_a_body_or_a_wire_error(body: bytes) -> None:
    try:
        inflated = inflate(body, "gzip", 10_000)
    except WireError:
        return

    assert len(inflated) <= 10_000
