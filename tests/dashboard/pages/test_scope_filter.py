"""A page about one version, model or route: every number is of those requests alone, and every link keeps or ends the choice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from html import escape
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.alerts.evaluation.evidence import dashboard_link
from stagelens.alerts.objectives.slo import Slo
from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.page import Context
from stagelens.dashboard.pages.regressions import compare_releases
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import TIMES
from stagelens.dashboard.ui.page_export import PageData, as_html, page_data, text_of
from stagelens.dashboard.view import ORDER, address, parse
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Batch, Point, Series, Store
from stagelens.store.schema import storable_name as stored
from tests.dashboard.rendering import context_at, links_in, page_at
from tests.dashboard.served_versions import NOW

CHAT, ODD = "/v1/chat", "/v1/模型 {id}?a=b&c#d+%20"
ROUTE = address("/", {"r": CHAT})[2:]
ODD_ROUTE = address("/", {"r": ODD})[2:]
WINDOW = "from=now-15m"
TABS = ("/s/chat", "/s/chat/tokens", "/s/chat/traces", "/s/chat/advice")
SLOS = f"""slos:
  - {{name: all-of-it, service: chat, objective: 0.9, threshold: 30s, window: 30d}}
  - {{name: chat-route, service: chat, route: {CHAT}, objective: 0.9, threshold: 20s, window: 30d}}
  - {{name: pair-route, service: pair, route: /b, objective: 0.9, threshold: 1s, window: 30d}}
"""


def batches(traffic: ModuleType, route: str, model: str, seed: int) -> Iterator[Batch]:
    llm = next(each for each in traffic.SERVICES if each.name == "chat-llm")
    slower = {stage: replace(shape, median_ms=shape.median_ms * seed) for stage, shape in llm.stages.items()}
    service = replace(llm, name="chat", model=model, rate=4.0 * seed, routes=(route,), stages=slower)
    now = int(NOW.timestamp()) // 10 * 10
    for at in range(now - 1200, now, 10):
        made = traffic.batch(service, at, second_version=False, seed=seed)
        yield replace(made, id=f"{route}:{at}")


def one(service: str, route: str, number: int = 0) -> Batch:
    histogram = Histogram()
    histogram.record(0.1)
    at = int(NOW.timestamp()) // 10 * 10 - 60
    point = Point(Series(service, "1", route=route), REQUEST_DURATION, "forward", at, histogram)
    return Batch(f"{service}:{route}:{number}", [point])


@pytest.fixture(scope="module")
def mixed(traffic: ModuleType, store_of: Callable[[Iterable[Batch]], Store]) -> Store:
    both = [*batches(traffic, CHAT, "small", 1), *batches(traffic, ODD, "large", 3)]
    many = [one("many", f"/{each:03d}") for each in range(50)]
    few = [one("lonely", "/a"), one("long", "/" + "é" * 2000), one("long", "/b"), one("capped", "__other__")]
    few += [one("pair", "/a"), one("pair", "/b")]
    return store_of([*both, *many, *few, one("capped", "/a")])


@pytest.fixture(scope="module")
def alone(traffic: ModuleType, store_of: Callable[[Iterable[Batch]], Store]) -> Store:
    """The same service, had it one route only."""
    return store_of(batches(traffic, CHAT, "small", 1))


@pytest.fixture(scope="module")
def source(mixed: Store) -> Source:
    return Source(mixed, None, NOW.timestamp)


@pytest.fixture(scope="module")
def with_objectives(mixed: Store, tmp_path_factory: pytest.TempPathFactory) -> Source:
    path = tmp_path_factory.mktemp("slos") / "slo.yaml"
    path.write_text(SLOS, encoding="utf-8")
    return Source(mixed, AlertsReader(mixed, LiveSloFile(path, {})), NOW.timestamp)


def page_data_of(source: Source, address: str) -> PageData:
    return page_data(page_at(source, address).body)


def html_of(source: Source, address: str) -> str:
    return as_html(page_at(source, address).body)


def same(one: PageData, other: PageData) -> None:
    assert list(one.charts) == list(other.charts)
    assert one.tables == other.tables
    for name, drawn in one.charts.items():
        expected = other.charts[name]
        assert drawn.frame is not None
        assert expected.frame is not None
        assert drawn.spoken == expected.spoken
        pd.testing.assert_frame_equal(drawn.frame, expected.frame)


@pytest.mark.parametrize("path", TABS)
def test_the_page_contains_no_excluded_requests(mixed: Store, alone: Store, path: str) -> None:
    all_of_it = page_at(Source(alone, None, NOW.timestamp), f"{path}?{WINDOW}")
    for part in (ROUTE, "m=small", f"m=small&{ROUTE}", f"v=1.0.0&m=small&{ROUTE}"):
        part_of_it = page_at(Source(mixed, None, NOW.timestamp), f"{path}?{WINDOW}&{part}")
        # Without the head, which says that there is more.
        words, expected = ([text_of(node) for node in each.body[2:]] for each in (part_of_it, all_of_it))

        assert words == expected, part
        same(page_data(part_of_it.body), page_data(all_of_it.body))


@pytest.mark.parametrize(
    "address",
    [
        f"/s/chat/capacity?{WINDOW}",
        "/compare?svc=chat&a=2026-11-20T11:45/7m&b=2026-11-20T11:52/7m",
        f"/traces?svc=chat&{WINDOW}",
    ],
)
def test_related_pages_contain_no_excluded_requests(mixed: Store, alone: Store, address: str) -> None:
    part_of_it = page_data_of(Source(mixed, None, NOW.timestamp), f"{address}&{ROUTE}")

    assert part_of_it.charts or part_of_it.tables
    same(part_of_it, page_data_of(Source(alone, None, NOW.timestamp), address))


def test_api_queries_accept_the_scope_filter(mixed: Store, alone: Store) -> None:
    clients = [
        Dashboard(DashboardConfig(), each, None, clock=NOW.timestamp).server.test_client() for each in (mixed, alone)
    ]
    sides = {"a": "2026-11-20T11:45/7m", "b": "2026-11-20T11:52/7m"}
    for question, more in (("breakdown", {}), ("latency", {}), ("compare", sides)):
        asked = {"service": "chat", "from": "now-15m", **more}
        part_of_it, all_of_it = (
            client.get(f"/api/v1/query/{question}", query_string=asked | part).json
            for client, part in zip(clients, ({"route": CHAT, "model": "small"}, {}), strict=True)
        )
        assert part_of_it is not None
        assert part_of_it["rows"]
        assert {**part_of_it, "revision": 0} == {**(all_of_it or {}), "revision": 0}
    view = {"path": "/s/chat", "from": "now-15m", "table": "Slow exemplars", "format": "csv"}
    tables = [client.get("/api/v1/view", query_string=view | part).text for client, part in zip(clients, ({"r": CHAT}, {}), strict=True)]  # fmt: skip
    report = clients[0].get("/report", query_string={"path": "/s/chat", "from": "now-15m", "r": ODD}).text

    assert tables[0] == tables[1]
    assert f"Route {ODD}: show all routes".replace("&", "&amp;") in report


def test_a_route_is_chosen_in_a_menu_and_ended_by_its_chip(source: Source) -> None:
    offered = links_in(page_at(source, f"/s/chat?{WINDOW}").body)
    chosen = page_at(source, f"/s/chat?{ODD_ROUTE}&{WINDOW}")
    back = links_in(chosen.body)
    marked = re.findall(r'<a [^>]*aria-current="true"[^>]*>(?!<span>).*?</a>', as_html(chosen.body))

    assert offered[ODD] == address("/s/chat", {"r": ODD, "from": "now-15m"})
    assert back[f"Route {ODD} {TIMES}"] == "/s/chat?from=now-15m"
    assert back["Any route"] == "/s/chat?from=now-15m"
    assert 'title="Route: any"' in html_of(source, f"/s/chat?{WINDOW}")
    assert [each for each in marked if escape(ODD) in each]


@pytest.mark.parametrize(("service", "menu"), [("lonely", False), ("chat", True), ("many", True), ("capped", True)])
def test_a_single_route_has_no_menu(source: Source, service: str, menu: bool) -> None:
    for path in (f"/s/{service}", f"/s/{service}/traces", f"/compare?svc={service}"):
        assert ("Route: any" in html_of(source, path)) is menu, path


def test_a_menu_of_many_routes_accepts_unlisted_ones(source: Source) -> None:
    html = html_of(source, "/s/many")

    assert len(set(re.findall(r"r=/(\d{3})", html))) == 40
    assert 'data-field="r"' in html
    assert 'data-field="r"' not in html_of(source, "/s/chat")
    assert context_at(source, "/s/capped?r=__other__").selection.route == "__other__"
    assert "No request of route" not in html_of(source, "/s/capped?r=__other__")


def test_a_route_truncated_by_the_store_is_found(source: Source) -> None:
    long = "/" + "é" * 2000
    made = page_at(source, address("/s/long", {"r": long}))
    html = as_html(made.body)

    assert "1 request, needs" in html
    assert stored(long) in html
    assert long not in html


@pytest.mark.parametrize("path", [*TABS, "/s/chat/capacity"])
def test_links_within_the_service_preserve_the_scope(source: Source, path: str) -> None:
    found = links_in(page_at(source, f"{path}?v=1.0.0&m=small&{ROUTE}&{WINDOW}").body)
    queries = {words: parse_qs(urlsplit(href).query) for words, href in found.items()}
    scopes = {words: {key: query[key][0] for key in "vmr" if key in query} for words, query in queries.items()}
    whole = {"v": "1.0.0", "m": "small", "r": CHAT}

    tabs = ("Traces", "Tokens", "Capacity & cost", "Advice", "Breakdown")
    assert [scopes[each] for each in tabs] == [whole] * 5
    assert scopes["Compare"] == {"m": "small", "r": CHAT}
    assert all(scopes[each] == whole for each in ("All traces →", "Ways to fix this →") if each in scopes)


def test_links_to_other_services_drop_the_scope(filled: Store) -> None:
    source = Source(filled, None, NOW.timestamp)
    addresses = ("/s/chat-llm", "/s/chat-llm?m=llama-3-8b&r=/v1/chat/completions")
    whole, part = (compare_releases(context_at(source, each)) for each in addresses)

    assert [each.service for each in whole if each.is_regression] == ["vision-api"]
    assert [each.comparison.verdict for each in part] == [each.comparison.verdict for each in whole]


@pytest.mark.parametrize("path", ["/s/chat", "/s/chat/traces", "/s/chat/capacity", "/traces?svc=chat", "/compare?svc=chat&a=2026-11-20T11:45/7m&b=2026-11-20T11:52/7m"])  # fmt: skip
@pytest.mark.parametrize(
    ("part", "words", "out"),
    [
        ("r=/nope", "No request of route /nope", {"All routes": {}}),
        ("r=%3Cb%3E&m=small", "No request of model small and route <b>", {"All routes": {"m": "small"}}),
        (f"{ROUTE}&m=large", f"No request of model large and route {CHAT}", {"All routes": {"m": "large"}, "All models": {"r": CHAT}}),
        ("r=/nope&m=nope", "No request of model nope and route /nope", {"All routes": {"m": "nope"}, "All models": {"r": "/nope"}}),
    ],
)  # fmt: skip
def test_a_scope_without_requests_is_named_and_can_be_removed(
    source: Source, path: str, part: str, words: str, out: dict[str, dict[str, str]]
) -> None:
    made = page_at(source, f"{path}{'&' if '?' in path else '?'}{part}")
    found = {name: parse_qs(urlsplit(href).query) for name, href in links_in(made.body).items()}

    assert words in text_of(made.body)
    for name, left in out.items():
        assert {key: found[name][key][0] for key in "mr" if key in found[name]} == left


def test_a_silent_service_is_not_attributed_to_the_scope(source: Source) -> None:
    text = text_of(page_at(source, f"/s/chat?{ROUTE}&from=2026-11-20T06:00&to=2026-11-20T07:00").body)

    assert "No request in this window" in text
    assert "Go to last data" in text


def test_missing_errors_are_not_attributed_to_the_scope(source: Source) -> None:
    text = text_of(page_at(source, "/traces?svc=lonely&r=/a&err=1").body)

    assert "No request of route" not in text
    assert "No retained request matches" in text


def test_an_objective_of_one_route_is_not_drawn_for_all_routes(with_objectives: Source) -> None:
    addresses = ("/s/chat", f"/s/chat?{ROUTE}", f"/s/chat?{ODD_ROUTE}", "/s/pair", "/s/pair?r=/a", "/s/pair?r=/b")
    found = [context_at(with_objectives, each) for each in addresses]

    assert [each.threshold_seconds for each in found] == [30.0, 20.0, 30.0, None, None, 1.0]
    assert [_whose(with_objectives, each) for each in addresses[:4]] == ["", "", "all routes", "route /b"]


def _whose(source: Source, address: str) -> str:
    tile = " ".join(map(text_of, page_at(source, address).body)).partition("Error budget")[2]
    found = re.match(r"\D*[\d.]+\W+left (?:of \d+ d )?(all routes|route \S+) ·", tile)
    return found[1] if found else ""


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
KINDS = st.sampled_from([{}, {"threshold": timedelta(seconds=1)}, {"watched": "ttft", "definition": "client"}, {"watched": "stage", "stage": "queue"}])  # fmt: skip


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(("route", "model", "version", "environment"), TEXTS)), TEXTS, KINDS
)
def test_the_link_of_a_message_opens_its_scope(part: dict[str, str], service: str, kind: dict[str, Any]) -> None:
    slo = Slo("x", service, 0.99, timedelta(days=30), **part, **kind)
    began = NOW.replace(second=0) - timedelta(minutes=20)
    path, _, search = (
        dashboard_link("http://dash.example", slo, began, NOW).removeprefix("http://dash.example").partition("?")
    )
    view = parse(path, search, NOW)
    found = Context(view, None, view.parts[1]).selection  # type: ignore[arg-type] - nothing is asked
    counted = slo.select(began - timedelta(minutes=15), NOW)

    assert set(parse_qs(search)) <= set(ORDER)
    assert view.here() == f"{path}?{search}"
    assert (found.start, found.end, found.service) == (counted.start, counted.end, counted.service)
    for name in ("route", "model", "version", "environment"):
        asked, meant = getattr(found, name), getattr(counted, name)
        assert (asked and stored(asked)) == (meant and stored(meant))


@given(TEXTS, TEXTS, TEXTS)
def test_any_scope_survives_its_address(version: str, model: str, route: str) -> None:
    view = parse("/s/a", address("/s/a", {"v": version, "m": model, "r": route}).partition("?")[2], NOW)
    scope = {"v": stored(version), "m": stored(model), "r": stored(route)}
    again = [
        parse("/s/a", each.partition("?")[2], NOW) for each in (view.here(), view.link("/s/a/traces", **view.scope))
    ]

    assert view.scope == scope
    assert [each.scope for each in again] == [scope, scope]
    assert view.of_whole_services().scope == {}
