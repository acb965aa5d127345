"""Names with any character: every link of every page opens, through the server's own socket and behind proxies."""

from __future__ import annotations

import contextlib
import html
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from http.client import HTTPConnection
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import numpy as np
import pytest
import yaml

from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.objectives.slo_file import read_slo_file
from stagelens.core.attributes import ATTRIBUTE_SCALE, attribute_key
from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_BY_ATTRIBUTE
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.view import service_path, slo_path
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Batch, Event, Point, Series, Store
from tests.dashboard.rendering import alerts_of
from tests.dashboard.served_versions import NOW, SLOW

EVERYTHING = "/a//b\\c%2Fd?e#f&g+h i;j/../k\"'<l>|=\N{GRINNING FACE}\N{RIGHT-TO-LEFT MARK}\u05d0~2F:,m/"
NAMES = ("..", ".", "/", "~2F", "%2F", "compare", "tokens", "x" * 128, "m\nn", EVERYTHING)
BASE = "http://127.0.0.1:8600"
Fetch = Callable[[str], tuple[int, str]]


def named(part: str) -> str:
    return f"{part} {EVERYTHING}"


def points(traffic: ModuleType, series: Series, at: int, stages: dict[str, float]) -> Iterator[Point]:
    random = np.random.default_rng(at)
    requests = traffic.draw({stage: traffic.Shape(median) for stage, median in stages.items()}, 100, random)
    yield from traffic.points(series, at, requests)
    for key in (attribute_key("replica", named("web-1:7")), attribute_key(named("tenant"), named("acme"))):
        histogram = Histogram(ATTRIBUTE_SCALE)
        for seconds in requests.wall / 1e9:
            histogram.record(seconds)
        yield Point(series, REQUEST_BY_ATTRIBUTE, key, at, histogram)


@pytest.fixture(scope="module")
def messages() -> list[str]:
    return []


@pytest.fixture(scope="module")
def served(traffic: ModuleType, tmp_path_factory: pytest.TempPathFactory, messages: list[str]) -> Iterator[Dashboard]:
    folder = tmp_path_factory.mktemp("names")
    store = Store.open(f"sqlite:///{folder / 'names.db'}", clock=NOW.timestamp)
    now = int(NOW.timestamp()) // 10 * 10
    for at in range(now - 2400, now, 60):
        is_slow = at > now - 1200
        series = Series(
            EVERYTHING, named("2" if is_slow else "1"), named("env"), named("m"), "1", named("r"), "cuda:0", "ok"
        )
        stages = dict(SLOW if is_slow else {"forward": 10, "overhead": 1})
        random = np.random.default_rng(at)
        requests = traffic.draw({stage: traffic.Shape(each) for stage, each in stages.items()}, 20, random)
        traces = [
            replace(each, attributes={named("tenant"): named("acme")})
            for each in traffic.kept(series, at, requests, random)
        ]
        store.write([Batch(f"b{at}", list(points(traffic, series, at, stages)), traces)])
    for number, name in enumerate(NAMES[:-1]):
        series = Series(name, "1", named("env"), "m")
        store.write([Batch(f"n{number}", list(points(traffic, series, now - 600, {"forward": 10})))])
    store.add_event(Event(NOW - timedelta(minutes=5), EVERYTHING, "deploy", named("2"), named("text")))
    store.maintain()
    entry = {"name": EVERYTHING, "service": EVERYTHING, "objective": 0.99, "threshold": "20ms", "window": "30d"}
    narrow = {**entry, "name": named("slo"), "version": named("2"), "route": named("r"), "model": named("m")}
    text = yaml.safe_dump(
        {"slos": [entry, narrow], "channels": [{"name": "ops", "kind": "webhook", "url": "http://127.0.0.1:9/"}]}
    )
    reader = alerts_of(store, folder, text)
    evaluator = Evaluator(store, "tests", lease_seconds=600)
    for minutes in (10, 0):
        evaluator.tick(
            replace(read_slo_file(folder / "slo.yaml", {}), dashboard_url=BASE), NOW - timedelta(minutes=minutes)
        )
    messages += [incident.link for incident in reader.incidents()]
    dashboard = Dashboard(DashboardConfig(port=0), store, reader, clock=NOW.timestamp)
    dashboard.start()
    yield dashboard
    dashboard.stop()
    store.close()


def over_socket(dashboard: Dashboard) -> Fetch:
    def fetch(address: str) -> tuple[int, str]:
        with contextlib.closing(HTTPConnection(*dashboard.address, timeout=60)) as connection:
            connection.request("GET", address)
            response = connection.getresponse()
            return response.status, response.read().decode()

    return fetch


def in_process(dashboard: Dashboard, **options: Any) -> Fetch:
    client = dashboard.server.test_client()

    def fetch(address: str) -> tuple[int, str]:
        response = client.get(address, **options)
        return response.status_code, response.text

    return fetch


def behind_proxy(dashboard: Dashboard) -> Fetch:
    fetch = over_socket(dashboard)

    def through(address: str) -> tuple[int, str]:
        path, mark, query = address.partition("?")
        plain = re.sub("/+", "/", posixpath.normpath(unquote(path, "latin-1")))
        return fetch(quote(plain, encoding="latin-1") + mark + query)

    return through


def without_request_uri(dashboard: Dashboard) -> Fetch:
    """A WSGI server that passes on the path only decoded."""
    return in_process(dashboard, environ_overrides={"REQUEST_URI": "", "RAW_URI": ""})


def links(page: str) -> set[str]:
    found = re.findall(r'(?:href|data-href)="(/[^"]*)"', page)
    return {html.unescape(each) for each in found if not each.startswith("/assets/")}


def crawl(fetch: Fetch, starts: set[str], named_by: set[str]) -> dict[str, int]:
    seen, waiting, status = set[tuple[str, str]](), sorted(starts), dict[str, int]()
    while waiting:
        address = waiting.pop()
        parts = urlsplit(address)
        new = {(parts.path, key) for key in ("", *(named_by & {key for key, _ in parse_qsl(parts.query)}))}
        if new <= seen:
            continue
        seen |= new
        status[address], page = fetch(address)
        if "/api/" in address:
            continue
        title = re.search('data-title="([^"]*)"', page)
        unknown = re.search(
            "(No service called|No such|Not found|No objective|could not be rendered)[^<]*", html.unescape(page)
        )
        if title is None or unknown:
            status[address] = -1
        waiting += sorted(links(page))
    return status


@pytest.mark.parametrize("front", [in_process, over_socket])
def test_every_link_of_every_page_opens(served: Dashboard, front: Callable[[Dashboard], Fetch]) -> None:
    fetch = front(served)
    # The parameters are the same for every front.
    named_by = {"svc", "env", "v", "m", "r", "a", "b", "at", "q", "kind"} if front is in_process else set[str]()
    pages = crawl(fetch, {"/", "/incidents", "/slo", "/events", "/regressions", "/advice", "/traces"}, named_by)

    assert {address: status for address, status in pages.items() if status != 200} == {}
    assert {f"/s/{quote(each)}" for each in ("compare", "tokens")} <= {urlsplit(each).path for each in pages}
    assert {service_path(each) for each in NAMES} | {slo_path(EVERYTHING)} <= {urlsplit(each).path for each in pages}
    assert any(each.startswith("/incidents/") for each in pages)


@pytest.mark.parametrize("front", [over_socket, behind_proxy, without_request_uri])
def test_every_tab_of_every_service_opens_behind_every_server(
    served: Dashboard, front: Callable[[Dashboard], Fetch]
) -> None:
    fetch = front(served)
    for name in NAMES:
        for tab in ("", "traces") if name == EVERYTHING else ("",):
            status, page = fetch(f"{service_path(name, tab)}?from=now-1h")
            assert status == 200
            assert f'data-title="{name} ' in html.unescape(page)
    assert f'data-title="{EVERYTHING} ' in html.unescape(fetch(slo_path(EVERYTHING))[1])


def test_links_in_messages_open(served: Dashboard, messages: list[str]) -> None:
    assert messages
    for link in messages:
        address = link.removeprefix(BASE)
        for fetch in (over_socket(served), behind_proxy(served)):
            status, page = fetch(address)
            assert status == 200
            assert "No service called" not in page
        path, _, query = address.partition("?")
        assert over_socket(served)(f"/api/v1/view?path={quote(path, safe='')}&{query}")[0] == 200


def test_the_palette_gets_the_path_of_every_service(served: Dashboard) -> None:
    found = served.server.test_client().get("/api/v1/names").get_json()["services"]

    assert {each["name"]: each["path"] for each in found} == {each: service_path(each) for each in NAMES}


def test_a_percent_encoded_name_of_an_older_link_opens(served: Dashboard) -> None:
    status, page = over_socket(served)(f"/s/{quote(EVERYTHING, safe='')}")

    assert status == 200
    assert html.unescape(page).count(EVERYTHING) > 1
