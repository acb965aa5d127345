"""Pages about several services: waterfall of a trace, critical path of slow requests, and the calls between services."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser, expect

from stagelens.analysis.breakdown import Measures
from stagelens.dashboard.pages.service_map import layout, shown_edge
from stagelens.dashboard.source import Source
from stagelens.store import Batch, Store
from stagelens.store.queries.paths import ServiceEdge
from tests.dashboard.rendering import check_views, client_of, observed, plain, shown, source_of
from tests.dashboard.tabs import DESKTOP, PHONE, Serve
from tests.support.raw_requests import NOON, PointAggregator, Request, Series
from tests.support.traced_services import AT, MS, distributed, kept

NOW = datetime.fromtimestamp(NOON, UTC)


@pytest.fixture(scope="module")
def store(open_module_store: Callable[[], Store]) -> Store:
    """Store with slow and random traces of three services; the clock of one machine is 3 s fast."""
    opened = open_module_store()
    traces = [each for number in range(16, 24) for each in distributed(number, "uniform" if number % 2 else "slow")]
    moved = [
        replace(each, started_ns=each.started_ns + 3000 * MS) if each.series.service == "triton" else each
        for each in distributed(31)
    ]
    requests = [
        Request({"forward": milliseconds * MS}, AT, Series(service))
        for service, milliseconds in (("gateway", 100), ("ranker", 70), ("triton", 50))
        for _ in range(2000)
    ]
    opened.write([Batch("one", PointAggregator().points(requests), [*traces, *moved, *distributed(32)[:2]])])
    return opened


def source(store: Store) -> Source:
    return source_of(store, now=NOW)


def test_pages_show_the_requests_the_critical_path_and_the_calls_of_all_services(store: Store) -> None:
    # In trace 31 a clock is fast, in trace 32 a service is missing.
    check_views("across_services", source(store), now=NOW)


def test_dependency_is_split_by_what_is_called(open_store: Callable[..., Store]) -> None:
    opened = open_store(clock=NOW.timestamp)
    slow = kept(16, "gateway", "", 0, {"forward": 10, "dependency": 90})
    slow.spans[1]["attributes"] = {"server.address": "payments.internal"}
    requests = [
        Request({"forward": 10 * MS, "dependency": (90 if number % 50 == 0 else 5) * MS}, AT, Series("gateway"))
        for number in range(2000)
    ]
    opened.write([Batch("one", PointAggregator().points(requests), [slow])])

    for path in ("/s/gateway", "/s/gateway/advice", "/advice"):
        page = plain(shown(source(opened), f"{path}?from=now-1h", NOW))
        assert "Of Dependency in 1 retained slow request: payments.internal 100 %." in page, path
    assert "payments.internal" in shown(source(opened), f"/traces/{16:032x}?from=now-1h", NOW)


def test_a_counted_caller_has_its_own_numbers() -> None:
    called = Measures(1000, 10, 0.05, 0.2, {}, {})
    latency = observed(0.1, 500)
    edge = ServiceEdge("a", "b", None, 0, 5, 0.5, None)
    counted = shown_edge(replace(edge, latency=latency, errors=5), called, 100)
    shared, alone = shown_edge(edge, called, 100), shown_edge(replace(edge, sampled=1.0), called, 100)

    assert (counted.rate, counted.errors, counted.is_counted) == (5.0, 0.01, True)
    assert counted.p50 == pytest.approx(0.1, rel=0.02)
    assert (shared.rate, shared.p99) == (5.0, None)
    assert (alone.rate, alone.p99, alone.errors) == (10.0, 0.2, 0.01)


@given(st.sets(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh")), min_size=1))
def test_every_service_has_a_place_of_its_own(edges: set[tuple[str, str]]) -> None:
    places = layout(edges)

    assert places.keys() == {name for edge in edges for name in edge}
    assert len(set(places.values())) == len(places)


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1))
def test_callers_are_left_of_the_services_they_call(pairs: set[tuple[int, int]]) -> None:
    edges = [(f"s{first}", f"s{first + more}") for first, more in pairs]
    places = layout(edges)

    assert all(places[caller][0] < places[called][0] for caller, called in edges)


def test_pages_fit_a_phone_and_a_desktop(store: Store, serve: Serve, browser: Browser) -> None:
    base = serve(store, clock=NOW.timestamp)
    for size in (DESKTOP, PHONE):
        tab = browser.new_context(viewport=size, reduced_motion="reduce").new_page()
        tab.goto(f"{base}/?from=now-1h")
        expect(tab.get_by_role("region", name="Calls between services")).to_be_visible()
        expect(tab.locator(".map")).to_be_visible(visible=size is DESKTOP)
        tab.goto(f"{base}/traces/{16:032x}?from=now-1h")
        expect(tab.locator(".wf i.cp").first).to_be_visible()
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        tab.context.close()


def test_the_api_has_the_path_and_the_map(store: Store) -> None:
    client = client_of(store, None, NOW)
    path = client.get("/api/v1/query/critical_path?service=gateway&from=now-1h&p=99").get_json()
    edges = client.get("/api/v1/query/map?from=now-1h").get_json()

    shares = {(service, stage): share for service, stage, _, share in path["rows"]}
    assert (path["traces"], path["complete_traces"], path["missing"]) == (10, 9, {"triton": 1})
    assert sum(shares.values()) == pytest.approx(1)
    assert max(shares, key=lambda each: shares[each]) == ("triton", "forward")
    assert [row[:2] for row in edges["rows"]] == [["gateway", "ranker"], ["ranker", "triton"]]
