"""The trace a request is part of: what it hands on, and the user's own spans around it."""

from __future__ import annotations

import contextvars
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace as api
from opentelemetry.sdk.trace import Span
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, TraceIdRatioBased

import stagelens
from stagelens.instrumentors import records
from stagelens.instrumentors.agent.spans import Trace
from stagelens.instrumentors.export import user_spans
from stagelens.instrumentors.libraries.opentelemetry_sdk import OpenTelemetrySdkInstrumentor
from stagelens.instrumentors.recorder_state import state
from stagelens.instrumentors.trace_context import Parent, is_forced, parse, traceparent
from tests.instrumentors.conftest import Finished, trace_of

INSTRUMENTOR = OpenTelemetrySdkInstrumentor
INCOMING = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


def test_concurrent_calls_of_a_request_propagate_its_ids(finished: Finished) -> None:
    start, headers = threading.Barrier(8), set[str]()
    with stagelens.request("job"):
        marks = records.current.get()
        assert marks is not None

        def call() -> None:
            start.wait()
            headers.add(traceparent(marks))

        with ThreadPoolExecutor(8) as pool:
            for _ in range(8):
                pool.submit(call)
    built = trace_of(finished[0])

    assert headers == {f"00-{built.trace_id}-{built.spans[0].span_id}-01"}


def test_the_trace_of_the_caller_continues_with_its_flags(finished: Finished) -> None:
    with stagelens.request("job", traceparent=INCOMING):
        marks = records.current.get()
        assert marks is not None
        handed_on = parse(traceparent(marks))
    retained_trace = trace_of(finished[0])
    caller = parse(INCOMING)
    assert handed_on is not None
    assert caller is not None

    assert handed_on == Parent(caller.trace_id, retained_trace.spans[0].span_id, 0)
    assert retained_trace.spans[0].parent_id == caller.span_id
    assert not retained_trace.sampled


@pytest.mark.parametrize("variables", [{"STAGELENS_PROPAGATE": "false"}, {"OTEL_SDK_DISABLED": "true"}])
def test_disabled_propagation_sends_no_header(variables: dict[str, str]) -> None:
    code = "from stagelens.instrumentors.trace_context import traceparent; print(repr(traceparent(['@open', 0, 0])))"
    env = {**os.environ, **variables}
    completed = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)

    assert completed.stdout == "''\n"


@pytest.mark.parametrize(
    ("configured", "header", "forced"),
    [("", "", False), ("", "1", False), ("s3cret", "1", False), ("s3cret", "s3cret", True)],
)
def test_a_trace_is_forced_only_by_the_configured_header(
    monkeypatch: pytest.MonkeyPatch, configured: str, header: str, forced: bool
) -> None:
    monkeypatch.setenv("STAGELENS_FORCE_TRACE", configured)

    assert is_forced(header) is forced


def ids(context: api.SpanContext | None) -> tuple[str, str]:
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


@pytest.mark.usefixtures("instrumented")
def test_a_retained_request_is_part_of_the_trace_of_the_user(
    finished: Finished, exported: InMemorySpanExporter
) -> None:
    with api.get_tracer("theirs").start_as_current_span("their server span"), stagelens.request("job"):
        with stagelens.stage("forward"):
            pass
        marks = records.current.get()
        assert marks is not None
        handed_on = parse(traceparent(marks))
    user_spans.export_spans([trace_of(finished[0])], 0)
    theirs, job, forward = exported.get_finished_spans()

    assert [span.name for span in (theirs, job, forward)] == ["their server span", "job", "forward"]
    assert ids(job.parent) == ids(theirs.context)
    assert ids(forward.parent) == ids(job.context)
    # Their backend knows their span for certain, ours only where it was kept.
    assert handed_on is not None
    assert handed_on[:2] == ids(theirs.context)
    # Whatever the SDK exports with, it can write them.
    assert json.loads(job.to_json())["attributes"]["stagelens.kept.because"] == "forced"


@pytest.mark.usefixtures("instrumented")
def test_a_span_that_starts_inside_the_request_is_its_parent(
    finished: Finished, exported: InMemorySpanExporter
) -> None:
    with stagelens.request("job"):
        for name in ("their server span", "another"):
            with api.get_tracer("theirs").start_as_current_span(name, kind=api.SpanKind.SERVER):
                pass
    user_spans.export_spans([trace_of(finished[0])], 0)
    theirs, _, job = exported.get_finished_spans()

    assert ids(job.parent) == ids(theirs.context)


@pytest.mark.usefixtures("instrumented")
def test_a_query_inside_the_request_is_not_its_parent(finished: Finished, exported: InMemorySpanExporter) -> None:
    with stagelens.request("job"), api.get_tracer("theirs").start_as_current_span("SELECT"):
        pass
    user_spans.export_spans([trace_of(finished[0])], 0)
    query, job = exported.get_finished_spans()

    assert job.parent is None
    assert ids(job.context)[0] == ids(query.context)[0]


@pytest.mark.usefixtures("instrumented")
def test_a_trace_that_was_sampled_out_stays_out(finished: Finished, sdk: Callable[..., Any]) -> None:
    exporter = sdk(ALWAYS_OFF)
    with api.get_tracer("theirs").start_as_current_span("dropped"), stagelens.request("job"):
        pass
    user_spans.export_spans([trace_of(finished[0])], 0)

    assert exporter.get_finished_spans() == ()


def retained_trace(spans: int = 1) -> Trace:
    marks = [records.CLOSED, 0, 0]
    for at in range(spans - 1):
        marks += ["forward", at, at + 1]
    return trace_of((marks, 0, 9999, "/predict", "", 200, "server"))


@pytest.mark.parametrize(
    ("sampler", "wanted"), [(ALWAYS_OFF, 0), (ALWAYS_ON, 200), (ParentBased(TraceIdRatioBased(0.1)), 20)]
)
def test_the_sampler_of_the_user_decides_about_new_traces(sampler: Any, wanted: int, sdk: Callable[..., Any]) -> None:
    exporter = sdk(sampler)
    for number in range(200):
        traced = retained_trace()._replace(trace_id=f"{1:016x}{number * 2**64 // 200 + 2**56:016x}")
        user_spans.export_spans([traced], 0)

    assert len(exporter.get_finished_spans()) == wanted


def test_spans_of_the_user_have_priority_in_the_queue(
    exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    remaining = user_spans.export_spans([retained_trace(100)] * 5, 0)
    remaining = user_spans.export_spans([retained_trace(100)] * 50, 0, remaining)

    assert len(exported.get_finished_spans()) == user_spans.MAX_SPANS // 100 * 100
    assert user_spans.export_spans([retained_trace()], 0, remaining) == 0

    exported.clear()
    monkeypatch.setattr(user_spans, "MAX_SECONDS", -1)
    user_spans.export_spans([retained_trace(5)], 0)

    assert exported.get_finished_spans() == ()


def test_a_slow_exporter_gets_whole_traces(
    sdk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]

    class Slow(InMemorySpanExporter):
        def export(self, spans: Any) -> Any:
            now[0] += 60 / 4
            return super().export(spans)

    exporter = sdk(exporter=Slow())
    monkeypatch.setattr(user_spans, "_is_reported", False)
    monkeypatch.setattr(user_spans, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for _ in range(2):
        now[0] = 0.0
        assert user_spans.export_spans([retained_trace(8)] * 3, 0) == 0

    assert len(exporter.get_finished_spans()) == 16
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "2 retained requests are not passed" in caplog.text


def test_without_a_tracer_provider_nothing_is_emitted(
    finished: Finished, reported: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_TRACER_PROVIDER", None)
    with stagelens.request("job"):
        pass
    user_spans.export_spans([trace_of(finished[0])], 0)

    assert reported == set()


@pytest.mark.usefixtures("instrumented")
def test_an_unreadable_span_is_ignored(
    finished: Finished, reported: set[str], exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> Parent:
        raise RuntimeError

    monkeypatch.setattr("stagelens.instrumentors.libraries.opentelemetry_sdk._parent", broken)
    with stagelens.request("job"), api.get_tracer("theirs").start_as_current_span("theirs"):
        pass

    assert [span.name for span in exported.get_finished_spans()] == ["theirs"]
    assert len(finished) == 1
    assert reported == {"finding the span of a request"}


@pytest.mark.usefixtures("instrumented", "exported")
def test_a_span_started_after_the_request_is_not_its_parent(finished: Finished) -> None:
    with stagelens.request("job"):
        task = contextvars.copy_context()
    task.run(api.get_tracer("theirs").start_span, "later")

    assert "@parent" not in finished.facts()


def test_uninstrumentation_restores_the_method() -> None:
    before = vars(Span)["start"]
    module = OpenTelemetrySdkInstrumentor()
    module.instrument()
    patched = vars(Span)["start"]
    module.uninstrument()

    assert patched is not before
    assert vars(Span)["start"] is before
    assert state.user_span is None
