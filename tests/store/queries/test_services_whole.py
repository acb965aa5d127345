"""Alignment of windows to buckets, because half an hour of an hourly bucket cannot be counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from stagelens.store import Retention
from stagelens.store.schema import Tier, whole_buckets
from tests.support.raw_requests import NOON, OpenSite, Request

HOUR = 3600
TIERS = [Tier(10, 0, 40 * HOUR), Tier(60, 0, 20 * HOUR), Tier(3600, 0, 0)]


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
    start, end = (datetime.fromtimestamp(NOON + minute * 60, UTC) for minute in (15, 45))
    grown = one.store.read.whole(start, end)

    assert grown == (datetime.fromtimestamp(NOON, UTC), datetime.fromtimestamp(NOON + HOUR, UTC))
    assert one.store.read.latency(one.between(NOON, NOON + HOUR)).count == 90
