"""Machine metrics of replicas: means and maxima by step, separate from requests."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from datetime import timedelta

import pytest

from stagelens.core.hardware import CPU, GPU, hardware_key
from stagelens.core.histogram import Histogram
from stagelens.core.names import HARDWARE, OPEN_TIME
from stagelens.store import Batch, Point, Series, SeriesCaps
from stagelens.store import series as series_module
from tests.support.raw_requests import NOON, SHOP, OpenSite, Request, Site

START = NOON - 1800
NAMES = ("gpu web-1/gpu0", "gpu web-2/gpu0", "cpu web-1:7")


def observed(value: float, name: str, at: int, series: Series = SHOP) -> Point:
    histogram = Histogram()
    histogram.record(value)
    return Point(series, HARDWARE, name, at, histogram)


def replica_values(one: Site, minutes: int, **selected: str) -> dict[tuple[int, str], tuple[float, float]]:
    found = one.store.read.hardware(replace(one.around(), **selected), timedelta(minutes=minutes))
    starts = [int(at.timestamp()) for at in found["at"]]
    names = map(hardware_key, found["measure"], found["place"])
    return dict(zip(zip(starts, names, strict=True), zip(found["mean"], found["most"], strict=True), strict=True))


def test_means_are_exact_and_the_maximum_is_an_upper_bound(open_sqlite: OpenSite) -> None:
    one, rng = open_sqlite(), random.Random(1)
    values = [
        (START + 10 * rng.randrange(60), rng.choice(NAMES), rng.choice((0.0, rng.random(), 1e12 * rng.random())))
        for _ in range(60)
    ]
    one.store.write([Batch("a", [observed(value, name, at) for at, name, value in values])])
    expected: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
    for at, name, value in values:
        expected[at // 60 * 60, name].append(value)
    finest = replica_values(one, 1)
    one.store.maintain()

    for found in (finest, replica_values(one, 1)):
        assert found.keys() == expected.keys()
        for key, (mean, most) in found.items():
            assert mean == pytest.approx(sum(expected[key]) / len(expected[key]))
            assert max(expected[key]) * (1 - 1e-9) <= most <= max(expected[key]) * 1.022


def test_machine_metrics_are_those_of_the_whole_process(sqlite: Site) -> None:
    sqlite.store.write([Batch("a", [observed(0.5, "gpu web-1/gpu0", START)])])

    assert replica_values(sqlite, 1, route="/pay", model="m", status="error") == replica_values(sqlite, 1) != {}
    assert replica_values(sqlite, 1, service="bank") == {}


def test_machine_metrics_do_not_count_as_requests(sqlite: Site) -> None:
    sqlite.write([Request({"forward": 1000}, at=START)])
    before = sqlite.store.read.versions(sqlite.around())
    revision = sqlite.store.read.revision("shop")
    sqlite.store.write([Batch("later", [observed(0.1, "cpu web-1:7", START + 600)])])

    assert sqlite.store.read.versions(sqlite.around()).equals(before)
    assert sqlite.store.read.revision("shop") != revision


def test_replicas_over_the_cap_are_aggregated_hourly(open_sqlite: OpenSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_module, "MAX_PLACES", 2)
    one = open_sqlite(series_caps=SeriesCaps(custom_stages=0))
    names = [hardware_key(CPU.key, f"web:{pid}") for pid in range(4)]
    one.store.write([Batch("a", [observed(1.0, name, START) for name in names])])
    one.store.write([Batch("b", [observed(1.0, hardware_key(GPU.key, "new/gpu0"), START + 3600)])])
    found = {name for _, name in replica_values(one, 1)}

    assert found == {names[0], names[1], "cpu __other__", "gpu new/gpu0"}


def open_for(seconds: float, place: str, at: int, series: Series = SHOP, seen_us: int = 10_000_000) -> Point:
    histogram = Histogram()
    histogram.record(seconds, seen_us)
    histogram.sum = 0.0
    return Point(series, OPEN_TIME, hardware_key("open", place), at, histogram)


def test_a_request_that_was_open_at_one_of_ten_exports_is_not_open(sqlite: Site) -> None:
    sqlite.store.write([Batch("a", [open_for(0.01, "web-1:7", NOON - 30, seen_us=1_000_000)])])
    open_requests = sqlite.store.read.open_requests(sqlite.between(NOON - 3600, NOON))

    assert open_requests.empty
    assert open_requests.attrs["at"] is None


def test_open_requests_are_those_of_the_last_reports(open_sqlite: OpenSite) -> None:
    one, pay = open_sqlite(), replace(SHOP, route="/pay")
    reports = [open_for(85.0, "web-1:7", NOON - 40), open_for(95.0, "web-1:7", NOON - 30)]
    reports += [open_for(age, "web-1:7", NOON - 30, pay) for age in (0.2, 3.0)]
    one.store.write([Batch("a", reports), Batch("b", [open_for(2.0, "web-2:7", NOON - 30, pay)])])
    open_requests = one.store.read.open_requests(one.between(NOON - 3600, NOON))

    assert open_requests[["route", "place", "requests"]].to_numpy().tolist() == [
        [SHOP.route, "web-1:7", 1],
        ["/pay", "web-1:7", 2],
        ["/pay", "web-2:7", 1],
    ]
    assert open_requests["oldest_seconds"].tolist() == pytest.approx([95.0, 3.0, 2.0], rel=0.022)
    assert open_requests.attrs["at"] == one.between(NOON - 20, NOON).start
    assert one.store.read.open_longer_than(one.between(NOON - 3600, NOON), 1.0) == 3
    assert one.store.read.open_requests(one.between(NOON - 3600, NOON + 60)).empty
    (service,) = one.store.read.services(
        *(getattr(one.between(NOON - 3600, NOON), text) for text in ("start", "end"))
    ).to_dict("records")
    assert (service["service"], service["requests"]) == (SHOP.service, 0)
