"""The overview: every service with its own numbers, in any order, however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from dash import html

from stagelens.alerts.incidents.lifecycle import save_incident
from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.figures.heatmap import heat_figure
from stagelens.dashboard.figures.over_time import busy_seconds, fleet_figure
from stagelens.dashboard.figures.time_axis import TimeAxis
from stagelens.dashboard.pages.measures import by_environment, measure, urgent_first
from stagelens.dashboard.pages.overview_table import hourly_costs, services_card
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import THIN, count, duration
from stagelens.dashboard.web.routing import page_of
from stagelens.dashboard.web.shell import side
from stagelens.store import Batch, Event, Point, Series, Store
from tests.dashboard import notified_store
from tests.dashboard.many_services import MANY, NOW, crowd_at
from tests.dashboard.rendering import context_at, page_at


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


def text_of(source: Source, address: str, now: datetime = NOW) -> str:
    return words(page_at(source, address, now).body)


def all_of(node: Any, kind: type) -> Iterator[Any]:
    if isinstance(node, list | tuple):
        for each in node:
            yield from all_of(each, kind)
    elif node is not None and not isinstance(node, str):
        if isinstance(node, kind):
            yield node
        yield from all_of(getattr(node, "children", None), kind)


def names(source: Source, address: str) -> list[str]:
    """Return the services of the table, in its order."""
    return [each.children for each in all_of(page_at(source, address).body, html.A) if each.className == "n"]


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


def test_page_and_side_bar_show_the_same_number(source: Source) -> None:
    overview = context_at(source, "/")
    p99 = {row.service: duration(row.now.p99).replace(THIN, " ") for row in urgent_first(overview)}
    beside = words(side(context_at(source, "/s/chat-llm?v=1.0.0"), "/", source.state()))

    for service, latency in p99.items():
        assert f"{service} {latency}" in " ".join(beside.split())
        assert latency in text_of(source, "/")


def test_the_side_bar_counts_open_problems(source: Source) -> None:
    found = {
        words(each.children[1]): words(each.children[2])
        for each in all_of(side(context_at(source, "/"), "/", source.state()), html.A)
        if isinstance(each.children, list) and len(each.children) > 2
    }

    assert found["Regressions"] == "1"
    assert found["SLOs"] in {"1 at risk", "2 at risk", "1 burning", "2 burning"}


def test_the_most_severe_row_is_first(source: Source) -> None:
    page = page_at(source, "/")
    cards = [each for each in all_of(page.body, html.A) if each.className == "ins"]

    assert 1 <= len(cards) <= 3
    assert words(cards[0]).split()[0] in {"SLO", "Regression"}
    assert "vision-api" in words(cards[0])
    assert [card for card in cards if not words(card).endswith("→")] == []


@pytest.mark.parametrize(
    "sort", ["name", "rate", "p50", "p99", "change", "where", "budget", "errors", "status", "burn"]
)
def test_every_column_sorts_both_ways(source: Source, sort: str) -> None:
    page, back = (context_at(source, f"/?sort={each}") for each in (sort, f"-{sort}"))
    heads = [each for each in all_of(services_card(page, urgent_first(page)), html.Th) if hasattr(each, "aria-sort")]
    turned = [each for each in all_of(services_card(back, urgent_first(back)), html.Th) if hasattr(each, "aria-sort")]

    assert (
        sorted(names(source, f"/?sort={sort}"))
        == sorted(names(source, f"/?sort=-{sort}"))
        == sorted(names(source, "/"))
    )
    assert len(heads) == len(turned) == 1
    assert {getattr(each[0], "aria-sort") for each in (heads, turned)} == {"ascending", "descending"}
    if sort != "burn":
        assert f"sort=-{sort}" in heads[0].children.href


def test_numbers_sort_by_size_and_unknown_ones_come_last(source: Source) -> None:
    p99 = {row.service: row.now.p99 or 0 for row in urgent_first(context_at(source, "/"))}
    falling = sorted(p99, key=lambda name: -p99[name])

    assert names(source, "/?sort=p99") == falling
    assert names(source, "/?sort=-p99") == falling[::-1]
    assert names(source, "/?sort=name") == sorted(p99)
    assert names(source, "/?sort=budget")[-1] == names(source, "/?sort=-budget")[-1] == "fraud-score"


@pytest.mark.parametrize("query", ["sort=nonsense", "sort=--p99", "n=0", "n=99", "n=x", "n=²", "kind=<b>"])
def test_invalid_values_fall_back_to_the_default(source: Source, query: str) -> None:
    assert names(source, f"/?{query}") == names(source, "/")


def test_kind_and_search_words_filter_the_page(source: Source) -> None:
    assert names(source, "/?kind=llm") == ["chat-llm"]
    assert sorted(names(source, "/?kind=model")) == ["fraud-score", "vision-api"]
    assert names(source, "/?q=RESNET") == ["vision-api"]
    assert "1 of 3 services" in text_of(source, "/?q=vision")
    assert "No service matches" in text_of(source, "/?q=nobody")


def test_every_cell_links_to_the_explanation_of_its_number(source: Source) -> None:
    page = page_at(source, "/?from=now-15m")
    row = next(each for each in all_of(page.body, html.Tr) if "vision-api" in words(each))
    leads = {each.href for each in all_of(row, html.A)}

    assert getattr(row, "data-href") == "/s/vision-api?from=now-15m"
    assert {"/s/vision-api?p=99&from=now-15m", "/slo/vision-latency?from=now-15m"} <= leads
    assert any(
        each.startswith("/compare?svc=vision-api&a=2026-11-20T11:30/15m&b=2026-11-20T11:45/15m") for each in leads
    )


def test_hundreds_of_services_are_paged(crowd: Store) -> None:
    source = Source(crowd, None, NOW.timestamp)
    pages = [names(source, f"/?n={each}") for each in range(1, 7)]
    first = text_of(source, "/")
    beside = words(side(context_at(source, "/s/service-299"), "/s/service-299", source.state()))

    assert [len(each) for each in pages] == [50] * 6
    assert len({name for page in pages for name in page}) == MANY
    assert "1 to 50 of 300" in first
    assert "Model · 300" in first
    assert "and 259 more" in beside
    assert "service-299" in beside
    assert names(source, "/?sort=p99")[:2] == ["service-299", "service-298"]


def test_hundreds_of_services_need_a_few_queries(crowd: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(crowd, None, NOW.timestamp)
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
    path = tmp_path / "slo.yaml"
    path.write_text("slos: [{name: one, service: service-250, objective: 0.99, threshold: 10ms, window: 30d}]")
    source = Source(crowd, AlertsReader(crowd, LiveSloFile(path, {})), NOW.timestamp)

    assert names(source, "/")[0] == "service-250"
    assert "Needs attention · 1" in text_of(source, "/")
    assert "Needs attention" not in text_of(source, "/?sort=p99")


def cards_of(store: Store, path: Path | None) -> list[Any]:
    page = page_at(Source(store, AlertsReader(store, LiveSloFile(path, {})), NOW.timestamp), "/")
    return [
        [each for each in all_of(page.body, html.A) if getattr(each, "className", "") == "ins"],
        all_of(page.body, html.Details),
    ]


def test_equal_cards_are_one_with_its_services(crowd: Store, tmp_path: Path) -> None:
    path = tmp_path / "slo.yaml"
    slos = ", ".join(
        f"{{name: s{each}, service: service-{each}, objective: 0.99, threshold: 10ms, window: 30d}}"
        for each in range(250, 258)
    )
    path.write_text(f"slos: [{slos}]")
    cards, folded = cards_of(crowd, path)
    (same,) = (each for each in folded if "The same" in words(each.children[0]))
    services = {words(each) for each in all_of(same, html.A)}

    assert len(cards) == 1
    assert words(same.children[0]) == "The same in 7 more services"
    assert {*services, words(cards[0]).split()[1]} == {f"service-{each}" for each in range(250, 258)}


def test_cards_beyond_three_are_collapsed(tmp_path: Path) -> None:
    store = crowd_at(tmp_path / "own.db")
    with store.transaction() as connection:
        for each in range(250, 258):
            made = notified_store.record(f"sl-{each}", f"objective-{each}", 20.0, 720, f"service-{each}")
            save_incident(connection, made)
    cards, folded = cards_of(store, None)
    store.close()
    (more,) = (each for each in folded if "more" in words(each.children[0]))

    assert words(more.children[0]) == "+5 more"
    assert len(cards) == 3 + 5
    assert len([each for each in all_of(more, html.A) if getattr(each, "className", "") == "ins"]) == 5


def test_a_store_with_one_request_has_a_page(store: Store) -> None:
    histogram = Histogram()
    histogram.record(0.2)
    at = int(NOW.timestamp()) - 60
    store.write([Batch("one", [Point(Series("lonely"), REQUEST_DURATION, "forward", at, histogram)])])
    source = Source(store, None, NOW.timestamp)
    text, beside = text_of(source, "/"), words(side(context_at(source, "/"), "/", source.state()))

    assert "1 service" in text
    assert "1 request: p99 needs 1,000" in text
    assert "could not be rendered" not in text
    assert "lonely –" in " ".join(beside.split())  # noqa: RUF001 - an en dash stands for unknown


def test_a_service_that_stopped_sending_is_named(traffic: ModuleType, store: Store) -> None:
    few = {"forward": traffic.Shape(10), "overhead": traffic.Shape(1)}
    steady, gone, rare = (
        traffic.Service(each, "m", rate, ("/",), few) for each, rate in (("steady", 4.0), ("gone", 4.0), ("rare", 0.02))
    )
    start = NOW - timedelta(minutes=20)
    traffic.fill(store, start, NOW - timedelta(minutes=8), services=[steady, gone, rare])
    traffic.fill(store, NOW - timedelta(minutes=8), NOW, services=[steady])
    text = text_of(Source(store, None, NOW.timestamp), "/")

    assert "Silent gone" in text
    assert "No request for 8 m" in text
    assert "Silent rare" not in text


def test_a_cold_start_in_the_tail_is_named(traffic: ModuleType, store: Store) -> None:
    stages = {
        "forward": traffic.Shape(20, 0.1),
        "load": traffic.Shape(0.02, 0.1, 0.03, 200_000),
        "overhead": traffic.Shape(1),
    }
    service = traffic.Service("image-gen", "m", 20.0, ("/",), stages)
    traffic.fill(store, NOW - timedelta(minutes=5), NOW, services=[service])
    text = text_of(Source(store, None, NOW.timestamp), "/")

    assert "Tail image-gen" in text
    assert "Cold start is" in text
    assert "% of p99 and 0 % of p50" in text


def test_events_are_listed_in_order(traffic: ModuleType, store: Store) -> None:
    traffic.fill(store, NOW - timedelta(minutes=3), NOW, released=NOW - timedelta(minutes=1))
    store.add_event(Event(NOW - timedelta(minutes=2), "chat-llm", "config", "batch", "max_batch 16"))
    store.add_event(Event(NOW - timedelta(minutes=2), "chat-llm", "advice", "a", "dismissed"))
    text = text_of(Source(store, None, NOW.timestamp), "/")
    events = text[text.index("Deploys and events") :]

    assert events.index("2.0.0 first seen") < events.index("max_batch 16")
    assert "dismissed" not in events


def test_busy_seconds_are_requests_times_latency() -> None:
    start = datetime(2026, 11, 20, 12, tzinfo=UTC)
    axis = TimeAxis(start, start + timedelta(minutes=3), timedelta(minutes=1), UTC)
    at = [pd.Timestamp(start), pd.Timestamp(start + timedelta(minutes=2))]
    frame = pd.DataFrame({"at": at, "n": [600, 300], "value_seconds": 0.2, "forward": 0.15, "queue": 0.05})
    busy = busy_seconds(frame, axis)
    figure = fleet_figure(busy, axis)

    assert busy["forward"].tolist() == pytest.approx([1.5, 0.0, 0.75])
    assert busy["queue"].tolist() == pytest.approx([0.5, 0.0, 0.25])
    assert len(figure["data"]) == 3


def test_a_window_between_two_steps_has_no_gaps() -> None:
    start = datetime(2026, 11, 20, 12, 0, 40, tzinfo=UTC)
    axis = TimeAxis(start, start + timedelta(minutes=3), timedelta(minutes=1), UTC)
    at = [pd.Timestamp(start), *(pd.Timestamp(start + timedelta(seconds=each)) for each in (20, 80, 140))]
    frame = pd.DataFrame({"at": at, "n": [20, 60, 60, 40], "value_seconds": 1.0, "forward": 1.0})

    assert busy_seconds(frame, axis)["forward"].tolist() == pytest.approx([1.0] * 4)


def test_every_request_of_an_unaligned_window_has_its_column() -> None:
    start = datetime(2026, 11, 20, 12, 0, 50, tzinfo=UTC)
    axis = TimeAxis(start, start + timedelta(minutes=3), timedelta(minutes=1), UTC)
    at = [pd.Timestamp(start + timedelta(seconds=each)) for each in (0, 10, 70, 130)]
    shares = {"dominant": "forward", "share": 1.0, "second": "", "second_share": 0.0}
    cells = pd.DataFrame({"at": at, "low_seconds": 0.1, "high_seconds": 0.2, "n": 5, **shares})
    quantiles = pd.DataFrame({"at": at, "n": 5, "p50": 0.15, "p99": 0.15})

    assert heat_figure(cells, quantiles, axis)["data"]


def test_the_cost_of_the_fleet_needs_prices(filled: Store, tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text('currency: "$"\nprices:\n  - {service: vision-api, per_hour: 12.5}\n')
    configs = (DashboardConfig(port=0, prices=path), DashboardConfig(port=0))
    priced, without = (Source(filled, None, NOW.timestamp, config=each) for each in configs)
    text = text_of(priced, "/")

    assert "Serving cost $12.5" in text
    assert "2 without a price" in text
    assert "$ / 1 M" in text
    assert names(priced, "/?sort=cost")[0] == "vision-api"
    assert "Serving cost" not in text_of(without, "/")


TEAMS = """slos:
  - {name: a, service: service-299, objective: 0.99, threshold: 10ms, window: 30d}
labels:
  service-299: {team: payments, tier: gold}
  service-298: {team: payments, tier: free}
  service-297: {team: search}
"""


@pytest.fixture
def labelled(crowd: Store, tmp_path: Path) -> Source:
    path = tmp_path / "slo.yaml"
    path.write_text(TEAMS)
    return Source(crowd, AlertsReader(crowd, LiveSloFile(path, {})), NOW.timestamp)


def test_services_are_filtered_by_labels(labelled: Source) -> None:
    page = page_at(labelled, "/")
    found = {words(each): each.href for each in all_of(page.body, html.A)}

    assert found["payments 2"] == "/?at=team:payments"
    assert names(labelled, "/?at=team:payments") == ["service-299", "service-298"]
    assert names(labelled, "/?at=team:payments,tier:gold") == ["service-299"]
    assert sorted(names(labelled, "/?at=tier")) == ["service-298", "service-299"]
    assert "No service matches" in text_of(labelled, "/?at=team:nobody")


def test_services_are_grouped_by_a_label_with_sums(labelled: Source) -> None:
    context = context_at(labelled, "/?by=team")
    table = services_card(context, urgent_first(context))
    groups = [each for each in all_of(table, html.Tr) if getattr(each, "className", "") == "group"]
    first = groups[0]

    assert [words(each.children[0].children[0]) for each in groups] == [
        "payments · 2",
        "search · 1",
        f"No team · {MANY - 3}",
    ]
    assert next(all_of(first, html.A)).href == "/?at=team:payments"
    assert words(first.children[2]) == f"{count(2 * 1000 / urgent_first(context)[0].seconds)}/s"


def test_services_are_grouped_by_environment(store: Store, tmp_path: Path) -> None:
    at = int(NOW.timestamp()) // 10 * 10 - 120
    points: list[Point] = []
    for service, environment, number in (
        ("shop", "prod", 300),
        ("shop", "dev", 20),
        ("bank", "prod", 50),
        ("old", "", 5),
    ):
        histogram = Histogram()
        for _ in range(number):
            histogram.record(0.01)
        points.append(Point(Series(service, "1", environment), REQUEST_DURATION, "forward", at, histogram))
    store.write([Batch("two", points)])
    prices = tmp_path / "prices.yaml"
    prices.write_text('currency: "$"\nprices:\n  - {service: shop, per_hour: 9}\n  - {service: bank, per_hour: 4}\n')
    source = Source(store, None, NOW.timestamp, config=DashboardConfig(port=0, prices=prices))
    context = context_at(source, "/?by=environment&sort=name")
    shown = urgent_first(context)
    rows = by_environment(context)
    costs = hourly_costs(context, rows)
    text = words(services_card(context, shown))

    assert sorted((row.service, row.environment, row.now.requests) for row in rows) == [
        ("bank", "prod", 50),
        ("old", "", 5),
        ("shop", "dev", 20),
        ("shop", "prod", 300),
    ]
    # The price of `shop` does not say for which of its environments.
    assert costs == {("bank", "prod"): 4.0}
    assert text.index("dev") < text.index("prod") < text.index("No environment")
