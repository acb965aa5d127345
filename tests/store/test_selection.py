"""Windows in local time: days of 23 and 25 hours, and time zones off by half an hour."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from stagelens.store import Selection
from tests.support.raw_requests import OpenSite, Request

HOUR, QUARTER = timedelta(hours=1), 900


@pytest.mark.parametrize(
    ("zone", "month", "day", "hours"),
    [
        ("Europe/Berlin", 3, 29, [0, 1, *range(3, 24)]),
        ("Europe/Berlin", 10, 25, [0, 1, 2, *range(2, 24)]),
        ("Asia/Kolkata", 10, 25, [0, *range(24)]),
        ("Pacific/Chatham", 10, 25, [0, *range(24)]),
    ],
)
def test_a_local_day_has_all_its_requests(
    open_sql: OpenSite, zone: str, month: int, day: int, hours: list[int]
) -> None:
    one, local = open_sql(), ZoneInfo(zone)
    midnight, next_midnight = (datetime(2026, month, each, tzinfo=local) for each in (day, day + 1))
    start, end = (int(each.timestamp()) for each in (midnight - HOUR, next_midnight + HOUR))
    one.clock.now = end
    one.write([Request({"forward": 1_000_000}, at) for at in range(start, end, QUARTER)])
    one.store.maintain()
    window = Selection(midnight, next_midnight)
    steps = one.store.read.quantiles_over_time(window, [0.5], HOUR)
    elapsed = next_midnight.astimezone(UTC) - midnight.astimezone(UTC)

    assert one.store.read.latency(window).count == steps["n"].sum() == elapsed / timedelta(seconds=QUARTER)
    assert [at.tz_convert(local).hour for at in steps["at"]] == hours
