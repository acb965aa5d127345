"""The same questions for each step of a stretch of time: breakdown, quantiles, and the heat map of every request."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pandas as pd
from sqlalchemy import Connection

from ...core.histogram import ZERO_THRESHOLD, bucket_bounds
from ...core.names import REQUEST_DURATION
from .breakdown import METRICS, Mixture
from .columns import Columns, Counts, add_up
from .fetch import Question, fetch_steps
from .frames import frame, staged, times
from .selection import Selection

# Eight buckets a doubling: finer ones are less than a pixel high.
HEAT_SCALE = 3


def breakdown_over_time(
    connection: Connection, selection: Selection, quantile: float | None, step: timedelta
) -> pd.DataFrame:
    """See `Reader.breakdown_over_time`."""
    columns, steps = fetch_steps(connection, Question(selection, METRICS), step)
    rows: list[dict[str, object]] = []
    for at, part in columns.by_step(steps):
        if not len(part.of(REQUEST_DURATION)):
            continue
        mixed = Mixture(part)
        value, seconds = _at(mixed, quantile)
        rows.append({"at": at, "n": mixed.n, "value_seconds": value, **seconds})
    return _timed(staged(("at", "n", "value_seconds"), rows), steps.width)


def _at(mixed: Mixture, quantile: float | None) -> tuple[float, dict[str, float]]:
    if quantile is not None:
        band = mixed.at(quantile)
        return band.value.value, band.seconds()
    return mixed.mean, {stage: share * mixed.mean for stage, share in mixed.mean_shares().items()}


def quantiles_over_time(
    connection: Connection, selection: Selection, quantiles: Sequence[float], step: timedelta
) -> pd.DataFrame:
    """See `Reader.quantiles_over_time`."""
    columns, steps = fetch_steps(connection, Question(selection, (REQUEST_DURATION,)), step)
    names = [f"p{100 * quantile:g}" for quantile in quantiles]
    rows: list[dict[str, object]] = []
    for at, part in columns.by_step(steps):
        counts = add_up(part)
        values = [counts.value_at(quantile).value for quantile in quantiles]
        rows.append({"at": at, "n": counts.total, **dict(zip(names, values, strict=True))})
    return _timed(frame(("at", "n", *names), rows), steps.width)


def heat(connection: Connection, selection: Selection, step: timedelta) -> pd.DataFrame:
    """See `Reader.heat`."""
    columns, steps = fetch_steps(connection, Question(selection, (REQUEST_DURATION,)), step)
    scale = min(HEAT_SCALE, int(columns.scale.min(initial=HEAT_SCALE)))
    cells = [_cells(at, part, add_up(part, scale)) for at, part in columns.by_step(steps)]
    empty = frame(("at", "low_seconds", "high_seconds", "n", "dominant"), [])
    return _timed(pd.concat(cells, ignore_index=True) if cells else empty, steps.width)


def _cells(at: int, part: Columns, counts: Counts) -> pd.DataFrame:
    bounds = [bucket_bounds(index, counts.scale) for index in counts.index.tolist()]
    amount = counts.amount
    if counts.zero.any():
        bounds.insert(0, (0.0, ZERO_THRESHOLD))
        amount = np.column_stack((counts.zero, amount))
    return pd.DataFrame(
        {
            "at": at,
            "low_seconds": [low for low, _ in bounds],
            "high_seconds": [high for _, high in bounds],
            "n": amount.sum(axis=0),
            "dominant": [part.stages[most] for most in amount.argmax(axis=0).tolist()],
        }
    )


def _timed(made: pd.DataFrame, width: int | None) -> pd.DataFrame:
    made["at"] = times(made["at"])
    made.attrs["step_seconds"] = width
    return made
