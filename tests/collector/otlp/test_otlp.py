"""OTLP: both encodings are equal, invalid input is an error with a reason, and a failure is a google.rpc.Status."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from stagelens.collector.otlp.model import BodyTooLargeError, ResourceMetrics
from stagelens.collector.otlp.protobuf_encoding import WALKED_BYTES, histogram_columns, read_attributes, read_metrics
from stagelens.collector.otlp.responses import Failure
from stagelens.core import names
from stagelens.core.errors import WireError
from tests.collector.metrics import drawn, length_delimited, read_json


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


@given(st.randoms(use_true_random=False))
def test_metrics_are_equal_in_both_encodings(rng: random.Random) -> None:
    request = drawn(rng, "metrics")

    assert repr(content(read_json(as_json(request)))) == repr(content(read_metrics(request.SerializeToString())))


def test_integers_can_be_strings_or_numbers_and_unknown_fields_are_ignored(bodies: Any) -> None:
    forms = [
        bodies.point(count="1", timeUnixNano="7", positive={"offset": -1, "bucketCounts": ["1"]}),
        bodies.point(count=1, timeUnixNano=7, positive={"offset": "-1", "bucketCounts": [1]}, exemplars="?", min=None),
        bodies.point(count=1.0, timeUnixNano=7.0, positive={"offset": -1.0, "bucketCounts": [1.0]}, novelty=[{}]),
    ]
    plain, extended, numbers = map(bodies.metrics, forms)
    extended["resourceMetrics"][0]["novelty"] = extended["extra"] = 7

    assert read_json(plain) == read_json(extended) == read_json(numbers)
    for empty in (b"{}", b'{"resourceMetrics": null}', b'{"resourceMetrics": []}'):
        assert read_json(empty) == []


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


WRONG: dict[str, list[Any]] = {
    "count": [-(2**70), 2**64, "1e3", "٣", True, [1], 0.5],
    "scale": [2**31],
    "sum": ["much", True, 10**400],
    "timeUnixNano": ["now"],
    "positive": [[], *({"bucketCounts": counts} for counts in ({"0": 1}, [[1]], ["1", "x"], ["9" * 21]))],
    "attributes": [[{"key": "k", "value": value}] for value in ({"intValue": 2**63}, {"boolValue": "true"}, "text")],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_field_of_the_wrong_type_is_named(bodies: Any, field: str, value: object) -> None:
    with pytest.raises(WireError, match="must be"):
        read_json(bodies.metrics(bodies.point(**{field: value})))


def _metric(points: bytes) -> bytes:
    """Return an export of an exponential histogram with serialized *points*."""
    return length_delimited(1, length_delimited(2, length_delimited(2, length_delimited(10, points))))


@pytest.mark.parametrize("element", [b"{}", b"[]", b"1"])
def test_json_with_too_many_elements_is_too_large(element: bytes) -> None:
    with pytest.raises(BodyTooLargeError, match="send smaller batches"):
        read_json(b'{"resourceMetrics":[' + (element + b",") * 2_100_000 + b"{}]}")


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a\x00" * 250_001,
        _metric(b"\x0a\x00" * 600_000),
        _metric(length_delimited(1, length_delimited(8, length_delimited(2, bytes(2_100_000))))),
        _metric(length_delimited(1, length_delimited(8, b"\x10\x00" * 2_100_000))),
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


def test_a_lone_surrogate_in_a_message_is_replaced() -> None:
    assert Failure(3, "\ud800", None).status() == b"\x08\x03\x12\x01?"
