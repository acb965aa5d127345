"""Good and bad requests, and which stage made the bad ones bad.

A request is bad if it failed, or took longer than the threshold. The bucket the threshold falls into is split
log-linearly; how far that can be wrong is said with it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
from sqlalchemy import select

from ...core.histogram import Estimate
from ...core.names import REQUEST_DURATION, STAGE_TIME, STATUS_ERROR
from .. import schema
from ..columns import Columns, Counts, Steps, add_up
from ..encoding import Ints
from ..points import Question, Snapshot
from ..selection import Selection, moment
from .fetch import fetch, fetch_steps
from .frames import frame, timed
from .step_counts import add_up_steps

EXCESS_COLUMNS = ("stage", "bad_mean_seconds", "good_mean_seconds", "excess_seconds", "share")
_US = 1e6


@dataclass(frozen=True, slots=True)
class SloCounts:
    """Requests of a window.

    Args:
        total: All of them.
        bad: Those that failed or were too slow; a fraction where the bucket of the threshold was split.
        bad_low: Not fewer than these.
        bad_high: Not more than these.
        last_at: Start of the last bucket that has any; None if there are no requests.
    """

    total: int
    bad: float
    bad_low: float
    bad_high: float
    last_at: datetime | None


def slo_counts(snapshot: Snapshot, selection: Selection, threshold_seconds: float | None) -> SloCounts:
    """See `Reader.slo_counts`."""
    columns = fetch(snapshot, Question(selection, (REQUEST_DURATION,), by="total"))
    total, bad = _count(columns, failed_series(snapshot, selection), threshold_seconds)
    last = moment(int(columns.times.max())) if len(columns) else None
    return SloCounts(total, bad.value, bad.low, bad.high, last)


def slo_series(
    snapshot: Snapshot, selection: Selection, threshold_seconds: float | None, step: timedelta
) -> pd.DataFrame:
    """See `Reader.slo_series`."""
    columns, steps = fetch_steps(snapshot, Question(selection, (REQUEST_DURATION,), by="total"), step)
    failed = np.isin(columns.series, failed_series(snapshot, selection))
    lost = {at: total for at, total, _ in _counted(columns.where(failed), steps, None)}
    served = {at: (total, slow) for at, total, slow in _counted(columns.where(~failed), steps, threshold_seconds)}
    rows: list[dict[str, object]] = []
    for at in sorted({*lost, *served}):
        total, slow = served.get(at, (0, 0.0))
        rows.append({"at": at, "total": lost.get(at, 0) + total, "bad": lost.get(at, 0) + slow})
    return timed(frame(("at", "total", "bad"), rows), steps, selection)


def _counted(columns: Columns, steps: Steps, threshold_seconds: float | None) -> Generator[tuple[int, int, float]]:
    """Yield the start of each step, its requests, and how many of them took longer than *threshold_seconds*."""
    for counts in add_up_steps(columns, steps):
        slow = np.zeros(len(counts.starts)) if threshold_seconds is None else counts.above(threshold_seconds)
        yield from zip(counts.starts.tolist(), counts.total.tolist(), slow.tolist(), strict=True)


def bad_breakdown(snapshot: Snapshot, selection: Selection, threshold_seconds: float | None) -> pd.DataFrame:
    """See `Reader.bad_breakdown`."""
    columns = fetch(snapshot, Question(selection, (REQUEST_DURATION, STAGE_TIME), by="total"))
    errors = failed_series(snapshot, selection)
    requests, spent = columns.of(REQUEST_DURATION), columns.of(STAGE_TIME)
    total, bad = _count(requests, errors, threshold_seconds)
    bad_time, all_time = _time_by_stage(spent, errors, threshold_seconds)
    rows = [
        {
            "stage": stage,
            "bad_mean_seconds": _mean(slow, bad.value),
            "good_mean_seconds": _mean(both - slow, total - bad.value),
        }
        for stage, slow, both in zip(columns.stages, bad_time.tolist(), all_time.tolist(), strict=True)
        if both
    ]
    made = frame(EXCESS_COLUMNS, rows)
    made["excess_seconds"] = made["bad_mean_seconds"] - made["good_mean_seconds"]
    excess = made["excess_seconds"].sum()
    made["share"] = made["excess_seconds"] / excess if excess else 0.0
    return made.sort_values("excess_seconds", ascending=False, ignore_index=True)


def _mean(microseconds: float, requests: float) -> float:
    return microseconds / _US / requests if requests > 0 else 0.0


def failed_series(snapshot: Snapshot, selection: Selection) -> Ints:
    """Return the numbers of the series, and of their totals, whose requests failed."""
    table = schema.series
    statement = select(table.c.id, table.c.total_id).where(*selection.conditions(), table.c.status == STATUS_ERROR)
    # A total goes by the number of one of its series, which failed as all the others of it.
    return np.array(snapshot.connection.execute(statement).all(), np.int64).ravel()


def _count(requests: Columns, errors: Ints, threshold_seconds: float | None) -> tuple[int, Estimate]:
    """Return how many requests there are, and how many of them are bad."""
    failed = np.isin(requests.series, errors)
    lost = add_up(requests.where(failed)).total
    served = add_up(requests.where(~failed))
    slow = served.histogram().count_above(threshold_seconds) if threshold_seconds is not None else Estimate(0, 0, 0)
    return lost + served.total, Estimate(lost + slow.value, lost + slow.low, lost + slow.high)


def _time_by_stage(spent: Columns, errors: Ints, threshold_seconds: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the microseconds by stage of the bad requests, and of all."""
    failed = np.isin(spent.series, errors)
    lost = add_up(spent.where(failed)).amount.sum(axis=1)
    served = add_up(spent.where(~failed))
    slow = np.zeros(len(spent.stages)) if threshold_seconds is None else _above(served, threshold_seconds)
    return lost + slow, lost + served.amount.sum(axis=1)


def _above(counts: Counts, threshold_seconds: float) -> np.ndarray:
    shares = [counts.histogram(stage).count_above(threshold_seconds).value for stage in range(len(counts.amount))]
    return np.array(shares)
