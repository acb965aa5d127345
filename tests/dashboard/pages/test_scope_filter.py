"""Pages about one version, model or route, or about warm requests only: every number is of those alone, and links keep or end the choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.alerts.evaluation.evidence import dashboard_link
from stagelens.alerts.objectives.slo import Slo
from stagelens.core.names import REPLICA_AGE, REQUEST_DURATION
from stagelens.dashboard.pages.page import Context, Page
from stagelens.dashboard.pages.regressions import compare_releases
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import PageData, as_html, page_data, text_of
from stagelens.dashboard.view import ORDER, address, parse
from stagelens.store import Batch, Point, Series, Store
from stagelens.store.schema import storable_name as stored
from tests.dashboard.rendering import (
    check_views,
    client_of,
    context_at,
    data_at,
    observed,
    page_at,
    source_of,
)
from tests.dashboard.rollout import COLD, WARM, batch, loaded
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


def one(service: str, route: str) -> Batch:
    at = int(NOW.timestamp()) // 10 * 10 - 60
    point = Point(Series(service, "1", route=route), REQUEST_DURATION, "forward", at, observed(0.1))
    return Batch(f"{service}:{route}", [point])


@pytest.fixture(scope="module")
def mixed(traffic: ModuleType, store_of: Callable[[Iterable[Batch]], Store]) -> Store:
    both = [*batches(traffic, CHAT, "small", 1), *batches(traffic, ODD, "large", 3)]
    many = [one("many", f"/{index:03d}") for index in range(50)]
    few = [one("lonely", "/a"), one("long", "/" + "é" * 2000), one("long", "/b"), one("capped", "__other__")]
    few += [one("pair", "/a"), one("pair", "/b")]
    return store_of([*both, *many, *few, one("capped", "/a")])


@pytest.fixture(scope="module")
def alone(traffic: ModuleType, store_of: Callable[[Iterable[Batch]], Store]) -> Store:
    """The same service, had it one route only."""
    return store_of(batches(traffic, CHAT, "small", 1))


@pytest.fixture(scope="module")
def source(mixed: Store) -> Source:
    return source_of(mixed)


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
    all_of_it = page_at(source_of(alone), f"{path}?{WINDOW}")
    for part in (ROUTE, "m=small", f"m=small&{ROUTE}", f"v=1.0.0&m=small&{ROUTE}"):
        part_of_it = page_at(source_of(mixed), f"{path}?{WINDOW}&{part}")
        # Without the head, which says that there is more.
        words, expected = ([text_of(node) for node in each.body[2:]] for each in (part_of_it, all_of_it))

        assert words == expected, part
        same(page_data(part_of_it.body), page_data(all_of_it.body))


def test_related_pages_contain_no_excluded_requests(mixed: Store, alone: Store) -> None:
    compare = "/compare?svc=chat&a=2026-11-20T11:45/7m&b=2026-11-20T11:52/7m"
    for page in (f"/s/chat/capacity?{WINDOW}", compare, f"/traces?svc=chat&{WINDOW}"):
        part_of_it = data_at(source_of(mixed), f"{page}&{ROUTE}")

        assert part_of_it.charts or part_of_it.tables
        same(part_of_it, data_at(source_of(alone), page))


def test_api_queries_accept_the_scope_filter(mixed: Store, alone: Store) -> None:
    clients = [client_of(each) for each in (mixed, alone)]
    sides = {"a": "2026-11-20T11:45/7m", "b": "2026-11-20T11:52/7m"}
    for question, more in (("breakdown", {}), ("latency", {}), ("compare", sides)):
        asked = {"service": "chat", "from": "now-15m", **more}
        part_of_it, all_of_it = (
            client.get(f"/api/v1/query/{question}", query_string=asked | part).get_json()
            for client, part in zip(clients, ({"route": CHAT, "model": "small"}, {}), strict=True)
        )
        assert part_of_it["rows"]
        assert {**part_of_it, "revision": 0} == {**all_of_it, "revision": 0}
    view = {"path": "/s/chat", "from": "now-15m", "table": "Slow exemplars", "format": "csv"}
    part, whole = (
        clients[0].get("/api/v1/view", query_string={**view, "r": CHAT}),
        clients[1].get("/api/v1/view", query_string=view),
    )
    report = clients[0].get("/report", query_string={"path": "/s/chat", "from": "now-15m", "r": ODD}).text

    assert part.text == whole.text
    assert f"Route {ODD}: show all routes".replace("&", "&amp;") in report


def test_a_scope_is_offered_where_there_are_several_kept_in_links_named_and_ended(source: Source) -> None:
    check_views("scope", source)


def test_a_route_truncated_by_the_store_is_found(source: Source) -> None:
    long = "/" + "é" * 2000
    made = page_at(source, address("/s/long", {"r": long}))
    html = as_html(made.body)

    assert "1 request, needs" in html
    assert stored(long) in html
    assert long not in html


def test_links_to_other_services_drop_the_scope(filled: Store) -> None:
    source = source_of(filled)
    addresses = ("/s/chat-llm", "/s/chat-llm?m=llama-3-8b&r=/v1/chat/completions")
    whole, part = (compare_releases(context_at(source, each)) for each in addresses)

    assert [each.service for each in whole if each.is_regression] == ["vision-api"]
    assert [each.comparison.verdict for each in part] == [each.comparison.verdict for each in whole]


def test_an_objective_of_one_route_is_not_drawn_for_all_routes(mixed: Store, tmp_path: Path) -> None:
    with_objectives = source_of(mixed, tmp_path, SLOS)
    addresses = ("/s/chat", f"/s/chat?{ROUTE}", f"/s/chat?{ODD_ROUTE}", "/s/pair", "/s/pair?r=/a", "/s/pair?r=/b")
    found = [context_at(with_objectives, each) for each in addresses]

    assert [each.threshold_seconds for each in found] == [30.0, 20.0, 30.0, None, None, 1.0]
    check_views("scope_objectives", with_objectives)


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


COLD_TABS = ("/s/shop", "/s/shop/traces", "/s/shop/advice")


@pytest.fixture(scope="module")
def stores(store_of: Callable[[Iterable[Batch]], Store]) -> tuple[Store, Store]:
    """A service after a rollout, with 23 cold requests, and the same had all of its requests been warm."""
    warm = [batch(WARM, "forward", 0.01 * (1 + ago % 3), ago) for ago in range(20, 1020, 20)]
    cold = batch(COLD, "load", 3.0, 400, requests=23)
    return store_of([*warm, cold]), store_of(warm)


def page(store: Store, address: str) -> Page:
    return page_at(source_of(store), address)


def page_body(found: Page) -> tuple[object, ...]:
    """Content of a page below its head, which contains the number of excluded requests."""
    shown = page_data(found.body)
    charts = {name: (drawn.spoken, str(drawn.frame)) for name, drawn in shown.charts.items()}
    return charts, shown.tables, [text_of(node) for node in found.body[2:]]


@pytest.mark.parametrize("path", COLD_TABS)
def test_excluded_cold_requests_are_not_on_the_page(stores: tuple[Store, Store], path: str) -> None:
    mixed, warm = stores
    address = f"{path}?svc=shop&from=now-15m"
    without, none, all_of_it = (
        page_body(page(store, address + more)) for store, more in ((mixed, "&cold=0"), (warm, ""), (mixed, ""))
    )

    assert without == none
    assert all_of_it != none


@pytest.mark.parametrize("path", ["/s/shop", "/traces", "/compare"])
def test_the_cold_switch_shows_the_number_of_requests(stores: tuple[Store, Store], path: str) -> None:
    mixed, warm = stores
    address = f"{path}?svc=shop&from=now-15m"
    texts = [text_of(page(*each).body) for each in ((mixed, address), (mixed, f"{address}&cold=0"), (warm, address))]

    assert ["Exclude 23 cold" in text for text in texts] == [True, False, False]
    assert ["23 cold" in text for text in texts] == [True, True, False]


def test_an_address_without_a_valid_choice_shows_all(stores: tuple[Store, Store]) -> None:
    mixed, _ = stores
    query = {"service": "shop", "from": "now-15m"}
    keys: tuple[dict[str, str], ...] = ({}, {"cold": "0"}, {"cold": "1"}, {"cold": "no"})
    counted = [client_of(mixed).get("/api/v1/query/latency", query_string=query | key).get_json() for key in keys]
    all_of_it, wrong = (page_body(page(mixed, f"/s/shop?from=now-15m{text}")) for text in ("", "&cold=no"))

    assert wrong == all_of_it
    assert [each["requests"] for each in counted[:3]] == [923, 900, 23]
    assert counted[3]["key"] == "cold"


def test_replicas_are_listed_with_age_and_loads_and_the_cost_of_cold_starts(
    store_of: Callable[[Iterable[Batch]], Store],
) -> None:
    cold = [loaded("young", "start", 12, 8.0), loaded("young", "read", 13, 6.0, "resnet")]
    cold += [loaded("old", "start", 90_000, 3.0), loaded("old", "read", 90_000, 1.5, "resnet")]
    cold += [loaded("old", "read", 90_001, 0.5, "resnet")]
    alive = replace(batch(WARM, "forward", 0.01, 20), instance="young")
    many = replace(batch(WARM, "forward", 0.01, 20, 2000), loads=[loaded("young", "start", 12, 8.0)])
    made = batch(COLD, "load", 3.0, 20)
    aged = replace(made.traces[0], attributes={REPLICA_AGE: 12_400_000_000})
    for name, batches in (
        ("listed", [replace(alive, loads=cold), made]),
        # p99 is that of cold requests.
        ("slow", [many, batch(COLD, "load", 3.0, 20, 40)]),
        ("only", [made]),
        ("trace", [replace(made, traces=[aged])]),
    ):
        check_views(f"cold_{name}", source_of(store_of(batches)))
