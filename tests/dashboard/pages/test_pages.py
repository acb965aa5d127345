"""Pages without a browser: every address renders without prior state or errors."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.analysis.breakdown import COLUMNS
from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION
from stagelens.core.stages import position
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.measures import measure
from stagelens.dashboard.pages.page import panel, traces_table
from stagelens.dashboard.pages.service import inspector
from stagelens.dashboard.pages.service_charts import CHARTS, grid_frame, percentile_chart
from stagelens.dashboard.pages.trace_timeline import TraceBaseline
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.components import WORDS
from stagelens.dashboard.ui.format import duration, split_duration
from stagelens.dashboard.ui.trace_text import span_note
from stagelens.dashboard.view import View, parse
from stagelens.dashboard.web.app import Dashboard, build
from stagelens.dashboard.web.routing import context_of, page_of
from stagelens.dashboard.web.shell import stale_banner
from stagelens.store import Batch, Point, Selection, Series, Store
from stagelens.store.collectors import Report, write_report
from tests.dashboard import burning_slos
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


def at(address: str, now: datetime = NOW) -> View:
    path, _, search = address.partition("?")
    return parse(path, search, now)


def words(node: Any) -> str:
    if node is None:
        return ""
    if isinstance(node, str | int | float):
        return str(node)
    if isinstance(node, list | tuple):
        return " ".join(words(each) for each in node)
    return words(getattr(node, "children", None))


def attribute(node: Any, name: str) -> Iterator[Any]:
    for each in node if isinstance(node, list | tuple) else [node]:
        found = getattr(each, name, None)
        if found is not None:
            yield found
        if hasattr(each, "children"):
            yield from attribute(each.children, name)


def text_of(source: Source, address: str, now: datetime = NOW) -> str:
    page = page_of(context_of(at(address, now), source))
    assert page is not None
    return words(page.body)


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_address_responds_without_prior_state(dashboard: Dashboard, address: str) -> None:
    client = dashboard.server.test_client()
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


@pytest.mark.parametrize(
    "path", ["/", "/s/hot", "/slo", "/slo/hot-latency", "/incidents", "/events", "/advice", "/traces"]
)
def test_the_words_of_a_page_are_apart(burning_folder: Path, burning_store: Store, path: str) -> None:
    alerts = AlertsReader(burning_store, LiveSloFile(burning_folder / "slo.yaml", burning_slos.ENV))
    document = build(Source(burning_store, alerts, NOW.timestamp), DashboardConfig()).test_client().get(path).text

    assert glued_words(document) == []
    if path == "/s/hot":
        assert "<h1>hot</h1>" in document


@dataclass(frozen=True, slots=True)
class Refresh:
    """What a browser gets when it refreshes a page.

    Args:
        text: Complete response.
        seen: State of the page at its end.
        parts: Parts of the frame, by element id, and `root` for the page itself.
    """

    text: str
    seen: dict[str, Any]
    parts: set[str]


def refreshed(served: Dashboard, path: str, seen: object) -> Refresh:
    response = served.server.test_client().get("/parts", query_string={"path": path, "seen": json.dumps(seen)})
    text = response.text
    parts = set(re.findall(r'data-into="(\w+)"', text)) | ({"root"} if '<div class="page"' in text else set())

    assert response.status_code == 200
    return Refresh(text, json.loads(re.findall(r'id="seen">(.*)</script>$', text)[0]), parts)


@pytest.mark.parametrize("path", ["/", "/s/vision-api", "/traces"])
def test_a_refresh_without_new_data_sends_nothing(dashboard: Dashboard, path: str) -> None:
    first = refreshed(dashboard, path, None)
    second = refreshed(dashboard, path, first.seen)

    assert first.parts == {"root", "side", "mobnav", "trail", "time", "env"}
    assert (second.seen, second.parts) == (first.seen, set())
    assert len(second.text) < 500


def test_a_refresh_of_another_address_delivers_its_page(dashboard: Dashboard) -> None:
    seen = refreshed(dashboard, "/traces", None).seen

    assert refreshed(dashboard, "/s/vision-api", seen).parts == {"root", "side", "mobnav", "trail", "time", "env"}


def test_a_page_is_sent_again_for_new_data_of_its_service(store: Store, traffic: ModuleType) -> None:
    traffic.fill(store, NOW - timedelta(minutes=2), NOW)
    served = Dashboard(DashboardConfig(port=0), store, None, clock=NOW.timestamp)
    path = "/s/vision-api"
    own, overview = (refreshed(served, each, None).seen for each in (path, "/"))
    series = Series("chat-llm")
    store.write([Batch("other", [Point(series, REQUEST_DURATION, "forward", int(NOW.timestamp()), _one(0.1))])])
    beside, changed = refreshed(served, path, own), refreshed(served, "/", overview)
    quiet = refreshed(served, path, beside.seen)
    series = Series("vision-api")
    store.write([Batch("own", [Point(series, REQUEST_DURATION, "forward", int(NOW.timestamp()), _one(0.1))])])
    redrawn = refreshed(served, path, quiet.seen)

    assert beside.parts == {"mobnav", "side"}
    assert quiet.parts == set()
    assert "root" in changed.parts
    assert "root" in redrawn.parts


def _one(seconds: float) -> Histogram:
    histogram = Histogram()
    histogram.record(seconds)
    return histogram


def test_tile_chart_and_table_agree(source: Source) -> None:
    context = context_of(at("/s/vision-api"), source)
    measures = measure(source, context.selection)
    frame = grid_frame(context)
    in_chart = float(frame.loc[(frame["percentile"] - 0.99).abs() < 1e-9, "value_seconds"].iloc[0])

    assert measures.p99 == in_chart
    assert duration(in_chart) in text_of(source, "/")
    assert duration(in_chart) in text_of(source, "/s/vision-api")
    assert sum(measures.tail_stages.values()) == pytest.approx(in_chart)


def test_the_inspector_agrees_with_tile_and_chart(source: Source) -> None:
    context = context_of(at("/s/vision-api"), source)
    measures = measure(source, context.selection)
    table = inspector(grid_frame(context), 0.99)
    carried = json.loads(next(each for each in attribute(table, "data-inspector")))
    place = carried["percentiles"].index("p99")
    shown = words(table)

    assert f"Total {duration(measures.p50)} {duration(measures.p99)}" in shown
    for stage, seconds in measures.tail_stages.items():
        assert carried["stages"][stage][place] == pytest.approx(seconds, rel=1e-3)
    for stage, seconds in measures.median_stages.items():
        assert carried["base"][stage] == pytest.approx(seconds, rel=1e-3)


def test_the_link_of_an_alert_opens_its_window(source: Source) -> None:
    start, end = NOW - timedelta(minutes=20), NOW - timedelta(minutes=5)
    stamps = [int(each.timestamp() * 1000) for each in (start, end)]
    address = f"/s/vision-api?from={stamps[0]}&to={stamps[1]}&p=95"
    context = context_of(at(address), source)
    text = text_of(source, address)

    assert (context.selection.start, context.selection.end) == (start, end)
    assert "of the p50→p95 gap" in text
    assert f"p99 {' '.join(split_duration(measure(source, context.selection).p99))}" in text


def test_services_with_problems_are_named_by_their_state(source: Source) -> None:
    states = {each.state for each in source.slos() if each.state != "healthy"}
    text = text_of(source, "/")
    named = text[text.index("Services meeting SLO") :][:80]

    assert states
    assert all(f"1 {WORDS[state].lower()}" in named for state in states)


def test_an_incomplete_newest_step_is_not_drawn(source: Source) -> None:
    for address, missing in (("/s/vision-api", 1), (f"/s/vision-api?to={int(NOW.timestamp()) * 1000 - 600_000}", 0)):
        context = context_of(at(address), source)
        frame = source.read.quantiles_over_time(context.selection, (0.5,), context.axis.step)

        assert len(context.rates(frame)) == len(frame) - missing


def test_a_stage_is_compared_with_its_own_median() -> None:
    load = Histogram()
    for _ in range(30):
        load.record(2.0)
    setting = TraceBaseline(Histogram(), {"load": load}, {"forward": 0.02})

    assert setting.usual("load") == pytest.approx(2.0, rel=0.02)
    assert setting.usual("queue") is None


def test_a_percentile_with_too_few_requests_names_no_stage(traffic: ModuleType, store: Store) -> None:
    traffic.fill(store, NOW - timedelta(minutes=5), NOW, released=NOW - timedelta(seconds=20))
    source = Source(store, None, NOW.timestamp)
    at_p99 = text_of(source, "/compare?svc=vision-api&p=99")
    at_p50 = text_of(source, "/compare?svc=vision-api&p=50")

    assert "p99 needs 1,000 requests on both sides" in at_p99
    assert "End to end" not in at_p99
    assert "End to end" in at_p50


def test_many_services_and_many_stages_break_nothing(traffic: ModuleType, store: Store) -> None:
    few = {"forward": traffic.Shape(10), "overhead": traffic.Shape(1)}
    many = {f"step_{each:02d}": traffic.Shape(1 + each) for each in range(25)} | few
    services = [traffic.Service(f"service-{each:02d}", "m", 3.0, ("/",), few) for each in range(60)]
    services.append(traffic.Service("wide", "m", 20.0, ("/",), many))
    traffic.fill(store, NOW - timedelta(seconds=60), NOW, services=services)
    source = Source(store, None, NOW.timestamp)
    fleet, wide = text_of(source, "/") + text_of(source, "/?n=2"), text_of(source, "/s/wide")
    frame = grid_frame(context_of(at("/s/wide"), source))

    assert "61 services" in fleet
    assert all(each.name in fleet for each in services)
    assert "could not be rendered" not in fleet + wide
    assert frame.drop(columns=list(COLUMNS)).sum(axis=1).to_numpy() == pytest.approx(frame["value_seconds"].to_numpy())


def test_the_edge_of_a_card_has_the_colour_of_its_badge(source: Source) -> None:
    page = page_of(context_of(at("/"), source))
    assert page is not None
    classes = [each for each in attribute(page.body, "className") if re.match(r"(g|pill) |card adv", each)]
    edges = [each for each in classes if each.startswith("g ")]
    badges = [after for each, after in pairwise(classes) if each.startswith("g ")]

    assert {"g bad", "g warn"} <= set(edges)
    assert [each.replace("g ", "pill ") for each in edges] == badges


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
    page = page_of(context_of(at(address.replace("<slow>", str(slow["trace_id"].iloc[0]))), source))
    assert page is not None
    cards = [*cards_of(page.body)]

    assert cards
    for card in cards:
        drawn = {
            *re.findall(r"\$st\.(\w+)", json.dumps([each["data"] for each in attribute(card, "figure")], default=str)),
            *re.findall(r"var\(--st-(\w+)\)", str([*attribute(card, "style")])),
        }
        named = set(re.findall(r"\bsw st-(\w+)", " ".join(map(str, attribute(card, "className")))))
        assert drawn <= named, words(card)[:60]


def test_stages_have_a_fixed_order(source: Source) -> None:
    figure = percentile_chart(context_of(at("/s/vision-api"), source))
    colours = [
        trace["fillcolor"].split("@")[0].removeprefix("$st.") for trace in figure["data"] if "stackgroup" in trace
    ]

    assert colours == sorted(colours, key=position)


@pytest.mark.parametrize(
    ("address", "hours", "texts", "absent"),
    [
        ("/", 0, ["Regression", "from 1.0.0 to 2.0.0", "Preprocess explains"], []),
        ("/s/vision-api?from=now-1h", 5, ["No request in this window", "Go to last data"], []),
        ("/?env=nowhere", 0, ["No environment called nowhere"], ["last request"]),
        ("/regressions?env=nowhere", 0, ["No environment called nowhere"], ["last request"]),
    ],
)
def test_a_page_says(source: Source, address: str, hours: int, texts: list[str], absent: list[str]) -> None:
    text = text_of(source, address, NOW + timedelta(hours=hours))

    assert [each for each in texts if each not in text] == []
    assert [each for each in absent if each in text] == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            f"{socket.gethostname()}:4318",
            f"The collector {socket.gethostname()}:4318 reported 3\u202fs ago. Agents send to http://127.0.0.1:4318 by default.",
        ),
        (f"{socket.gethostname()}:5318", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:5318 stagelens run -- "),
        ("pod-a:4318", "OTEL_EXPORTER_OTLP_ENDPOINT=http://pod-a:4318 stagelens run -- "),
    ],
)
def test_an_empty_store_names_where_its_collector_listens(store: Store, name: str, line: str) -> None:
    with store.transaction() as connection:
        write_report(connection, Report("a", name, "1.2.3", NOW.timestamp() - 60, NOW.timestamp() - 3))

    assert line in text_of(Source(store, None, NOW.timestamp), "/")


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_empty_store_breaks_no_page(store: Store, address: str) -> None:
    source = Source(store, None, NOW.timestamp)
    page = page_of(context_of(at(address), source))

    assert page is None or "could not be rendered" not in words(page.body)
    if address == "/":
        assert "pip install ." in words(page and page.body)
        assert "Waiting for the first request" in words(page and page.body)
        assert "No collector has reported to this store yet" in words(page and page.body)


def test_an_empty_trace_list_blames_only_active_filters(source: Source, store: Store) -> None:
    nobody = text_of(Source(store, None, NOW.timestamp), "/traces")
    filtered = text_of(source, "/traces?min=1h")

    assert "No retained request" in nobody
    assert "filters" not in nobody
    assert "Without filters" in filtered


def test_a_document_finds_a_name_with_a_slash(store: Store) -> None:
    store.write(
        [
            Batch(
                "b",
                [Point(Series("shop/eu 50%", "1"), REQUEST_DURATION, "forward", int(NOW.timestamp()) - 300, _one(0.1))],
            )
        ]
    )
    client = Dashboard(DashboardConfig(), store, clock=NOW.timestamp).server.test_client()
    page = client.get("/s/shop%2Feu%2050%25").text

    assert 'data-title="shop/eu 50% \u00b7 Stagelens"' in page


def test_percentiles_of_few_requests_are_noted_and_not_drawn(traffic: ModuleType, store: Store) -> None:
    traffic.fill(store, NOW - timedelta(seconds=30), NOW)
    text = text_of(Source(store, None, NOW.timestamp), "/s/vision-api")

    assert "p99 needs 1,000" in text
    assert "history starts" in text


def test_a_window_inside_the_history_is_not_called_too_early(source: Source) -> None:
    inside, before = (parse("/s/vision-api", f"from={each}", NOW) for each in ("now-30m", "now-6h"))

    assert context_of(inside, source).young == ""
    assert "history starts" in context_of(before, source).young


def test_data_that_stopped_is_reported_with_its_age(filled: Store) -> None:
    later = NOW + timedelta(minutes=3)
    source = Source(filled, None, later.timestamp)
    shown = words(stale_banner(context_of(at("/", later), source), source.state()))

    assert "No data for 3\u202fm" in shown


def test_a_failing_card_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        msg = "the query took too long"
        raise TimeoutError(msg)

    text = words(panel("Every request", broken))

    assert "could not be rendered" in text
    assert "the query took too long" in caplog.text


@pytest.mark.parametrize("name", list(CHARTS))
def test_a_control_redraws_one_chart_from_the_address(source: Source, name: str) -> None:
    figure = CHARTS[name](context_of(at("/s/vision-api?y=share&t=mean&by=count"), source))

    assert figure["data"]


def test_no_graph_uploads_its_data() -> None:
    text = (Path(build.__code__.co_filename).parents[1] / "assets" / "figure.js").read_text()

    assert 'displayModeBar: false, showSendToCloud: false, plotlyServerURL: ""' in text


def test_requests_of_one_distributed_trace_have_separate_links(source: Source) -> None:
    found = source.read.exemplars(Selection(NOW - timedelta(hours=1), NOW, service="vision-api"), limit=2)
    found["trace_id"] = "ab" * 16
    context = context_of(at("/traces"), source)
    table = repr(traces_table(found, context.view, "Retained requests"))

    assert found["span_id"].nunique() == 2
    assert all(f"/traces/{'ab' * 16}-{span_id}" in table for span_id in found["span_id"])
    assert "'abababab'" in table


def test_a_link_to_a_request_opens_it(source: Source) -> None:
    found = source.read.exemplars(Selection(NOW - timedelta(hours=1), NOW, service="vision-api"), limit=1).iloc[0]
    text, short = (
        text_of(source, f"/traces/{name}")
        for name in (f"{found['trace_id']}-{found['span_id']}", found["trace_id"][:8])
    )
    other = text_of(source, f"/traces/{found['trace_id']}-{'0' * 16}")

    assert "Timeline" in text
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
        ("/nope", 404),
        ("/s/vision-api/nope", 404),
        ("/report?path=/nope", 404),
        ("/", 200),
        ("/s/nobody", 200),
        ("/slo/no-such", 200),
        ("/report?path=/", 200),
    ],
)
def test_an_unknown_address_is_404(dashboard: Dashboard, address: str, status: int) -> None:
    response = dashboard.server.test_client().get(address)

    assert response.status_code == status
    assert ("There is no such page" in response.text) is (status == 404)
