"""Cold requests: counted with all others, and excluded on request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stagelens.store import Batch, RetainedTrace, Series, SeriesCaps
from stagelens.store.events import StoredLoad
from tests.support.raw_requests import NOON, SHOP, OpenSite, Request, Site

WARM = [Request({"forward": 1_000_000 * (1 + number % 7), "queue": 5000}, NOON - 97 * number) for number in range(80)]
COLD = [
    Request({"forward": 1_000_000, "load": 900_000_000}, NOON - 311 * number, replace(SHOP, cold="1"))
    for number in range(20)
]


def page_results(one: Site, **dimensions: str) -> list[object]:
    found: list[object] = []
    for start in (NOON - 8000, NOON - 600):
        for more in ({}, {"version": "1"}, {"route": ""}):
            selection = one.between(start, NOON + 60, service="shop", **more, **dimensions)
            latency = one.store.read.latency(selection)
            breakdown = one.store.read.breakdown(selection, [0.5, 0.99])
            found.append((latency.count, latency.buckets, breakdown.to_dict()))
    return found


def test_excluding_cold_requests_equals_a_store_without_them(
    open_sqlite: OpenSite,
) -> None:
    mixed, warm, cold = open_sqlite(), open_sqlite(), open_sqlite()
    for one, requests in ((mixed, WARM + COLD), (warm, WARM), (cold, COLD)):
        one.write(requests)
        one.clock.now += 4000
        one.store.maintain()
    everything, kinds = mixed.around(service="shop"), (mixed.around(cold="0"), mixed.around(cold="1"))
    read = mixed.store.read

    assert page_results(mixed, cold="0") == page_results(warm)
    assert page_results(mixed, cold="1") == page_results(cold)
    assert read.latency(everything).count == 100
    assert [read.latency(kind).count for kind in kinds] == [80, 20]
    assert read.dimensions(everything)["cold"] == {"0": 80, "1": 20}


def test_a_retained_request_is_cold_like_its_series(sqlite: Site) -> None:
    retained = [
        RetainedTrace(2 * f"{number:016x}", f"{number:016x}", series, NOON * 10**9, 5, "cold", "load", {"load": 5})
        for number, series in enumerate((SHOP, replace(SHOP, cold="1")), 1)
    ]
    sqlite.store.write([Batch("kept", traces=retained)])
    found = {cold: list(sqlite.store.read.exemplars(sqlite.around(cold=cold))["span_id"]) for cold in "01"}

    assert found == {"0": [f"{1:016x}"], "1": [f"{2:016x}"]}


def test_cold_requests_do_not_count_towards_the_series_cap(open_sqlite: OpenSite) -> None:
    one = open_sqlite(series_caps=SeriesCaps(series=2))
    series = [Series("shop", route=route, cold=cold) for cold in "01" for route in ("/a", "/b", "/c")]
    one.write([Request({"forward": 1}, series=one_series) for one_series in series])

    routes = [one.store.read.dimensions(one.around(cold=cold))["route"] for cold in "01"]
    assert routes == [{"/a": 1, "/b": 1, "__other__": 1}] * 2


@pytest.mark.parametrize("value", ["", "yes", "true"])
def test_an_unknown_load_value_is_warm(sqlite: Site, value: str) -> None:
    sqlite.write([Request({"forward": 1}, series=replace(SHOP, cold=value))])

    assert sqlite.store.read.latency(sqlite.around(cold="0")).count == 1


def test_cold_start_data_expire_with_the_hours(sqlite: Site) -> None:
    starts = [
        StoredLoad(
            "shop",
            "1",
            "",
            f"replica-{ago}",
            "web-1:7",
            "start",
            "",
            "",
            (NOON - ago) * 10**9,
            (NOON - ago + 1) * 10**9,
            10**9,
        )
        for ago in (60, 500 * 86_400)
    ]
    for _ in range(2):
        sqlite.store.write([Batch("told", loads=starts)])
    before = list(sqlite.store.read.loads("shop")["instance"])
    sqlite.store.maintain()

    assert before == ["replica-60", "replica-43200000"]
    assert list(sqlite.store.read.loads("shop")["instance"]) == ["replica-60"]
    assert sqlite.store.read.loads("shop", "staging").empty
