"""The overview: every service with its own numbers, in any order, however many there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from dash import html

from stagelens.alerts.incidents.lifecycle import save_incident
from stagelens.dashboard.figures.heatmap import heat_figure
from stagelens.dashboard.figures.over_time import busy_seconds, fleet_figure
from stagelens.dashboard.figures.time_axis import TimeAxis
from stagelens.dashboard.pages.measures import by_environment, measure, urgent_first
from stagelens.dashboard.pages.overview_table import hourly_costs, services_card
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import THIN, UNKNOWN, duration
from stagelens.dashboard.web.routing import page_of
from stagelens.dashboard.web.shell import side
from stagelens.store import Event, Series, Store
from tests.dashboard import notified_store
from tests.dashboard.many_services import MANY, crowd_at
from tests.dashboard.rendering import (
    all_of,
    check_views,
    context_at,
    links_in,
    page_at,
    plain,
    shown,
    source_of,
    write_requests,
)
from tests.dashboard.served_versions import NOW, Served, write


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store of 300 services."""
    store = crowd_at(tmp_path_factory.mktemp("crowd") / "crowd.db")
    yield store
    store.close()


def words(node: Any) -> str:
    if isinstance(node, list | tuple):
        return " ".join(words(each) for each in node)
    text = str(node) if isinstance(node, str | int) else "" if node is None else words(getattr(node, "children", None))
    return text.replace(THIN, " ")


def text_of(source: Source, address: str) -> str:
    return words(page_at(source, address).body)


def beside(source: Source, address: str = "/") -> str:
    return " ".join(words(side(context_at(source, address), address.partition("?")[0], source.state())).split())


def names(source: Source, address: str) -> list[str]:
    """Return the services of the table, in its order."""
    return [each.children for each in all_of(page_at(source, address).body, html.A) if each.className == "n"]


def slo_of(name: str, service: str) -> str:
    return f"{{name: {name}, service: {service}, objective: 0.99, threshold: 10ms, window: 30d}}"


def test_the_overview_shows_services_problems_and_events(source: Source) -> None:
    check_views("overview", source)


@pytest.mark.parametrize("window", ["", "?from=now-15m", "?env=demo", "?env=nowhere"])
def test_the_fleet_table_equals_the_service_pages(source: Source, window: str) -> None:
    rows = urgent_first(context_at(source, f"/{window}"))

    assert len(rows) == (0 if "nowhere" in window else 3)
    assert rows == sorted(rows, key=lambda row: row.urgency)
    assert [row.service for row in rows] == names(source, f"/{window}")
    for row in rows:
        own = measure(source, context_at(source, f"/s/{row.service}{window}").selection)
        counted = (row.now.requests, row.now.errors, row.now.p50, row.now.p99)
        assert counted == (own.requests, own.errors, own.p50, own.p99)
        assert row.now.median_stages == pytest.approx(own.median_stages)
        assert row.now.tail_stages == pytest.approx(own.tail_stages)


def test_the_side_bar_shows_the_same_numbers_and_counts_open_problems(source: Source) -> None:
    found = beside(source, "/s/chat-llm?v=1.0.0")
    for row in urgent_first(context_at(source, "/")):
        assert f"{row.service} {plain(duration(row.now.p99))}" in found

    assert "Regressions 1" in beside(source)
    assert any(f"SLOs {each}" in beside(source) for each in ("1 at risk", "2 at risk", "1 burning", "2 burning"))


@pytest.mark.parametrize(
    "sort", ["name", "rate", "p50", "p99", "change", "where", "budget", "errors", "status", "burn"]
)
def test_every_column_sorts_both_ways(source: Source, sort: str) -> None:
    heads: dict[str, str] = {}
    for query in (sort, f"-{sort}"):
        context = context_at(source, f"/?sort={query}")
        (head,) = (
            each
            for each in all_of(services_card(context, urgent_first(context)), html.Th)
            if hasattr(each, "aria-sort")
        )
        heads[getattr(head, "aria-sort")] = head.children.href
        assert sorted(names(source, f"/?sort={query}")) == sorted(names(source, "/"))

    assert heads.keys() == {"ascending", "descending"}
    assert sort == "burn" or any(f"sort=-{sort}" in each for each in heads.values())


def test_numbers_sort_by_size(source: Source) -> None:
    p99 = {row.service: row.now.p99 or 0 for row in urgent_first(context_at(source, "/"))}
    falling = sorted(p99, key=lambda name: -p99[name])

    assert [names(source, f"/?sort={each}") for each in ("p99", "-p99")] == [falling, falling[::-1]]
    assert names(source, "/?sort=name") == sorted(p99)


def test_invalid_values_fall_back_to_the_default(source: Source) -> None:
    usual = names(source, "/")

    for query in ("sort=nonsense", "sort=--p99", "n=0", "n=99", "n=x", "n=²", "kind=<b>"):
        assert names(source, f"/?{query}") == usual


def test_hundreds_of_services_are_paged(crowd: Store) -> None:
    source = source_of(crowd)
    pages = [names(source, f"/?n={index}") for index in range(1, 7)]

    assert [len(each) for each in pages] == [50] * 6
    assert len({name for page in pages for name in page}) == MANY
    assert "1 to 50 of 300" in text_of(source, "/")
    assert "Model · 300" in text_of(source, "/")
    assert "and 259 more" in beside(source, "/s/service-299")
    assert "service-299" in beside(source, "/s/service-299")
    assert names(source, "/?sort=p99")[:2] == ["service-299", "service-298"]


def test_hundreds_of_services_need_a_few_queries(crowd: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(crowd)
    asked: list[str] = []
    cached = source.cached

    def counted(query: Any, *args: Any, **more: Any) -> Any:
        asked.append(query.__qualname__)
        return cached(query, *args, **more)

    monkeypatch.setattr(source, "cached", counted)
    context = context_at(source, "/")
    page_of(context)
    side(context, "/", source.state())

    assert len(asked) < 30


def test_services_with_problems_come_before_all_kinds(crowd: Store, tmp_path: Path) -> None:
    source = source_of(crowd, tmp_path, f"slos: [{slo_of('one', 'service-250')}]")

    assert names(source, "/")[0] == "service-250"
    assert "Needs attention · 1" in text_of(source, "/")
    assert "Needs attention" not in text_of(source, "/?sort=p99")


def test_equal_cards_are_one_with_its_services(crowd: Store, tmp_path: Path) -> None:
    slos = ", ".join(slo_of(f"s-{number}", f"service-{number}") for number in range(250, 258))
    check_views("overview_equal_cards", source_of(crowd, tmp_path, f"slos: [{slos}]"))


def test_cards_beyond_three_are_collapsed(tmp_path: Path) -> None:
    store = crowd_at(tmp_path / "own.db")
    with store.transaction() as connection:
        for number in range(250, 258):
            name, service = f"objective-{number}", f"service-{number}"
            save_incident(connection, notified_store.record(f"sl-{number}", name, 20.0, 720, service))
    check_views("overview_many_cards", source_of(store, tmp_path))
    store.close()


def test_a_store_with_one_request_has_a_page(store: Store) -> None:
    write_requests(store, Series("lonely"), seconds=0.2, ago=60)
    source = source_of(store)

    check_views("overview_one_request", source, "/")
    assert "lonely –" in beside(source)  # noqa: RUF001 - an en dash stands for unknown


def test_a_service_that_stopped_sending_is_named(traffic: ModuleType, store: Store) -> None:
    few = {"forward": traffic.Shape(10), "overhead": traffic.Shape(1)}
    steady, gone, rare = (
        traffic.Service(each, "m", rate, ("/",), few) for each, rate in (("steady", 4.0), ("gone", 4.0), ("rare", 0.02))
    )
    start = NOW - timedelta(minutes=20)
    traffic.fill(store, start, NOW - timedelta(minutes=8), services=[steady, gone, rare])
    traffic.fill(store, NOW - timedelta(minutes=8), NOW, services=[steady])

    check_views("overview_silent", source_of(store), "/ # head")


def test_a_cold_start_in_the_tail_is_named(traffic: ModuleType, store: Store) -> None:
    cold = traffic.Shape(0.02, 0.1, 0.03, 200_000)
    stages = {"forward": traffic.Shape(20, 0.1), "load": cold, "overhead": traffic.Shape(1)}
    service = traffic.Service("image-gen", "m", 20.0, ("/",), stages)
    traffic.fill(store, NOW - timedelta(minutes=5), NOW, services=[service])

    check_views("overview_cold", source_of(store), "/ # head")


def test_events_are_listed_in_order(traffic: ModuleType, store: Store) -> None:
    traffic.fill(store, NOW - timedelta(minutes=3), NOW, released=NOW - timedelta(minutes=1))
    store.add_event(Event(NOW - timedelta(minutes=2), "chat-llm", "config", "batch", "max_batch 16"))
    store.add_event(Event(NOW - timedelta(minutes=2), "chat-llm", "advice", "a", "dismissed"))

    check_views("overview_events", source_of(store), "/ # Deploys")


def test_busy_seconds_are_requests_times_latency() -> None:
    start = datetime(2026, 11, 20, 12, tzinfo=UTC)
    axis = TimeAxis(start, start + timedelta(minutes=3), timedelta(minutes=1), UTC)
    at = [pd.Timestamp(start), pd.Timestamp(start + timedelta(minutes=2))]
    frame = pd.DataFrame({"at": at, "n": [600, 300], "value_seconds": 0.2, "forward": 0.15, "queue": 0.05})
    busy = busy_seconds(frame, axis)

    assert busy["forward"].tolist() == pytest.approx([1.5, 0.0, 0.75])
    assert busy["queue"].tolist() == pytest.approx([0.5, 0.0, 0.25])
    assert len(fleet_figure(busy, axis)["data"]) == 3


def test_every_request_of_an_unaligned_window_has_its_column() -> None:
    start = datetime(2026, 11, 20, 12, 0, 50, tzinfo=UTC)
    axis = TimeAxis(start, start + timedelta(minutes=3), timedelta(minutes=1), UTC)
    at = [pd.Timestamp(start + timedelta(seconds=each)) for each in (0, 10, 70, 130)]
    shares = {"dominant": "forward", "share": 1.0, "second": "", "second_share": 0.0}
    cells = pd.DataFrame({"at": at, "low_seconds": 0.1, "high_seconds": 0.2, "n": 5, **shares})
    quantiles = pd.DataFrame({"at": at, "n": 5, "p50": 0.15, "p99": 0.15})
    frame = pd.DataFrame({"at": at, "n": [10, 60, 60, 50], "value_seconds": 1.0, "forward": 1.0})

    assert heat_figure(cells, quantiles, axis)["data"]
    assert busy_seconds(frame, axis)["forward"].tolist() == pytest.approx([1.0] * 4)


def test_the_cost_of_the_fleet_needs_prices(filled: Store, tmp_path: Path) -> None:
    priced = source_of(filled, tmp_path, prices='currency: "$"\nprices:\n  - {service: vision-api, per_hour: 12.5}\n')

    check_views("overview_priced", priced, "/?sort=cost # Services", "/?sort=cost # head")
    assert "Serving cost" not in text_of(source_of(filled), "/")


TEAMS = f"""slos:
  - {slo_of("a", "service-299")}
labels:
  service-299: {{team: payments, tier: gold}}
  service-298: {{team: payments, tier: free}}
  service-297: {{team: search}}
"""


def test_services_are_filtered_and_grouped_by_labels(crowd: Store, tmp_path: Path) -> None:
    source = source_of(crowd, tmp_path, TEAMS)
    context = context_at(source, "/?by=team")
    groups = [
        each
        for each in all_of(services_card(context, urgent_first(context)), html.Tr)
        if getattr(each, "className", "") == "group"
    ]

    assert links_in(page_at(source, "/").body)["payments 2"] == "/?at=team:payments"
    assert names(source, "/?at=team:payments") == ["service-299", "service-298"]
    assert names(source, "/?at=team:payments,tier:gold") == ["service-299"]
    assert sorted(names(source, "/?at=tier")) == ["service-298", "service-299"]
    assert "No service matches" in text_of(source, "/?at=team:nobody")
    titles = [words(group.children[0].children[0]) for group in groups]
    assert titles == ["payments · 2", "search · 1", f"No team · {MANY - 3}"]
    assert next(all_of(groups[0], html.A)).href == "/?at=team:payments"
    assert plain(words(groups[0].children[2])) == "16.7/s"


def test_services_are_grouped_by_environment(store: Store, tmp_path: Path) -> None:
    for service, environment, number in (
        ("shop", "prod", 300),
        ("shop", "dev", 20),
        ("bank", "prod", 50),
        ("old", "", 5),
    ):
        write_requests(store, Series(service, "1", environment), seconds=0.01, count=number, ago=120)
    prices = 'currency: "$"\nprices:\n  - {service: shop, per_hour: 9}\n  - {service: bank, per_hour: 4}\n'
    source = source_of(store, tmp_path, prices=prices)
    rows = by_environment(context_at(source, "/?by=environment&sort=name"))

    check_views("overview_environments", source, "/?by=environment&sort=name # Services")
    # The price of `shop` does not say for which of its environments.
    assert hourly_costs(context_at(source, "/?by=environment&sort=name"), rows) == {("bank", "prod"): 4.0}
    assert {(row.service, row.environment): row.now.requests for row in rows} == {
        ("bank", "prod"): 50,
        ("old", ""): 5,
        ("shop", "dev"): 20,
        ("shop", "prod"): 300,
    }


PRICES = 'currency: "$"\nprices:\n' + "".join(f"  - service: {name}\n    per_hour: 3.6\n" for name in ("old", "young"))
OLD = Served("old", "1.0.0", 90)
PricedSource = Callable[..., Source]


@pytest.fixture
def priced_source(traffic: ModuleType, store: Store, tmp_path: Path) -> PricedSource:
    def priced_source(*served: Served) -> Source:
        write(store, traffic, *served)
        return source_of(store, tmp_path, prices=PRICES)

    return priced_source


def test_a_young_service_has_the_rate_and_cost_of_its_own_page(priced_source: PricedSource) -> None:
    source = priced_source(OLD, Served("young", "1.0.0", 10))
    fleet, own = (shown(source, address) for address in ("/", "/s/young"))

    assert "Requests 20/s" in own
    assert re.search(r"young .*? 20/s", fleet)
    assert "$50.0" in own
    assert fleet.count("$50.0") >= 2


def test_a_stopped_service_shows_its_last_request_time(priced_source: PricedSource) -> None:
    source = priced_source(OLD, Served("gone", "1.0.0", 60, 20))

    assert "No data since 11:40, for 20 m" in shown(source, "/s/gone?from=now-1h&tz=UTC")
    assert "no request for 20 m" in shown(source, "/s/gone/advice?from=now-1h")
    assert "Serving now 0/s" in shown(source, "/s/gone/capacity?from=now-1h")
    assert "no request for" not in shown(source, "/s/old?from=now-1h")


def test_a_previous_window_with_half_history_has_its_full_rate(priced_source: PricedSource) -> None:
    page = shown(priced_source(OLD), "/?from=now-1h")

    assert re.search(r"Requests 20/s ± 0 % vs prev\.", page)


def test_the_price_of_a_service_is_not_applied_to_one_version(priced_source: PricedSource) -> None:
    source = priced_source(OLD, replace(OLD, version="2.0.0", begins=10))
    whole, part = (shown(source, f"/s/old/capacity{query}") for query in ("", "?v=2.0.0"))

    assert "Cost per 1 M $" in whole
    assert f"Cost per 1 M {UNKNOWN} unknown with a filter" in part
    assert "No price is set" not in part
