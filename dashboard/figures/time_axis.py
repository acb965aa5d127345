"""Time axis shared by all charts of a page (window, step, time zone), with alerts, releases and incomplete steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from ...core.histogram import has_enough_samples
from ..view import BUCKET_SECONDS
from .elements import Annotation, Shape, note, rectangle, releases, safe

# Alerts that start after this part of the window have their name at their end.
_LATE = 0.7
# Alert names closer than this to another are omitted; their symbols stay.
_NAME_WIDTH = 0.2
# A chart has 30 to 120 steps; the finest bucket of the store is 10 s.
MAX_STEPS = 120
STEPS = tuple(
    timedelta(seconds=seconds)
    for seconds in (10, 20, 30, 60, 120, 180, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
)
_DAY = timedelta(days=1)
# Clocks change at whole halves of an hour. [s]
_HALF_HOUR = 1800


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Time window on the x axis of a chart.

    A position is a number of milliseconds since the epoch: the wall clock of a zone has one hour of a year twice and lacks another.
    The browser derives the labels from `clock` (`assets/figure.js`), also after a zoom, and reads an instant back without a zone.
    """

    start: datetime
    end: datetime
    step: timedelta
    zone: tzinfo

    def place(self, at: datetime) -> float:
        return at.timestamp() * 1000

    def text(self, at: Any) -> str:
        first, last = self.start.astimezone(self.zone), self.end.astimezone(self.zone)
        clock = "%H:%M:%S" if self.end - self.start <= _DAY else "%-d %b %H:%M"
        zone = " %Z" if first.utcoffset() != last.utcoffset() else ""
        return pd.Timestamp(at).astimezone(self.zone).strftime(clock + zone)

    def places(self, starts: Iterable[Any]) -> list[float]:
        return [self.place(pd.Timestamp(at).to_pydatetime() + self.step / 2) for at in starts]

    @property
    def counted(self) -> tuple[datetime, datetime]:
        return _next_bucket(self.start), _next_bucket(self.end)

    def begin(self, at: datetime) -> datetime:
        """Return the start of the step that contains *at*.

        The start is a multiple of the step since the epoch, and may be before the window.

        A step as long as the window starts with the window.
        """
        first, last = self.counted
        if self.step >= last - first:
            return at
        return at - timedelta(seconds=at.timestamp() % self.step.total_seconds())

    def covered_seconds(self, starts: Iterable[Any]) -> np.ndarray:
        """Return the counted time of each step; the first and the last step may be cut by the window."""
        first, last = self.counted
        inside = [
            (min(self.begin(at) + self.step, last) - max(at, first)).total_seconds()
            for at in (pd.Timestamp(start).to_pydatetime() for start in starts)
        ]
        return np.maximum(np.array(inside, dtype=float), 1.0)

    def layout(self, end: float | None = None) -> dict[str, Any]:
        low, high = self.place(self.start), end or self.place(self.end)
        return {"type": "linear", "showgrid": False, "range": [low, high], "_clock": self.clock(low, high)}

    def clock(self, low: float, high: float) -> list[tuple[float, float, str]]:
        """Return the wall clocks of the zone between two positions: from when on, distance to UTC [ms] and name of each."""
        halves = range(int(low // 1000) // _HALF_HOUR, int(high // 1000) // _HALF_HOUR + 1)
        times = (datetime.fromtimestamp(half * _HALF_HOUR, self.zone) for half in halves)
        starts = [next(group) for _, group in groupby(times, key=datetime.utcoffset)]
        return [(self.place(at), (at.utcoffset() or timedelta()).total_seconds() * 1000, f"{at:%Z}") for at in starts]


def gaps_filled(frame: pd.DataFrame, axis: TimeAxis) -> pd.DataFrame:
    """Return *frame* with an empty row for each missing step between existing ones.

    Without these rows a line would be drawn straight across the time without data.
    """
    if frame.empty:
        return frame
    at = pd.to_datetime(frame["at"], utc=True)
    whole = pd.date_range(axis.begin(at.min().to_pydatetime()), at.max(), freq=axis.step)
    # The first step starts with the window, which may be between two steps.
    whole, starts = whole[whole >= at.min()], pd.DatetimeIndex(at)
    return frame.assign(at=at).set_index("at").reindex(whole.union(starts)).rename_axis("at").reset_index()


def _next_bucket(at: datetime) -> datetime:
    return at + timedelta(seconds=-at.timestamp() % BUCKET_SECONDS)


@dataclass(frozen=True, slots=True)
class Alert:
    start: datetime
    end: datetime | None
    text: str
    urgent: bool = True


def release_marks(
    axis: TimeAxis, versions: Mapping[datetime, str] | None, reported: Mapping[datetime, str] | None
) -> tuple[list[Shape], list[Annotation]]:
    """Return lines and names of releases: dotted for observed versions, solid for reported events.

    A version with a reported deployment is marked only once, at the deployment.
    """
    reported = reported or {}
    unreported = {at: name for at, name in (versions or {}).items() if name not in reported.values()}
    seen = releases({axis.place(at): name for at, name in unreported.items()})
    reported_marks = releases({axis.place(at): name for at, name in reported.items()}, reported=True)
    return seen[0] + reported_marks[0], seen[1] + reported_marks[1]


def alert_marks(alerts: Sequence[Alert], axis: TimeAxis) -> tuple[list[Shape], list[Annotation]]:
    shapes: list[Shape] = []
    notes: list[Annotation] = []
    length = axis.end - axis.start
    named: list[float] = []
    # Paging alerts get their name first, in case only one fits.
    for alert in sorted(alerts, key=lambda alert: (not alert.urgent, alert.start)):
        start, end = max(alert.start, axis.start), min(alert.end or axis.end, axis.end)
        if start >= end:
            continue
        colour, shape = ("$bad", "■") if alert.urgent else ("$warn", "◆")
        x0, x1 = axis.place(start), axis.place(end)
        shapes += [rectangle(x0, x1, 0, 1, f"{colour}@.07"), rectangle(x0, x1, 0.99, 1, colour)]
        late = (start - axis.start) > length * _LATE
        at = (x1 - axis.place(axis.end)) / (length.total_seconds() * 1000) + 1 - (_NAME_WIDTH if late else 0)
        at = at if late else (start - axis.start) / length
        clear = all(abs(at - other) >= _NAME_WIDTH for other in named)
        named += [at] if clear else []
        style: Annotation = {"font": {"size": 11, "color": colour}, "bgcolor": "$surface@.8", "borderpad": 1}
        side = {"xanchor": "right" if late else "left", "yanchor": "top", "yshift": -2}
        text = f"{shape} {safe(alert.text)}" if clear else shape
        notes.append(note(text, x1 if late else x0, 1, yref="paper", **side, **style))
    return shapes, notes


def without_alert_names(notes: Sequence[Annotation]) -> list[Annotation]:
    return [
        {**annotation, "text": annotation["text"][0]} if annotation["text"][:1] in ("■", "◆") else annotation
        for annotation in notes
    ]


def has_too_few(frame: pd.DataFrame, quantile: float | None) -> np.ndarray:
    """Return for each step (column `n`) whether it has requests, but too few for *quantile*; shape (n,)."""
    n = frame["n"].fillna(0).to_numpy(dtype=float)
    if quantile is None:
        return np.zeros(len(frame), dtype=bool)
    return (n > 0) & ~np.array([has_enough_samples(int(number), quantile) for number in n], dtype=bool)


def veils(steps: pd.DataFrame, axis: TimeAxis, quantile: float | None, floor: float) -> list[Shape]:
    """Return a grey overlay for each run of steps with too few requests, above *floor* [ratio of the height]."""
    starts = [pd.Timestamp(step).to_pydatetime() for step in steps["at"]]
    shapes: list[Shape] = []
    for unsure, run in groupby(zip(has_too_few(steps, quantile), starts, strict=True), key=lambda pair: bool(pair[0])):
        held = [at for _, at in run]
        if unsure:
            x0, x1 = axis.place(held[0]), axis.place(held[-1] + axis.step)
            shapes.append(rectangle(x0, x1, floor, 1, "$surface@.55", above=True))
    return shapes


def step_for(length: timedelta) -> timedelta:
    """Return the finest step that divides *length* into at most 120 steps.

    >>> step_for(timedelta(hours=6)), step_for(timedelta(minutes=5))
    (datetime.timedelta(seconds=180), datetime.timedelta(seconds=10))
    """
    return next((step for step in STEPS if length <= step * MAX_STEPS), STEPS[-1])
