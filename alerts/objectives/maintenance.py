"""When work is planned: requests of that time count for no promise, and nobody is told of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

# `[start, end)` in UTC.
Interval = tuple[datetime, datetime]
_DAY = timedelta(days=1)
# How far ahead the end of work is looked for: what goes on every day has none.
_AHEAD = timedelta(days=31)
MONDAY_TO_SUNDAY = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


@dataclass(frozen=True, slots=True)
class Once:
    """Work from one moment to another.

    Args:
        start: Aware.
        end: Aware, later than *start*.
        why: What is done; may be empty.
    """

    start: datetime
    end: datetime
    why: str = ""

    def intervals(self, start: datetime, end: datetime) -> Iterator[Interval]:
        """Yield what of `[start, end)` it takes."""
        yield max(start, self.start), min(end, self.end)


@dataclass(frozen=True, slots=True)
class Weekly:
    """Work at the same time of certain days, every week.

    Where the clock of the zone jumps, both readings of a time count: the window is rather an hour too long than too short.

    Args:
        days: Monday is 0.
        start: From midnight, on the clock of the zone.
        end: Also; at or before *start* it is on the day after.
        zone: Whose clock.
        why: What is done; may be empty.
    """

    days: frozenset[int]
    start: timedelta
    end: timedelta
    zone: ZoneInfo
    why: str = ""

    def intervals(self, start: datetime, end: datetime) -> Iterator[Interval]:
        """Yield what of `[start, end)` it takes."""
        # A window of yesterday may reach into today.
        day = start.astimezone(self.zone).date() - _DAY
        last = end.astimezone(self.zone).date()
        while day <= last:
            if day.weekday() in self.days:
                until = self.end if self.end > self.start else self.end + _DAY
                yield max(start, min(self._readings(day, self.start))), min(end, max(self._readings(day, until)))
            day += _DAY

    def _readings(self, day: date, time: timedelta) -> tuple[datetime, datetime]:
        """Return the moments at which the clock of the zone may be said to show *time* of *day*; mostly twice the same."""
        shown = datetime.combine(day, datetime.min.time()) + time
        early, late = (shown.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        return early, late


@dataclass(frozen=True, slots=True)
class Work:
    """Planned work that is under way.

    Args:
        why: What is done; may be empty.
        until: When it is over; None when that is more than a month away.
    """

    why: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Calendar:
    """All planned work that concerns one promise."""

    planned: tuple[Once | Weekly, ...] = ()

    def intervals(self, start: datetime, end: datetime) -> list[Interval]:
        """Return what of `[start, end)` is planned work: apart from each other, in order of time, in UTC."""
        return united(found for each in self.planned for found in each.intervals(start, end))

    def at(self, moment: datetime) -> bool:
        """Say whether *moment* is within planned work."""
        return bool(self.intervals(moment, moment + timedelta(microseconds=1)))

    def under_way(self, moment: datetime) -> Work | None:
        """Return the work that *moment* is within, None where it is within none; several that meet are one."""
        now = [each.why for each in self.planned if Calendar((each,)).at(moment)]
        if not now:
            return None
        far = moment + _AHEAD
        end = self.intervals(moment, far)[0][1]
        return Work(", ".join(dict.fromkeys(filter(None, now))), end if end < far else None)

    def without(self, start: datetime, end: datetime) -> list[Interval]:
        """Return what of `[start, end)` is left: apart from each other, in order of time, in UTC."""
        left: list[Interval] = []
        at = start.astimezone(UTC)
        for low, high in self.intervals(start, end):
            left.append((at, low))
            at = high
        left.append((at, end.astimezone(UTC)))
        return [each for each in left if each[0] < each[1]]


def united(intervals: Iterable[Interval]) -> list[Interval]:
    """Return *intervals* in order, those that touch as one, and without empty ones."""
    made: list[Interval] = []
    for low, high in sorted((low.astimezone(UTC), high.astimezone(UTC)) for low, high in intervals if low < high):
        if made and low <= made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], high)
        else:
            made.append((low, high))
    return made
