"""OpenTelemetry traces of a real Triton: stages and requests by the built-in rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stagelens.collector.ingest.validation import IngestResult, TimeWindow
from stagelens.collector.otlp.model import JSON
from stagelens.collector.traces.columns import encode_spans
from stagelens.collector.traces.inbox import InboxLimits, process_inbox
from stagelens.collector.traces.sampling import SamplingPolicy
from stagelens.collector.traces.span_reader import SpanReader
from stagelens.core import names
from stagelens.core.histogram import Histogram
from stagelens.store.inbox import AggregationInput, AggregationResult, Parcel
from tests.collector.conftest import last_day
from tests.collector.traces.otlp import read_spans
from tests.collector.traces.span_trees import opened

CAPTURES = Path(__file__).parents[1] / "support" / "triton" / "captures"
READER = SpanReader()
MUCH_LATER = 10_000


def capture(kind: str) -> bytes:
    return (CAPTURES / f"{kind}.json").read_bytes()


class Read:
    """Result of *exports* after all of them are processed."""

    def __init__(self, *exports: bytes, media_type: str = JSON) -> None:
        self.tally = IngestResult()
        read = [read_spans(READER, media_type, body, TimeWindow(0, 2**40), self.tally).spans for body in exports]
        parcels = [
            Parcel(1, counted=False, spans=encode_spans(spans), id=number) for number, spans in enumerate(read, 1)
        ]
        folded, self.outcome = process_inbox(
            AggregationInput(MUCH_LATER, parcels, (), complete=True), InboxLimits(), SamplingPolicy(everything=True)
        )
        self.points = list(folded.points)
        self.traces = [opened(trace) for trace in folded.traces]

    def histograms(self, metric: str) -> dict[str, Histogram]:
        found: dict[str, Histogram] = {}
        for point in self.points:
            if point.metric == metric:
                found.setdefault(point.stage, Histogram()).merge(point.histogram)
        return found


def cut(body: bytes) -> list[bytes]:
    root = json.loads(body)
    (resource,) = root["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    return [
        json.dumps({"resourceSpans": [resource | {"scopeSpans": [scope | {"spans": [span]}]}]}).encode()
        for span in scope["spans"]
    ]


def test_a_request_has_the_stages_that_triton_timed() -> None:
    read = Read(capture("single"))
    (trace,) = read.traces

    assert (trace.trace_id, trace.span_id) == (f"{1:032x}", "74e1aa2f238fc6a9")
    series = trace.series
    assert (series.service, series.model, series.model_version) == ("triton-inference-server", "plain", "1")
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
    assert Read(capture("single"), capture("single")).histograms(names.REQUEST_DURATION)["forward"].count == 1
    stages = [span["stage"] for span in trace.spans if span["stage"] in {"network", "h2d", "forward", "d2h"}]
    assert stages == ["network", "h2d", "forward", "d2h", "network"]
    assert read.tally.rejected == {}


def test_an_ensemble_is_one_request_of_all_its_models() -> None:
    read = Read(capture("ensemble"))
    (trace,) = read.traces

    assert trace.series.model == "twice"
    assert [span["stage"] for span in trace.spans].count("forward") == 2
    assert trace.stages_ns["forward"] > 100_000_000
    assert read.histograms(names.REQUEST_DURATION)["forward"].count == 1


def test_a_stream_is_counted_up_to_its_first_response() -> None:
    read = Read(capture("decoupled"))
    first, gap = read.histograms(names.FIRST_TOKEN), read.histograms(names.STREAM_GAP)

    assert {key: round(histogram.sum, 3) for key, histogram in first.items()} == {"triton_first_response": 0.011}
    assert {key: round(histogram.sum, 3) for key, histogram in gap.items()} == {"triton_first_response": 0.011}


@pytest.mark.parametrize("kind", ["single", "batched", "ensemble", "decoupled"])
def test_a_request_can_span_several_exports(kind: str) -> None:
    pieces, whole = Read(*cut(capture(kind))), Read(capture(kind))

    assert {trace.span_id: trace for trace in pieces.traces} == {trace.span_id: trace for trace in whole.traces}


def test_times_of_an_invalid_clock_are_ignored() -> None:
    body = json.loads(capture("single"))
    compute, model, root = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    model["events"][1]["timeUnixNano"] = "0"
    for event in (*compute["events"][1:], *root["events"][3:]):
        event["timeUnixNano"] = str(2**64 - 1)
    (trace,) = Read(json.dumps(body).encode()).traces

    assert sum(trace.stages_ns.values()) == trace.duration_ns == 953076002 - 910664153
    assert {stage for stage, spent in trace.stages_ns.items() if spent} == {"network", "queue", "h2d", "overhead"}


def test_a_running_collector_ingests_triton_traces(served: Any, bodies: Any, until: Callable[..., None]) -> None:
    shift = bodies.now_ns - 1795197799952871197
    body = json.loads(capture("single"))
    for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for node in (span, *span["events"]):
            for key in node.keys() & {"startTimeUnixNano", "endTimeUnixNano", "timeUnixNano"}:
                node[key] = str(int(node[key]) + shift)
    response = served.post("/v1/traces", body)
    # While this test reads the waiting spans, no other thread may process them.
    until(lambda: served.store.aggregate(_processed_later, 1 << 20))
    day = last_day("triton-inference-server")

    assert (response.status_code, response.json()) == (200, {})
    assert list(served.store.read.services(day.start, day.end)["service"]) == ["triton-inference-server"]
    assert served.store.read.trace(f"{1:032x}").dominant == "forward"
    assert served.store.read.latency(day).count == 1


def _processed_later(delivery: AggregationInput) -> AggregationResult:
    return process_inbox(replace(delivery, now=delivery.now + 60), InboxLimits(), SamplingPolicy(everything=True))[0]
