"""Bad requests over time, each by the stage that made it bad: what spent an error budget, when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pandas as pd

from ...core.names import REQUEST_DURATION, STAGE_TIME
from ..columns import Columns, Floats, Steps
from ..encoding import Ints
from ..points import Question, Snapshot
from ..selection import Selection
from .fetch import fetch_steps
from .frames import staged, timed
from .slo import failed_series
from .step_counts import add_up_steps

UNEXPLAINED = "unexplained"
COLUMNS = ("at", "bad", UNEXPLAINED)


# A failed request is blamed on a stage where it took so much longer than a good one, as after a timeout: what fails at
# once has no stage to blame. [ratio]
_LATE = 1.5


@dataclass(frozen=True, slots=True)
class _Sums:
    """Requests, or microseconds, of steps.

    Args:
        starts: Of the steps, ascending; shape (n,). [Unix seconds]
        all: Shape (n, stages).
        failed: Of failed requests; shape (n, stages).
        slow: Of the others that took too long; shape (n, stages).
    """

    starts: Ints
    all: Floats
    failed: Floats
    slow: Floats

    @property
    def good(self) -> Floats:
        """Of good requests, in all steps; shape (stages,)."""
        return (self.all - self.failed - self.slow).sum(axis=0)

    def at(self, starts: Ints) -> _Sums:
        """Return the steps that start at *starts*; zeros where there is none."""
        _, place, mine = np.intersect1d(starts, self.starts, return_indices=True)

        def moved(table: Floats) -> Floats:
            found = np.zeros((len(starts), table.shape[1]))
            found[place] = table[mine]
            return found

        return _Sums(starts, moved(self.all), moved(self.failed), moved(self.slow))


def bad_over_time(
    snapshot: Snapshot, selection: Selection, threshold_seconds: float | None, step: timedelta
) -> pd.DataFrame:
    """See `Reader.bad_over_time`."""
    columns, steps = fetch_steps(snapshot, Question(selection, (REQUEST_DURATION, STAGE_TIME), by="total"), step)
    failed = failed_series(snapshot, selection)
    requests = _sums(columns.of(REQUEST_DURATION), steps, failed, threshold_seconds)
    times = _sums(columns.of(STAGE_TIME), steps, failed, threshold_seconds)
    good_mean = times.good / max(requests.good.sum(), 1e-9)
    times = times.at(requests.starts)
    n_failed, n_slow = requests.failed.sum(axis=1), requests.slow.sum(axis=1)
    late = times.failed.sum(axis=1) >= _LATE * n_failed * good_mean.sum()
    blamed = _blamed(times.failed * late[:, None], n_failed, good_mean) + _blamed(times.slow, n_slow, good_mean)
    bad = n_failed + n_slow
    rest = np.maximum(bad - blamed.sum(axis=1), 0)
    # What adding up leaves is nothing.
    rest[rest < 1e-9 * bad] = 0.0
    rows: list[dict[str, object]] = []
    for at, count, left, by_stage in zip(
        requests.starts.tolist(), bad.tolist(), rest.tolist(), blamed.tolist(), strict=True
    ):
        explained = {stage: each for stage, each in zip(columns.stages, by_stage, strict=True) if each}
        rows.append({"at": at, "bad": count, UNEXPLAINED: left, **explained})
    return timed(staged(COLUMNS, rows), steps, selection)


def _blamed(times: Floats, requests: Floats, good_mean: Floats) -> Floats:
    """Share *requests* out among the stages they spend more time in than good ones; shape (n, stages)."""
    more = np.maximum(times - requests[:, None] * good_mean, 0)
    whole = more.sum(axis=1, keepdims=True)
    shares = np.divide(more, whole, out=np.zeros_like(more), where=whole > 0)
    return requests[:, None] * shares


def _sums(columns: Columns, steps: Steps, failed: Ints, threshold_seconds: float | None) -> _Sums:
    starts = np.unique(steps.of(columns.times))
    shape = (len(starts), max(1, len(columns.stages)))
    found = _Sums(starts, np.zeros(shape), np.zeros(shape), np.zeros(shape))
    lost = np.isin(columns.series, failed)
    for counts in add_up_steps(columns.where(lost), steps):
        place = np.searchsorted(starts, counts.starts)
        found.all[place] += counts.by_stage
        found.failed[place] += counts.by_stage
    for counts in add_up_steps(columns.where(~lost), steps):
        place = np.searchsorted(starts, counts.starts)
        found.all[place] += counts.by_stage
        if threshold_seconds is not None:
            found.slow[place] += counts.above_by_stage(threshold_seconds)
    return found
