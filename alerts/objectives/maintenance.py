"""Maintenance windows: requests within them do not count for SLOs, and incidents within them are not notified."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from ...core.settings.field_types import Moment, Text, Texts, as_text, as_texts, reject, reject_value
from ...core.settings.section import Fault, Section, read_section
from ...core.settings.yaml_config import Document, Place, meant

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
    start: datetime
    end: datetime
    why: str = ""

    def intervals(self, start: datetime, end: datetime) -> Iterator[Interval]:
        yield max(start, self.start), min(end, self.end)


@dataclass(frozen=True, slots=True)
class WeeklyWindow:
    """Weekly maintenance window on certain days.

    At a clock change a local time may occur twice. The window covers both, so it may be one hour too long but never too short.
    """

    days: frozenset[int]
    start: timedelta
    end: timedelta
    zone: ZoneInfo
    why: str = ""

    def intervals(self, start: datetime, end: datetime) -> Iterator[Interval]:
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
        early, late = (shown.replace(tzinfo=self.zone, fold=occurrence).astimezone(UTC) for occurrence in (0, 1))
        return early, late


@dataclass(frozen=True, slots=True)
class ActiveMaintenance:
    """Maintenance window in progress."""

    why: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class MaintenanceCalendar:
    """All maintenance windows of one SLO."""

    planned: tuple[OneTimeWindow | WeeklyWindow, ...] = ()

    def intervals(self, start: datetime, end: datetime) -> list[Interval]:
        """Return the parts of `[start, end)` within windows: disjoint, in order of time, in UTC."""
        return merge_intervals(interval for window in self.planned for interval in window.intervals(start, end))

    def at(self, moment: datetime) -> bool:
        return bool(self.intervals(moment, moment + timedelta(microseconds=1)))

    def under_way(self, moment: datetime) -> ActiveMaintenance | None:
        """Return the window in progress at *moment*, or None; adjacent windows count as one."""
        now = [window.why for window in self.planned if MaintenanceCalendar((window,)).at(moment)]
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
        return [interval for interval in left if interval[0] < interval[1]]


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return *intervals* in order of time; merge adjacent or overlapping ones and drop empty ones."""
    merged: list[Interval] = []
    for low, high in sorted((low.astimezone(UTC), high.astimezone(UTC)) for low, high in intervals if low < high):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return merged


@dataclass(frozen=True, slots=True)
class MaintenanceEntry:
    """Entry of `maintenance` in the SLO file: a window, and the SLOs to which it applies."""

    when: OneTimeWindow | WeeklyWindow
    services: frozenset[str]
    slos: frozenset[str]

    def concerns(self, service: str, slo: str) -> bool:
        return (not self.services or service in self.services) and (not self.slos or slo in self.slos)


def calendar_of(planned: Sequence[MaintenanceEntry], service: str, slo: str) -> MaintenanceCalendar:
    return MaintenanceCalendar(tuple(entry.when for entry in planned if entry.concerns(service, slo)))


class _Maintenance(Section):
    example = "from: 2026-11-28T02:00Z"

    why: Text = ""
    services: Texts = Field(default=(), examples=["[checkout]"])
    slos: Texts = Field(default=(), examples=["[checkout]"])

    @field_validator("services", "slos")
    @classmethod
    def _are_known(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        defined_names: Collection[str] = (info.context or {})[info.field_name]
        for name in names:
            if name not in defined_names:
                what = "service" if info.field_name == "services" else "SLO"
                fix = meant(name, defined_names) or f"; known values: {', '.join(sorted(defined_names))}"
                reject(f"has {name!r}, but this file has no such {what}{fix}")
        return names


class _OneTime(_Maintenance):
    start: Moment = Field(alias="from", examples=["2026-11-28T02:00Z"])
    end: Moment = Field(alias="to", examples=["2026-11-28T04:00Z"])
    zone: Any = None

    def faults(self) -> Iterator[Fault]:
        if self.zone is not None:
            yield Fault("zone", "is valid only with `every`; put the zone into the times, such as +01:00")
        if self.end <= self.start:
            yield Fault("to", "is not after `from`; write a later time")

    @property
    def window(self) -> OneTimeWindow:
        return OneTimeWindow(self.start, self.end, self.why)


def _days(value: object) -> frozenset[int]:
    weekdays: set[int] = set()
    for word in as_texts(value):
        if word.lower() not in _EVERY:
            reject(f"is {word!r}; write one of {', '.join(_EVERY)}{meant(word.lower(), _EVERY)}")
        weekdays |= set(range(7)) if word.lower() == "day" else {MONDAY_TO_SUNDAY.index(word.lower())}
    return frozenset(weekdays)


def _time_of_day(value: object) -> timedelta:
    match = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    minutes = int(match[1]) * 60 + int(match[2]) if match else value
    if isinstance(minutes, bool) or not isinstance(minutes, int) or not 0 <= minutes <= _MINUTES_A_DAY:
        reject_value("write a time of day in quotes")
    return timedelta(minutes=minutes)


def _zone(value: object) -> ZoneInfo:
    name = as_text(value)
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        zones = available_timezones()
        fix = f"write one such as Europe/Berlin or UTC{meant(name, zones)}" if zones else "install the package tzdata"
        reject(f"is {name!r}, which is not a known time zone; {fix}")


_TimeOfDay = Annotated[timedelta, BeforeValidator(_time_of_day)]


class _Weekly(_Maintenance):
    every: Annotated[frozenset[int], BeforeValidator(_days)] = Field(examples=["sunday"])
    start: _TimeOfDay = Field(alias="from", examples=['"02:00"'])
    end: _TimeOfDay = Field(alias="to", examples=['"04:00"'])
    zone: Annotated[ZoneInfo, BeforeValidator(_zone)] = Field(examples=["Europe/Berlin"])

    def faults(self) -> Iterator[Fault]:
        if self.start == self.end:
            yield Fault("to", "is equal to `from`; write the end time")

    @property
    def window(self) -> WeeklyWindow:
        return WeeklyWindow(self.every, self.start, self.end, self.zone, self.why)


def read_maintenance(
    document: Document, location: Place, item: Any, services: Collection[str], slos: Collection[str]
) -> MaintenanceEntry | None:
    """Parse one entry of `maintenance`; *services* and *slos* are the known names.

    Returns:
        The entry; None if it is invalid, with the errors added to the document's problems.
    """
    section = _Weekly if isinstance(item, dict) and item.get("every") is not None else _OneTime
    section_value = read_section(section, document, location, item, {"services": services, "slos": slos})
    return section_value and MaintenanceEntry(
        section_value.window, frozenset(section_value.services), frozenset(section_value.slos)
    )
