"""One retained request: lanes, downloaded file, and the list of traces."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from playwright.sync_api import expect

from stagelens.alerts.reader import AlertsReader
from stagelens.analysis.waterfall import busy_ns, lane_of
from stagelens.core import names
from stagelens.core.errors import ConfigError
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.page import Page
from stagelens.dashboard.pages.trace import code_card, request_functions
from stagelens.dashboard.pages.trace_timeline import Scale
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import as_html
from stagelens.dashboard.web.api import as_otlp
from stagelens.store import RetainedTrace, Selection, Series, Store
from tests.dashboard.rendering import page_at
from tests.dashboard.served_versions import NOW
from tests.dashboard.tabs import Visit

SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8)


@pytest.fixture(scope="module")
def source(filled: Store, alerts: AlertsReader) -> Source:
    return Source(filled, alerts, NOW.timestamp, tracer="https://jaeger.example/trace/{trace_id}")


@pytest.fixture(scope="module")
def slow(filled: Store) -> RetainedTrace:
    window = Selection(NOW - timedelta(hours=1), NOW, service="vision-api")
    frame = filled.read.exemplars(window, limit=1, dominant="preprocess")
    found = filled.read.trace(str(frame["trace_id"].iloc[0]))
    assert found is not None
    return found


def text(page: Page) -> str:
    return "".join(as_html(each) for each in page.body if each is not None)


@pytest.mark.parametrize(
    ("stage", "facts", "device", "lane"),
    [
        ("forward", {}, "cuda:0", "GPU"),
        ("forward", {}, "cpu", "CPU"),
        ("forward", {"stagelens.timing": "gpu"}, "", "GPU"),
        ("forward", {"stagelens.timing": "averaged"}, "cuda:0", "Other services"),
        ("decode", {"stagelens.timing": "reported"}, "", "Other services"),
        ("queue", {"stagelens.timing": "reported"}, "", "Waiting"),
        ("tokenize", {}, "cuda:0", "CPU"),
        ("queue", {}, "cuda:0", "Waiting"),
        ("network", {}, "", "Network"),
        ("dependency", {}, "", "Other services"),
        ("own-stage", {}, "cuda:0", "CPU"),
    ],
)
def test_a_span_is_in_the_lane_of_its_device(stage: str, facts: dict[str, Any], device: str, lane: str) -> None:
    assert lane_of({"stage": stage, "attributes": facts}, device) == lane


@given(SPANS)
def test_overlapping_spans_count_once(spans: list[tuple[int, int]]) -> None:
    moments = {moment for start, length in spans for moment in range(start, start + length)}

    assert busy_ns([{"start_ns": start, "duration_ns": length} for start, length in spans]) == len(moments)


@given(st.integers(-(10**12), 10**12), st.integers(0, 10**12))
def test_a_bar_stays_inside_its_request(start: int, length: int) -> None:
    left, width = Scale(1.0).place({"start_ns": start, "duration_ns": length})

    assert 0 <= left <= 100
    assert 0 <= width <= 100 - left + 1e-9


def test_the_downloaded_trace_is_valid_otlp(slow: RetainedTrace) -> None:
    message = ParseDict(json.loads(json.dumps(as_otlp(slow))), ExportTraceServiceRequest())
    root, *children = message.resource_spans[0].scope_spans[0].spans

    assert root.end_time_unix_nano - root.start_time_unix_nano == slow.duration_ns
    assert len({span.span_id for span in [root, *children]}) == len(slow.spans) + 1
    assert {span.parent_span_id for span in children} == {root.span_id}


def test_a_request_without_attributes_can_be_downloaded() -> None:
    bare = RetainedTrace("a" * 32, "b" * 16, Series("shop"), 1, 0, "slow", "forward", {})
    whole = as_otlp(bare)["resourceSpans"][0]

    assert whole["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "shop"}}]
    assert whole["scopeSpans"][0]["spans"][0]["name"] == "request"


def test_a_retained_request_is_downloaded(base: str, slow: RetainedTrace) -> None:
    name = f"{slow.trace_id}-{slow.span_id}"
    response = httpx.get(f"{base}/api/v1/traces/{name}")
    gone = httpx.get(f"{base}/api/v1/traces/{'0' * 32}")

    assert response.status_code == 200
    assert f"trace-{slow.trace_id[:8]}" in response.headers["content-disposition"]
    assert response.json()["resourceSpans"]
    assert (gone.status_code, sorted(gone.json())) == (404, ["error", "fix", "key"])


def test_the_lanes_of_a_request_have_a_link(source: Source, slow: RetainedTrace) -> None:
    shown = text(page_at(source, f"/traces/{slow.trace_id}?y=lanes"))

    assert 'data-lane="CPU"' in shown
    assert 'data-lane="Waiting"' in shown
    assert "data-stage" not in shown.partition("More like this")[0]


def test_a_trace_links_to_the_configured_tracing_backend(source: Source, slow: RetainedTrace) -> None:
    shown = text(page_at(source, f"/traces/{slow.trace_id}"))

    assert f"https://jaeger.example/trace/{slow.trace_id}" in shown
    assert 'rel="noopener noreferrer"' in shown


@pytest.mark.parametrize("url", ["jaeger/{trace_id}", "https://jaeger.example/trace/", "javascript:{trace_id}"])
def test_an_invalid_tracing_backend_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"STAGELENS_TRACER_URL.*such as https://"):
        DashboardConfig.from_env({"STAGELENS_TRACER_URL": url})


def test_a_trace_that_was_not_retained_shows_the_newest_retained(source: Source) -> None:
    shown = text(page_at(source, f"/traces/{'0' * 32}"))

    assert "This trace was not retained" in shown
    assert "Newest retained requests" in shown


def rows(shown: str) -> int:
    return shown.count('data-href="/traces/')


@pytest.mark.parametrize("query", ["min=nonsense", "max=-3", "min=1e400ms", "at=no-colon", "dom=nothing&err=2&t=x"])
def test_invalid_filter_values_break_nothing(source: Source, query: str) -> None:
    assert "could not be rendered" not in text(page_at(source, f"/traces?svc=vision-api&{query}"))


def test_filters_combine(source: Source) -> None:
    """Slower than a bound and of one stage: never more than each alone, and at most fifty."""
    every, slower, both, none = (
        rows(text(page_at(source, f"/traces?svc=vision-api{query}")))
        for query in ("", "&min=120ms", "&min=120ms&dom=preprocess", "&min=99s")
    )

    assert 50 >= every >= slower >= both > none == 0


def test_the_list_explains_its_sampling_rule(source: Source) -> None:
    shown = text(page_at(source, "/s/vision-api/traces"))

    assert "Metrics include every request. Retained:" in shown
    assert "slowest" in shown
    assert "and those forced by header" in shown
    assert "random sample. Retained for 7" in shown


def test_an_attribute_finds_the_requests_that_have_it(source: Source, slow: RetainedTrace) -> None:
    key, value = next(iter(slow.attributes.items()))
    shown = text(page_at(source, f"/traces?svc=vision-api&at={quote(f'{key}:{value}')}"))

    assert rows(shown) > 0
    assert rows(text(page_at(source, f"/traces?svc=vision-api&at={quote(f'{key}:no such value')}"))) == 0


@pytest.fixture
def opened(visit: Visit, slow: RetainedTrace) -> Visit:
    visit.go(f"/traces/{slow.trace_id}")
    return visit


@pytest.mark.stacks
def test_dragging_along_the_axis_zooms(opened: Visit) -> None:
    page = opened.page
    axis = page.locator(".wf thead .lane").bounding_box()
    assert axis is not None
    bar = page.locator(".wf tbody .lane i").last
    before = bar.bounding_box()
    page.mouse.move(axis["x"] + axis["width"] * 0.5, axis["y"] + 8)
    page.mouse.down()
    page.mouse.move(axis["x"] + axis["width"] * 0.75, axis["y"] + 8, steps=3)
    page.mouse.up()
    expect(page.locator(".wf.zoomed")).to_have_count(1)
    closer = bar.bounding_box()
    page.locator(".wf tbody").dblclick()
    expect(page.locator(".wf.zoomed")).to_have_count(0)

    assert before is not None
    assert closer is not None
    assert closer["width"] > 3 * before["width"]
    assert bar.bounding_box() == before


@pytest.mark.stacks
def test_a_typed_bound_filters_the_list(visit: Visit) -> None:
    page = visit.go("/traces?svc=vision-api")
    page.locator(".menu", has=page.locator("[data-field=min]")).locator("summary").click()
    page.locator("[data-field=min] input").fill("99s")
    page.keyboard.press("Enter")

    expect(page.get_by_text("No retained request matches")).to_be_visible()


PLAIN = RetainedTrace(
    "a" * 32, "b" * 16, Series("svc"), 0, 200_000_000, "slow", "preprocess", {"preprocess": 180_000_000}
)


def sampled(*lines: str) -> RetainedTrace:
    return replace(PLAIN, attributes={names.PROFILE: "\n".join(lines)})


def test_invalid_samples_are_left_out() -> None:
    assert request_functions(PLAIN) == []
    assert "no valid samples" in as_html(code_card(sampled("no number", "-4 preprocess;a:b@c.py:1")))


def test_functions_have_the_time_of_their_samples() -> None:
    found = request_functions(
        sampled("160000 preprocess;serve:resize@serve.py:41", "9000 preprocess;serve:load@serve.py:9")
    )
    assert [(each.title, round(each.tail_self_ms)) for each in found] == [
        ("resize (serve.py:41)", 160),
        ("load (serve.py:9)", 9),
    ]


def test_names_are_escaped() -> None:
    shown = code_card(sampled(f"9000 preprocess;serve:<script>{'x' * 300}@<b>.py:1"))
    assert "<script>" not in as_html(shown)
    assert "<b>" not in as_html(shown)
