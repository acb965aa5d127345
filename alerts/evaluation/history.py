"""What an SLO counted minute by minute, added up, so that any window ending at any minute is two look-ups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...store import Reader
from ..objectives.slo import Slo
from .measurement import counted_from

Floats = NDArray[np.float64]
MINUTE = timedelta(minutes=1)
_MINUTE_SECONDS, _DAY_SECONDS, _HOUR_SECONDS = 60, 86_400, 3600


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of one length that end at the edges of minutes.

    Args:
        total: Requests; shape (edges,).
        bad: Shape (edges,).
    """

    total: Floats
    bad: Floats

    def burn(self, objective: float) -> Floats:
        """Return the burn rates; shape (edges,)."""
        share = np.divide(self.bad, self.total, out=np.zeros_like(self.bad), where=self.total > 0)
        return share / (1 - objective)


@dataclass(frozen=True, slots=True)
class History:
    """Everything that was counted before each edge of a minute.

    Args:
        start: The first edge. [Unix seconds]
        requests: Shape (edges,).
        total: In the unit of the indicator; shape (edges,).
        bad: Also.
        first: The first edge from which anything counts: the reset of the budget. [index]
        coarse_until: Before it only whole hours, or whatever is kept, are known, and spread evenly; None where minutes are.
        seen_from: When the first of it was ever counted; None for long before.
    """

    start: int
    requests: Floats
    total: Floats
    bad: Floats
    first: int = 0
    coarse_until: datetime | None = None
    seen_from: datetime | None = None

    @property
    def edges(self) -> int:
        """How many edges there are: one more than minutes."""
        return len(self.total)

    def at(self, edge: int) -> datetime:
        """Return the time of *edge*."""
        return datetime.fromtimestamp(self.start + _MINUTE_SECONDS * edge, UTC)

    def seen(self, edge: int) -> timedelta:
        """Return how long it has been seen at *edge*."""
        return timedelta.max if self.seen_from is None else self.at(edge) - self.seen_from

    def edge_of(self, at: datetime) -> int:
        """Return the last edge at or before *at*, within what is known."""
        return min(max(0, int(at.timestamp() - self.start) // _MINUTE_SECONDS), self.edges - 1)

    def windows(self, length: timedelta) -> Windows:
        """Return the windows of *length* that end at each edge, as `measure` counts them."""
        ends = np.arange(self.edges)
        starts = np.maximum(ends - length // MINUTE, np.minimum(self.first, ends))
        starts = np.maximum(starts, 0)
        requests, total, bad = (held[ends] - held[starts] for held in (self.requests, self.total, self.bad))
        share = np.divide(bad, total, out=np.zeros_like(bad), where=total > 0)
        return Windows(requests, np.where(requests == total, bad, requests * share))

    def minutes(self, low: int, high: int) -> Iterator[tuple[datetime, float, float]]:
        """Yield start, total and bad of each minute between two edges."""
        for edge in range(low, high):
            total, bad = self.total[edge + 1] - self.total[edge], self.bad[edge + 1] - self.bad[edge]
            yield self.at(edge), float(total), float(bad)


def load(read: Reader, slo: Slo, start: datetime, end: datetime) -> History:
    """Count what *slo* is about in `[start, end)`, minute by minute, without planned work.

    It is read day by day: more minutes at once are too many rows, and would come as hours.
    """
    first = int(start.timestamp()) // _HOUR_SECONDS * _HOUR_SECONDS
    last = int(end.timestamp()) // _MINUTE_SECONDS * _MINUTE_SECONDS
    counted = np.zeros((3, (last - first) // _MINUTE_SECONDS))
    coarse_until: int | None = None
    for low, high in _days(first, last):
        selection = slo.select(datetime.fromtimestamp(low, UTC), datetime.fromtimestamp(high, UTC))
        found = read.tally_series(selection, slo.indicator, MINUTE)
        if len(found) and found.attrs["step_seconds"] > _MINUTE_SECONDS:
            coarse_until = high
        _spread(counted, found, first)
    for low, high in slo.maintenance.intervals(datetime.fromtimestamp(first, UTC), end):
        counted[:, _minute(low, first) : _minute(high, first)] = 0.0
    seen = read.first_seen(slo.select(start, end))
    held = np.concatenate((np.zeros((3, 1)), np.cumsum(counted, axis=1)), axis=1)
    return History(
        start=first,
        requests=held[0],
        total=held[1],
        bad=held[2],
        first=_minute(slo.reset, first) if slo.reset is not None and slo.reset <= end else 0,
        coarse_until=None if coarse_until is None else datetime.fromtimestamp(coarse_until, UTC),
        seen_from=None if seen is None else counted_from(slo, seen, end),
    )


def _days(first: int, last: int) -> Iterator[tuple[int, int]]:
    low = first
    while low < last:
        high = min(last, (low // _DAY_SECONDS + 1) * _DAY_SECONDS)
        yield low, high
        low = high


def _minute(at: datetime, first: int) -> int:
    """Return the first minute that begins at or after *at*."""
    return max(0, int(-((first - at.timestamp()) // _MINUTE_SECONDS)))


def _spread(counted: NDArray[Any], found: pd.DataFrame, first: int) -> None:
    """Add *found* to the minutes of *counted*; a step of many minutes evenly to all of them."""
    if not len(found):
        return
    width = max(1, int(found.attrs["step_seconds"]) // _MINUTE_SECONDS)
    starts = found["at"].dt.as_unit("s").astype("int64").to_numpy()
    begin = (starts - first) // _MINUTE_SECONDS
    place = (begin[:, None] + np.arange(width)).ravel()
    inside = (place >= 0) & (place < counted.shape[1])
    for row, name in enumerate(("requests", "total", "bad")):
        each = np.repeat(found[name].to_numpy(np.float64) / width, width)
        np.add.at(counted[row], place[inside], each[inside])
