"""Requests by attribute and by replica, from every tier, exact or sampled."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import numpy as np
import pytest

from stagelens.analysis.attributes import AttributeCounts
from stagelens.core import names
from stagelens.core.attributes import ATTRIBUTE_SCALE
from stagelens.core.histogram import Histogram, bucket_index
from stagelens.store import Batch, Point, Selection
from stagelens.store.queries import attributes
from stagelens.store.series import MAX_ATTRIBUTE_VALUES, MAX_ATTRIBUTES
from tests.support.raw_requests import NOON, NS, PointAggregator, Request, Series, Site

HOUR, DAY = 3600, 86_400
FAST, SLOW = Series("shop", "1", route="/fast"), Series("shop", "2", route="/slow")


def latency(seconds: float, count: int) -> Histogram:
    histogram = Histogram(ATTRIBUTE_SCALE)
    histogram.record(seconds, count)
    return histogram


def attribute(key: str, at: int, seconds: float = 0.1, count: int = 1, series: Series = FAST) -> Point:
    return Point(series, names.REQUEST_BY_ATTRIBUTE, key, at, latency(seconds, count))


def stage(key: str, at: int, seconds: float, microseconds: int) -> Point:
    spent = Histogram(ATTRIBUTE_SCALE, {bucket_index(seconds, ATTRIBUTE_SCALE): microseconds})
    return Point(FAST, names.REPLICA_STAGE_TIME, key, at, spent)


def write(one: Site, points: list[Point]) -> None:
    assert one.store.write([Batch(uuid.uuid4().hex, points)]) == [True]


def totals(found: AttributeCounts, name: str) -> dict[str, int]:
    return {value: int(counts.sum()) for value, counts in found.requests[name].items()}


def requests(number: int, series: Series, at: int, seconds: float = 0.1) -> Iterator[Point]:
    yield from PointAggregator().points([Request({"forward": int(seconds * NS)}, at, series)] * number)


def test_requests_are_counted_by_value_step_and_bucket(site: Site) -> None:
    write(site, [attribute("tenant=acme", NOON - 300, 0.1, 3), attribute("tenant=", NOON - 120, 2.0, 1, SLOW)])
    write(site, [*requests(3, FAST, NOON - 300), *requests(1, SLOW, NOON - 120, 2.0)])
    found = site.store.read.attributes(site.between(NOON - 600, NOON, service="shop"))
    acme = found.requests["tenant"]["acme"]
    at, bucket = np.argwhere(acme)[0].tolist()

    assert (len(found.starts), found.scale, found.starts[at], acme[at, bucket]) == (10, 2, NOON - 300, 3)
    assert found.index[bucket] == bucket_index(0.1, ATTRIBUTE_SCALE)
    assert totals(found, "tenant") == {"acme": 3, "": 1}
    assert totals(found, "route") == {"/fast": 3, "/slow": 1}
    assert np.array_equal(found.requests["route"]["/fast"], acme)
    assert totals(found, "version") == {"1": 3, "2": 1}
    assert totals(found, "status") == {"ok": 4}


@pytest.mark.parametrize("age", [0, 2 * HOUR, 3 * DAY, 30 * DAY])
def test_attributes_are_in_every_tier_and_replicas_for_two_weeks(site: Site, age: int) -> None:
    times = [(number, NOON - 60 * number - 30) for number in range(30)]
    write(site, [attribute(f"tenant={number % 3}", at) for number, at in times])
    write(site, [attribute(f"replica=web-{number % 2}:7", at) for number, at in times])
    write(site, [stage(f"forward;web-{number % 2}:7", at, 0.1, 100_000) for number, at in times])
    write(site, [point for _, at in times for point in requests(1, FAST, at)])
    site.clock.now = NOON + age
    # Data after a gap delete nothing until they have arrived for a day.
    write(site, [point for day in (0, 1, 2) if day * DAY <= age for point in requests(1, FAST, NOON + age - day * DAY)])
    site.store.maintain()
    around = site.between(NOON - HOUR, NOON, service="shop")
    found, replicas = site.store.read.attributes(around), site.store.read.replica_counts(around)
    expired = age > 14 * DAY

    assert totals(found, "tenant") == {"0": 10, "1": 10, "2": 10}
    assert totals(found, "route") == {"/fast": 30}
    assert ("replica" in found.requests) != expired
    assert [(replica.place, replica.requests.sum()) for replica in replicas.replicas] == (
        [] if expired else [("web-0:7", 15), ("web-1:7", 15)]
    )
    assert all(replica.stages["forward"].sum() == 1_500_000 for replica in replicas.replicas)


def test_a_long_window_has_replicas_from_the_minutes(site: Site) -> None:
    ages = range(1800, 2 * DAY, 4 * HOUR)
    for age in ages:
        write(site, [attribute("tenant=acme", NOON - age), attribute("replica=web-1:7", NOON - age)])
    site.store.maintain()
    found = site.store.read.attributes(site.between(NOON - 2 * DAY, NOON, service="shop"))

    assert totals(found, "tenant") == {"acme": len(ages)}
    assert totals(found, "replica") == {"web-1:7": len(ages)}
    assert np.array_equal(found.requests["tenant"]["acme"], found.requests["replica"]["web-1:7"])


def test_a_selection_of_a_route_has_its_attributes_only(site: Site) -> None:
    write(site, [attribute("tenant=a", NOON - 300, count=3), attribute("tenant=b", NOON - 300, series=SLOW)])
    site.clock.now += HOUR
    site.store.maintain()

    assert totals(site.store.read.attributes(site.around(service="shop", route="/slow")), "tenant") == {"b": 1}
    assert totals(site.store.read.attributes(site.around(service="shop", version="1")), "tenant") == {"a": 3}


def test_attributes_do_not_count_as_requests(site: Site) -> None:
    write(site, [*requests(1, FAST, NOON - 3000)])
    write(site, [attribute("tenant=a", NOON - 300, count=9), stage("forward;web-1:7", NOON - 300, 0.1, 5)])

    assert site.store.read.latency(site.around()).count == 1
    assert site.store.read.first_seen(site.around(service="shop")) == site.store.read.first_seen(
        site.between(NOON - HOUR, NOON - 2000, service="shop")
    )
    assert site.store.read.services(site.around().start, site.around().end)["requests"].tolist() == [1]


def test_values_and_attributes_beyond_the_cap_share_a_key(site: Site) -> None:
    values = [attribute(f"tenant={number}", NOON - 300) for number in range(MAX_ATTRIBUTE_VALUES + 5)]
    write(site, [*values, *(attribute(f"a{number}=x", NOON - 300) for number in range(MAX_ATTRIBUTES + 5))])
    write(site, [stage(f"forward;web-{number}:7", NOON - 300, 0.1, 1) for number in range(MAX_ATTRIBUTE_VALUES + 5)])
    found = site.store.read.attributes(site.around(service="shop"))
    tenants = totals(found, "tenant")

    assert (len(tenants), tenants["__other__"], sum(tenants.values())) == (101, 5, 105)
    assert len([name for name in found.requests if name.startswith("a")]) == MAX_ATTRIBUTES - 1
    assert "__other__" not in found.requests


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        pytest.param(["a:7", "b:7", "@10.0.0.1:80", "@10.0.0.2:80"], ["a:7", "b:7"], id="both"),
        pytest.param(["@10.0.0.1:80", "@10.0.0.2:80"], ["10.0.0.1:80", "10.0.0.2:80"], id="scraped only"),
        pytest.param(["a:7", "@10.0.0.1:80", "@10.0.0.2:80"], ["10.0.0.1:80", "10.0.0.2:80"], id="spans of one only"),
    ],
)
def test_scraped_engines_are_not_counted_beside_their_spans(site: Site, stored: list[str], shown: list[str]) -> None:
    for place in stored:
        write(site, [attribute(f"replica={place}", NOON - 300), stage(f"decode;{place}", NOON - 300, 0.1, 5)])
    around = site.around(service="shop")
    table = site.store.read.replica_counts(around)

    assert [(replica.place, replica.stages["decode"].sum()) for replica in table.replicas] == [
        (place, 5) for place in shown
    ]
    assert totals(site.store.read.attributes(around), "replica") == dict.fromkeys(shown, 1)


@pytest.mark.parametrize("steps", [1, 7, 60])
def test_steps_cover_any_window(site: Site, steps: int) -> None:
    write(site, [attribute("tenant=a", NOON - 60 * number - 5) for number in range(90)])
    site.store.maintain()
    for start, end in ((NOON - HOUR, NOON), (NOON - 5011, NOON - 17), (NOON - 2 * DAY, NOON + 100)):
        found = site.store.read.attributes(site.between(start, end, service="shop"), steps)
        expected = sum(start <= NOON - 60 * number - 5 - (NOON - 5) % 10 < end for number in range(90))

        assert len(found.starts) <= max(steps, 2)
        assert totals(found, "tenant")["a"] == expected


def test_too_many_rows_are_sampled_evenly(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    write(site, [attribute(f"tenant={minute % 2}", NOON - 60 * minute - 60) for minute in range(6 * 60)])
    site.store.maintain()
    around = site.between(NOON - 6 * HOUR, NOON, service="shop")
    whole = site.store.read.attributes(around, 60)
    monkeypatch.setattr(attributes, "MAX_ROWS", 150)
    part = site.store.read.attributes(around, 60)
    counts = np.sum(list(part.requests["tenant"].values()), axis=(0, 2))

    assert totals(whole, "tenant") == {"0": 180, "1": 180}
    assert counts.tolist() == [2] * 60
    assert np.array_equal(part.starts, whole.starts)


def test_without_data_there_are_no_attributes(site: Site) -> None:
    nothing: Selection = site.around(service="nothing")
    # A process without a name is no replica.
    write(site, [attribute("replica=", NOON - 300), stage("forward;", NOON - 300, 0.1, 5)])

    assert site.store.read.replica_counts(site.around(service="shop")).replicas == []
    assert site.store.read.attributes(nothing).requests == {}
    assert site.store.read.replica_counts(nothing).replicas == []
