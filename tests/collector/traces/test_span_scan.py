"""Vectorized decoding of spans: equal results as for spans that are decoded alone, for any bytes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stagelens.collector.ingest.validation import IngestResult
from stagelens.collector.otlp.model import PROTOBUF
from stagelens.collector.otlp.scan import Scan
from stagelens.collector.traces import span_reader, span_scan
from stagelens.collector.traces.columns import encode_spans
from stagelens.collector.traces.span_reader import SpanReader
from stagelens.collector.traces.span_scan import ByteStrings
from stagelens.core.errors import WireError
from tests.collector.metrics import drawn
from tests.collector.traces.otlp import ALWAYS, as_protobuf, attributes, export, read_spans, span
from tests.fuzz import mutate

SCANNING, ALONE = SpanReader(), SpanReader()
Result = tuple[bytes, str, IngestResult] | None


def result(reader: SpanReader, few: int, body: bytes) -> Result:
    tally = IngestResult()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(span_reader, "_FEW_SPANS", few)
        try:
            spans, retained = read_spans(reader, PROTOBUF, body, ALWAYS, tally)
        except WireError:
            return None
    return encode_spans(spans), repr(retained), tally


@settings(deadline=None, max_examples=200)
@given(st.randoms(use_true_random=False), st.booleans())
def test_scanned_spans_equal_spans_decoded_alone(rng: random.Random, is_damaged: bool) -> None:
    body = drawn(rng).SerializeToString()
    if is_damaged:
        body = mutate.raw(body, rng)
    expected = result(ALONE, 10**9, body)

    assert result(SCANNING, 0, body) == expected
    assert result(SCANNING, 0, body) == expected


@pytest.mark.parametrize(
    "fields",
    [
        *({"trace_id": bytes([1]) * size} for size in (0, 15, 17)),
        *({"span_id": bytes([1]) * size} for size in (0, 7, 9)),
        *({"parent_span_id": bytes([1]) * size} for size in (0, 7, 8, 9)),
        {"parent_span_id": bytes(8)},
        {"kind": 5},
        {"kind": 200},
        {"name": "x" * 2000},
        {"trace_state": "a=b", "flags": 257, "dropped_attributes_count": 300},
    ],
    ids=repr,
)
def test_unusual_fields_are_equal(fields: dict[str, Any]) -> None:
    whole = ExportTraceServiceRequest.FromString(as_protobuf(export(span(id=1), span(id=2), span(id=3, parent=2))))
    spans = whole.resource_spans[0].scope_spans[0].spans
    for name, value in fields.items():
        setattr(spans[1], name, value)
    reader, body = SpanReader(), whole.SerializeToString()
    expected = result(ALONE, 10**9, body)

    assert expected is not None
    assert [result(reader, 0, body) for _ in range(2)] == [expected] * 2


def numbers_of(table: ByteStrings, strings: list[bytes]) -> list[int]:
    scan = Scan.of(strings)
    return table.find(scan, scan.at, scan.at + np.array([len(each) for each in strings])).tolist()


STRINGS = [b"", b"\x00", b"a", b"a\x00", b"b" * 8, b"b" * 9, b"c" * 48, b"c" * 49, b"c" * 48 + b"d", b"e" * 1024]


@pytest.mark.parametrize("factors", [span_scan._FACTORS, np.zeros_like(span_scan._FACTORS)])  # pyright: ignore[reportPrivateUsage]
def test_equal_hashes_do_not_matter(
    factors: np.ndarray[tuple[int], np.dtype[np.uint64]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_scan, "_FACTORS", factors)
    table = ByteStrings()
    expected = {string: number for number, string in enumerate(STRINGS)}

    assert numbers_of(table, STRINGS) == [*expected.values()]
    for some in ([*reversed(STRINGS)], STRINGS[3:6] * 2, STRINGS[:1]):
        assert numbers_of(table, some) == [expected[string] for string in some]


def test_strings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_scan, "_CAPACITY", 2)
    table = ByteStrings()

    assert numbers_of(table, [b"x" * 1025, b"a", b"b", b"c", b"a"]) == [-1, 0, 1, -1, 0]
    assert table.is_full


def test_a_full_table_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    body = as_protobuf(export(*(span(f"job {number % 50}", id=number) for number in range(1, 200))))
    expected = result(SpanReader(), 10**9, body)
    monkeypatch.setattr(span_scan, "_CAPACITY", 20)
    reader = SpanReader()

    for _ in range(3):
        assert result(reader, 0, body) == expected


@pytest.mark.parametrize("few", [0, 10**9])
def test_exports_decoded_together_equal_exports_decoded_alone(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_reader, "_FEW_SPANS", few)
    values = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 300}
    bodies = [
        as_protobuf(export(*(span("chat", id=1 + (number + first) % 90, values=values) for number in range(count))))
        for first, count in enumerate((40, 0, 70, 1))
    ]
    malformed = ExportTraceServiceRequest.FromString(bodies[0])
    malformed.resource_spans[0].scope_spans[0].spans[0].name = "\x00"
    bad = malformed.SerializeToString().replace(b"\x2a\x01\x00", b"\x2a\x01\xff")
    reader = SpanReader()
    parsed = [reader.parse(body) for body in (*bodies, bad)]
    with pytest.raises(WireError):
        reader.finish(parsed, ALWAYS, [IngestResult() for _ in parsed])
    with pytest.raises(WireError):
        reader.finish(parsed[-1:], ALWAYS, [IngestResult()])
    found = reader.finish(parsed[:-1], ALWAYS, [IngestResult() for _ in bodies])

    for each, body in zip(found, bodies, strict=True):
        assert encode_spans(each) == encode_spans(
            read_spans(SpanReader(), PROTOBUF, body, ALWAYS, IngestResult()).spans
        )


@pytest.mark.parametrize("few", [0, 10**9])
def test_duplicate_attributes_count_once(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_reader, "MAX_ELEMENTS", 5)
    node = span()
    node["attributes"] = attributes({"a": 1}) * 30

    assert result(SpanReader(), few, as_protobuf(export(node))) is not None
    assert result(SpanReader(), few, as_protobuf(export(span(values=dict.fromkeys("abcdef", 1))))) is None
