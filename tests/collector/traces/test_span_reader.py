"""Reader of span exports: accepted and refused spans, and limits."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from stagelens.collector.ingest.validation import IngestResult, Reason, TimeWindow
from stagelens.collector.otlp.model import JSON, PROTOBUF, BodyTooLargeError
from stagelens.collector.server.auth import AdmittedClient
from stagelens.collector.traces import rules as rules_module
from stagelens.collector.traces import span_reader, span_validation
from stagelens.collector.traces.columns import Flag, Spans, SpanSource, decode_spans, encode_spans
from stagelens.collector.traces.rule_config import Rule, SpanCondition, built_in
from stagelens.collector.traces.rules import RuleSet
from stagelens.collector.traces.span_reader import SpanReader
from stagelens.core import names
from stagelens.core.errors import WireError
from tests.collector.traces.otlp import ALWAYS, NOON_NS, as_protobuf, export, read, span

# SDKs make one up for each process.
UUID = "0f9b1d1e-2f6a-4b5e-9d3b-4a3c0e8f7a21"
READER = SpanReader()
# Attributes that rules read, and others; values with a meaning for them, and others.
KEYS = (
    "gen_ai.operation.name",
    "gen_ai.request.model",
    "gen_ai.usage.input_tokens",
    "gen_ai.response.time_to_first_chunk",
    "validation_time",
    "queue_time",
    "inference_time",
    "http.request.method",
    "http.route",
    "http.response.status_code",
    "db.system",
    "messaging.system",
    "messaging.operation",
    "openinference.span.kind",
    "code.function",
    names.COUNTED,
    "service.name",
    "other",
    "k" * 130,
    "",
)
TEXTS = st.sampled_from(["chat", "process", "LLM", "GET", "1.5ms", "250µs", "x" * 200, "a\x00b", ""]) | st.text(
    max_size=5
)
VALUES = st.one_of(
    TEXTS.map(lambda text: AnyValue(string_value=text)),
    st.booleans().map(lambda found: AnyValue(bool_value=found)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: AnyValue(int_value=number)),
    st.floats().map(lambda number: AnyValue(double_value=number)),
    st.just(AnyValue()),
    st.just(AnyValue(bytes_value=b"\x00")),
)
PAIRS = st.lists(st.builds(KeyValue, key=st.sampled_from(KEYS), value=VALUES), max_size=6)
TIMES = st.sampled_from([0, 1, NOON_NS, NOON_NS + 1, NOON_NS + 10**9, 2**62, 2**63, 2**64 - 1])
IDS = {size: st.sampled_from([b"", bytes(size), bytes(size - 1), b"\x01" * size, b"\xff" * size]) for size in (8, 16)}
EVENTS = ("First Token Stream Event", "HTTP_RECV_START", "HTTP_SEND_START", "HTTP_SEND_END", "COMPUTE_START", "other")
SPANS = st.builds(
    Span,
    trace_id=IDS[16],
    span_id=IDS[8],
    parent_span_id=IDS[8],
    name=TEXTS | st.sampled_from(["llm_request", "InferRequest", "compute", "* http send", "proxy_http_request"]),
    kind=st.integers(0, 6),
    start_time_unix_nano=TIMES,
    end_time_unix_nano=TIMES,
    attributes=PAIRS,
    events=st.lists(st.builds(Span.Event, name=st.sampled_from(EVENTS), time_unix_nano=TIMES), max_size=5),
)
SCOPES = st.sampled_from(["triton-server", "sglang server", "vllm", "theirs", "", names.SCOPE, names.KEPT_SCOPE])


@st.composite
def requests(draw: st.DrawFn) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    for _ in range(draw(st.integers(0, 2))):
        found = ResourceSpans(resource=Resource(attributes=draw(PAIRS)))
        for _ in range(draw(st.integers(0, 2))):
            scope = ScopeSpans(spans=draw(st.lists(SPANS, max_size=4)))
            scope.scope.name = draw(SCOPES)
            for each in scope.spans:
                each.status.code = draw(st.integers(0, 2))  # type: ignore[assignment] - an open enum
            found.scope_spans.append(scope)
        request.resource_spans.append(found)
    return request


def as_json(request: ExportTraceServiceRequest) -> bytes:
    """Return protobuf's JSON mapping with the differences of OTLP."""
    root = MessageToDict(request, use_integers_for_enums=True)
    for resource in root.get("resourceSpans", []):
        for scope in resource.get("scopeSpans", []):
            for each in scope.get("spans", []):
                for key in {"traceId", "spanId", "parentSpanId"} & each.keys():
                    each[key] = base64.b64decode(each[key]).hex()
    return json.dumps(root).encode()


def same(one: Spans, other: Spans) -> bool:
    """Return whether both results are equal, including the stored bytes."""
    return encode_spans(one) == encode_spans(other)


@settings(deadline=None, max_examples=50)
@given(requests())
def test_both_encodings_give_equal_results(request: ExportTraceServiceRequest) -> None:
    results = IngestResult(), IngestResult()
    binary, traces = READER.read(PROTOBUF, request.SerializeToString(), ALWAYS, results[0])
    text, traces_too = READER.read(JSON, as_json(request), ALWAYS, results[1])

    assert same(binary, text)
    assert repr(traces) == repr(traces_too)
    assert results[0] == results[1]


@settings(deadline=None, max_examples=50)
@given(requests(), st.randoms(use_true_random=False), st.booleans())
def test_any_bytes_are_a_wire_error_or_an_export(
    request: ExportTraceServiceRequest, rng: random.Random, as_text: bool
) -> None:
    body = bytearray(as_json(request) if as_text else request.SerializeToString())
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(3):
            case 0 if at < len(body):
                body[at] = rng.randrange(256)
            case 1:
                del body[at : at + rng.randrange(9)]
            case _:
                body[at:at] = body[at : at + rng.randrange(9)]
    try:
        spans, _ = READER.read(JSON if as_text else PROTOBUF, bytes(body), ALWAYS, IngestResult())
    except WireError:
        return

    assert same(decode_spans(encode_spans(spans)), spans)


@settings(deadline=None, max_examples=30)
@given(requests())
def test_row_indices_are_within_their_tables(request: ExportTraceServiceRequest) -> None:
    spans, _ = READER.read(PROTOBUF, request.SerializeToString(), ALWAYS, IngestResult())
    rows = spans.rows
    own = {int(row["span"]) for row in rows if not row["flags"] & Flag.DERIVED}

    assert (rows["label"] < max(len(spans.labels), 1)).all()
    assert (rows["source"] < max(len(spans.sources), 1)).all()
    assert all(not rows["flags"][row] & Flag.DERIVED for row in spans.streams["row"])
    assert ((rows["trace_high"] | rows["trace_low"]) != 0).all()
    for row in rows[rows["flags"] & Flag.DERIVED != 0]:
        assert int(row["parent"]) in own
        assert row["span"] == 0
        assert row["start"] < row["end"]


def test_a_span_is_a_row() -> None:
    resource = {
        "service.name": "shop",
        "service.version": "1.2",
        "deployment.environment.name": "prod",
        "service.instance.id": "pod-1",
    }
    spans = read(export(span(id=5, parent=4, start_ms=1, end_ms=3, status={"code": 2}), resource=resource))
    (row,) = spans.rows.tolist()

    assert row == (0, 7, 5, 4, NOON_NS + 10**6, NOON_NS + 3 * 10**6, 0, 0, Flag.ERROR)
    assert spans.sources == [SpanSource("shop", "1.2", "prod", "pod-1")]


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


@pytest.mark.parametrize("media_type", [JSON, PROTOBUF])
def test_a_client_of_an_environment_determines_it(media_type: str) -> None:
    body = export(span(), resource={"deployment.environment.name": "prod"})
    body["resourceSpans"] += export(span(), scope=names.SCOPE)["resourceSpans"]
    sent = as_protobuf(body) if media_type == PROTOBUF else json.dumps(body).encode()
    spans, traces = READER.read(media_type, sent, ALWAYS, IngestResult(), AdmittedClient("team-a", "staging").correct)

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
    spans, _ = READER.read(JSON, json.dumps(body).encode(), window, tally)

    assert spans.rows["span"].tolist() == [1, 4]
    assert tally.rejected == {reason: 2}
    (reported,) = tally.messages
    assert message in reported
    assert reported.endswith("(and 1 more)")


def test_streams_and_intervals_match_their_spans_despite_refusals() -> None:
    values = {"gen_ai.operation.name": "chat", "gen_ai.response.time_to_first_chunk": 0.02}
    spans = read(export(span(id=1) | {"traceId": ""}, span("chat", id=2, values=values)))

    assert spans.rows["span"].tolist() == [2, 0]
    assert spans.rows["parent"].tolist() == [0, 2]
    assert spans.streams["first_token_ns"].tolist() == [20_000_000]
    assert spans.streams["row"].tolist() == [0]


def test_an_unfinished_span_is_stored() -> None:
    values = {"gen_ai.operation.name": "chat", "gen_ai.response.time_to_first_chunk": 0.02}
    spans = read(export(span("chat", end_ms=None, values=values)))

    assert spans.rows["end"].tolist() == [0]
    assert len(spans.streams) == 0


@pytest.mark.parametrize("walked", [0, 10**9])
def test_a_large_body_is_parsed_like_a_small_one(walked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body = as_protobuf(export(*(span(id=number, values={"other": "x" * number}) for number in range(1, 50))))
    small = READER.read(PROTOBUF, body, ALWAYS, IngestResult()).spans
    monkeypatch.setattr(span_reader, "SMALL_BYTES", 10)
    monkeypatch.setattr(span_reader, "WALKED_BYTES", walked)
    monkeypatch.setattr(span_reader, "_SPANS_AT_ONCE", 7)
    for at_once in (10_000, 250):
        monkeypatch.setattr(span_reader, "_BYTES_AT_ONCE", at_once)

        assert same(READER.read(PROTOBUF, body, ALWAYS, IngestResult()).spans, small)
    monkeypatch.setattr(span_reader, "_BYTES_AT_ONCE", 100)
    with pytest.raises(BodyTooLargeError, match="send fewer attributes per span"):
        READER.read(PROTOBUF, body, ALWAYS, IngestResult())


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
        READER.read(PROTOBUF, body, ALWAYS, IngestResult())


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
    expected = [SpanReader().read(PROTOBUF, body, ALWAYS, IngestResult()).spans for body in bodies]
    monkeypatch.setattr(rules_module, "MAX_MEANINGS_BYTES", 20 * 500)
    held = rules_module.RuleCache(RuleSet(built_in()))
    for body, spans in zip(bodies, expected, strict=True):
        parsed = span_reader.parse_protobuf(body, held, None)
        span_reader.decode_together([parsed])

        assert same(span_validation.validate_spans(parsed.read, ALWAYS, IngestResult()), spans)
    assert 0 < len(held.meanings) <= 20


def test_changed_rules_apply_from_the_next_export() -> None:
    rules: list[tuple[Rule, ...] | None] = [None]
    reader = SpanReader(lambda: rules[0])
    body = as_protobuf(export(span("ours")))
    before = reader.read(PROTOBUF, body, ALWAYS, IngestResult()).spans
    rules[0] = (Rule(name="ours", when=(SpanCondition(span=("ours",)),), stage="forward"),)
    after = reader.read(PROTOBUF, body, ALWAYS, IngestResult()).spans

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


def test_an_empty_export_is_nothing() -> None:
    for media_type, body in ((JSON, b"{}"), (PROTOBUF, b"")):
        tally = IngestResult()
        spans, traces = READER.read(media_type, body, ALWAYS, tally)

        assert (len(spans.rows), traces, tally) == (0, [], IngestResult())
        assert same(decode_spans(encode_spans(spans)), spans)


def test_enumerations_can_be_names() -> None:
    spans = read(export(span() | {"kind": "SPAN_KIND_SERVER", "status": {"code": "STATUS_CODE_ERROR"}}))

    assert (spans.labels[0].kind, spans.rows["flags"].tolist()) == ("server", [Flag.ERROR])
    assert np.array_equal(spans.rows["parent"], [0])


def test_the_cache_of_attribute_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "MAX_SHAPES_BYTES", 20 * 900)
    held = rules_module.RuleCache(RuleSet(built_in()))
    every = [{f"job.{number}": number, "http.route": "/", "http.method": "GET"} for number in range(19)]
    every += [dict(reversed(values.items())) for values in every]
    body = as_protobuf(export(*(span(id=number, values=each) for number, each in enumerate(every, start=1))))
    parsed = span_reader.parse_protobuf(body, held, None)
    span_reader.decode_together([parsed])
    found = parsed.read

    # The cache of kinds is keyed by shapes, which are dropped at most once.
    assert len({id(meaning) for meaning in found.meanings}) <= 2
    assert len({meaning.label for meaning in found.meanings}) == 1
    assert 0 < len(held.shapes) <= 25
