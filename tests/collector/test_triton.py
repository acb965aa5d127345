"""Triton's own traces: captured from a real server, put together to requests with their stages."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stagelens.collector import json_wire, protobuf_wire
from stagelens.collector.points import Window
from stagelens.collector.store import Selection
from stagelens.collector.tally import Reason
from stagelens.collector.triton import KEPT_A_MODEL, MAX_MODELS_AN_EXPORT, TritonReader
from stagelens.collector.triton_pieces import Pieces
from stagelens.collector.wire import TRITON_SCOPE, Event, ResourceSpans, Span
from stagelens.core import names
from stagelens.core.errors import WireError
from stagelens.core.histogram import Histogram

CAPTURES = Path(__file__).parents[1] / "triton" / "captures"
ALWAYS = Window(0, 2**40)


def capture(kind: str) -> bytes:
    """An export of a real Triton."""
    return (CAPTURES / f"{kind}.json").read_bytes()


def read(export: list[ResourceSpans], pieces: Pieces | None = None) -> TritonReader:
    """Read what Triton sent."""
    reader = TritonReader(ALWAYS, pieces or Pieces())
    reader.read(export)
    return reader


def histograms(reader: TritonReader, metric: str) -> dict[str, Histogram]:
    """The histograms of one metric, by what tells them apart."""
    found: dict[str, Histogram] = {}
    for point in reader.points:
        if point.metric == metric:
            found.setdefault(point.stage, Histogram()).merge(point.histogram)
    return found


def test_a_request_has_the_stages_that_triton_timed() -> None:
    """To the nanosecond: queue, the three parts of compute, and the bytes on their way; the rest is overhead."""
    reader = read(json_wire.read_spans(capture("single")))
    (trace,) = reader.traces

    assert (trace.trace_id, trace.span_id) == (f"{1:032x}", "74e1aa2f238fc6a9")
    assert (trace.series.service, trace.series.model, trace.series.model_version) == (
        "triton-inference-server",
        "plain",
        "1",
    )
    assert trace.stages_ns == {
        "network": 910677893 - 910664153 + 953069733 - 953055812,
        "queue": 910917270 - 910867656,
        "h2d": 911046133 - 910917270,
        "forward": 952753471 - 911046133,
        "d2h": 952871197 - 952753471,
        "overhead": trace.duration_ns - sum(spent for stage, spent in trace.stages_ns.items() if stage != "overhead"),
    }
    assert trace.duration_ns == 953076002 - 910664153
    assert trace.dominant == "forward"
    assert [span["stage"] for span in trace.spans] == ["network", "queue", "h2d", "forward", "d2h", "network"]
    assert reader.tally.rejected == {}


def test_a_request_that_waited_for_a_batch_shows_it_as_queue() -> None:
    """Three requests of one batch are three requests, each with its own wait."""
    reader = read(json_wire.read_spans(capture("batched")))

    assert [trace.series.model for trace in reader.traces] == ["batched"] * 3
    assert len({trace.stages_ns["queue"] for trace in reader.traces}) == 3
    assert all(trace.stages_ns["queue"] > 10_000_000 for trace in reader.traces)
    assert histograms(reader, names.REQUEST_DURATION)["forward"].count == 3


def test_an_ensemble_is_one_request_of_all_its_models() -> None:
    """Its steps are not counted again; the trace says which stage was whose."""
    (trace,) = read(json_wire.read_spans(capture("ensemble"))).traces
    forward = [span["attributes"][names.MODEL] for span in trace.spans if span["stage"] == "forward"]

    assert trace.series.model == "twice"
    assert forward == ["double", "plain"]
    assert trace.stages_ns["forward"] > 100_000_000


def test_a_stream_is_counted_to_its_first_answer_too() -> None:
    """By the server's own definition of it, with the longest wait between two answers."""
    reader = read(json_wire.read_spans(capture("decoupled")))
    first = histograms(reader, names.FIRST_TOKEN)
    gap = histograms(reader, names.STREAM_GAP)

    assert {key: round(histogram.sum, 3) for key, histogram in first.items()} == {"triton_first_response": 0.011}
    assert {key: round(histogram.sum, 3) for key, histogram in gap.items()} == {"triton_first_response": 0.011}


def test_both_encodings_say_the_same() -> None:
    """An OpenTelemetry Collector in between forwards Triton's JSON as protobuf."""
    message = ExportTraceServiceRequest()
    for resource in json.loads(capture("ensemble"))["resourceSpans"]:
        target = message.resource_spans.add()
        for scope in resource["scopeSpans"]:
            spans = target.scope_spans.add()
            spans.scope.name = scope["scope"]["name"]
            for span in scope["spans"]:
                added = spans.spans.add(
                    trace_id=bytes.fromhex(span["traceId"]),
                    span_id=bytes.fromhex(span["spanId"]),
                    parent_span_id=bytes.fromhex(span["parentSpanId"]),
                    name=span["name"],
                    start_time_unix_nano=int(span["startTimeUnixNano"]),
                    end_time_unix_nano=int(span["endTimeUnixNano"]),
                )
                for event in span["events"]:
                    added.events.add(name=event["name"], time_unix_nano=int(event["timeUnixNano"]))
                for pair in span.get("attributes", ()):
                    value = pair["value"]
                    attribute = added.attributes.add(key=pair["key"])
                    if "stringValue" in value:
                        attribute.value.string_value = value["stringValue"]
                    else:
                        attribute.value.int_value = int(value["intValue"])
    (by_protobuf,) = read(protobuf_wire.read_spans(message.SerializeToString())).traces
    (by_json,) = read(json_wire.read_spans(capture("ensemble"))).traces

    assert by_protobuf.stages_ns == by_json.stages_ns
    assert by_protobuf.spans == by_json.spans


@pytest.mark.parametrize("kind", ["single", "batched", "ensemble", "decoupled"])
def test_a_request_may_come_in_several_exports(kind: str) -> None:
    """Spans are exported as they end; however they are cut, the requests are the same."""
    (item,) = json_wire.read_spans(capture(kind))
    pieces, cut = Pieces(), []
    for span in item.spans[TRITON_SCOPE]:
        cut += read([ResourceSpans(item.resource, {TRITON_SCOPE: [span]}, 0)], pieces).traces
    whole = read([item]).traces

    assert sorted(trace.span_id for trace in cut) == sorted(trace.span_id for trace in whole)
    assert {trace.span_id: trace.stages_ns for trace in cut} == {trace.span_id: trace.stages_ns for trace in whole}


def test_an_export_that_is_sent_again_says_the_same() -> None:
    """It was not committed the first time: nothing of it may be missing the second."""
    pieces = Pieces()
    export = json_wire.read_spans(capture("ensemble"))

    assert read(export, pieces).traces == read(export, pieces).traces


def test_a_request_without_its_model_is_refused_with_a_reason() -> None:
    """Its spans went to another collector, or Triton refused the request before a model had it."""
    (item,) = json_wire.read_spans(capture("single"))
    root = [span for span in item.spans[TRITON_SCOPE] if span.name == "InferRequest"]
    reader = read([ResourceSpans(item.resource, {TRITON_SCOPE: root}, 0)])

    assert reader.tally.rejected == {Reason.PARENT: 1}
    assert reader.points == []


def test_pieces_are_forgotten_in_time() -> None:
    """A request that never ends takes no memory for ever."""
    now = [0.0]
    pieces = Pieces(lambda: now[0])
    (item,) = json_wire.read_spans(capture("single"))
    compute, model, root = item.spans[TRITON_SCOPE]
    pieces.add([compute, model])
    now[0] = Pieces.MAX_AGE_SECONDS + 1

    assert pieces.add([root]) == {root.trace_id: []}


def test_the_slowest_of_an_export_are_kept() -> None:
    """Every request is counted, and a bounded number becomes a trace."""
    (item,) = json_wire.read_spans(capture("single"))
    spans = item.spans[TRITON_SCOPE]
    for number in range(2, 40):
        (more,) = json_wire.read_spans(capture("single").replace(f"{1:032x}".encode(), f"{number:032x}".encode()))
        more.spans[TRITON_SCOPE][2].end_ns += number
        spans += more.spans[TRITON_SCOPE]
    reader = read([item])

    assert histograms(reader, names.REQUEST_DURATION)["forward"].count == 39
    assert [int(trace.trace_id, 16) for trace in reader.traces] == list(range(39, 39 - KEPT_A_MODEL, -1))


SECOND = 1_000_000_000


def built(trace_id: str = f"{1:032x}", model: str = "plain", **events: list[tuple[str, int]]) -> list[Span]:
    """A request of a second, from its innermost span outwards; *events* are those of `root`, `inner` and `compute`."""
    made = [
        ("compute", f"{3:016x}", f"{2:016x}", {}),
        ("inner", f"{2:016x}", f"{1:016x}", {"triton.model_name": model}),
        ("root", f"{1:016x}", "", {}),
    ]
    return [
        Span(
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            name="InferRequest" if kind == "root" else kind,
            start_ns=SECOND,
            end_ns=2 * SECOND,
            error=False,
            attributes=dict(attributes),
            events=[Event(name, at) for name, at in events.get(kind, ())],
        )
        for kind, span_id, parent_id, attributes in made
    ]


def sent(spans: list[Span], pieces: Pieces | None = None) -> TritonReader:
    """Read *spans* as one export."""
    return read([ResourceSpans({}, {TRITON_SCOPE: spans}, 0)], pieces)


def test_models_in_models_without_end_are_refused() -> None:
    """A chain of ten thousand, and one that comes back to where it began, each with a reason."""
    *_, root = built()
    chain = [
        Span(root.trace_id, f"{at:016x}", f"{at - 1:016x}", "m", 0, 1, False, {"triton.model_name": "m"})
        for at in range(2, 10_002)
    ]
    back = Span(root.trace_id, root.span_id, chain[0].span_id, "m", 0, 1, False, {"triton.model_name": "m"})

    assert sent([*chain, root]).tally.rejected == {Reason.SIZE: 1}
    assert sent([chain[0], back, root]).tally.rejected == {Reason.SIZE: 1}


def test_a_request_that_comes_twice_in_an_export_is_one() -> None:
    """Some collector in between has put two batches together."""
    reader = sent(built() * 2)

    assert histograms(reader, names.REQUEST_DURATION)["overhead"].count == 1


@pytest.mark.parametrize(
    ("trace_id", "span_id"), [("", "1" * 16), ("0" * 32, "1" * 16), ("a" * 10_000, "1" * 16), ("1" * 32, "")]
)
def test_spans_without_proper_ids_are_refused(trace_id: str, span_id: str) -> None:
    """They would be stored and linked to as they are."""
    *below, root = built(trace_id)
    root.span_id = span_id
    reader = sent([*below, root])

    assert reader.traces == reader.points == []
    assert reader.tally.rejected[Reason.IDS] >= 1


def test_what_lies_outside_a_request_is_not_in_its_trace() -> None:
    """Times of a broken clock, as large as the wire allows, are neither shown nor counted."""
    last = 2**64 - 1
    steps = [("COMPUTE_START", SECOND + 10), ("COMPUTE_INPUT_END", last - 1), ("COMPUTE_OUTPUT_START", last)]
    reader = sent(
        built(
            root=[("GRPC_SEND_START", last - 1), ("GRPC_SEND_START", last)], inner=[("QUEUE_START", 0)], compute=steps
        )
    )
    (trace,) = reader.traces

    assert [(span["stage"], span["start_ns"], span["duration_ns"]) for span in trace.spans] == [
        ("queue", 0, 10),
        ("h2d", 10, SECOND - 10),
    ]
    assert histograms(reader, names.FIRST_TOKEN) == {}


def test_a_flood_of_models_is_bounded() -> None:
    """Each would be a series with traces of its own."""
    reader = sent([span for number in range(1, 700) for span in built(f"{number:032x}", f"model {number}")])

    assert len({point.series for point in reader.points}) == MAX_MODELS_AN_EXPORT
    assert reader.tally.rejected == {Reason.SIZE: 699 - MAX_MODELS_AN_EXPORT}


def test_pieces_hold_little_of_what_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither large spans, nor many, nor requests, however often they come."""
    monkeypatch.setattr(Pieces, "MAX_SPANS", 100)
    pieces = Pieces()
    *_, model, root = built(model="m" * 10_000)
    model.attributes |= {f"more {number}": "x" * 1000 for number in range(1000)}
    model.events = [Event(f"event {number}", number) for number in range(1000)]
    sent([model] * 3, pieces)
    held = pieces.add([root])[root.trace_id]
    for number in range(2, 1000):
        sent(built(f"{number:032x}"), pieces)

    assert [(len(piece.model or ""), piece.times) for piece in held] == [(200, {})]
    assert pieces.add([root])[root.trace_id] == []


damage = st.sampled_from(["parentSpanId", "spanId", "startTimeUnixNano", "endTimeUnixNano", "name", "events"])


@given(st.lists(st.tuples(st.integers(0, 5), damage, st.sampled_from(["", "0", "9" * 18, "c0039793258d9055"]))))
@settings(max_examples=200)
def test_damaged_spans_never_raise(changes: list[tuple[int, str, str]]) -> None:
    """Whatever is wrong with a trace, it is refused or counted; what is counted adds up."""
    body: dict[str, Any] = json.loads(capture("ensemble"))
    spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    for index, key, value in changes:
        if key == "events":
            spans[index]["events"] = spans[index]["events"][::-1]
        else:
            spans[index][key] = value
    try:
        export = json_wire.read_spans(json.dumps(body).encode())
    except WireError:
        return
    for trace in read(export).traces:
        assert sum(trace.stages_ns.values()) == trace.duration_ns


def test_a_running_collector_takes_what_triton_sends(served: Any, bodies: Any) -> None:
    """As it comes off the wire: JSON, and in the store when it is answered."""
    shift = bodies.now_ns - 1795197799952871197
    body = json.loads(capture("single"))
    for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for node in (span, *span["events"]):
            for key in node.keys() & {"startTimeUnixNano", "endTimeUnixNano", "timeUnixNano"}:
                node[key] = str(int(node[key]) + shift)
    answer = served.post("/v1/traces", body)
    frame = served.store.read.services(*_around(bodies.now_ns))

    assert (answer.status_code, answer.json()) == (200, {})
    assert list(frame["service"]) == ["triton-inference-server"]
    assert served.store.read.trace(f"{1:032x}").dominant == "forward"
    assert served.store.read.latency(Selection(*_around(bodies.now_ns), "triton-inference-server")).count == 1


def _around(now_ns: int) -> tuple[Any, Any]:
    now = datetime.fromtimestamp(now_ns / 1e9, UTC)
    return now - timedelta(minutes=5), now + timedelta(minutes=5)
