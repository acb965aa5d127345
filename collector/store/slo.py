"""Good and bad requests, and which stage made the bad ones bad.

A request is bad if it failed, or took longer than the threshold. The bucket the threshold falls into is split
log-linearly; how far that can be wrong is said with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
from sqlalchemy import Connection, select

from ...core.histogram import Estimate
from ...core.names import REQUEST_DURATION, STAGE_TIME, STATUS_ERROR
from . import schema
from .columns import Columns, Counts, add_up
from .encoding import Ints
from .fetch import Question, fetch, fetch_steps
from .frames import frame, times
from .selection import Selection, moment

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


def slo_counts(connection: Connection, selection: Selection, threshold_seconds: float | None) -> SloCounts:
    """See `Reader.slo_counts`."""
    columns = fetch(connection, Question(selection, (REQUEST_DURATION,)))
    total, bad = _count(columns, _errors(connection, selection), threshold_seconds)
    last = moment(int(columns.times.max())) if len(columns) else None
    return SloCounts(total, bad.value, bad.low, bad.high, last)


def slo_series(
    connection: Connection, selection: Selection, threshold_seconds: float | None, step: timedelta
) -> pd.DataFrame:
    """See `Reader.slo_series`."""
    columns, steps = fetch_steps(connection, Question(selection, (REQUEST_DURATION,)), step)
    errors = _errors(connection, selection)
    rows: list[dict[str, object]] = []
    for at, part in columns.by_step(steps):
        total, bad = _count(part, errors, threshold_seconds)
        rows.append({"at": at, "total": total, "bad": bad.value})
    made = frame(("at", "total", "bad"), rows)
    made["at"] = times(made["at"])
    made.attrs["step_seconds"] = steps.width
    return made


def bad_breakdown(connection: Connection, selection: Selection, threshold_seconds: float | None) -> pd.DataFrame:
    """See `Reader.bad_breakdown`."""
    columns = fetch(connection, Question(selection, (REQUEST_DURATION, STAGE_TIME)))
    errors = _errors(connection, selection)
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


def _errors(connection: Connection, selection: Selection) -> Ints:
    table = schema.series
    statement = select(table.c.id).where(*selection.conditions(), table.c.status == STATUS_ERROR)
    return np.array(connection.scalars(statement).all(), np.int64)


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
