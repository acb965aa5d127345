"""Traces page: values that occur as filters, chips, columns and pages, all as addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import TIMES
from stagelens.dashboard.ui.page_export import TableData, page_data, text_of
from stagelens.store import Batch, RetainedTrace, Series, Store
from stagelens.store.queries import trace_search
from tests.dashboard.rendering import links_in, page_at
from tests.dashboard.served_versions import NOW

NS = 1_000_000_000
SHOP = Series("shop", "1", "prod", route="/buy")
REPLICAS = ("shop-7f6b9:7", "shop-9xwzn:7")


def trace(number: int, series: Series = SHOP, **attributes: str | int) -> RetainedTrace:
    spent = {"queue" if number % 2 else "forward": number * 1_000_000}
    return RetainedTrace(
        trace_id=f"{number:032x}",
        span_id=f"{number:016x}",
        series=series,
        started_ns=(int(NOW.timestamp()) - 60 - number) * NS,
        duration_ns=number * 1_000_000,
        because="slow",
        dominant=next(iter(spent)),
        stages_ns=spent,
        attributes={f"inference.attribute.{key}": value for key, value in attributes.items()},
    )


def traces() -> Iterator[RetainedTrace]:
    """Yield 120 requests of two routes, replicas and tenants."""
    for number in range(1, 121):
        series = SHOP if number % 3 else replace(SHOP, route="/sell", status="error")
        tenant = "acme, inc" if number > 100 else "bolt"
        yield trace(
            number, series, tenant=tenant, replica=REPLICAS[number % 2], request_size=number * 100, caller="web"
        )


@pytest.fixture(scope="module")
def source(open_module_store: Callable[[], Store]) -> Source:
    store = open_module_store()
    store.write([Batch("shop", traces=list(traces()))])
    return Source(store, None, NOW.timestamp)


def requests(source: Source, address: str) -> TableData:
    return next(each for each in page_data(page_at(source, address).body).tables if each.name == "Retained requests")


def test_a_filter_offers_the_values_that_occur_with_their_counts(source: Source) -> None:
    found = links_in(page_at(source, "/traces").body)

    assert found["/sell 40"] == "/traces?r=/sell"
    assert found["Queue 60"] == "/traces?dom=queue"
    assert found["Errors 40"] == "/traces?err=1"
    assert found[f"{REPLICAS[0]} 60"] == f"/traces?at=replica:{REPLICAS[0]}"
    assert found["acme, inc 20"] == "/traces?at=tenant:acme%252C+inc"
    assert found["4-16 kB 80"] == "/traces?at=request_size:4096"
    assert not [text for text in found if text.startswith("web ")]


def test_several_attributes_are_chips_that_end_one_by_one(source: Source) -> None:
    address = f"/traces?at=tenant:acme%252C+inc,replica:{REPLICAS[1]}"
    found = links_in(page_at(source, address).body)

    assert found[f"tenant acme, inc {TIMES}"] == f"/traces?at=replica:{REPLICAS[1]}"
    assert found[f"Replica {REPLICAS[1]} {TIMES}"] == "/traces?at=tenant:acme%252C+inc"
    assert found["/buy 7"] == address.replace("?at", "?r=/buy&at")
    assert found["bolt 50"] == f"/traces?at=replica:{REPLICAS[1]},tenant:bolt"
    assert len(requests(source, address).rows) == 10
    assert f"Request size 4-16 kB {TIMES}" in links_in(page_at(source, "/traces?at=request_size:4096").body)


@pytest.mark.parametrize(
    ("query", "ends", "number"),
    [
        ("min=20ms", {f"Latency over 20 ms {TIMES}": "/traces"}, 101),
        ("max=0.02s", {f"Latency under 20 ms {TIMES}": "/traces"}, 19),
        (
            "min=20&max=30ms",
            {f"Latency from 20 ms {TIMES}": "/traces?max=30ms", f"to 30 ms {TIMES}": "/traces?min=20"},
            10,
        ),
        ("min=x", {}, 120),
    ],
)
def test_the_range_of_the_latency_is_a_chip(source: Source, query: str, ends: dict[str, str], number: int) -> None:
    shown = page_at(source, f"/traces?{query}")
    found = {text: href for text, href in links_in(shown.body).items() if text.startswith(("Latency", "to "))}

    assert {text.replace("\u202f", " "): href for text, href in found.items()} == ends
    assert f"{number} retained requests" in text_of(shown.body)


def test_pages_are_addresses_in_a_stable_order(source: Source) -> None:
    pages = [requests(source, f"/traces?err=0&t=new&n={number}") for number in (1, 2)]
    first, second = (links_in(page_at(source, f"/traces?err=0&t=new&n={number}").body) for number in (1, 2))
    shown = [row[1] for each in pages for row in each.rows]

    assert (first["Next →"], second["← Previous"]) == ("/traces?t=new&err=0&n=2", "/traces?t=new&err=0")
    assert ("← Previous" in first, "Next →" in second) == (False, False)
    assert (len(shown), len({row for each in pages for row in map(tuple, each.rows)})) == (80, 80)
    assert "51 to 80 of 80" in text_of(page_at(source, "/traces?err=0&n=9").body)
    assert second["Slowest"] == "/traces?err=0"


def test_route_replica_and_chosen_attributes_are_columns(source: Source) -> None:
    plain, chosen = requests(source, "/traces"), requests(source, "/traces?at=tenant,request_size,caller")

    assert plain.head[:5] == ["Time", "Trace", "Service", "Route", "Replica"]
    assert chosen.head[3:7] == ["Route", "Replica", "tenant", "Request size"]
    assert chosen.rows[0][3:7] == ["/sell", REPLICAS[0], "acme, inc", "4-16 kB"]
    assert len(chosen.rows) == len(plain.rows) == 50


def test_a_limited_search_is_said(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_search, "MAX_SEARCHED", 30)
    limited = Source(source.store, None, NOW.timestamp)

    assert "Only the slowest 30 of 120 retained requests were searched" in text_of(page_at(limited, "/traces").body)
    assert "were searched" not in text_of(page_at(source, "/traces").body)
