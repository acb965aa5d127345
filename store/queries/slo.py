"""Queries of objectives: bad requests, the stages responsible, and good and bad events of indicators, in total and over time.

A request is bad if it failed or took longer than the threshold. One that its client cancelled does not count, unless it took
longer, because its outcome is unknown. The bucket that contains the threshold is split
log-linearly; the error bounds are returned with the count. The events of some indicators are not requests, but seconds of
requests for `coverage` and minutes for `freshness`; the number of requests is returned separately.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
from sqlalchemy import func, select

from ...core.columns import Floats, Ints
from ...core.histogram import Estimate
from ...core.names import REQUEST_DURATION, STAGE_TIME, STATUS_CANCELLED, STATUS_ERROR
from ...core.stages import UNEXPLAINED as WITHOUT_CAUSE
from ...core.stages import UNTIMED
from .. import schema
from ..selection import HISTOGRAMS, Indicator, Selection, moment
from ..storage import Columns, PointQuery, Steps, StoreSnapshot, add_up
from .fetch import QueryGroup, SharedPoints, add_up_steps, fetch, fetch_steps, points_with_key
from .frames import frame, stage_frame, with_step_times

EXCESS_COLUMNS = ("stage", "bad_mean_seconds", "good_mean_seconds", "excess_seconds", "share")
UNEXPLAINED = "unexplained"
BAD_COLUMNS = ("at", "bad", UNEXPLAINED)
TALLY_COLUMNS = ("at", "requests", "total", "bad")
_US = 1e6
_MINUTE = 60


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of all and of bad events of an indicator in a window.

    Args:
        requests: Number of requests, or of minutes for `freshness`. [count]
    """

    requests: float
    total: float
    bad: float
    bad_low: float
    bad_high: float
    last_at: datetime | None


class SloQueries(QueryGroup):
    """Queries of the stages responsible for requests that violated an objective."""

    def bad_breakdown(self, selection: Selection, threshold_seconds: float | None) -> pd.DataFrame:
        """Return the excess time of bad requests over good requests in each stage.

        Returns:
            Columns stage, bad_mean_seconds, good_mean_seconds (mean time of a bad or good request in the stage; 0 without such
            requests), excess_seconds (bad - good), share (of the total excess), in descending order of excess.
        """
        with self._snapshot() as snapshot:
            columns = fetch(snapshot, PointQuery(selection, (REQUEST_DURATION, STAGE_TIME), by="total"))
            failed, whole = failed_series(snapshot, selection), Steps(0, None)
            requests, times = (
                _step_sums(columns.of(metric), whole, failed, threshold_seconds)
                for metric in (REQUEST_DURATION, STAGE_TIME)
            )
            bad, good = float(requests.bad.sum()), float(requests.good.sum())
            rows = [
                {
                    "stage": stage,
                    "bad_mean_seconds": _mean_seconds(times.bad[:, number].sum(), bad),
                    "good_mean_seconds": _mean_seconds(times.good[number], good),
                }
                for number, stage in enumerate(columns.stages)
                if times.all[:, number].any()
            ]
            table = frame(EXCESS_COLUMNS, rows)
            table["excess_seconds"] = table["bad_mean_seconds"] - table["good_mean_seconds"]
            excess = table["excess_seconds"].sum()
            table["share"] = table["excess_seconds"] / excess if excess else 0.0
            return table.sort_values("excess_seconds", ascending=False, ignore_index=True)

    def bad_over_time(self, selection: Selection, threshold_seconds: float | None, step: timedelta) -> pd.DataFrame:
        """Return the number of bad requests in each step with requests, by the stage responsible.

        The slow requests of a step are attributed to the stages in which they spend more time than the good requests of the whole
        selection, in proportion to the excess. Failed requests are unexplained: no stage is to blame for a failure. The columns of
        a row add up to its `bad`, which equals that of `tally_series`.

        Returns:
            Columns at (UTC), bad, unexplained, and one for each responsible stage: numbers of requests, with fractions.
        """
        with self._snapshot() as snapshot:
            columns, steps = fetch_steps(
                snapshot, PointQuery(selection, (REQUEST_DURATION, STAGE_TIME), by="total"), step
            )
            failed = failed_series(snapshot, selection)
            requests = _step_sums(columns.of(REQUEST_DURATION), steps, failed, threshold_seconds)
            times = _step_sums(columns.of(STAGE_TIME), steps, failed, threshold_seconds)
            good_mean = times.good / max(requests.good.sum(), 1e-9)
            times = times.at(requests.starts)
            blamed = _attribute_requests(times.slow, requests.slow.sum(axis=1), good_mean)
            bad = requests.bad.sum(axis=1)
            rest = np.maximum(bad - blamed.sum(axis=1), 0)
            # Remove rounding residues of the summation.
            rest[rest < 1e-9 * bad] = 0.0
            rows: list[dict[str, object]] = []
            for at, count, left, by_stage in zip(
                requests.starts.tolist(), bad.tolist(), rest.tolist(), blamed.tolist(), strict=True
            ):
                explained = {stage: seconds for stage, seconds in zip(columns.stages, by_stage, strict=True) if seconds}
                rows.append({"at": at, "bad": count, UNEXPLAINED: left, **explained})
            return with_step_times(stage_frame(BAD_COLUMNS, rows), steps, selection)


def _count_requests(snapshot: StoreSnapshot, selection: Selection, threshold_seconds: float | None) -> Tally:
    question = PointQuery(selection, (REQUEST_DURATION,), by="total", counts_only=threshold_seconds is None)
    columns = fetch(snapshot, question)
    total, bad = _count_bad(columns, failed_series(snapshot, selection), threshold_seconds)
    cancelled = columns.where(np.isin(columns.series, series_with(snapshot, selection, STATUS_CANCELLED)))
    if len(cancelled):
        early, slow = _count_bad(cancelled, np.array([], np.int64), threshold_seconds)
        total -= early - slow.value
    return Tally(total, total, bad.value, bad.low, bad.high, _last_bucket(columns))


def _requests_over_time(
    snapshot: StoreSnapshot, selection: Selection, indicator: Indicator, step: timedelta
) -> tuple[pd.DataFrame, Steps]:
    threshold_seconds = indicator.threshold_seconds
    columns, steps = fetch_steps(snapshot, PointQuery(selection, (REQUEST_DURATION,), by="total"), step)
    failed = np.isin(columns.series, failed_series(snapshot, selection))
    lost = {at: total for at, total, _ in _count_steps(columns.where(failed), steps, None)}
    gone = columns.where(np.isin(columns.series, series_with(snapshot, selection, STATUS_CANCELLED)))
    early = {at: total - slow for at, total, slow in _count_steps(gone, steps, threshold_seconds)}
    served = {at: (total, slow) for at, total, slow in _count_steps(columns.where(~failed), steps, threshold_seconds)}
    rows: list[dict[str, object]] = []
    for at in sorted({*lost, *served}):
        total, slow = served.get(at, (0, 0.0))
        total += lost.get(at, 0) - early.get(at, 0)
        rows.append({"at": at, "requests": total, "total": total, "bad": lost.get(at, 0) + slow})
    return frame(TALLY_COLUMNS, rows), steps


def _count_steps(columns: Columns, steps: Steps, threshold_seconds: float | None) -> Generator[tuple[int, int, float]]:
    for counts in add_up_steps(columns, steps):
        slow = np.zeros(len(counts.starts)) if threshold_seconds is None else counts.above(threshold_seconds)
        yield from zip(counts.starts.tolist(), counts.total.tolist(), slow.tolist(), strict=True)


def _mean_seconds(microseconds: float, requests: float) -> float:
    return microseconds / _US / requests if requests > 0 else 0.0


def failed_series(snapshot: StoreSnapshot, selection: Selection) -> Ints:
    return series_with(snapshot, selection, STATUS_ERROR)


def series_with(snapshot: StoreSnapshot, selection: Selection, status: str) -> Ints:
    """Return the ids of the series whose requests have *status*, and of their totals."""
    if isinstance(snapshot.points, SharedPoints):
        # One read for all services.
        selection = replace(selection, service=None)

    def read() -> Ints:
        table = schema.series
        statement = select(table.c.id, table.c.total_id).where(*selection.conditions(), table.c.status == status)
        # A total has the id of one of its series, which has the same status.
        return np.array(snapshot.connection.execute(statement).all(), np.int64).ravel()

    return snapshot.once(("status", status, *selection.dimensions.items()), read)


def _count_bad(requests: Columns, errors: Ints, threshold_seconds: float | None) -> tuple[int, Estimate]:
    failed = np.isin(requests.series, errors)
    total, lost = int(requests.counts.sum()), int(requests.counts[failed].sum())
    slow = Estimate(0, 0, 0)
    if threshold_seconds is not None:
        slow = add_up(requests.where(~failed)).histogram().count_above(threshold_seconds)
    return total, Estimate(lost + slow.value, lost + slow.low, lost + slow.high)


@dataclass(frozen=True, slots=True)
class _StepSums:
    """Sums of requests, or of microseconds, by step and stage.

    Args:
        starts: Starts of the steps, ascending; shape (n,). [Unix seconds]
    """

    starts: Ints
    all: Floats
    failed: Floats
    slow: Floats

    @property
    def bad(self) -> Floats:
        return self.failed + self.slow

    @property
    def good(self) -> Floats:
        return (self.all - self.bad).sum(axis=0)

    def at(self, starts: Ints) -> _StepSums:
        _, position, mine = np.intersect1d(starts, self.starts, return_indices=True)

        def moved(table: Floats) -> Floats:
            aligned = np.zeros((len(starts), table.shape[1]))
            aligned[position] = table[mine]
            return aligned

        return _StepSums(starts, moved(self.all), moved(self.failed), moved(self.slow))


def _attribute_requests(times: Floats, requests: Floats, good_mean: Floats) -> Floats:
    """Divide *requests* among the stages in which they spend more time than good requests; shape (n, stages)."""
    more = np.maximum(times - requests[:, None] * good_mean, 0)
    whole = more.sum(axis=1, keepdims=True)
    shares = np.divide(more, whole, out=np.zeros_like(more), where=whole > 0)
    return requests[:, None] * shares


def _step_sums(columns: Columns, steps: Steps, failed: Ints, threshold_seconds: float | None) -> _StepSums:
    starts = np.unique(steps.of(columns.times))
    shape = (len(starts), max(1, len(columns.stages)))
    sums = _StepSums(starts, np.zeros(shape), np.zeros(shape), np.zeros(shape))
    lost = np.isin(columns.series, failed)
    for counts in add_up_steps(columns.where(lost), steps):
        position = np.searchsorted(starts, counts.starts)
        sums.all[position] += counts.by_stage
        sums.failed[position] += counts.by_stage
    for counts in add_up_steps(columns.where(~lost), steps):
        position = np.searchsorted(starts, counts.starts)
        sums.all[position] += counts.by_stage
        if threshold_seconds is not None:
            sums.slow[position] += counts.above_by_stage(threshold_seconds)
    return sums


class IndicatorQueries(QueryGroup):
    def tally(self, selection: Selection, indicator: Indicator) -> Tally:
        return self.tallies([selection], indicator)[0]

    def tallies(self, selections: Iterable[Selection], indicator: Indicator) -> list[Tally]:
        with self._snapshot() as snapshot:
            return [_tally(snapshot, selection, indicator) for selection in selections]

    def tally_series(self, selection: Selection, indicator: Indicator, step: timedelta) -> pd.DataFrame:
        """Return the tally of each step with events.

        Returns:
            Columns at (UTC), requests (number of requests, or of minutes for `freshness`), total and bad (in the unit of the
            indicator: requests, seconds for `coverage`, minutes for `freshness`).
        """
        with self._snapshot() as snapshot:
            over_time = _OVER_TIME.get(indicator.kind, _above_over_time)
            return with_step_times(*over_time(snapshot, selection, indicator, step), selection)

    def first_seen(self, selection: Selection) -> datetime | None:
        """Return the time at which *selection* was first seen, exact to 10 s and regardless of its window; None for never."""
        with self._snapshot() as snapshot:
            first = _first_seen(snapshot, selection)
        return None if first is None else moment(first)


def _tally(snapshot: StoreSnapshot, selection: Selection, indicator: Indicator) -> Tally:
    if indicator.kind in ("latency", "availability"):
        return _count_requests(snapshot, selection, indicator.threshold_seconds)
    if indicator.kind == "coverage":
        columns = fetch(snapshot, PointQuery(selection, (REQUEST_DURATION, STAGE_TIME), counts_only=True))
        return _sum_series(_coverage(columns, Steps(0, None)), _last_bucket(columns))
    if indicator.kind == "freshness":
        return _sum_series(_freshness(snapshot, selection, indicator, timedelta(seconds=_MINUTE))[0], None)
    columns = _indicator_points(fetch(snapshot, PointQuery(selection, (HISTOGRAMS[indicator.kind],))), indicator)
    counts = add_up(columns)
    slow = counts.histogram().count_above(_required_threshold(indicator)) if len(columns) else Estimate(0, 0, 0)
    return Tally(counts.total, counts.total, slow.value, slow.low, slow.high, _last_bucket(columns))


def _required_threshold(indicator: Indicator) -> float:
    if indicator.threshold_seconds is None:
        msg = f"an indicator of kind {indicator.kind} needs a threshold"
        raise ValueError(msg)
    return indicator.threshold_seconds


def _indicator_points(columns: Columns, indicator: Indicator) -> Columns:
    return columns if indicator.key is None else points_with_key(columns, indicator.key)


def _last_bucket(columns: Columns) -> datetime | None:
    return moment(int(columns.times.max())) if len(columns) else None


def _sum_series(steps: pd.DataFrame, last_at: datetime | None) -> Tally:
    requests, total, bad = (float(steps[name].sum()) for name in TALLY_COLUMNS[1:])
    return Tally(requests, total, bad, bad, bad, last_at)


def _above_over_time(
    snapshot: StoreSnapshot, selection: Selection, indicator: Indicator, step: timedelta
) -> tuple[pd.DataFrame, Steps]:
    columns, steps = fetch_steps(snapshot, PointQuery(selection, (HISTOGRAMS[indicator.kind],)), step)
    rows: list[dict[str, object]] = []
    for counts in add_up_steps(_indicator_points(columns, indicator), steps):
        above = counts.above(_required_threshold(indicator)).tolist()
        for at, total, bad in zip(counts.starts.tolist(), counts.total.tolist(), above, strict=True):
            rows.append({"at": at, "requests": total, "total": total, "bad": bad})
    return frame(TALLY_COLUMNS, rows), steps


def _coverage_over_time(
    snapshot: StoreSnapshot, selection: Selection, indicator: Indicator, step: timedelta
) -> tuple[pd.DataFrame, Steps]:
    del indicator  # coverage has no parameters
    question = PointQuery(selection, (REQUEST_DURATION, STAGE_TIME), counts_only=True)
    columns, steps = fetch_steps(snapshot, question, step)
    return _coverage(columns, steps), steps


def _coverage(columns: Columns, steps: Steps) -> pd.DataFrame:
    starts = np.unique(steps.of(columns.times))

    def added(chosen: Columns) -> Floats:
        position = np.searchsorted(starts, steps.of(chosen.times))
        return np.bincount(position, chosen.counts, len(starts)).astype(np.float64)

    times = columns.of(STAGE_TIME)
    tallies = {
        "at": starts,
        "requests": added(columns.of(REQUEST_DURATION)),
        # Requests without stages are left out, because the stages of their time are unknown.
        "total": (added(times) - added(points_with_key(times, UNTIMED))) / _US,
        "bad": sum(added(points_with_key(times, stage)) for stage in WITHOUT_CAUSE) / _US,
    }
    return pd.DataFrame(tallies, columns=list(TALLY_COLUMNS))


def _freshness(
    snapshot: StoreSnapshot, selection: Selection, indicator: Indicator, step: timedelta
) -> tuple[pd.DataFrame, Steps]:
    """Return the number of minutes of each step, and of minutes at whose end the newest data were too old.

    The time of data is the end of their minute, or of their hour where only hours are retained: gaps shorter than a retained
    bucket cannot be detected.
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


_OVER_TIME = {
    "latency": _requests_over_time,
    "availability": _requests_over_time,
    "coverage": _coverage_over_time,
    "freshness": _freshness,
}


def _newest_data(columns: Columns, steps: Steps, end: int) -> Callable[[Ints], Floats]:
    """Return a function that returns for each of many times the end of the newest data before that time, in Unix seconds."""
    starts = np.unique(steps.of(columns.times))
    width = steps.width or end - steps.start

    def newest(at: Ints) -> Floats:
        position = np.searchsorted(starts, at) - 1
        until = np.minimum(starts[np.maximum(position, 0)] + width, at) if len(starts) else at
        return np.where(position >= 0, until, -np.inf)

    return newest


def _first_seen(snapshot: StoreSnapshot, selection: Selection) -> int | None:
    table = schema.series
    statement = select(func.min(table.c.first_seen)).where(*selection.conditions())
    return snapshot.connection.execute(statement).scalar()
