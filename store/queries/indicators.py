"""Good and bad events of each kind of indicator, of a window and over time.

Requests above a threshold are counted as in `slo`. Other kinds have units of their own: seconds of requests for `coverage`,
minutes for `freshness`; the number of requests is returned beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
from sqlalchemy import func, select

from ...core.histogram import Estimate
from ...core.names import REQUEST_DURATION, STAGE_TIME
from ...core.stages import OVERHEAD, UNTIMED
from .. import schema
from ..columns import Columns, Floats, Steps, add_up
from ..encoding import Ints
from ..points import PointQuery, Snapshot
from ..selection import HISTOGRAMS, Indicator, Selection, moment
from . import slo
from .fetch import QueryGroup, add_up_steps, fetch, fetch_steps, points_with_key
from .frames import frame, with_step_times

TALLY_COLUMNS = ("at", "requests", "total", "bad")
_US = 1e6
_MINUTE = 60


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of a window.

    Args:
        requests: Number of requests; minutes, for `freshness`. [count]
        total: All events: requests, seconds of `coverage`, minutes of `freshness`.
        bad: Bad events; a fraction where the bucket of the threshold was split.
        bad_low: Lower bound of *bad*.
        bad_high: Upper bound of *bad*.
        last_at: Start of the last bucket with events; None if there is none, and for `freshness`.
    """

    requests: float
    total: float
    bad: float
    bad_low: float
    bad_high: float
    last_at: datetime | None


class IndicatorQueries(QueryGroup):
    """Good and bad events of each kind of indicator."""

    def tally(self, selection: Selection, indicator: Indicator) -> Tally:
        """Return the good and bad events of *indicator* in *selection*."""
        return self.tallies([selection], indicator)[0]

    def tallies(self, selections: Iterable[Selection], indicator: Indicator) -> list[Tally]:
        """Return the tally of each of *selections*, all as of one moment."""
        with self._snapshot() as snapshot:
            return [_tally(snapshot, selection, indicator) for selection in selections]

    def tally_series(self, selection: Selection, indicator: Indicator, step: timedelta) -> pd.DataFrame:
        """Return the tally of each step with events.

        Returns:
            Columns at (UTC), requests (or minutes, for `freshness`), total and bad (in the unit of the indicator: requests,
            seconds of `coverage`, minutes of `freshness`).
        """
        with self._snapshot() as snapshot:
            return _tally_series(snapshot, selection, indicator, step)

    def first_seen(self, selection: Selection) -> datetime | None:
        """Return when the series of *selection* were first seen, whatever its window; None for never. Exact to 10 s."""
        with self._snapshot() as snapshot:
            found = _first_seen(snapshot, selection)
        return None if found is None else moment(found)


def _tally(snapshot: Snapshot, selection: Selection, indicator: Indicator) -> Tally:
    if indicator.kind in ("latency", "availability"):
        found = slo.slo_counts(snapshot, selection, indicator.threshold_seconds)
        return Tally(found.total, found.total, found.bad, found.bad_low, found.bad_high, found.last_at)
    if indicator.kind == "coverage":
        columns = fetch(snapshot, PointQuery(selection, (REQUEST_DURATION, STAGE_TIME)))
        return _sum_series(_coverage(columns, Steps(0, None)), _last_bucket(columns))
    if indicator.kind == "freshness":
        return _sum_series(_freshness(snapshot, selection, indicator, timedelta(seconds=_MINUTE))[0], None)
    columns = _indicator_points(fetch(snapshot, PointQuery(selection, (HISTOGRAMS[indicator.kind],))), indicator)
    counts = add_up(columns)
    slow = counts.histogram().count_above(_required_threshold(indicator)) if len(columns) else Estimate(0, 0, 0)
    return Tally(counts.total, counts.total, slow.value, slow.low, slow.high, _last_bucket(columns))


def _tally_series(snapshot: Snapshot, selection: Selection, indicator: Indicator, step: timedelta) -> pd.DataFrame:
    if indicator.kind in ("latency", "availability"):
        made = slo.slo_series(snapshot, selection, indicator.threshold_seconds, step)
        made.insert(1, "requests", made["total"])
        return made
    course = {"coverage": _coverage_over_time, "freshness": _freshness}.get(indicator.kind, _above_over_time)
    return with_step_times(*course(snapshot, selection, indicator, step), selection)


def _required_threshold(indicator: Indicator) -> float:
    if indicator.threshold_seconds is None:
        msg = f"an indicator of kind {indicator.kind} needs a threshold"
        raise ValueError(msg)
    return indicator.threshold_seconds


def _indicator_points(columns: Columns, indicator: Indicator) -> Columns:
    return columns if indicator.key is None else points_with_key(columns, indicator.key)


def _last_bucket(columns: Columns) -> datetime | None:
    return moment(int(columns.times.max())) if len(columns) else None


def _sum_series(course: pd.DataFrame, last_at: datetime | None) -> Tally:
    requests, total, bad = (float(course[name].sum()) for name in TALLY_COLUMNS[1:])
    return Tally(requests, total, bad, bad, bad, last_at)


def _above_over_time(
    snapshot: Snapshot, selection: Selection, indicator: Indicator, step: timedelta
) -> tuple[pd.DataFrame, Steps]:
    columns, steps = fetch_steps(snapshot, PointQuery(selection, (HISTOGRAMS[indicator.kind],)), step)
    rows: list[dict[str, object]] = []
    for counts in add_up_steps(_indicator_points(columns, indicator), steps):
        above = counts.above(_required_threshold(indicator)).tolist()
        for at, total, bad in zip(counts.starts.tolist(), counts.total.tolist(), above, strict=True):
            rows.append({"at": at, "requests": total, "total": total, "bad": bad})
    return frame(TALLY_COLUMNS, rows), steps


def _coverage_over_time(
    snapshot: Snapshot, selection: Selection, indicator: Indicator, step: timedelta
) -> tuple[pd.DataFrame, Steps]:
    del indicator  # there is nothing to choose
    columns, steps = fetch_steps(snapshot, PointQuery(selection, (REQUEST_DURATION, STAGE_TIME)), step)
    return _coverage(columns, steps), steps


def _coverage(columns: Columns, steps: Steps) -> pd.DataFrame:
    """Return the seconds of requests in each step, and those that no stage explains."""
    starts = np.unique(steps.of(columns.times))

    def added(chosen: Columns) -> Floats:
        place = np.searchsorted(starts, steps.of(chosen.times))
        return np.bincount(place, chosen.counts, len(starts)).astype(np.float64)

    times = columns.of(STAGE_TIME)
    found = {
        "at": starts,
        "requests": added(columns.of(REQUEST_DURATION)),
        # Whether stages explain the time of requests without stages is unknown: leave them out.
        "total": (added(times) - added(points_with_key(times, UNTIMED))) / _US,
        "bad": added(points_with_key(times, OVERHEAD)) / _US,
    }
    return pd.DataFrame(found, columns=list(TALLY_COLUMNS))


def _freshness(
    snapshot: Snapshot, selection: Selection, indicator: Indicator, step: timedelta
) -> tuple[pd.DataFrame, Steps]:
    """Return the minutes of each step, and those at whose end the newest data were too old.

    Data of a minute count as of its end, and data of an hour as of its end where only hours are kept: a silence shorter than
    the buckets kept cannot be detected.
    """
    age = timedelta(seconds=_required_threshold(indicator))
    wider = replace(selection, start=selection.start - age - timedelta(hours=1))
    columns, seen = fetch_steps(snapshot, PointQuery(wider, (REQUEST_DURATION,)), timedelta(seconds=_MINUTE))
    low, high = selection.seconds
    since = _first_seen(snapshot, selection)
    ends = np.arange(low - low % -_MINUTE, high - _MINUTE + 1, _MINUTE) + _MINUTE
    ends = ends[ends > since] if since is not None else ends[:0]
    width = int(step.total_seconds()) // _MINUTE * _MINUTE or _MINUTE
    old = ends - _newest_data(columns, seen, high)(ends) > age.total_seconds()
    steps = Steps(low, width)
    counted = pd.DataFrame({"at": steps.of(ends - _MINUTE), "requests": 1.0, "total": 1.0, "bad": old.astype(float)})
    return counted.groupby("at", as_index=False).sum(), steps


def _newest_data(columns: Columns, steps: Steps, end: int) -> Callable[[Ints], Floats]:
    """Return a function that maps ascending times to the end of the data by then."""
    starts = np.unique(steps.of(columns.times))
    width = steps.width or end - steps.start

    def newest(at: Ints) -> Floats:
        place = np.searchsorted(starts, at) - 1
        until = np.minimum(starts[np.maximum(place, 0)] + width, at) if len(starts) else at
        return np.where(place >= 0, until, -np.inf)

    return newest


def _first_seen(snapshot: Snapshot, selection: Selection) -> int | None:
    """Return the first bucket of the series of *selection*, in Unix seconds; None if there is none."""
    table = schema.series
    statement = select(func.min(table.c.first_seen)).where(*selection.conditions())
    return snapshot.connection.execute(statement).scalar()
