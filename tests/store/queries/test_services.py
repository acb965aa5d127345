"""Queries for services and their versions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.store import Indicator, Retention, Selection
from stagelens.store.schema import Tier, whole_buckets
from tests.support.raw_requests import NOON, OpenSite, Request, Series, Site

HOUR = 3600
TIERS = [Tier(10, 0, 40 * HOUR), Tier(60, 0, 20 * HOUR), Tier(3600, 0, 0)]


def utc(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@pytest.fixture
def one(sqlite: Site) -> Site:
    sqlite.write([Request({"forward": 1}, NOON - 7205, Series("shop", "1", "prod", "old"))] * 3)
    sqlite.write([Request({"forward": 1}, NOON - 3601, Series("shop", "2", "prod", "new"))] * 4)
    sqlite.write([Request({"forward": 1}, NOON - 45, Series("shop", "2", "prod", "new", status="error"))])
    sqlite.write([Request({"forward": 1}, NOON - 600, Series("bank"))])
    sqlite.store.maintain()
    return sqlite


def test_a_service_is_one_row(one: Site) -> None:
    frame = one.store.read.services(utc(NOON - 86_400), utc(NOON)).set_index("service")

    assert frame.index.tolist() == ["bank", "shop"]
    assert frame.loc["shop"].to_dict() == {
        "versions": ["2", "1"],
        "newest": "2",
        "model": "new",
        "environment": "prod",
        "requests": 8,
        "errors": 1,
        "cancelled": 0,
        "first_seen": pd.Timestamp(utc(NOON - 7210)),
        "last_seen": pd.Timestamp(utc(NOON - 50)),
    }
    # A service without requests in the window is not listed, and its last bucket is exact.
    earlier = one.store.read.services(utc(NOON - 7300), utc(NOON - 3000))
    assert earlier[["service", "requests", "errors"]].to_numpy().tolist() == [["shop", 7, 0]]
    assert earlier["last_seen"].tolist() == [utc(NOON - 3610)]


def test_versions_cover_the_whole_history(one: Site) -> None:
    frame = one.store.read.versions(one.between(NOON - 3000, NOON, service="shop", version="2"))

    assert frame["version"].tolist() == ["1", "2"]
    assert frame["requests"].tolist() == [0, 1]
    assert frame["first_seen"].tolist() == [utc(NOON - 7210), utc(NOON - 3610)]
    assert frame["last_seen"].tolist() == [utc(NOON - 7210), utc(NOON - 50)]


def test_the_releases_of_all_services_are_one_query(one: Site) -> None:
    frame = one.store.read.releases()
    elsewhere = one.store.read.releases("nowhere")

    assert frame[["service", "version"]].to_numpy().tolist() == [["bank", ""], ["shop", "1"], ["shop", "2"]]
    assert frame["first_seen"].tolist() == [utc(NOON - number) for number in (600, 7210, 3610)]
    assert frame["last_seen"].tolist() == [utc(NOON - number) for number in (600, 7210, 50)]
    assert list(elsewhere.columns) == list(frame.columns)
    assert elsewhere.empty


def test_dimension_values_are_sorted_by_requests(one: Site) -> None:
    shop = Selection(utc(NOON - 86_400), utc(NOON), service="shop")
    late = Selection(utc(NOON - 3700), utc(NOON), service="shop")
    dimensions = one.store.read.dimensions(shop)

    assert list(dimensions["model"].items()) == [("new", 5), ("old", 3)]
    assert dimensions["version"] == {"2": 5, "1": 3}
    assert dimensions["status"] == {"ok": 7, "error": 1}
    assert dimensions["device"] == {}
    assert one.store.read.dimensions(late)["model"] == {"new": 5}


def test_dimensions_filter_requests(one: Site) -> None:
    counts = {
        str(wanted): one.store.read.latency(one.around(**wanted)).count
        for wanted in (
            {"service": "shop", "version": "2"},
            {"service": "shop", "status": "error"},
            {"environment": "prod", "model": "old"},
            {"version": ""},
            {"route": "/none"},
        )
    }

    assert list(counts.values()) == [5, 1, 3, 1, 0]


def test_empty_results_have_their_columns(sqlite: Site) -> None:
    read, chosen, minute = sqlite.store.read, sqlite.around(), timedelta(minutes=1)
    frames = [
        read.services(chosen.start, chosen.end),
        read.versions(chosen),
        read.fleet(chosen.start, chosen.end, [0.5]),
        read.fleet_over_time(chosen.start, chosen.end, minute),
        read.breakdown(chosen, [0.5]),
        read.dominants(chosen, [0.5]),
        read.breakdown_over_time(chosen, 0.5, minute),
        read.quantiles_over_time(chosen, [0.5], minute),
        read.heat(chosen, minute),
        read.compare(chosen, chosen, 0.5),
        read.exemplars(chosen),
        read.one_per_cause(chosen, 5),
        read.tally_series(chosen, Indicator("latency", 0.1), minute),
        read.bad_breakdown(chosen, 0.1),
        read.bad_over_time(chosen, 0.1, minute),
    ]

    assert [len(frame) for frame in frames] == [0] * len(frames)
    assert all(len(frame.columns) >= 3 for frame in frames)
    assert (read.latency(chosen).count, read.stage_latency(chosen), read.trace("ab" * 16)) == (0, {}, None)


def test_a_time_without_a_zone_is_refused(one: Site) -> None:
    naive = datetime(2026, 11, 20, 12)  # noqa: DTZ001 - the tested error

    with pytest.raises(ValueError, match=r"must be aware.*datetime\.now\(UTC\)"):
        one.store.read.latency(Selection(naive, naive))


@given(start=st.integers(0, 60 * HOUR), length=st.integers(1, 30 * HOUR))
def test_a_window_extends_to_bucket_boundaries(start: int, length: int) -> None:
    end = start + length
    first, last = whole_buckets(TIERS, start, end)
    here, there = (next(tier.seconds for tier in TIERS if tier.kept_from <= at) for at in (start, end))

    assert first <= start < first + here
    assert last - there < end <= last
    assert (first % here, last % there) == (0, 0)


def test_an_hour_without_minute_data_is_read_completely(open_sqlite: OpenSite) -> None:
    one = open_sqlite(retention=Retention(seconds_10=timedelta(hours=2), minutes=timedelta(hours=3)))
    one.write([Request({"forward": 1_000_000}, NOON + 40 * minute) for minute in range(90)])
    one.store.maintain()
    # Data after a gap delete nothing until they have arrived for a day.
    for _ in range(4):
        one.clock.now += 20 * HOUR
        one.write([Request({"forward": 1_000_000}, int(one.clock.now))])
    one.store.maintain()
    start, end = (utc(NOON + minute * 60) for minute in (15, 45))
    grown = one.store.read.whole(start, end)

    assert grown == (utc(NOON), utc(NOON + HOUR))
    assert one.store.read.latency(one.between(NOON, NOON + HOUR)).count == 90
