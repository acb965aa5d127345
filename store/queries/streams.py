"""Requests that answer bit by bit: the course of one number, and how it depends on the number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pandas as pd

from ...core.histogram import TOKEN_COUNTS, Histogram
from ...core.names import FIRST_TOKEN, FIRST_TOKEN_BY_INPUT, OUTPUT_TOKEN, OUTPUT_TOKEN_BY_OUTPUT
from ..columns import Columns, add_up
from ..points import Question, Snapshot
from ..selection import Selection
from .fetch import fetch, fetch_steps
from .first_token import measured
from .frames import timed
from .over_time import quantiles_of_steps

# Bands are told apart by nothing else: which definition a time was measured by stands in the metric beside it.
_MEASURED_BY = {FIRST_TOKEN_BY_INPUT: FIRST_TOKEN, OUTPUT_TOKEN_BY_OUTPUT: OUTPUT_TOKEN}


def streams_over_time(
    snapshot: Snapshot, selection: Selection, metric: str, key: str, quantiles: Sequence[float], *, step: timedelta
) -> pd.DataFrame:
    """See `Reader.streams_over_time`."""
    columns, steps = fetch_steps(snapshot, Question(selection, (metric,)), step)
    return timed(quantiles_of_steps(only(columns, key), steps, quantiles), steps, selection)


def by_band(snapshot: Snapshot, selection: Selection, metric: str, definition: str) -> dict[str, Histogram]:
    """See `Reader.by_band`."""
    clock = _MEASURED_BY[metric]
    columns = measured(fetch(snapshot, Question(selection, (clock, metric), by="series")), clock, definition).columns
    counted = columns.of(metric)
    present = {columns.stages[place] for place in counted.stage.tolist()}
    return {band: add_up(only(counted, band)).histogram() for band in sorted(present, key=TOKEN_COUNTS.position)}


def only(columns: Columns, key: str) -> Columns:
    """Return the points that are told apart by *key*."""
    return columns.where(columns.stage == (columns.stages.index(key) if key in columns.stages else -1))
