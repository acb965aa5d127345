"""Pages without a browser: every address renders without prior state or errors."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flask.testing import FlaskClient

from stagelens.analysis.breakdown import COLUMNS
from stagelens.core.histogram import Histogram
from stagelens.core.stages import position
from stagelens.dashboard.pages.measures import measure
from stagelens.dashboard.pages.page import panel, traces_table
from stagelens.dashboard.pages.service import inspector
from stagelens.dashboard.pages.service_charts import grid_frame, percentile_chart
from stagelens.dashboard.pages.trace_timeline import TraceBaseline
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import duration
from stagelens.dashboard.ui.page_export import text_of
from stagelens.dashboard.ui.trace_text import span_note
from stagelens.dashboard.web.app import build
from stagelens.dashboard.web.routing import page_of
from stagelens.store import Selection, Series, Store
from stagelens.store.collectors import Report, write_report
from tests.dashboard.burning_slos import SLO
from tests.dashboard.rendering import (
    alerts_of,
    check_views,
    client_of,
    context_at,
    observed,
    page_at,
    plain,
    shown,
    source_of,
    write_requests,
)
from tests.dashboard.served_versions import NOW

ADDRESSES = (
    "/",
    "/?from=now-15m",
    "/s/vision-api",
    "/s/vision-api?p=95&y=share&x=even&t=mean&by=count",
    "/s/vision-api?v=1.0.0&t=50",
    "/s/vision-api?from=now-15m&t=95",
    "/s/vision-api?env=nowhere",
    "/s/nobody",
    "/compare",
    "/compare?svc=vision-api",
    "/compare?svc=vision-api&a=2.0.0&b=1.0.0&p=99.9",
    "/compare?svc=vision-api&a=2026-11-20T11:25/10m&b=2026-11-20T11:45/10m",
    "/compare?svc=vision-api&a=9.9&b=1.0.0",
    "/compare?svc=chat-llm",
    "/slo",
    "/slo/chat-latency",
    "/slo/no-such-objective",
    "/traces",
    "/traces?svc=vision-api&dom=preprocess&t=new",
    "/traces?err=1",
    "/traces?svc=nobody",
    "/traces/zzzz",
    "/traces/0123456789abcdef0123456789abcdef",
    "/nowhere/at/all",
    "/s/%3Cscript%3E",
)
FRAME = {"root", "side", "mobnav", "trail", "time", "env"}


def attribute(node: Any, name: str) -> Iterator[Any]:
    for each in node if isinstance(node, list | tuple) else [node]:
        found = getattr(each, name, None)
        if found is not None:
            yield found
        if hasattr(each, "children"):
            yield from attribute(each.children, name)


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_address_responds_without_prior_state(client: FlaskClient, address: str) -> None:
    path, _, search = address.partition("?")
    document = client.get(address)
    parts = client.get("/parts", query_string=f"{search}&path={path}")

    assert document.status_code == (404 if path.startswith("/nowhere") else 200)
    assert parts.status_code == 200
    assert "could not be rendered" not in parts.text + document.text
    assert glued_words(document.text) == []


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._unread: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.text += "\0" if tag in _INLINE else " "
        self._unread += [tag] if tag in ("script", "style") else []

    def handle_endtag(self, tag: str) -> None:
        self.text += "\0" if tag in _INLINE else " "
        self._unread = [each for each in self._unread if each != tag]

    def handle_data(self, data: str) -> None:
        self.text += "" if self._unread else data


_INLINE = ("a", "abbr", "b", "button", "code", "em", "i", "kbd", "small", "span", "strong", "summary", "time")


def glued_words(document: str) -> list[str]:
    parser = _Words()
    parser.feed(document)
    return re.findall(r"[\w%)]+\0+[\w+][\w.]*", parser.text)


def test_the_words_of_a_page_are_apart(burning_folder: Path, burning_store: Store) -> None:
    client = client_of(burning_store, alerts_of(burning_store, burning_folder, SLO))
    pages = ("/", "/s/hot", "/slo", "/slo/hot-latency", "/incidents", "/events", "/advice", "/traces")

    assert {path: glued_words(client.get(path).text) for path in pages} == {path: [] for path in pages}
    assert "<h1>hot</h1>" in client.get("/s/hot").text


@dataclass(frozen=True, slots=True)
class Refresh:
    """What a browser gets when it refreshes a page: the response, the state of the page, and the parts of the frame."""

    text: str
    seen: dict[str, Any]
    parts: set[str]


def refreshed(client: FlaskClient, path: str, seen: object) -> Refresh:
    response = client.get("/parts", query_string={"path": path, "seen": json.dumps(seen)})
    text = response.text
    parts = set(re.findall(r'data-into="(\w+)"', text)) | ({"root"} if '<div class="page"' in text else set())

    assert response.status_code == 200
    return Refresh(text, json.loads(re.findall(r'id="seen">(.*)</script>$', text)[0]), parts)


def test_a_refresh_without_new_data_sends_nothing(client: FlaskClient) -> None:
    for path in ("/", "/s/vision-api", "/traces"):
        first = refreshed(client, path, None)
        second = refreshed(client, path, first.seen)

        assert first.parts == FRAME
        assert (second.seen, second.parts) == (first.seen, set())
        assert len(second.text) < 500
    assert refreshed(client, "/s/vision-api", first.seen).parts == FRAME, "the page of another address"


def test_a_page_is_sent_again_for_new_data_of_its_service(store: Store, traffic: ModuleType) -> None:
    traffic.fill(store, NOW - timedelta(minutes=2), NOW)
    client, path = client_of(store), "/s/vision-api"
    own, overview = (refreshed(client, each, None).seen for each in (path, "/"))
    write_requests(store, Series("chat-llm"), ago=0)
    beside, changed = refreshed(client, path, own), refreshed(client, "/", overview)
    quiet = refreshed(client, path, beside.seen)
    write_requests(store, Series("vision-api"), ago=0)

    assert beside.parts == {"mobnav", "side"}
    assert quiet.parts == set()
    assert "root" in changed.parts
    assert "root" in refreshed(client, path, quiet.seen).parts


def test_tile_chart_table_and_inspector_agree(source: Source) -> None:
    context = context_at(source, "/s/vision-api")
    measures, frame = measure(source, context.selection), grid_frame(context)
    in_chart = float(frame.loc[(frame["percentile"] - 0.99).abs() < 1e-9, "value_seconds"].iloc[0])
    table = inspector(frame, 0.99)
    carried = json.loads(next(each for each in attribute(table, "data-inspector")))
    place = carried["percentiles"].index("p99")

    assert measures.p99 == in_chart
    assert all(plain(duration(in_chart)) in shown(source, address) for address in ("/", "/s/vision-api"))
    assert sum(measures.tail_stages.values()) == pytest.approx(in_chart)
    assert plain(f"Total {duration(measures.p50)} {duration(measures.p99)}") in text_of(table)
    assert {stage: carried["stages"][stage][place] for stage in measures.tail_stages} == pytest.approx(
        measures.tail_stages, rel=1e-3
    )
    assert {stage: carried["base"][stage] for stage in measures.median_stages} == pytest.approx(
        measures.median_stages, rel=1e-3
    )


def test_an_incomplete_newest_step_is_not_drawn(source: Source) -> None:
    for address, missing in (("/s/vision-api", 1), (f"/s/vision-api?to={int(NOW.timestamp()) * 1000 - 600_000}", 0)):
        context = context_at(source, address)
        frame = source.read.quantiles_over_time(context.selection, (0.5,), context.axis.step)

        assert len(context.rates(frame)) == len(frame) - missing


def test_a_stage_is_compared_with_its_own_median() -> None:
    setting = TraceBaseline(Histogram(), {"load": observed(2.0, 30)}, {"forward": 0.02})

    assert setting.usual("load") == pytest.approx(2.0, rel=0.02)
    assert setting.usual("queue") is None


def test_many_services_and_many_stages_break_nothing(traffic: ModuleType, store: Store) -> None:
    few = {"forward": traffic.Shape(10), "overhead": traffic.Shape(1)}
    many = {f"step_{index:02d}": traffic.Shape(1 + index) for index in range(25)} | few
    services = [traffic.Service(f"service-{index:02d}", "m", 3.0, ("/",), few) for index in range(60)]
    services.append(traffic.Service("wide", "m", 20.0, ("/",), many))
    traffic.fill(store, NOW - timedelta(seconds=60), NOW, services=services)
    source = source_of(store)
    fleet, wide = shown(source, "/") + shown(source, "/?n=2"), shown(source, "/s/wide")
    frame = grid_frame(context_at(source, "/s/wide"))

    assert "61 services" in fleet
    assert all(service.name in fleet for service in services)
    assert "could not be rendered" not in fleet + wide
    assert frame.drop(columns=list(COLUMNS)).sum(axis=1).to_numpy() == pytest.approx(frame["value_seconds"].to_numpy())


def test_the_edge_of_a_card_has_the_colour_of_its_badge(source: Source) -> None:
    found = attribute(page_at(source, "/").body, "className")
    classes = [each for each in found if re.match(r"(g|pill) |card adv", each)]
    edges = [class_ for class_ in classes if class_.startswith("g ")]
    badges = [after for each, after in pairwise(classes) if each.startswith("g ")]

    assert {"g bad", "g warn"} <= set(edges)
    assert [edge.replace("g ", "pill ") for edge in edges] == badges


WITH_COLOURS = (
    *("/", "/s/vision-api", "/s/vision-api?t=mean&by=count", "/s/vision-api/traces", "/s/vision-api/capacity"),
    *("/s/vision-api/advice", "/s/vision-api/replicas", "/s/chat-llm", "/s/chat-llm/tokens", "/compare?svc=vision-api"),
    *("/slo/vision-latency", "/slo/chat-latency", "/traces", "/traces/<slow>", "/advice", "/regressions", "/engines"),
)


def cards_of(node: Any) -> Iterator[Any]:
    for each in node if isinstance(node, list | tuple) else [node]:
        if str(getattr(each, "className", "")).startswith("card"):
            yield each
        elif hasattr(each, "children"):
            yield from cards_of(each.children)


@pytest.mark.parametrize("address", WITH_COLOURS)
def test_each_colour_in_a_card_has_its_name_there(source: Source, filled: Store, address: str) -> None:
    slow = filled.read.exemplars(Selection(NOW - timedelta(hours=1), NOW, service="vision-api"), limit=1)
    cards = [*cards_of(page_at(source, address.replace("<slow>", str(slow["trace_id"].iloc[0]))).body)]

    assert cards
    for card in cards:
        drawn = {
            *re.findall(r"\$st\.(\w+)", json.dumps([each["data"] for each in attribute(card, "figure")], default=str)),
            *re.findall(r"var\(--st-(\w+)\)", str([*attribute(card, "style")])),
        }
        named = set(re.findall(r"\bsw st-(\w+)", " ".join(map(str, attribute(card, "className")))))
        assert drawn <= named, text_of(card)[:60]


def test_stages_have_a_fixed_order(source: Source) -> None:
    figure = percentile_chart(context_at(source, "/s/vision-api"))
    colours = [
        trace["fillcolor"].split("@")[0].removeprefix("$st.") for trace in figure["data"] if "stackgroup" in trace
    ]

    assert colours == sorted(colours, key=position)


def test_a_window_without_data_says_why(source: Source) -> None:
    later = NOW + timedelta(hours=5)
    check_views("no_data_later", source, "/s/vision-api?from=now-1h", now=later)
    check_views("no_environment", source)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            f"{socket.gethostname()}:4318",
            f"The collector {socket.gethostname()}:4318 reported 3 s ago. Agents send to http://127.0.0.1:4318 by default.",
        ),
        (f"{socket.gethostname()}:5318", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:5318 stagelens run -- "),
        ("pod-a:4318", "OTEL_EXPORTER_OTLP_ENDPOINT=http://pod-a:4318 stagelens run -- "),
    ],
)
def test_an_empty_store_names_where_its_collector_listens(store: Store, name: str, line: str) -> None:
    with store.transaction() as connection:
        write_report(connection, Report("a", name, "1.2.3", NOW.timestamp() - 60, NOW.timestamp() - 3))

    assert line in plain(shown(source_of(store), "/"))


def test_an_empty_store_breaks_no_page(store: Store) -> None:
    source = source_of(store)
    for address in ADDRESSES:
        page = page_of(context_at(source, address))
        assert page is None or "could not be rendered" not in " ".join(map(text_of, page.body)), address
    check_views("empty_store", source)


def test_a_document_finds_a_name_with_a_slash(store: Store) -> None:
    write_requests(store, Series("shop/eu 50%", "1"))

    assert 'data-title="shop/eu 50% \u00b7 Stagelens"' in client_of(store).get("/s/shop%2Feu%2050%25").text


def test_percentiles_of_few_requests_are_noted_and_not_drawn(traffic: ModuleType, store: Store) -> None:
    traffic.fill(store, NOW - timedelta(seconds=30), NOW)
    check_views("young_service", source_of(store))


def test_a_window_inside_the_history_is_not_called_too_early(source: Source) -> None:
    inside, before = (context_at(source, f"/s/vision-api?from={each}").young for each in ("now-30m", "now-6h"))

    assert inside == ""
    assert "history starts" in before


def test_a_failing_card_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        msg = "the query took too long"
        raise TimeoutError(msg)

    assert "could not be rendered" in text_of(panel("Every request", broken))
    assert "the query took too long" in caplog.text


def test_no_graph_uploads_its_data() -> None:
    text = (Path(build.__code__.co_filename).parents[1] / "assets" / "figure.js").read_text()

    assert 'displayModeBar: false, showSendToCloud: false, plotlyServerURL: ""' in text


def test_requests_of_one_distributed_trace_have_separate_links(source: Source) -> None:
    exemplars = source.read.exemplars(Selection(NOW - timedelta(hours=1), NOW, service="vision-api"), limit=2)
    exemplars["trace_id"] = "ab" * 16
    table = repr(traces_table(exemplars, context_at(source, "/traces").view, "Retained requests"))

    assert exemplars["span_id"].nunique() == 2
    assert all(f"/traces/{'ab' * 16}-{span_id}" in table for span_id in exemplars["span_id"])
    assert "'abababab'" in table


def test_a_link_to_a_request_opens_it(source: Source) -> None:
    found = source.read.exemplars(Selection(NOW - timedelta(hours=1), NOW, service="vision-api"), limit=1).iloc[0]
    links = (f"{found['trace_id']}-{found['span_id']}", found["trace_id"][:8], f"{found['trace_id']}-{'0' * 16}")
    whole, short, other = (shown(source, f"/traces/{name}") for name in links)

    assert "Timeline" in whole
    assert "Timeline" in short
    assert "the median" in short
    assert "This trace was not retained" in other


def test_a_span_note_lists_valid_attributes_only() -> None:
    attributes = {
        "stagelens.stall.gc": 3_000_000,
        "stagelens.stall.other": "much",
        "inference.model.name": "resnet50",
        "inference.batch.size": 8,
        "stagelens.timing": "gpu",
    }

    assert span_note({"attributes": attributes}) == f"GC pause {duration(0.003)} · resnet50 · batch 8 · timed by gpu"
    assert span_note({"attributes": {"stagelens.timing": "reported"}}) == "reported by its server"
    assert span_note({"attributes": {"stagelens.part": "body"}}) == "reading the response"
    assert span_note({}) == ""


@pytest.mark.parametrize(
    ("address", "status"),
    [
        *(("/nope", 404), ("/s/vision-api/nope", 404), ("/report?path=/nope", 404)),
        *(("/", 200), ("/s/nobody", 200), ("/slo/no-such", 200), ("/report?path=/", 200)),
    ],
)
def test_an_unknown_address_is_404(client: FlaskClient, address: str, status: int) -> None:
    response = client.get(address)

    assert response.status_code == status
    assert ("There is no such page" in response.text) is (status == 404)
