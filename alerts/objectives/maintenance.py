"""Maintenance windows: requests within them do not count for SLOs, and incidents within them are not notified."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from ...core.settings.yaml_config import Document, Fields, Place, meant

# `[start, end)` in UTC.
Interval = tuple[datetime, datetime]
_DAY = timedelta(days=1)
# Limit of the search for the end of a window, because daily windows without a gap have no end.
_AHEAD = timedelta(days=31)
MONDAY_TO_SUNDAY = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_EVERY = ("day", *MONDAY_TO_SUNDAY)
_TIME = re.compile(r"(\d{1,2}):([0-5]\d)")
_MINUTES_A_DAY = 1440


@dataclass(frozen=True, slots=True)
class OneTimeWindow:
    """One-time maintenance window.

    Args:
        start: Start; timezone-aware.
        end: End, later than *start*.
        why: Reason; may be empty.
    """

    start: datetime
    end: datetime
    why: str = ""

    def intervals(self, start: datetime, end: datetime) -> Iterator[Interval]:
        """Yield the parts of `[start, end)` within the window."""
        yield max(start, self.start), min(end, self.end)


@dataclass(frozen=True, slots=True)
class WeeklyWindow:
    """Weekly maintenance window on certain days.

    At a clock change a local time may occur twice. The window covers both, so it may be one hour too long but never too short.

    Args:
        days: Weekdays; Monday is 0.
        start: Start in local time, since midnight.
        end: End in local time, since midnight; at or before *start*, the window ends on the next day.
        zone: Time zone.
        why: Reason; may be empty.
    """

    days: frozenset[int]
    start: timedelta
    end: timedelta
    zone: ZoneInfo
    why: str = ""

    def intervals(self, start: datetime, end: datetime) -> Iterator[Interval]:
        """Yield the parts of `[start, end)` within the window."""
        # Yesterday's window may extend into today.
        day = start.astimezone(self.zone).date() - _DAY
        last = end.astimezone(self.zone).date()
        while day <= last:
            if day.weekday() in self.days:
                until = self.end if self.end > self.start else self.end + _DAY
                yield max(start, min(self._readings(day, self.start))), min(end, max(self._readings(day, until)))
            day += _DAY

    def _readings(self, day: date, time: timedelta) -> tuple[datetime, datetime]:
        """Return the earliest and the latest UTC time for the local *time* on *day*; they differ only at a clock change."""
        shown = datetime.combine(day, datetime.min.time()) + time
        early, late = (shown.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        return early, late


@dataclass(frozen=True, slots=True)
class ActiveMaintenance:
    """Maintenance window in progress.

    Args:
        why: Reason; may be empty.
        until: End; None if it is more than a month away.
    """

    why: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class MaintenanceCalendar:
    """All maintenance windows of one SLO."""

    planned: tuple[OneTimeWindow | WeeklyWindow, ...] = ()

    def intervals(self, start: datetime, end: datetime) -> list[Interval]:
        """Return the parts of `[start, end)` within windows: disjoint, in order of time, in UTC."""
        return merge_intervals(found for each in self.planned for found in each.intervals(start, end))

    def at(self, moment: datetime) -> bool:
        """Return whether *moment* is within a window."""
        return bool(self.intervals(moment, moment + timedelta(microseconds=1)))

    def under_way(self, moment: datetime) -> ActiveMaintenance | None:
        """Return the window in progress at *moment*, or None; adjacent windows count as one."""
        now = [each.why for each in self.planned if MaintenanceCalendar((each,)).at(moment)]
        if not now:
            return None
        far = moment + _AHEAD
        end = self.intervals(moment, far)[0][1]
        return ActiveMaintenance(", ".join(dict.fromkeys(filter(None, now))), end if end < far else None)

    def without(self, start: datetime, end: datetime) -> list[Interval]:
        """Return the parts of `[start, end)` outside all windows: disjoint, in order of time, in UTC."""
        left: list[Interval] = []
        at = start.astimezone(UTC)
        for low, high in self.intervals(start, end):
            left.append((at, low))
            at = high
        left.append((at, end.astimezone(UTC)))
        return [each for each in left if each[0] < each[1]]


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return *intervals* in order of time; merge adjacent or overlapping ones and drop empty ones."""
    made: list[Interval] = []
    for low, high in sorted((low.astimezone(UTC), high.astimezone(UTC)) for low, high in intervals if low < high):
        if made and low <= made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], high)
        else:
            made.append((low, high))
    return made


@dataclass(frozen=True, slots=True)
class MaintenanceEntry:
    """Entry of `maintenance` in the SLO file: a window, and the SLOs to which it applies.

    Args:
        when: The window.
        services: Services; empty for all.
        slos: Names of SLOs; empty for all.
    """

    when: OneTimeWindow | WeeklyWindow
    services: frozenset[str]
    slos: frozenset[str]

    def concerns(self, service: str, slo: str) -> bool:
        """Return whether the window applies to the SLO *slo* of *service*."""
        return (not self.services or service in self.services) and (not self.slos or slo in self.slos)


def calendar_of(planned: Sequence[MaintenanceEntry], service: str, slo: str) -> MaintenanceCalendar:
    """Return the windows of *planned* that apply to the SLO *slo* of *service*."""
    return MaintenanceCalendar(tuple(each.when for each in planned if each.concerns(service, slo)))


def read_maintenance(
    document: Document, place: Place, item: Any, services: Collection[str], slos: Collection[str]
) -> MaintenanceEntry | None:
    """Parse one entry of `maintenance`; *services* and *slos* are the known names.

    Returns:
        The entry; None if it is invalid, with the errors added to the document's problems.
    """
    fields = Fields(document, place, item, example="from: 2026-11-28T02:00Z")
    if fields.broken:
        return None
    when = _weekly(fields) if fields.has("every") else _once(fields)
    of_services = _known(fields, "services", services, "service of an SLO")
    of_slos = _known(fields, "slos", slos, "SLO")
    fields.finish()
    return MaintenanceEntry(when, of_services, of_slos) if when else None


def _once(fields: Fields) -> OneTimeWindow | None:
    start = fields.moment("from", example="2026-11-28T02:00Z")
    end = fields.moment("to", example="2026-11-28T04:00Z")
    why = fields.text("why")
    if fields.has("zone"):
        fields.text("zone")
        fields.complain(
            f"{fields.name('zone')} goes with `every` only; put the zone into the times, such as +01:00", "zone"
        )
    if start is None or end is None:
        return None
    if end <= start:
        fields.complain(f"{fields.name('to')} is not after {fields.name('from')}; write a later time", "to")
        return None
    return OneTimeWindow(start, end, why)


def _weekly(fields: Fields) -> WeeklyWindow | None:
    days = _days(fields)
    start, end = _time_of_day(fields, "from", "02:00"), _time_of_day(fields, "to", "04:00")
    zone = _zone(fields)
    why = fields.text("why")
    if days is None or start is None or end is None or zone is None:
        return None
    if start == end:
        fields.complain(f"{fields.name('to')} is the same time as {fields.name('from')}; write when it ends", "to")
        return None
    return WeeklyWindow(days, start, end, zone, why)


def _days(fields: Fields) -> frozenset[int] | None:
    found: set[int] = set()
    words = fields.texts("every", example="sunday")
    for word in words:
        if word.lower() not in _EVERY:
            fix = f"write one of {', '.join(_EVERY)}{meant(word.lower(), _EVERY)}"
            fields.complain(f"{fields.name('every')} is {word!r}; {fix}", "every")
            return None
        found |= set(range(7)) if word.lower() == "day" else {MONDAY_TO_SUNDAY.index(word.lower())}
    return frozenset(found) if found else None


def _time_of_day(fields: Fields, key: str, example: str) -> timedelta | None:
    value = fields.value(key)
    if value is None:
        fields.missing(key, f'"{example}"')
        return None
    minutes = _minutes_since_midnight(value)
    if minutes is None or not 0 <= minutes <= _MINUTES_A_DAY:
        fix = f'write a time of day in quotes, such as "{example}"'
        fields.complain(f"{fields.name(key)} is {str(value)!r}; {fix}", key)
        return None
    return timedelta(minutes=minutes)


def _minutes_since_midnight(value: object) -> int | None:
    """Parse a time of day into minutes since midnight; YAML parses an unquoted 12:30 as the number 750."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    return int(match[1]) * 60 + int(match[2]) if match else None


def _zone(fields: Fields) -> ZoneInfo | None:
    name = fields.text("zone", example="Europe/Berlin")
    if not name:
        return None
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        zones = available_timezones()
        fix = f"write one such as Europe/Berlin or UTC{meant(name, zones)}" if zones else "install the package tzdata"
        fields.complain(f"{fields.name('zone')} is {name!r}, which is not a known time zone; {fix}", "zone")
        return None


def _known(fields: Fields, key: str, known: Collection[str], what: str) -> frozenset[str]:
    found = fields.texts(key)
    for word in found:
        if word not in known:
            fix = meant(word, known) or f"; known values: {', '.join(sorted(known))}"
            fields.complain(f"{fields.name(key)} has {word!r}, which is no {what} in this file{fix}", key)
    return frozenset(found)
