"""OTLP parser: both encodings are equal, and invalid input is an error with a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

from stagelens.collector.otlp.model import BodyTooLargeError, ResourceMetrics
from stagelens.collector.otlp.protobuf_encoding import WALKED_BYTES, histogram_columns, read_attributes, read_metrics
from stagelens.core import names
from stagelens.core.errors import WireError
from stagelens.core.varint import encode_varint
from tests.collector.metrics import read_json

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
INT64 = st.integers(-(2**63), 2**63 - 1)
UINT64 = st.integers(0, 2**64 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
DOUBLE = st.floats(allow_nan=False)  # NaN is accepted, but is not equal to itself


@st.composite
def key_values(draw: st.DrawFn) -> list[KeyValue]:
    values = st.one_of(
        st.builds(AnyValue, string_value=TEXT),
        st.builds(AnyValue, int_value=INT64),
        st.builds(AnyValue, double_value=DOUBLE),
        st.builds(AnyValue, bool_value=st.booleans()),
        st.just(AnyValue(array_value=ArrayValue(values=[AnyValue(int_value=1)]))),
        st.just(AnyValue(bytes_value=b"\xff")),
        st.just(AnyValue()),
    )
    return draw(st.lists(st.builds(KeyValue, key=TEXT, value=values), max_size=4, unique_by=lambda pair: pair.key))


@st.composite
def metrics_requests(draw: st.DrawFn) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    for _ in range(draw(st.integers(0, 2))):
        resource = request.resource_metrics.add()
        resource.resource.attributes.extend(draw(key_values()))
        for _ in range(draw(st.integers(0, 3))):
            metric = resource.scope_metrics.add().metrics.add()
            metric.name = draw(
                st.sampled_from([names.REQUEST_DURATION, names.STAGE_TIME, names.REQUESTS_DROPPED, "other"])
            )
            kind = draw(st.sampled_from(["exponential", "sum", "gauge", "none"]))
            if kind == "exponential":
                data = metric.exponential_histogram
                data.aggregation_temporality = draw(st.integers(0, 2))  # type: ignore[assignment] - an open enum
                for _ in range(draw(st.integers(0, 2))):
                    point = data.data_points.add(
                        start_time_unix_nano=draw(UINT64),
                        time_unix_nano=draw(UINT64),
                        count=draw(UINT64),
                        scale=draw(INT32),
                        zero_count=draw(UINT64),
                        flags=draw(st.integers(0, 2**32 - 1)),
                    )
                    if draw(st.booleans()):
                        point.sum = draw(DOUBLE)
                    point.positive.offset = draw(INT32)
                    point.positive.bucket_counts.extend(draw(st.lists(UINT64, max_size=5)))
                    point.negative.bucket_counts.extend(draw(st.lists(st.integers(0, 1), max_size=2)))
                    point.attributes.extend(draw(key_values()))
            elif kind == "sum":
                metric.sum.is_monotonic = draw(st.booleans())
                metric.sum.data_points.add(as_int=draw(INT64))
                metric.sum.data_points.add(as_double=draw(DOUBLE))
                metric.sum.data_points.add()
            elif kind == "gauge":
                metric.gauge.data_points.add(as_int=1)
    return request


def as_json(request: ExportMetricsServiceRequest) -> bytes:
    return json.dumps(MessageToDict(request, use_integers_for_enums=True)).encode()


def content(export: list[ResourceMetrics]) -> list[Any]:
    found: list[Any] = []
    for item in export:
        for metric in item.metrics:
            columns = histogram_columns(metric.histograms)
            numbers = [
                getattr(columns, name).tolist()
                for name in ("start_ns", "time_ns", "count", "flags", "negative", "lengths")
            ]
            about = (item.resource, list(map(read_attributes, columns.attributes)))
            found.append([replace(metric, histograms=[]), about, numbers, list(columns.histograms)])
    return found


@given(metrics_requests())
def test_metrics_are_equal_in_both_encodings(request: ExportMetricsServiceRequest) -> None:
    assert content(read_json(as_json(request))) == content(read_metrics(request.SerializeToString()))


def test_integers_can_be_strings_or_numbers(bodies: Any) -> None:
    forms = [
        bodies.point(count="1", timeUnixNano="7", positive={"offset": -1, "bucketCounts": ["1"]}),
        bodies.point(count=1, timeUnixNano=7, positive={"offset": "-1", "bucketCounts": [1]}),
        bodies.point(count=1.0, timeUnixNano=7.0, positive={"offset": -1.0, "bucketCounts": [1.0]}),
    ]
    read = [read_json(bodies.metrics(point))[0].metrics[0] for point in forms]

    assert read[0] == read[1] == read[2]


def test_unknown_fields_are_ignored(bodies: Any) -> None:
    plain = bodies.metrics(bodies.point())
    extended = bodies.metrics(bodies.point(exemplars="?", novelty=[{}], min=None))
    extended["resourceMetrics"][0]["novelty"] = extended["extra"] = 7

    assert read_json(extended) == read_json(plain)


@pytest.mark.parametrize("empty", ["{}", '{"resourceMetrics": null}', '{"resourceMetrics": []}'])
def test_an_empty_request_is_valid(empty: str) -> None:
    assert read_json(empty.encode()) == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not valid JSON"),
        (b"[]", "must be an object"),
        (b'{"resourceMetrics": {}}', "resourceMetrics must be a list"),
        (b'{"resourceMetrics": [1]}', "resourceMetrics must be an object"),
        (b'{"resourceMetrics": [{"resource": "x"}]}', "resource must be an object"),
        (
            b'{"resourceMetrics": [{"resource": {"attributes": [{"key": 1, "value": {"stringValue": ""}}]}}]}',
            "key must be",
        ),
        (b'{"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": ["x"]}]}]}]}', "name must be a string"),
        (b'{"resourceMetrics": [NaN]}', "NaN is not a JSON number"),
        (b'{"resourceMetrics": "\xff"}', "utf-8"),
        (b'{"resourceMetrics": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "\\ud800"}]}]}]}', "not valid Unicode"),
    ],
)
def test_invalid_otlp_json_is_refused_with_a_reason(body: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        read_json(body)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", -(2**70)),
        ("count", 2**64),
        ("count", "1e3"),
        ("count", "٣"),
        ("count", True),
        ("count", [1]),
        ("count", 0.5),
        ("scale", 2**31),
        ("sum", "much"),
        ("sum", True),
        ("sum", 10**400),
        ("timeUnixNano", "now"),
        ("positive", []),
        ("positive", {"bucketCounts": {"0": 1}}),
        ("positive", {"bucketCounts": [[1]]}),
        ("positive", {"bucketCounts": ["1", "x"]}),
        ("positive", {"bucketCounts": ["9" * 21]}),
        ("attributes", [{"key": "k", "value": {"intValue": 2**63}}]),
        ("attributes", [{"key": "k", "value": {"boolValue": "true"}}]),
        ("attributes", [{"key": "k", "value": "text"}]),
    ],
)
def test_a_field_of_the_wrong_type_is_named(bodies: Any, field: str, value: object) -> None:
    body = json.dumps(bodies.metrics(bodies.point(**{field: value}))).encode()
    with pytest.raises(WireError, match="must be"):
        read_json(body)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + encode_varint(len(content)) + content


def _metric(points: bytes) -> bytes:
    """Return an export of an exponential histogram with serialized *points*."""
    return _field(1, _field(2, _field(2, _field(10, points))))


@pytest.mark.parametrize("element", [b"{}", b"[]", b"1"])
def test_json_with_too_many_elements_is_too_large(element: bytes) -> None:
    with pytest.raises(BodyTooLargeError, match="send smaller batches"):
        read_json(b'{"resourceMetrics":[' + (element + b",") * 2_100_000 + b"{}]}")


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a\x00" * 250_001,
        _metric(b"\x0a\x00" * 600_000),
        _metric(_field(1, _field(8, _field(2, bytes(2_100_000))))),
        _metric(_field(1, _field(8, b"\x10\x00" * 2_100_000))),
    ],
    ids=["messages", "points", "packed numbers", "numbers"],
)
def test_protobuf_with_too_many_elements_is_too_large(body: bytes) -> None:
    with pytest.raises(BodyTooLargeError, match="send smaller batches"):
        read_metrics(body)


def test_a_large_protobuf_body_is_parsed_completely() -> None:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=names.STAGE_TIME)
    for _ in range(5000):
        metric.exponential_histogram.data_points.add().positive.bucket_counts.extend(range(200))
    body = request.SerializeToString()
    columns = histogram_columns(read_metrics(body)[0].metrics[0].histograms)

    assert len(body) > WALKED_BYTES
    assert columns.lengths.tolist() == [200] * 5000
    assert columns.histograms.buckets.amount.tolist() == [*range(1, 200)] * 5000
    with pytest.raises(WireError):
        read_metrics(body[:-1])


@settings(deadline=None, max_examples=25)
@given(st.binary(max_size=200))
def test_the_walk_over_a_large_body_ends(garbage: bytes) -> None:
    try:
        read_metrics(garbage * (WALKED_BYTES // max(len(garbage), 1) + 1))
    except WireError:
        return


def _nested(depth: int) -> bytes:
    value = b""
    for _ in range(depth):
        value = _field(5, _field(1, value))
    return _field(1, _field(1, _field(1, _field(2, value))))


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",
        b"\xff\xff\xff",
        b"\x0a\x05abc",
        b"\x0a\x04\x0a\x02\xff\xff",
        _field(1, _field(2, _field(2, b"\x0a\x02\xff\xfe"))),
        _nested(10_000),
    ],
    ids=["truncated", "no message", "text", "wire types", "not UTF-8", "nested"],
)
def test_invalid_protobuf_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="ExportMetricsServiceRequest"):
        read_metrics(body)
