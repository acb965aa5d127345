"""Retained traces: assembled from spans, and accepted or refused completely."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from stagelens.collector.ingest.retained_traces import (
    MAX_PROFILE_CHARS,
    MAX_SPANS_A_TRACE,
    MAX_TRACES_A_BATCH,
    RetainedTraceReader,
)
from stagelens.collector.ingest.validation import Reason, TimeWindow
from stagelens.collector.otlp.model import JSON, Attributes, ResourceSpans, RetainedSpan
from stagelens.collector.traces.span_reader import SpanReader
from stagelens.core import names
from tests.collector.traces.otlp import attributes, read_spans

SPANS = SpanReader()
STAGES = {"queue": 30_000_000, "forward": 50_000_000, "overhead": 1_234_567}


def read(body: dict[str, Any]) -> RetainedTraceReader:
    now = int(time.time())
    reader = RetainedTraceReader(TimeWindow(now - 86_400, now + 86_400))
    reader.read(read_spans(SPANS, JSON, json.dumps(body).encode(), reader.window, reader.tally).retained)
    return reader


def test_a_trace_is_its_root_and_its_intervals(bodies: Any) -> None:
    spans = bodies.trace(STAGES)
    reader = read(bodies.spans(*spans))
    (trace,) = reader.traces

    assert read(bodies.spans(*reversed(spans))).traces == reader.traces
    # The SDK of the user exports such traces, too.
    assert read(bodies.spans(*spans, scope=names.RETAINED_SCOPE)).traces == []
    assert (trace.trace_id, trace.span_id, trace.duration_ns, trace.because, trace.dominant) == (
        "ab" * 16,
        "01" * 8,
        81_234_567,
        "slow",
        "forward",
    )
    assert (trace.series.service, trace.series.route, trace.series.status) == ("shop", "/predict", "ok")
    assert trace.started_ns == bodies.now_ns - 5_000_000_000
    assert trace.stages_ns == STAGES
    assert trace.attributes == {names.HTTP_STATUS: 200, "inference.attribute.replica": "pod-1:pod-1"}
    assert [(span["stage"], span["start_ns"], span["duration_ns"]) for span in trace.spans] == [
        ("queue", 0, 30_000_000),
        ("forward", 30_000_000, 50_000_000),
    ]


def test_the_largest_stage_dominates_including_unattributed(bodies: Any) -> None:
    most = read(bodies.spans(bodies.trace({"queue": 1, "overhead": 9})[0])).traces[0]
    root = bodies.trace({"queue": 9, "overhead": 9})[0]
    root["attributes"] = [pair for pair in root["attributes"] if pair["key"] != names.STATUS]
    half = read(bodies.spans(root | {"status": {"code": 2}})).traces[0]

    assert (most.dominant, half.dominant) == ("overhead", "queue")
    # Without the attribute, the status of the span counts.
    assert (most.series.status, half.series.status) == ("ok", "error")


def test_requests_of_one_distributed_trace_are_distinguished(bodies: Any) -> None:
    outer = bodies.trace({"dependency": 50, "overhead": 1})
    inner = bodies.trace({"forward": 40, "overhead": 2})
    for span in inner:
        span["spanId"] = "ff" + span["spanId"][2:]
        span["parentSpanId"] = "ff" + "01" * 7
    inner[0]["parentSpanId"] = outer[1]["spanId"]
    traces = read(bodies.spans(*outer, *inner)).traces

    assert [(trace.duration_ns, [span["stage"] for span in trace.spans]) for trace in traces] == [
        (51, ["dependency"]),
        (42, ["forward"]),
    ]
    assert [trace.parent_id for trace in traces] == ["", outer[1]["spanId"]]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"endTimeUnixNano": "1"}, Reason.DURATION),
        ({"traceId": ""}, Reason.IDS),
        ({"traceId": "00" * 16}, Reason.IDS),
        ({"traceId": "ab" * 8}, Reason.IDS),
        ({"spanId": "01" * 7}, Reason.IDS),
        ({"startTimeUnixNano": "5", "endTimeUnixNano": "10"}, Reason.TIME),
        ({"startTimeUnixNano": "0", "endTimeUnixNano": str(2**64 - 1)}, Reason.TIME),
        ({"attributes": []}, Reason.PARENT),
    ],
)
def test_an_implausible_root_is_refused(bodies: Any, changes: dict[str, Any], reason: Reason) -> None:
    root = bodies.trace({"forward": 5})[0] | changes
    reader = read(bodies.spans(root))

    assert (reader.traces, reader.tally.rejected) == ([], {reason: 1})
    assert reader.tally.error_message.startswith("trace ")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("forward", {"intValue": "6"}, Reason.PARTITION),
        ("forward", {"intValue": "-5"}, Reason.STAGE),
        ("forward", {"stringValue": "5"}, Reason.STAGE),
        ("forward", {"doubleValue": 5.0}, Reason.STAGE),
        ("forward", {"boolValue": True}, Reason.STAGE),
        ("x" * 65, {"intValue": "0"}, Reason.STAGE),
        ("", {"intValue": "0"}, Reason.STAGE),
    ],
)
def test_stages_must_add_up(bodies: Any, key: str, value: dict[str, Any], reason: Reason) -> None:
    root = bodies.trace({"forward": 5})[0]
    root["attributes"].append({"key": names.STAGE_SELF_PREFIX + key, "value": value})
    reader = read(bodies.spans(root))

    assert (reader.traces, reader.tally.rejected) == ([], {reason: 1})


def test_a_bad_trace_is_refused_alone(bodies: Any) -> None:
    bad = bodies.trace(STAGES, trace_id="cd" * 16)
    bad[0]["endTimeUnixNano"] = bodies.now_ns
    reader = read(bodies.spans(*bodies.trace(STAGES), *bad))

    assert [trace.trace_id for trace in reader.traces] == ["ab" * 16]
    assert reader.tally.rejected == {Reason.PARTITION: 3}
    assert f"trace {'cd' * 16}, span {'01' * 8}: its stages add up to 81234567 ns" in reader.tally.error_message


def test_a_child_without_a_stage_is_a_nested_request(bodies: Any) -> None:
    spans = bodies.trace({"forward": 5})
    spans[1] |= {"name": "rerank", "attributes": []}
    (trace,) = read(bodies.spans(*spans)).traces

    assert [(span["name"], span["stage"]) for span in trace.spans] == [("rerank", "")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *(({"parentSpanId": parent}, Reason.PARENT) for parent in ("", "09" * 8, "0000000000000002")),
        ({"attributes": attributes({names.STAGE: 7})}, Reason.STAGE),
        ({"spanId": "01" * 8}, Reason.IDS),
    ],
)
def test_an_invalid_span_refuses_its_trace(bodies: Any, changes: dict[str, Any], reason: Reason) -> None:
    root, stage = bodies.trace({"forward": 5})

    assert read(bodies.spans(root, stage | changes)).tally.rejected == {reason: 2}


def retained(values: Attributes, number: int = 1, parent: int = 0, *, trace: int = 1) -> RetainedSpan:
    now = time.time_ns()
    ids = (f"{trace:032x}", f"{number:016x}", f"{parent:016x}")
    return RetainedSpan(*ids, "", now, now + 1, error=False, attributes=values)


def read_spans_of(spans: list[RetainedSpan]) -> RetainedTraceReader:
    reader = RetainedTraceReader(TimeWindow(0, time.time_ns()))
    reader.read([ResourceSpans({}, spans)])
    return reader


ROOT: Attributes = {names.RETAINED_BECAUSE: "slow", names.STAGE_SELF_PREFIX + "overhead": 1}


def test_a_chain_of_spans_is_followed_once() -> None:
    root, stage = retained(ROOT), {names.STAGE: "forward"}
    spans = [retained({**stage}, number, number - 1) for number in range(2, MAX_SPANS_A_TRACE + 2)]

    assert len(read_spans_of([*spans[-2::-1], root]).traces[0].spans) == MAX_SPANS_A_TRACE - 1
    assert read_spans_of([*spans[::-1], root]).tally.rejected == {Reason.SIZE: MAX_SPANS_A_TRACE + 1}


def test_a_batch_has_a_limited_number_of_traces() -> None:
    reader = read_spans_of([retained(ROOT, trace=number) for number in range(1, MAX_TRACES_A_BATCH + 3)])

    assert (len(reader.traces), reader.tally.rejected) == (MAX_TRACES_A_BATCH, {Reason.SIZE: 2})


def test_the_profile_of_a_request_is_stored_whole(bodies: Any) -> None:
    key = "forward" + ";package.module:Class.function@package/module.py:41" * 20
    root = bodies.trace({"forward": 5})[0]

    def stored(text: str) -> Any:
        sent = {"key": names.PROFILE, "value": {"stringValue": text}}
        traces = read(bodies.spans({**root, "attributes": [*root["attributes"], sent]})).traces
        return traces[0].attributes[names.PROFILE]

    assert stored(f"1200 {key}\n-1 {key}\nx\n3 a\tb;c\n9 queue;serve:f@serve.py:2") == (
        f"1200 {key}\n9 queue;serve:f@serve.py:2"
    )
    many = [f"1 forward;serve:f@serve.py:{number}" for number in range(10_000)]
    assert stored("\n".join(many)).splitlines() == many[: len(stored("\n".join(many)).splitlines())]
    assert len(stored("\n".join(many))) > MAX_PROFILE_CHARS * 0.9


def test_attributes_are_safe_to_store(bodies: Any) -> None:
    root = bodies.trace({"forward": 5})[0]
    root["attributes"] += [
        {"key": "long", "value": {"stringValue": "x" * 1000}},
        {"key": "bell\x07", "value": {"stringValue": "\x07"}},
        {"key": "far", "value": {"doubleValue": "Infinity"}},
        *({"key": f"k{number}", "value": {"intValue": number}} for number in range(100)),
    ]
    found = read(bodies.spans(root)).traces[0].attributes

    assert (found["long"], found["bell\ufffd"], found["far"]) == ("x" * 200, "\ufffd", "inf")
    assert len(found) == 64 + len({"inference.attribute.replica"})


def load(bodies: Any, **changes: Any) -> dict[str, Any]:
    span = bodies.trace({"forward": 5_000_000_000})[0]
    about = {names.LOAD_PHASE: "read", names.LOAD_OWN: 4_000_000_000, names.MODEL: "resnet", **changes}
    return span | {"attributes": attributes({key: value for key, value in about.items() if value is not None})}


def test_a_cold_start_phase_is_not_a_retained_request(bodies: Any) -> None:
    found = read(bodies.spans(load(bodies), *bodies.trace(STAGES)))
    month = 30 * 86_400 * 1_000_000_000
    old = load(bodies)
    old |= {key: str(int(old[key]) - month) for key in ("startTimeUnixNano", "endTimeUnixNano")}
    (phase,) = found.loads

    assert (phase.service, phase.place, phase.phase, phase.model, phase.own, phase.ended - phase.started) == (
        "shop",
        "pod-1:pod-1",
        "read",
        "resnet",
        4_000_000_000,
        5_000_000_000,
    )
    assert len(found.traces) == 1
    assert len(read(bodies.spans(old)).loads) == 1


@pytest.mark.parametrize(
    "wrong",
    [{names.LOAD_PHASE: "rest"}, {names.LOAD_OWN: 5_000_000_001}, {names.LOAD_OWN: -1}, {names.LOAD_OWN: None}],
)
def test_an_invalid_phase_is_refused_alone(bodies: Any, wrong: dict[str, Any]) -> None:
    found = read(bodies.spans(load(bodies, **wrong), *bodies.trace(STAGES)))

    assert (found.loads, len(found.traces), sum(found.tally.rejected.values())) == ([], 1, 1)
