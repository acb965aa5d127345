"""Reader of span exports: accepted and refused spans, and limits."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from stagelens.collector.ingest.validation import IngestResult, Reason, TimeWindow
from stagelens.collector.otlp.model import JSON, PROTOBUF, BodyTooLargeError
from stagelens.collector.server.auth import AdmittedClient
from stagelens.collector.traces import rules as rules_module
from stagelens.collector.traces import span_reader, span_validation
from stagelens.collector.traces.columns import Flag, Spans, SpanSource, encode_spans
from stagelens.collector.traces.rule_config import Rule, SpanCondition
from stagelens.collector.traces.span_reader import SpanReader
from stagelens.core import names
from tests.collector.metrics import drawn
from tests.collector.traces.otlp import ALWAYS, NOON_NS, as_protobuf, export, read, read_spans, span

# SDKs make one up for each process.
UUID = "0f9b1d1e-2f6a-4b5e-9d3b-4a3c0e8f7a21"
READER = SpanReader()


def as_json(request: ExportTraceServiceRequest) -> bytes:
    root = MessageToDict(request, use_integers_for_enums=True)
    for resource in root.get("resourceSpans", []):
        for scope in resource.get("scopeSpans", []):
            for each in scope.get("spans", []):
                for key in {"traceId", "spanId", "parentSpanId"} & each.keys():
                    each[key] = base64.b64decode(each[key]).hex()
    return json.dumps(root).encode()


def same(one: Spans, other: Spans) -> bool:
    return encode_spans(one) == encode_spans(other)


@settings(deadline=None, max_examples=50)
@given(st.randoms(use_true_random=False))
def test_both_encodings_give_equal_results(rng: random.Random) -> None:
    request = drawn(rng)
    results = IngestResult(), IngestResult()
    binary, traces = read_spans(READER, PROTOBUF, request.SerializeToString(), ALWAYS, results[0])
    text, traces_too = read_spans(READER, JSON, as_json(request), ALWAYS, results[1])

    assert same(binary, text)
    assert repr(traces) == repr(traces_too)
    assert results[0] == results[1]


def test_a_span_is_a_row() -> None:
    resource = {
        "service.name": "shop",
        "service.version": "1.2",
        "deployment.environment.name": "prod",
        "service.instance.id": "pod-1",
    }
    numbers = span(id=5, parent=4, start_ms=1, end_ms=3, kind="server", status={"code": 2})
    enumerations = numbers | {"kind": "SPAN_KIND_SERVER", "status": {"code": "STATUS_CODE_ERROR"}}
    for sent in (numbers, enumerations):
        spans = read(export(sent, resource=resource))

        assert spans.rows.tolist() == [(0, 7, 5, 4, NOON_NS + 10**6, NOON_NS + 3 * 10**6, 0, 0, Flag.ERROR)]
        assert spans.sources == [SpanSource("shop", "1.2", "prod", "pod-1")]
        assert spans.labels[0].kind == "server"


@pytest.mark.parametrize(
    ("resource", "source"),
    [
        ({}, SpanSource("unknown_service")),
        ({"service.name": "a", "deployment.environment": "old"}, SpanSource("a", environment="old")),
        ({"service.name": "a", "k8s.pod.name": "p", "host.name": "h"}, SpanSource("a", instance="p")),
        ({"service.name": "a", "host.name": "h", "process.pid": 7}, SpanSource("a", instance="h 7")),
        (
            {"service.name": "a", "service.instance.id": UUID, "k8s.pod.name": "p", "process.pid": 7},
            SpanSource("a", instance=UUID, place="p:7"),
        ),
        ({"service.name": "a", "service.instance.id": UUID, "host.name": "h"}, SpanSource("a", instance=UUID)),
        ({"service.name": "a\x00" + "x" * 300}, SpanSource("a\ufffd" + "x" * 198)),
    ],
)
def test_processes_are_identified_by_their_attributes(resource: dict[str, Any], source: SpanSource) -> None:
    assert read(export(span(), resource=resource)).sources == [source]


def test_a_client_of_an_environment_determines_it() -> None:
    body = export(span(), resource={"deployment.environment.name": "prod"})
    body["resourceSpans"] += export(span(), scope=names.SCOPE)["resourceSpans"]
    correct = AdmittedClient("team-a", "staging").correct
    spans, traces = read_spans(READER, PROTOBUF, as_protobuf(body), ALWAYS, IngestResult(), correct)

    assert [source.environment for source in spans.sources] == ["staging"]
    assert [item.resource[names.ENVIRONMENT] for item in traces] == ["staging"]


@pytest.mark.parametrize(
    ("fields", "reason", "message"),
    [
        ({"traceId": ""}, Reason.IDS, "spanId must be 8 bytes, and traceId 16, not all zero"),
        ({"traceId": "00" * 16}, Reason.IDS, "not all zero"),
        ({"spanId": "ab" * 16}, Reason.IDS, "not all zero"),
        ({"parentSpanId": "ab"}, Reason.IDS, "not all zero"),
        ({"startTimeUnixNano": "0"}, Reason.TIME, "too long ago"),
        ({"startTimeUnixNano": "-1"}, Reason.TIME, "more than a day ahead"),
        ({"endTimeUnixNano": str(2**64 - 1)}, Reason.TIME, "more than a day ahead"),
        ({"endTimeUnixNano": str(NOON_NS - 5)}, Reason.DURATION, "it ends 5 ns before it begins"),
    ],
)
def test_an_invalid_span_is_refused_alone(fields: dict[str, str], reason: Reason, message: str) -> None:
    window = TimeWindow(NOON_NS // 10**9 - 100, NOON_NS // 10**9 + 100)
    body = export(span(id=1), span(id=2) | fields, span(id=3) | fields, span(id=4))
    tally = IngestResult()
    spans, _ = read_spans(READER, JSON, json.dumps(body).encode(), window, tally)

    assert spans.rows["span"].tolist() == [1, 4]
    assert tally.rejected == {reason: 2}
    (reported,) = tally.messages
    assert message in reported
    assert reported.endswith("(and 1 more)")


def test_streams_and_intervals_match_their_spans_despite_refusals() -> None:
    values = {"gen_ai.operation.name": "chat", "gen_ai.response.time_to_first_chunk": 0.02}
    unfinished = span("chat", id=3, end_ms=None, values=values)
    spans = read(export(span(id=1) | {"traceId": ""}, span("chat", id=2, values=values), unfinished))

    assert spans.rows["span"].tolist() == [2, 3, 0]
    assert spans.rows["parent"].tolist() == [0, 0, 2]
    assert spans.rows["end"].tolist()[1] == 0
    assert spans.streams["first_token_ns"].tolist() == [20_000_000]
    assert spans.streams["row"].tolist() == [0]


@pytest.mark.parametrize("walked", [0, 10**9])
def test_a_large_body_is_parsed_like_a_small_one(walked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body = as_protobuf(export(*(span(id=number, values={"other": "x" * number}) for number in range(1, 50))))
    small = read_spans(READER, PROTOBUF, body, ALWAYS, IngestResult()).spans
    monkeypatch.setattr(span_reader, "SMALL_BYTES", 10)
    monkeypatch.setattr(span_reader, "WALKED_BYTES", walked)
    monkeypatch.setattr(span_reader, "_SPANS_AT_ONCE", 7)
    for at_once in (10_000, 250):
        monkeypatch.setattr(span_reader, "_BYTES_AT_ONCE", at_once)

        assert same(read_spans(READER, PROTOBUF, body, ALWAYS, IngestResult()).spans, small)
    monkeypatch.setattr(span_reader, "_BYTES_AT_ONCE", 100)
    with pytest.raises(BodyTooLargeError, match="send fewer attributes per span"):
        read_spans(READER, PROTOBUF, body, ALWAYS, IngestResult())


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a\x00" * 250_001,
        b"\x0a\x04\x12\x02\x12\x00" * 130_000,
        ExportTraceServiceRequest(
            resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=[Span()] * 250_001)])]
        ).SerializeToString(),
    ],
)
def test_too_many_messages_are_too_large(body: bytes) -> None:
    with pytest.raises(BodyTooLargeError, match="send smaller batches"):
        read_spans(READER, PROTOBUF, body, ALWAYS, IngestResult())


def test_too_many_kinds_of_spans_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_validation, "MAX_LABELS", 3)
    tally = IngestResult()
    spans = read(export(*(span(f"job {number}", id=number) for number in range(1, 9))), tally=tally)

    assert [label.name for label in spans.labels] == ["job 1", "job 2", "job 3"]
    assert tally.rejected == {Reason.SIZE: 5}


def test_caches_are_bounded_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [
        as_protobuf(
            export(
                *(
                    span(
                        f"job {number % 40}", id=number, values={"http.route": f"/{number % 70}", "other": "x" * number}
                    )
                    for number in range(first, first + 99)
                )
            )
        )
        for first in (1, 100, 200)
    ]
    expected = [read_spans(SpanReader(), PROTOBUF, body, ALWAYS, IngestResult()).spans for body in bodies]
    monkeypatch.setattr(rules_module, "MAX_MEANINGS_BYTES", 20 * 500)
    reader = SpanReader()
    for body, spans in zip(bodies, expected, strict=True):
        assert same(read_spans(reader, PROTOBUF, body, ALWAYS, IngestResult()).spans, spans)
    assert 0 < len(reader.rule_cache.meanings) <= 20


def test_changed_rules_apply_from_the_next_export() -> None:
    rules: list[tuple[Rule, ...] | None] = [None]
    reader = SpanReader(lambda: rules[0])
    body = as_protobuf(export(span("ours")))
    before = read_spans(reader, PROTOBUF, body, ALWAYS, IngestResult()).spans
    rules[0] = (Rule(name="ours", when=(SpanCondition(span=("ours",)),), stage="forward"),)
    after = read_spans(reader, PROTOBUF, body, ALWAYS, IngestResult()).spans

    assert [spans.labels[0].stage for spans in (before, after)] == ["", "forward"]


def test_attributes_without_a_rule_are_not_stored() -> None:
    body = export(
        span(
            kind="server",
            values={"http.request.method": "GET", "gen_ai.prompt": "my secret", "url.query": "my secret"},
            events=[("my secret", 5)],
            status={"code": 2, "message": "my secret"},
        )
    )
    spans = read(body)

    assert "secret" not in repr((spans.labels, spans.sources, spans.streams))
    assert dict(spans.labels[0].attributes) == {"http.request.method": "GET"}


def test_the_cache_of_attribute_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "MAX_SHAPES_BYTES", 20 * 900)
    reader = SpanReader()
    every = [{f"job.{number}": number, "http.route": "/", "http.method": "GET"} for number in range(19)]
    every += [dict(reversed(values.items())) for values in every]
    body = as_protobuf(export(*(span(id=number, values=each) for number, each in enumerate(every, start=1))))
    parsed = reader.parse(body)
    reader.finish([parsed], ALWAYS, [IngestResult()])

    # The cache of kinds is keyed by shapes, which are dropped at most once.
    assert len({id(meaning) for meaning in parsed.meanings}) <= 2
    assert len({meaning.label for meaning in parsed.meanings}) == 1
    assert 0 < len(reader.rule_cache.shapes) <= 25
