"""Reading the planned work of an SLO file."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from ...core.settings.yaml_document import Document, Place
from ...core.settings.yaml_fields import Fields, meant
from .maintenance import MONDAY_TO_SUNDAY, Calendar, Once, Weekly

_EVERY = ("day", *MONDAY_TO_SUNDAY)
_TIME = re.compile(r"(\d{1,2}):([0-5]\d)")
_MINUTES_A_DAY = 1440


@dataclass(frozen=True, slots=True)
class Planned:
    """One entry of `maintenance`.

    Args:
        when: The work.
        services: Whose; empty for all.
        slos: The names of the promises it concerns; empty for all.
    """

    when: Once | Weekly
    services: frozenset[str]
    slos: frozenset[str]

    def concerns(self, service: str, slo: str) -> bool:
        """Say whether it concerns the promise written as *slo* about *service*."""
        return (not self.services or service in self.services) and (not self.slos or slo in self.slos)


def calendar_of(planned: Sequence[Planned], service: str, slo: str) -> Calendar:
    """Return what of *planned* concerns the promise written as *slo* about *service*."""
    return Calendar(tuple(each.when for each in planned if each.concerns(service, slo)))


def read(
    document: Document, place: Place, item: Any, services: Collection[str], slos: Collection[str]
) -> Planned | None:
    """Read one entry; *services* and *slos* are what the file knows.

    Returns:
        None when it is wrong, which the document's problems say.
    """
    fields = Fields(document, place, item, example="from: 2026-11-28T02:00Z")
    if fields.broken:
        return None
    when = _weekly(fields) if fields.has("every") else _once(fields)
    of_services = _known(fields, "services", services, "service of an SLO")
    of_slos = _known(fields, "slos", slos, "SLO")
    fields.finish()
    return Planned(when, of_services, of_slos) if when else None


def _once(fields: Fields) -> Once | None:
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
    return Once(start, end, why)


def _weekly(fields: Fields) -> Weekly | None:
    days = _days(fields)
    start, end = _time_of_day(fields, "from", "02:00"), _time_of_day(fields, "to", "04:00")
    zone = _zone(fields)
    why = fields.text("why")
    if days is None or start is None or end is None or zone is None:
        return None
    if start == end:
        fields.complain(f"{fields.name('to')} is the same time as {fields.name('from')}; write when it ends", "to")
        return None
    return Weekly(days, start, end, zone, why)


def _days(fields: Fields) -> frozenset[int] | None:
    found: set[int] = set()
    words = fields.texts("every", example="sunday")
    for word in words:
        if word.lower() not in _EVERY:
            cure = f"write one of {', '.join(_EVERY)}{meant(word.lower(), _EVERY)}"
            fields.complain(f"{fields.name('every')} is {word!r}; {cure}", "every")
            return None
        found |= set(range(7)) if word.lower() == "day" else {MONDAY_TO_SUNDAY.index(word.lower())}
    return frozenset(found) if found else None


def _time_of_day(fields: Fields, key: str, example: str) -> timedelta | None:
    value = fields.value(key)
    if value is None:
        fields.missing(key, f'"{example}"')
        return None
    minutes = _minutes(value)
    if minutes is None or not 0 <= minutes <= _MINUTES_A_DAY:
        cure = f'write a time of day in quotes, such as "{example}"'
        fields.complain(f"{fields.name(key)} is {str(value)!r}; {cure}", key)
        return None
    return timedelta(minutes=minutes)


def _minutes(value: object) -> int | None:
    """Return the minutes since midnight; YAML reads 12:30 without quotes as twelve times sixty and thirty."""
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
        cure = f"write one such as Europe/Berlin or UTC{meant(name, zones)}" if zones else "install the package tzdata"
        fields.complain(f"{fields.name('zone')} is {name!r}, which is no time zone here; {cure}", "zone")
        return None


def _known(fields: Fields, key: str, known: Collection[str], what: str) -> frozenset[str]:
    found = fields.texts(key)
    for word in found:
        if word not in known:
            cure = meant(word, known) or f"; known are {', '.join(sorted(known))}"
            fields.complain(f"{fields.name(key)} has {word!r}, which is no {what} in this file{cure}", key)
    return frozenset(found)
