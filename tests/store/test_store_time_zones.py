"""Windows in local time: days of 23 and 25 hours, and time zones off by half an hour."""

from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.store import Selection
from tests.support.raw_requests import OpenSite, Request, Site

BERLIN, KOLKATA, CHATHAM = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata"), ZoneInfo("Pacific/Chatham")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# The nights in which clocks change in Berlin, and requests on the days around them.
SPRING, AUTUMN = datetime(2026, 3, 29, tzinfo=BERLIN), datetime(2026, 10, 25, tzinfo=BERLIN)
PER_HOUR = 2
EVERY = 3600 // PER_HOUR


def lived(one: Site, times: range) -> Site:
    one.clock.now = times[-1] + EVERY
    one.write([Request({"forward": 1_000_000}, at) for at in times])
    one.store.maintain()
    return one


def moments(around: datetime, before: timedelta = DAY, after: timedelta = 2 * DAY) -> range:
    at = around.astimezone(UTC)
    return range(int((at - before).timestamp()), int((at + after).timestamp()), EVERY)


@pytest.fixture(scope="module")
def autumn(open_sql: OpenSite, opened_sites: list[Site]) -> Generator[Site]:
    one = lived(open_sql(), moments(AUTUMN))
    opened_sites.remove(one)
    yield one
    one.close()


@pytest.mark.parametrize(("change", "hours"), [(SPRING, 23), (AUTUMN, 25)])
def test_a_day_with_a_clock_change_has_all_requests(open_sql: OpenSite, change: datetime, hours: int) -> None:
    one = lived(open_sql(), moments(change, HOUR, 26 * HOUR))
    day = Selection(change, datetime(change.year, change.month, change.day + 1, tzinfo=BERLIN))
    steps = one.store.read.quantiles_over_time(day, [0.5], HOUR)
    local = [at.tz_convert(BERLIN).hour for at in steps["at"]]

    assert one.store.read.latency(day).count == hours * PER_HOUR
    assert steps["n"].tolist() == [PER_HOUR] * hours
    assert local == ([0, 1, *range(3, 24)] if hours == 23 else [0, 1, 2, *range(2, 24)])


def test_the_hour_that_comes_twice_is_two_hours(autumn: Site) -> None:
    first = AUTUMN.replace(hour=2, minute=30)
    both = [
        autumn.store.read.latency(Selection(first.replace(fold=fold), first.replace(fold=fold).astimezone(UTC) + HOUR))
        for fold in (0, 1)
    ]
    between = autumn.store.read.latency(Selection(first.replace(fold=0), first.replace(fold=1)))

    assert [found.count for found in both] == [PER_HOUR] * 2
    assert between.count == PER_HOUR


@pytest.mark.parametrize("zone", [BERLIN, KOLKATA, CHATHAM])
def test_daily_steps_contain_every_request(autumn: Site, zone: ZoneInfo) -> None:
    window = Selection(datetime(2026, 10, 24, 9, tzinfo=zone), datetime(2026, 10, 26, 21, tzinfo=zone))
    steps = autumn.store.read.quantiles_over_time(window, [0.5], DAY)

    assert steps["n"].sum() == autumn.store.read.latency(window).count == expected(window)
    assert all(at.hour == 0 for at in steps["at"][1:])


@pytest.mark.parametrize(("zone", "minutes"), [(KOLKATA, 30), (CHATHAM, 15)])
def test_days_of_a_half_hour_time_zone_are_exact(autumn: Site, zone: ZoneInfo, minutes: int) -> None:
    midnight = datetime(2026, 10, 25, tzinfo=zone)
    day = Selection(midnight, midnight + DAY)

    assert midnight.astimezone(UTC).minute == minutes
    assert autumn.store.read.latency(day).count == 24 * PER_HOUR
    assert autumn.store.read.quantiles_over_time(day, [0.5], HOUR)["n"].sum() == 24 * PER_HOUR


def expected(window: Selection) -> int:
    start, end = window.seconds
    return sum(start <= at < end for at in moments(AUTUMN))


def test_any_window_in_any_time_zone_is_exact(autumn: Site) -> None:
    @settings(max_examples=10, deadline=None)
    @given(
        zone=st.sampled_from([UTC, BERLIN, KOLKATA, CHATHAM]),
        start=st.integers(0, 3 * 1440),
        minutes=st.integers(1, 3000),
        step=st.sampled_from([timedelta(minutes=1), timedelta(minutes=10), HOUR, DAY]),
    )
    def check(zone: ZoneInfo, start: int, minutes: int, step: timedelta) -> None:
        first = (AUTUMN.astimezone(UTC) - DAY + timedelta(minutes=start)).astimezone(zone)
        window = Selection(first, (first.astimezone(UTC) + timedelta(minutes=minutes)).astimezone(zone))

        assert autumn.store.read.latency(window).count == expected(window)
        steps = autumn.store.read.quantiles_over_time(window, [0.5], step)
        # Steps wider than the available data take whole hours.
        if steps.attrs["step_seconds"] == step.total_seconds() and minutes * 60 > step.total_seconds():
            assert steps["n"].sum() == expected(window)

    check()
