"""The trace of a request: the headers that it sends, and the user's own spans around it."""

from __future__ import annotations

import contextvars
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
from stagelens.instrumentors.trace_context import (
    Parent,
    caller_of,
    host_of_target,
    may_name_service_to,
    parse,
    traceparent,
    tracestate,
)
from tests.instrumentors.conftest import Finished, record, trace_of

INSTRUMENTOR = OpenTelemetrySdkInstrumentor
INCOMING = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


def test_concurrent_calls_of_a_request_propagate_its_ids(finished: Finished) -> None:
    start = threading.Barrier(8)

    def call(marks: records.Marks) -> str:
        start.wait()
        return traceparent(marks)

    with stagelens.request("job"), ThreadPoolExecutor(8) as pool:
        headers = set(pool.map(call, [records.current.get() or []] * 8))
    built = trace_of(finished[0])

    assert headers == {f"00-{built.trace_id}-{built.spans[0].span_id}-01"}


def test_the_trace_of_the_caller_continues_with_its_flags(finished: Finished) -> None:
    with stagelens.request("job", traceparent=INCOMING):
        handed_on = parse(traceparent(records.current.get() or []))
    retained = trace_of(finished[0])
    (root,) = retained.spans

    assert handed_on == Parent("0af7651916cd43dd8448eb211c80319c", root.span_id, 0)
    assert root.parent_id == "b7ad6b7169203331"
    assert not retained.sampled


@pytest.mark.parametrize("variables", [{"STAGELENS_PROPAGATE": "false"}, {"OTEL_SDK_DISABLED": "true"}])
def test_disabled_propagation_sends_no_header(variables: dict[str, str]) -> None:
    code = "from stagelens.instrumentors.trace_context import traceparent; print(repr(traceparent(['@open', 0, 0])))"

    assert subprocess.check_output([sys.executable, "-c", code], env={**os.environ, **variables}) == b"''\n"


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
        handed_on = parse(traceparent(records.current.get() or []))
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
@pytest.mark.parametrize("kind", [api.SpanKind.SERVER, api.SpanKind.INTERNAL])
def test_a_server_span_that_starts_inside_the_request_is_its_parent(
    finished: Finished, exported: InMemorySpanExporter, kind: api.SpanKind
) -> None:
    with stagelens.request("job"):
        for name in ("first", "another"):
            with api.get_tracer("theirs").start_as_current_span(name, kind=kind):
                pass
    user_spans.export_spans([trace_of(finished[0])], 0)
    first, _, job = exported.get_finished_spans()

    assert ids(job.context)[0] == ids(first.context)[0]
    assert (job.parent and ids(job.parent)) == (ids(first.context) if kind is api.SpanKind.SERVER else None)


def retained_trace(spans: int = 1) -> Trace:
    return trace_of(record(*(("forward", at, at + 1) for at in range(spans - 1)), end=9999))


@pytest.mark.parametrize(
    ("sampler", "sampled", "wanted"),
    [
        (ALWAYS_OFF, True, 0),
        (ALWAYS_ON, True, 200),
        (ParentBased(TraceIdRatioBased(0.1)), True, 20),
        # The trace of a caller that was sampled out.
        (ALWAYS_ON, False, 0),
    ],
)
def test_the_sampler_of_the_user_decides_about_new_traces(
    sampler: Any, sampled: bool, wanted: int, sdk: Callable[..., Any]
) -> None:
    exporter = sdk(sampler)
    for number in range(200):
        trace_id = f"{1:016x}{number * 2**64 // 200 + 2**56:016x}"
        user_spans.export_spans([retained_trace()._replace(trace_id=trace_id, sampled=sampled)], 0)

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
    assert [line.levelname for line in caplog.records] == ["WARNING"]
    assert "2 retained requests are not passed" in caplog.text


def test_without_a_tracer_provider_nothing_is_emitted(
    finished: Finished, reported: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_TRACER_PROVIDER", None)
    with stagelens.request("job"):
        pass
    user_spans.export_spans([trace_of(finished[0])], 0)

    assert reported == set()


@pytest.mark.usefixtures("instrumented", "exported")
def test_a_span_started_after_the_request_is_not_its_parent(finished: Finished) -> None:
    with stagelens.request("job"):
        task = contextvars.copy_context()
    task.run(api.get_tracer("theirs").start_span, "later")

    assert "@parent" not in finished.facts()


def test_uninstrumentation_restores_the_method() -> None:
    before, module = vars(Span)["start"], OpenTelemetrySdkInstrumentor()
    module.instrument()

    assert vars(Span)["start"] is not before

    module.uninstrument()

    assert (vars(Span)["start"], state.user_span) == (before, None)


# https://www.w3.org/TR/trace-context/#value
VALUE = re.compile(r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_every_name_is_sent_as_a_valid_value(service: str) -> None:
    header = tracestate(service)

    assert VALUE.fullmatch(header.partition("=")[2])
    assert caller_of(header) == caller_of(f"a=1, {header} ,b=2") == service


def test_a_long_name_is_cut() -> None:
    header = tracestate("ü" * 200 + "\ud800")

    assert VALUE.fullmatch(header.partition("=")[2])
    assert set(caller_of(header)) == {"ü"}


@pytest.mark.parametrize("header", ["", "stagelens", "x=stagelens=1", "other=1,STAGELENS=x", ",=,"])
def test_other_headers_name_no_caller(header: str) -> None:
    assert caller_of(header) == ""


PRIVATE = [
    *("checkout", "checkout.shop.svc", "checkout.shop.svc.cluster.local", "LOCALHOST", "db.internal", "nas.home.arpa."),
    *("127.0.0.1", "10.1.2.3", "192.168.0.9", "::1", "fd00::1", "fe80::1%eth0", "::ffff:10.0.0.1"),
]
LISTED = ["api.example.COM", "svc.example.com", "8.8.8.8"]
PUBLIC = ["", "example.com", "checkout.shop", "8.8.4.4", "2001:4860:4860::8888", "::ffff:8.8.8.8"]


@pytest.mark.parametrize("host", [*PRIVATE, *LISTED, *PUBLIC])
def test_only_private_and_listed_hosts_get_the_name_of_the_service(host: str) -> None:
    assert may_name_service_to(host, "") == (host in PRIVATE)
    assert may_name_service_to(host, "*.Example.com, 8.8.8.8") == (host not in PUBLIC)
    assert may_name_service_to(host, "*") == bool(host)


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("checkout:50051", "checkout"),
        ("dns:///api.example.com:443", "api.example.com"),
        ("dns:api.example.com", "api.example.com"),
        ("ipv4:10.0.0.1:50051,10.0.0.2:50051", "10.0.0.1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("10.0.0.1:8000/v2", "10.0.0.1"),
        ("unix:/run/model.sock", "localhost"),
        ("google-c2p:///api.example.com", ""),
        ("https://api.example.com", ""),
    ],
)
def test_the_host_of_a_target(target: str, host: str) -> None:
    assert host_of_target(target) == host
