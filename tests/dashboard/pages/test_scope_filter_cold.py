"""Pages without cold requests: equal to a store without them, with the number of excluded requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from stagelens.core.names import REPLICA_AGE
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.page import Page
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import UNKNOWN
from stagelens.dashboard.ui.page_export import page_data, text_of
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Batch, Store
from tests.dashboard.rendering import page_at
from tests.dashboard.rollout import COLD, NOW, WARM, batch, loaded

TABS = ("/s/shop", "/s/shop/traces", "/s/shop/advice")


@pytest.fixture(scope="module")
def stores(store_of: Callable[[Iterable[Batch]], Store]) -> tuple[Store, Store]:
    """A service after a rollout, with 23 cold requests, and the same had all of its requests been warm."""
    warm = [batch(WARM, "forward", 0.01 * (1 + ago % 3), ago) for ago in range(20, 1020, 20)]
    cold = batch(COLD, "load", 3.0, 400, requests=23)
    return store_of([*warm, cold]), store_of(warm)


def page(store: Store, address: str) -> Page:
    return page_at(Source(store, None, NOW.timestamp), address)


def page_body(found: Page) -> tuple[object, ...]:
    """Content of a page below its head, which contains the number of excluded requests."""
    shown = page_data(found.body)
    charts = {name: (drawn.spoken, str(drawn.frame)) for name, drawn in shown.charts.items()}
    return charts, shown.tables, [text_of(node) for node in found.body[2:]]


@pytest.mark.parametrize("path", TABS)
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

    assert ["Exclude 23 cold" in each for each in texts] == [True, False, False]
    assert ["23 cold" in each for each in texts] == [True, True, False]


def test_an_address_without_a_valid_choice_shows_all(stores: tuple[Store, Store]) -> None:
    mixed, _ = stores
    query = {"service": "shop", "from": "now-15m"}
    client = Dashboard(DashboardConfig(), mixed, None, clock=NOW.timestamp).server.test_client()
    counted = {
        cold: client.get("/api/v1/query/latency", query_string=query | cold_key).json
        for cold, cold_key in ((None, {}), ("0", {"cold": "0"}), ("1", {"cold": "1"}), ("no", {"cold": "no"}))
    }
    all_of_it, wrong = (page_body(page(mixed, f"/s/shop?from=now-15m{each}")) for each in ("", "&cold=no"))

    assert wrong == all_of_it
    assert [(counted[each] or {}).get("requests") for each in (None, "0", "1")] == [923, 900, 23]
    assert (counted["no"] or {})["key"] == "cold"


def test_a_page_of_cold_requests_only_explains_why_it_is_empty(store_of: Callable[[Iterable[Batch]], Store]) -> None:
    store = store_of([batch(COLD, "load", 3.0, 20)])
    text = text_of(page(store, "/s/shop?from=now-15m&cold=0").body)

    assert "No request of warm replicas in this window" in text
    assert "There are 20 cold and warm." in text
    assert "Cold and warm" in text


def test_replicas_are_listed_with_age_and_loads(store_of: Callable[[Iterable[Batch]], Store]) -> None:
    cold = [loaded("young", "start", 12, 8.0), loaded("young", "read", 13, 6.0, "resnet")]
    cold += [loaded("old", "start", 90_000, 3.0), loaded("old", "read", 90_000, 1.5, "resnet")]
    cold += [loaded("old", "read", 90_001, 0.5, "resnet")]
    alive = replace(batch(WARM, "forward", 0.01, 20), instance="young")
    store = store_of([replace(alive, loads=cold), batch(COLD, "load", 3.0, 20)])
    found = page(store, "/s/shop/replicas?from=now-15m")
    tables = {each.name: each.rows for each in page_data(found.body).tables}
    elsewhere = [text_of(page(store, f"/s/shop{tab}?from=now-15m").body) for tab in ("", "/replicas")]
    other = text_of(page(store, "/s/shop/replicas?from=now-15m&v=2").body)

    assert [row[:3] for row in tables["Replicas"]] == [["Sending", "young:7", "1"], ["Silent", "old:7", "1"]]
    assert [row[4:7] for row in tables["Replicas"]] == [
        ["20 s", "8.00 s", "6.00 s"],
        [UNKNOWN, "3.00 s", "2.00 s"],
    ]
    assert [row[1:4] for row in tables["What was loaded"]] == [
        ["young:7", "Read", "resnet"],
        *[["old:7", "Read", "resnet"]] * 2,
    ]
    assert "Cold starts do not affect p50." in elsewhere[1]
    assert "Replicas" in elsewhere[0]
    assert "No request of version 2" in other


def test_cold_starts_that_raise_p99_are_reported_with_both_values(store_of: Callable[[Iterable[Batch]], Store]) -> None:
    alive = replace(batch(WARM, "forward", 0.01, 20, 2000), loads=[loaded("young", "start", 12, 8.0)])
    store = store_of([alive, batch(COLD, "load", 3.0, 20, 40)])
    found = text_of(page(store, "/s/shop/replicas?from=now-15m").body)

    assert "p99 is 2.99 s, and 10.0 ms without cold requests." in found.replace("\u202f", " ")


def test_a_trace_shows_the_age_of_its_replica(store_of: Callable[[Iterable[Batch]], Store]) -> None:
    made = batch(COLD, "load", 3.0, 20)
    aged = replace(made.traces[0], attributes={REPLICA_AGE: 12_400_000_000})
    store = store_of([replace(made, traces=[aged])])
    text = text_of(page(store, f"/traces/{aged.trace_id}").body)

    assert "Replica's age 12 s" in text
