"""The user's own OpenTelemetry SDK exports to a collector of ours, from a process where our agent counts the requests, too."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import Span
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import stagelens
from stagelens.collector.ingest.validation import IngestResult, TimeWindow
from stagelens.collector.otlp.model import PROTOBUF
from stagelens.collector.traces.columns import Flag
from stagelens.collector.traces.span_reader import SpanReader
from stagelens.instrumentors import recorder, recorder_state, records
from stagelens.instrumentors.export import user_spans
from stagelens.instrumentors.libraries import opentelemetry_sdk
from stagelens.instrumentors.libraries.opentelemetry_sdk import OpenTelemetrySdkInstrumentor
from stagelens.instrumentors.recorder_state import state
from tests.collector.traces.otlp import read_spans
from tests.instrumentors.conftest import Finished, trace_of

INSTRUMENTOR = OpenTelemetrySdkInstrumentor


def span(name: str, **options: Any) -> Any:
    return api.get_tracer("theirs").start_as_current_span(name, **options)


def counted(exported: InMemorySpanExporter) -> dict[str, bool]:
    body = encode_spans(exported.get_finished_spans()).SerializeToString()
    spans = read_spans(SpanReader(), PROTOBUF, body, TimeWindow(0, 2**40), IngestResult()).spans
    names = [spans.labels[label].name for label in spans.rows["label"]]
    return dict(zip(names, (spans.rows["flags"] & Flag.COUNTED != 0).tolist(), strict=True))


@pytest.fixture(params=[recorder_state.WITH_STAGES, recorder_state.WITHOUT_STAGES], ids=["timed", "without stages"])
def recorded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is recorded of requests."""
    monkeypatch.setattr(state, "mode", request.param)
    monkeypatch.setattr(recorder, "_turns", itertools.repeat(1))


@pytest.mark.usefixtures("instrumented", "finished", "recorded")
def test_spans_around_a_request_and_of_servers_inside_it_are_marked_as_counted(exported: InMemorySpanExporter) -> None:
    remote = api.SpanContext(7, 8, is_remote=True, trace_flags=api.TraceFlags(1))
    caller = api.set_span_in_context(api.NonRecordingSpan(remote))
    with span("consumer", kind=api.SpanKind.CONSUMER), span("around"), stagelens.request("job"), span("inside"):
        pass
    with stagelens.request("job"):
        with span("called", context=caller, kind=api.SpanKind.SERVER), span("query", kind=api.SpanKind.CLIENT):
            pass
        with span("alone"):
            pass
    with span("theirs", kind=api.SpanKind.SERVER):
        pass

    assert counted(exported) == {
        "consumer": False,
        "around": True,
        "inside": False,
        "called": True,
        "query": False,
        "alone": True,
        "theirs": False,
    }


@pytest.mark.usefixtures("instrumented")
def test_retained_spans_in_a_foreign_export_are_marked_as_counted(
    finished: Finished, exported: InMemorySpanExporter
) -> None:
    with span("around"), stagelens.request("job"), stagelens.stage("forward"):
        pass
    user_spans.export_spans([trace_of(finished[0])], 0)

    assert [each.name for each in exported.get_finished_spans()] == ["around", "job", "forward"]
    assert counted(exported) == {"around": True}


@pytest.mark.usefixtures("instrumented")
@pytest.mark.parametrize("broken", [(Span, "set_attribute"), (opentelemetry_sdk, "_parent")])
def test_a_span_that_cannot_be_read_or_marked_is_unaffected(
    finished: Finished,
    reported: set[str],
    exported: InMemorySpanExporter,
    make_fail: Callable[[Any, str], None],
    broken: tuple[Any, str],
) -> None:
    make_fail(*broken)
    with span("around"), stagelens.request("job"):
        pass
    with stagelens.request("job"), span("inside"):
        pass

    assert [each.name for each in exported.get_finished_spans()] == ["around", "inside"]
    assert len(finished) == 2
    assert reported == {"finding the span of a request"}
    assert records.current.get() is None
