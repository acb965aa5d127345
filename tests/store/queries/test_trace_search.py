"""Search of retained traces: filters, counts of the values, and pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from stagelens.store import Batch, RetainedTrace, Series
from stagelens.store.queries import trace_search
from stagelens.store.queries.trace_search import FoundTraces, TraceFilter
from tests.support.raw_requests import NOON, NS, Site

SHOP = Series("shop", "1", route="/buy")


def trace(
    number: int, milliseconds: int, dominant: str, attributes: Mapping[str, Any], series: Series = SHOP
) -> RetainedTrace:
    span = {"name": "work", "stage": dominant, "start_ns": 0, "duration_ns": 5, "attributes": {"batch": 4}}
    return RetainedTrace(
        trace_id=f"{number:032x}",
        span_id=f"{number:016x}",
        series=series,
        started_ns=(NOON - 60 * number) * NS,
        duration_ns=milliseconds * 1_000_000,
        because="slow",
        dominant=dominant,
        stages_ns={dominant: milliseconds * 1_000_000},
        spans=[span],
        attributes={"http.response.status_code": 200, "cached": False, "stagelens.stall.gc": 7, **attributes},
    )


def named(**attributes: str | int) -> dict[str, str | int]:
    return {f"inference.attribute.{key}": value for key, value in attributes.items()}


TRACES = [
    trace(1, 50, "forward", named(tenant="acme", replica="web-1:7", request_size=5000)),
    trace(2, 900, "queue", named(tenant="acme", replica="web-2:7", request_size=4096)),
    trace(3, 800, "queue", named(tenant="bolt", replica="web-2:7", request_size=100)),
    trace(4, 700, "load", named(replica="web-2:7"), replace(SHOP, route="/sell", status="error")),
    trace(5, 60, "forward", named(tenant="acme"), Series("bank")),
]


@pytest.fixture
def one(sqlite: Site) -> Site:
    sqlite.store.write([Batch("traces", traces=TRACES)])
    return sqlite


def numbers(found: FoundTraces) -> list[int]:
    return [int(trace_id, 16) for trace_id in found.page["trace_id"]]


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ((("http.response.status_code", "200"),), [2, 3, 4, 5, 1]),
        ((("cached", "False"),), [2, 3, 4, 5, 1]),
        ((("batch", "4"),), [2, 3, 4, 5, 1]),
        ((("batch", "5"),), []),
        ((("no", ""),), []),
        ((("tenant", ""),), [2, 3, 5, 1]),
        ((("tenant", "acme"), ("replica", "web-2:7")), [2]),
        ((("tenant", "acme"), ("tenant", "bolt"), ("replica", "web-2:7")), [2, 3]),
        ((("inference.attribute.tenant", "bolt"),), [3]),
        ((("request_size", "4096"),), [2, 1]),
        ((("request_size", "9999"),), [2, 1]),
    ],
)
def test_requests_are_found_by_attributes(one: Site, attributes: tuple[tuple[str, str], ...], found: list[int]) -> None:
    assert numbers(one.store.read.search_traces(one.around(), TraceFilter(attributes=attributes))) == found


def test_the_other_conditions_apply_too(one: Site) -> None:
    read = one.store.read
    acme = (("tenant", "acme"),)

    assert numbers(read.search_traces(one.around(), TraceFilter("forward", attributes=acme))) == [5, 1]
    assert numbers(read.search_traces(one.around(service="shop"), TraceFilter("forward", attributes=acme))) == [1]
    assert numbers(read.search_traces(one.around(), TraceFilter(between_seconds=(0.06, 0.8)))) == [4, 5]
    assert numbers(read.search_traces(one.around(), TraceFilter(between_seconds=(0.9, math.inf)))) == [2]
    assert numbers(read.search_traces(one.around(status="error"), TraceFilter())) == [4]


def test_values_are_counted_among_the_matching_requests(one: Site) -> None:
    found = one.store.read.search_traces(one.around(), TraceFilter("queue", attributes=(("tenant", "acme"),)))

    assert (numbers(found), found.matching, found.searched, found.retained) == ([2], 1, 5, 2)
    assert found.dimensions["dominant"] == {"forward": 2, "queue": 1}
    assert found.dimensions["service"] == {"shop": 1}
    assert found.attributes["tenant"] == {"acme": 1, "bolt": 1}
    assert found.attributes["replica"] == {"web-2:7": 1}
    everything = one.store.read.search_traces(one.around(), TraceFilter())
    assert list(everything.attributes["tenant"].items()) == [("acme", 3), ("bolt", 1)]
    assert everything.attributes["request_size"] == {"4096": 2, "64": 1}
    assert everything.dimensions["status"] == {"ok": 4, "error": 1}
    assert "stagelens.stall.gc" not in everything.attributes


def test_pages_are_in_a_stable_order(one: Site) -> None:
    read, everything = one.store.read, TraceFilter()
    pages = [numbers(read.search_traces(one.around(), everything, limit=2, offset=offset)) for offset in (0, 2, 4, 6)]
    newest = [
        numbers(read.search_traces(one.around(), everything, order="time", limit=3, offset=offset)) for offset in (0, 3)
    ]

    assert pages == [[2, 3], [4, 5], [1], []]
    assert newest == [[1, 2, 3], [4, 5]]


def test_a_page_has_the_attributes_of_its_requests(one: Site) -> None:
    page = one.store.read.search_traces(one.around(), TraceFilter(), limit=1).page

    assert {"tenant": "acme", "replica": "web-2:7", "request_size": "4096"}.items() <= page["attributes"][0].items()
    assert (page["route"][0], page["duration_seconds"][0]) == ("/buy", 0.9)


def test_a_limited_search_says_so(one: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_search, "MAX_SEARCHED", 2)
    read = one.store.read
    slowest = read.search_traces(one.around(), TraceFilter(attributes=(("tenant", "acme"),)))
    forward = read.search_traces(one.around(), TraceFilter("forward"))

    assert (numbers(slowest), slowest.matching, slowest.searched, slowest.retained) == ([2], 1, 2, 5)
    assert (numbers(forward), forward.searched, forward.retained) == ([5, 1], 2, 2)
    assert forward.dimensions["dominant"] == {"forward": 2}
