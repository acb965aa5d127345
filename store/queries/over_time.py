"""The same questions for each step of a stretch of time: breakdown, quantiles, and the heat map of every request."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.histogram import ZERO_THRESHOLD, bucket_bounds
from ...core.names import REQUEST_DURATION
from ..columns import Columns, Steps
from ..encoding import Ints
from ..points import Question, Snapshot
from ..selection import Selection
from .breakdown import METRICS
from .fetch import fetch_steps
from .frames import frame, staged, timed
from .step_counts import StepCounts, add_up_steps
from .step_mixtures import step_mixtures

# Eight buckets a doubling: finer ones are less than a pixel high.
HEAT_SCALE = 3
HEAT_COLUMNS = ("at", "low_seconds", "high_seconds", "n", "dominant", "share", "second", "second_share")


def breakdown_over_time(
    snapshot: Snapshot, selection: Selection, quantile: float | None, step: timedelta
) -> pd.DataFrame:
    """See `Reader.breakdown_over_time`."""
    columns, steps = fetch_steps(snapshot, Question(selection, METRICS), step)
    rows = [row for mixed in step_mixtures(columns, steps) for row in mixed.rows(quantile)]
    return timed(staged(("at", "n", "value_seconds"), rows), steps, selection)


def quantiles_over_time(
    snapshot: Snapshot, selection: Selection, quantiles: Sequence[float], step: timedelta
) -> pd.DataFrame:
    """See `Reader.quantiles_over_time`."""
    columns, steps = fetch_steps(snapshot, Question(selection, (REQUEST_DURATION,)), step)
    return timed(quantiles_of_steps(columns, steps, quantiles).drop(columns="total"), steps, selection)


def quantiles_of_steps(columns: Columns, steps: Steps, quantiles: Sequence[float]) -> pd.DataFrame:
    """Return the rows of `Reader.streams_over_time` of *columns*, which are of one metric; `at` in Unix seconds."""
    names = ("at", "n", "total", *(f"p{100 * quantile:g}" for quantile in quantiles))
    rows: list[dict[str, object]] = []
    for counts in add_up_steps(columns, steps):
        values = (counts.values_at(quantile).tolist() for quantile in quantiles)
        sums = counts.sum.sum(axis=1).tolist()
        told = zip(counts.starts.tolist(), counts.total.tolist(), sums, *values, strict=True)
        rows += [dict(zip(names, each, strict=True)) for each in told]
    return frame(names, rows)


def heat(snapshot: Snapshot, selection: Selection, step: timedelta) -> pd.DataFrame:
    """See `Reader.heat`."""
    columns, steps = fetch_steps(snapshot, Question(selection, (REQUEST_DURATION,)), step)
    scale = min(HEAT_SCALE, int(columns.scale.min(initial=HEAT_SCALE)))
    cells = [_cells(counts, columns.stages) for counts in add_up_steps(columns, steps, scale)]
    empty = frame(HEAT_COLUMNS, [])
    return timed(pd.concat(cells, ignore_index=True) if cells else empty, steps, selection)


def _cells(counts: StepCounts, stages: Sequence[str]) -> pd.DataFrame:
    """Return the cells that have requests, step by step and upwards."""
    bounds = [(0.0, ZERO_THRESHOLD), *(bucket_bounds(index, counts.scale) for index in counts.index.tolist())]
    low, high = np.array(bounds).T
    amount = np.concatenate((counts.zero[:, :, None], counts.amount), axis=2)
    step, bucket = np.nonzero(amount.sum(axis=1))
    found = amount[step, :, bucket].T
    return pd.DataFrame(
        {
            "at": counts.starts[step],
            "low_seconds": low[bucket],
            "high_seconds": high[bucket],
            "n": found.sum(axis=0),
            **_causes(found, stages),
        }
    )


def _causes(amount: Ints, stages: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the two stages that dominate most requests of each cell, and of which share of them; "" for no second one."""
    # A stage that dominates none, so that there are always two.
    padded = np.vstack((amount, np.zeros_like(amount[:1])))
    order = np.argsort(-padded, axis=0, kind="stable")[:2]
    shares = np.take_along_axis(padded, order, axis=0) / amount.sum(axis=0)
    first, second = np.where(shares > 0, np.array([*stages, ""], object)[order], "")
    return {"dominant": first, "share": shares[0], "second": second, "second_share": shares[1]}
