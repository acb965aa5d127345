"""Maintenance windows in local time, including clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.alerts.objectives.maintenance import (
    ActiveMaintenance,
    MaintenanceCalendar,
    OneTimeWindow,
    WeeklyWindow,
    merge_intervals,
)

BERLIN = ZoneInfo("Europe/Berlin")
HOUR, MINUTE, DAY = timedelta(hours=1), timedelta(minutes=1), timedelta(days=1)
# Time zones with changes of an hour, of half an hour, at midnight, and without changes.
ZONES = [ZoneInfo(name) for name in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Beirut", "UTC")]
START = datetime(2025, 1, 1, tzinfo=UTC)
moments = st.integers(0, 2 * 366 * 24 * 60).map(lambda minutes: START + minutes * MINUTE)
times = st.integers(0, 24 * 60 - 1).map(lambda minutes: timedelta(minutes=minutes))
weekly = st.builds(
    WeeklyWindow, st.frozensets(st.integers(0, 6), min_size=1), times, times, st.sampled_from(ZONES)
).filter(lambda each: each.start != each.end)
once = st.builds(lambda start, length: OneTimeWindow(start, start + length), moments, st.timedeltas(MINUTE, 10 * DAY))
calendars = st.builds(MaintenanceCalendar, st.lists(weekly | once, max_size=4).map(tuple))


@given(calendar=calendars, start=moments, length=st.timedeltas(MINUTE, 40 * DAY))
def test_maintenance_and_other_time_cover_the_period(
    calendar: MaintenanceCalendar, start: datetime, length: timedelta
) -> None:
    end = start + length
    planned, left = calendar.intervals(start, end), calendar.without(start, end)

    assert merge_intervals([*planned, *left]) == [(start, end)]
    assert sum((high - low for low, high in [*planned, *left]), timedelta(0)) == length
    assert all(one[1] < other[0] for one, other in pairwise(planned))


@given(work=weekly, at=moments)
def test_local_times_within_a_window_are_maintenance(work: WeeklyWindow, at: datetime) -> None:
    shown = at.astimezone(work.zone).replace(tzinfo=None)
    midnight = datetime.combine(shown.date(), datetime.min.time())
    until = work.end if work.end > work.start else work.end + DAY
    spans = [(day, day + until - work.start) for day in (midnight + work.start, midnight + work.start - DAY)]
    is_shown = any(low <= shown < high and (low - work.start).weekday() in work.days for low, high in spans)

    assert not is_shown or MaintenanceCalendar((work,)).at(at)


@given(work=weekly, at=moments)
def test_a_clock_change_shifts_a_window_by_at_most_an_hour(work: WeeklyWindow, at: datetime) -> None:
    written = work.end - work.start if work.end > work.start else work.end + DAY - work.start
    # A window at the edge of the period, or adjacent to the next one, is not checked.
    alone = WeeklyWindow(frozenset({min(work.days)}), work.start, work.end, work.zone)
    found = [
        interval
        for interval in MaintenanceCalendar((alone,)).intervals(at, at + 15 * DAY)
        if interval[0] > at and interval[1] < at + 15 * DAY
    ]

    assert all(abs((high - low) - written) <= HOUR for low, high in found)
    assert all(low < high for low, high in found)


@pytest.mark.parametrize(
    ("day", "start", "end", "expected"),
    [
        # At 01:00 UTC the clock in Berlin changes from 2 to 3.
        ("2026-03-29", "01:30", "03:30", ("2026-03-29T00:30", "2026-03-29T01:30")),
        ("2026-03-29", "02:15", "02:45", ("2026-03-29T00:15", "2026-03-29T01:45")),
        # When the clock changes from 3 to 2, 02:15 occurs twice.
        ("2026-10-25", "02:15", "02:45", ("2026-10-25T00:15", "2026-10-25T01:45")),
        ("2026-10-25", "01:00", "04:00", ("2026-10-24T23:00", "2026-10-25T03:00")),
        ("2026-10-24", "23:00", "01:00", ("2026-10-24T21:00", "2026-10-24T23:00")),
    ],
)
def test_both_occurrences_of_a_local_time_are_in_the_window(
    day: str, start: str, end: str, expected: tuple[str, str]
) -> None:
    first = datetime.fromisoformat(day)
    low, high = (timedelta(hours=int(text[:2]), minutes=int(text[3:])) for text in (start, end))
    work = WeeklyWindow(frozenset({first.weekday()}), low, high, BERLIN)
    around = first.replace(tzinfo=UTC)

    assert MaintenanceCalendar((work,)).intervals(around - DAY, around + 2 * DAY) == [
        tuple(datetime.fromisoformat(text).replace(tzinfo=UTC) for text in expected)
    ]


def test_a_current_maintenance_window_has_reason_and_end() -> None:
    start, hour = datetime(2026, 11, 20, tzinfo=UTC), timedelta(hours=1)
    disks, reboot = (
        OneTimeWindow(start, start + 2 * hour, "new disks"),
        OneTimeWindow(start + hour, start + 3 * hour, "reboot"),
    )
    nameless, later = (
        OneTimeWindow(start + hour, start + 2 * hour),
        OneTimeWindow(start + 3 * hour, start + 4 * hour, "checks"),
    )
    daily = WeeklyWindow(frozenset(range(7)), timedelta(0), DAY, BERLIN, "a closed shop")
    calendar = MaintenanceCalendar((disks, reboot, nameless, later))

    assert calendar.under_way(start) == ActiveMaintenance("new disks", start + 4 * hour)
    assert calendar.under_way(start + hour) == ActiveMaintenance("new disks, reboot", start + 4 * hour)
    assert calendar.under_way(start + 4 * hour) is None
    assert MaintenanceCalendar((daily,)).under_way(start) == ActiveMaintenance("a closed shop", None)
