"""Retained requests: lanes and downloaded file of one, and the list with its filters, chips, columns and pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from playwright.sync_api import expect

from stagelens.alerts.reader import AlertsReader
from stagelens.analysis.waterfall import busy_ns, lane_of
from stagelens.core import names
from stagelens.core.errors import ConfigError
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.trace import code_card, request_functions
from stagelens.dashboard.pages.trace_timeline import Scale
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import TableData, as_html
from stagelens.dashboard.web.api import as_otlp
from stagelens.store import Batch, RetainedTrace, Selection, Series, Store
from stagelens.store.queries import trace_search
from tests.dashboard.rendering import check_views, data_at, html_at, links_in, page_at, shown, source_of
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
    call = {"id": "c" * 16, "name": "GET", "stage": "dependency", "start_ns": 0, "duration_ns": 1}
    bare = RetainedTrace("a" * 32, "b" * 16, Series("shop"), 1, 0, "slow", "forward", {}, [call], {"url.path": ""})
    whole = as_otlp(bare)["resourceSpans"][0]
    root, called = whole["scopeSpans"][0]["spans"]

    assert whole["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "shop"}}]
    assert (root["name"], root["kind"]) == ("request", Span.SPAN_KIND_SERVER)
    assert "url.path" not in {attribute["key"] for attribute in root["attributes"]}
    # The server that was called names this span as its parent.
    assert called["spanId"] == call["id"]


def test_a_retained_request_is_downloaded(client: FlaskClient, slow: RetainedTrace) -> None:
    response = client.get(f"/api/v1/traces/{slow.trace_id}-{slow.span_id}")
    gone = client.get(f"/api/v1/traces/{'0' * 32}")

    assert response.status_code == 200
    assert f"trace-{slow.trace_id[:8]}" in response.headers["content-disposition"]
    assert response.get_json()["resourceSpans"]
    assert (gone.status_code, sorted(gone.get_json())) == (404, ["error", "fix", "key"])


def test_a_trace_has_a_waterfall_lanes_and_links(source: Source, slow: RetainedTrace) -> None:
    check_views("trace", source)
    check_views("traces_of_service", source)
    lanes = html_at(source, f"/traces/{slow.trace_id}?y=lanes")

    assert 'data-lane="CPU"' in lanes
    assert 'data-lane="Waiting"' in lanes
    assert "data-stage" not in lanes.partition("More like this")[0]
    assert 'rel="noopener noreferrer"' in html_at(source, f"/traces/{slow.trace_id}")


@pytest.mark.parametrize("url", ["jaeger/{trace_id}", "https://jaeger.example/trace/", "javascript:{trace_id}"])
def test_an_invalid_tracing_backend_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"STAGELENS_TRACER_URL.*such as https://"):
        DashboardConfig.from_env({"STAGELENS_TRACER_URL": url})


def rows(source: Source, query: str) -> int:
    return html_at(source, f"/traces?svc=vision-api{query}").count('data-href="/traces/')


def test_filters_combine_and_invalid_ones_break_nothing(source: Source, slow: RetainedTrace) -> None:
    every, slower, both, none = (
        rows(source, text) for text in ("", "&min=120ms", "&min=120ms&dom=preprocess", "&min=99s")
    )
    key, value = next(iter(slow.attributes.items()))

    assert 50 >= every >= slower >= both > none == 0
    assert rows(source, f"&at={quote(f'{key}:{value}')}") > 0
    assert rows(source, f"&at={quote(f'{key}:no such value')}") == 0
    for query in ("min=nonsense", "max=-3", "min=1e400ms", "at=no-colon", "dom=nothing&err=2&t=x"):
        assert "could not be rendered" not in html_at(source, f"/traces?svc=vision-api&{query}"), query


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


NS = 1_000_000_000
SHOP = Series("shop", "1", "prod", route="/buy")
REPLICAS = ("shop-7f6b9:7", "shop-9xwzn:7")


def trace(number: int, series: Series = SHOP, **attributes: str | int) -> RetainedTrace:
    spent = {"queue" if number % 2 else "forward": number * 1_000_000}
    return RetainedTrace(
        trace_id=f"{number:032x}",
        span_id=f"{number:016x}",
        series=series,
        started_ns=(int(NOW.timestamp()) - 60 - number) * NS,
        duration_ns=number * 1_000_000,
        because="slow",
        dominant=next(iter(spent)),
        stages_ns=spent,
        attributes={f"inference.attribute.{key}": value for key, value in attributes.items()},
    )


def shop_traces() -> Iterator[RetainedTrace]:
    """Yield 120 requests of two routes, replicas and tenants."""
    for number in range(1, 121):
        series = SHOP if number % 3 else replace(SHOP, route="/sell", status="error")
        tenant = "acme, inc" if number > 100 else "bolt"
        yield trace(
            number, series, tenant=tenant, replica=REPLICAS[number % 2], request_size=number * 100, caller="web"
        )


@pytest.fixture(scope="module")
def shop(open_module_store: Callable[[], Store]) -> Source:
    store = open_module_store()
    store.write([Batch("shop", traces=list(shop_traces()))])
    return source_of(store)


def requests(shop: Source, address: str) -> TableData:
    return next(table for table in data_at(shop, address).tables if table.name == "Retained requests")


def test_filters_offer_values_with_their_counts_and_chips_end_them_one_by_one(shop: Source) -> None:
    check_views("traces", shop)


def test_pages_are_addresses_in_a_stable_order(shop: Source) -> None:
    pages = [requests(shop, f"/traces?err=0&t=new&n={number}") for number in (1, 2)]
    first, second = (links_in(page_at(shop, f"/traces?err=0&t=new&n={number}").body) for number in (1, 2))
    traces_shown = [row[1] for each in pages for row in each.rows]

    assert (first["Next →"], second["← Previous"]) == ("/traces?t=new&err=0&n=2", "/traces?t=new&err=0")
    assert ("← Previous" in first, "Next →" in second) == (False, False)
    assert (len(traces_shown), len({row for each in pages for row in map(tuple, each.rows)})) == (80, 80)
    assert "51 to 80 of 80" in shown(shop, "/traces?err=0&n=9")
    assert second["Slowest"] == "/traces?err=0"


def test_route_replica_and_chosen_attributes_are_columns(shop: Source) -> None:
    plain, chosen = requests(shop, "/traces"), requests(shop, "/traces?at=tenant,request_size,caller")

    assert plain.head[:5] == ["Time", "Trace", "Service", "Route", "Replica"]
    assert chosen.head[3:7] == ["Route", "Replica", "tenant", "Request size"]
    assert chosen.rows[0][3:7] == ["/sell", REPLICAS[0], "acme, inc", "4-16 kB"]
    assert len(chosen.rows) == len(plain.rows) == 50


def test_a_limited_search_is_said(shop: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_search, "MAX_SEARCHED", 30)
    limited = source_of(shop.store)

    assert "Only the slowest 30 of 120 retained requests were searched" in shown(limited, "/traces")
    assert "were searched" not in shown(shop, "/traces")
