"""Queries for services and their versions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from stagelens.store import Selection
from tests.support.raw_requests import NOON, Request, Series, Site


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


def test_a_service_without_requests_in_the_window_is_not_listed(one: Site) -> None:
    frame = one.store.read.services(utc(NOON - 7300), utc(NOON - 3000))

    assert frame[["service", "requests", "errors"]].to_numpy().tolist() == [["shop", 7, 0]]


def test_the_last_bucket_of_a_silent_service_is_exact(one: Site) -> None:
    frame = one.store.read.services(utc(NOON - 86_400), utc(NOON - 3600))

    assert frame["last_seen"].tolist() == [utc(NOON - 3610)]


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
    assert frame["first_seen"].tolist() == [utc(NOON - each) for each in (600, 7210, 3610)]
    assert frame["last_seen"].tolist() == [utc(NOON - each) for each in (600, 7210, 50)]
    assert list(elsewhere.columns) == list(frame.columns)
    assert elsewhere.empty


def test_dimension_values_are_sorted_by_requests(one: Site) -> None:
    shop = Selection(utc(NOON - 86_400), utc(NOON), service="shop")
    late = Selection(utc(NOON - 3700), utc(NOON), service="shop")
    found = one.store.read.dimensions(shop)

    assert list(found["model"].items()) == [("new", 5), ("old", 3)]
    assert found["version"] == {"2": 5, "1": 3}
    assert found["status"] == {"ok": 7, "error": 1}
    assert found["device"] == {}
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
        read.breakdown(chosen, [0.5]),
        read.dominants(chosen, [0.5]),
        read.breakdown_over_time(chosen, 0.5, minute),
        read.quantiles_over_time(chosen, [0.5], minute),
        read.heat(chosen, minute),
        read.compare(chosen, chosen, 0.5),
        read.exemplars(chosen),
        read.one_per_cause(chosen, 5),
        read.slo_series(chosen, 0.1, minute),
        read.bad_breakdown(chosen, 0.1),
    ]

    assert [len(frame) for frame in frames] == [0] * len(frames)
    assert all(len(frame.columns) >= 3 for frame in frames)
    assert (read.latency(chosen).count, read.stage_latency(chosen), read.trace("ab" * 16)) == (0, {}, None)


def test_a_time_without_a_zone_is_refused(one: Site) -> None:
    naive = datetime(2026, 11, 20, 12)  # noqa: DTZ001 - the tested error

    with pytest.raises(ValueError, match=r"must be aware.*datetime\.now\(UTC\)"):
        one.store.read.latency(Selection(naive, naive))
