"""State of the store: size forecast, use of disk space, and capped values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.store import Retention, Series, SeriesCaps
from stagelens.store.queries.state import CappedDimension, TierStorage, TierUse, days_until_full
from stagelens.store.schema import TIERS
from tests.support.raw_requests import NOON, OpenSite, Request, Site

HOUR, DAY = 3600, 86_400


def steady(hours: int, hourly: float, kept_days: int = 10) -> TierUse:
    first = NOON - hours * HOUR
    slots = {first + hour * HOUR: hourly for hour in range(hours)}
    return TierUse(kept_days * DAY, HOUR, first, NOON, slots)


@given(hours=st.integers(1, 24 * 10), hourly=st.floats(1, 1e9), kept_days=st.integers(10, 400))
def test_the_size_of_a_steady_tier_converges_to_rate_times_retention(hours: int, hourly: float, kept_days: int) -> None:
    tier = steady(hours, hourly, kept_days)

    assert tier.bytes_per_day == pytest.approx(24 * hourly)
    assert tier.settled_bytes == pytest.approx(24 * hourly * kept_days)
    assert tier.bytes_after(0, NOON) == pytest.approx(hours * hourly)
    assert tier.bytes_after(kept_days + 1, NOON) == pytest.approx(tier.settled_bytes)


def test_the_last_day_determines_the_rate() -> None:
    slots = {NOON - hour * HOUR: 10.0 if hour <= 24 else 100.0 for hour in range(1, 24 * 5 + 1)}
    tier = TierUse(6 * DAY, HOUR, NOON - 5 * DAY, NOON, slots)

    incomplete = TierUse(DAY, HOUR, NOON, NOON + HOUR // 2, {NOON: 50.0})

    assert incomplete.bytes_per_day == pytest.approx(24 * 100)
    assert tier.bytes_per_day == pytest.approx(240)
    assert tier.bytes_after(6, NOON) == pytest.approx(240 * 6, rel=0.01)


def test_the_forecast_names_the_day_of_the_budget_limit() -> None:
    tier, empty = steady(24, 100), TierUse(DAY, HOUR, NOON, NOON, {})

    assert (empty.bytes_per_day, empty.settled_bytes, days_until_full([empty], 10, 100, NOON)) == (0, 0, None)
    assert days_until_full([tier], 0, 10_000, NOON) == 3
    assert days_until_full([tier], 5000, 10_000, NOON) == 1
    assert days_until_full([tier], 9500, 10_000, NOON) == 0
    assert days_until_full([tier], 0, 30_000, NOON) is None


def test_storage_sizes_add_up_to_the_store_size(open_sqlite: OpenSite) -> None:
    one = open_sqlite(retention=Retention(budget_bytes=10 * 1024**3))
    for hour in range(3, 0, -1):
        one.write([Request({"forward": 1_000_000 + step}, NOON - hour * HOUR + step * 10) for step in range(300)])
    one.store.maintain()
    storage = one.store.read.storage()
    with one.store.engine.connect() as connection:
        rows = {tier: len(one.store.points.load(connection, tier, 0, NOON)) for tier in TIERS}

    assert {tier.seconds: tier.rows for tier in storage.tiers} == rows
    assert sum(tier.bytes for tier in storage.tiers) == pytest.approx(storage.tables["points"], abs=3)
    assert sum(storage.tables.values()) == pytest.approx(storage.used_bytes, rel=0.3)
    assert storage.full_at is None
    assert storage.settled_bytes > storage.used_bytes
    assert storage.tiers[0].retention == timedelta(hours=24)


def test_the_forecast_equals_the_later_size(open_sqlite: OpenSite) -> None:
    one = open_sqlite(retention=Retention(seconds_10=timedelta(hours=12), minutes=timedelta(hours=12)))
    tiers: list[list[TierStorage]] = []
    for hours in (3, 14):
        for _ in range(hours):
            start = int(one.clock.now)
            one.clock.now += HOUR
            one.write([Request({"forward": 1_000_000 * (1 + step % 50)}, start + 10 * step) for step in range(360)])
            one.store.maintain()
        tiers.append(list(one.store.read.storage().tiers[:2]))

    for early, late in zip(*tiers, strict=True):
        assert late.bytes == pytest.approx(early.settled_bytes, rel=0.15)
        assert late.bytes > 2.5 * early.bytes


def test_an_empty_store_has_a_size_and_no_forecast(open_sqlite: OpenSite) -> None:
    storage = open_sqlite().store.read.storage()

    assert storage.used_bytes > 0
    assert [(tier.rows, tier.since, tier.bytes_per_day) for tier in storage.tiers] == [(0, None, 0)] * len(TIERS)
    assert (storage.budget_bytes, storage.full_at) == (None, None)


def test_a_used_up_budget_is_full_today(sqlite: Site) -> None:
    sqlite.write([Request({"forward": 1_000_000})])
    sqlite.options["retention"] = Retention(budget_bytes=sqlite.store.read.state().size_bytes)
    sqlite.reopen()

    assert sqlite.store.read.storage().full_at == datetime.fromtimestamp(NOON, UTC)


def test_values_over_their_cap_are_reported_for_a_day(open_sqlite: OpenSite) -> None:
    one = open_sqlite(series_caps=SeriesCaps(route=3, custom_stages=2))
    for name in ("shop", "desk", "till"):
        routes = range(5 if name == "shop" else 3)
        one.write([Request({"forward": 1_000_000}, series=Series(name, "1", route=f"/{n}")) for n in routes])
    one.write([Request({"mine": 1000, "yours": 2000, "ours": 3000})])
    one.write([Request({"mine": 1000, "yours": 2000}, series=Series("desk", "1"))])

    assert one.store.read.capped_dimensions() == [
        CappedDimension("shop", "custom_stages", 2),
        CappedDimension("shop", "route", 3),
    ]
    one.clock.now += 2 * DAY
    assert one.store.read.capped_dimensions() == []
