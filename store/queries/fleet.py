"""All services at once: what one question a service would say, for the price of one.

The points of all are read together, each service's are put aside, and they are added up by the same code: the numbers are
those of `Reader.breakdown` of the service, to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from sqlalchemy import select

from ...core.names import REQUEST_DURATION
from .. import merging, schema
from ..columns import Columns
from ..encoding import Ints
from ..points import Question, Snapshot
from ..selection import Selection
from . import breakdown
from .breakdown import METRICS, Mixture
from .fetch import fetch, fetch_steps
from .frames import staged, timed


def fleet(snapshot: Snapshot, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
    """See `Reader.fleet`."""
    columns = fetch(snapshot, Question(selection, METRICS, by="total"))
    names: list[str] = []
    rows: list[dict[str, Any]] = []
    for service, own in _by_service(snapshot, selection, columns):
        if len(own.of(REQUEST_DURATION)):
            rows += breakdown.rows(Mixture(own), percentiles)
            names += [service] * len(percentiles)
    made = staged(breakdown.COLUMNS, rows)
    # Not a column: a stage may have any name.
    made.index = pd.Index(names, name="service", dtype=object)
    return made


def fleet_over_time(snapshot: Snapshot, selection: Selection, step: timedelta) -> pd.DataFrame:
    """See `Reader.fleet_over_time`."""
    columns, steps = fetch_steps(snapshot, Question(selection, (REQUEST_DURATION,), by="total"), step)
    names, owned = _owned(snapshot, selection, columns)
    told = {"service": owned.series, "at": steps.of(owned.times), "n": _requests(owned)}
    made = pd.DataFrame(told).groupby(["service", "at"])["n"].sum().reset_index()
    made["service"] = [names[each] for each in made["service"]]
    return timed(made, steps, selection)


def _by_service(snapshot: Snapshot, selection: Selection, columns: Columns) -> Iterator[tuple[str, Columns]]:
    """Yield the points of each service, by name."""
    names, owned = _owned(snapshot, selection, columns)
    grouped = merging.over_time(owned)
    edges = np.flatnonzero(np.diff(grouped.series, prepend=-1, append=-1)).tolist()
    for low, high in pairwise(edges):
        yield names[int(grouped.series[low])], _with_own_stages(grouped.between(low, high))


def _owned(snapshot: Snapshot, selection: Selection, columns: Columns) -> tuple[list[str], Columns]:
    """Return the names of all services, and *columns* with the place of their service there for their series or total."""
    series = schema.series.c
    found = snapshot.connection.execute(
        select(series.id, series.total_id, series.service).where(*selection.conditions())
    ).all()
    names = sorted({row.service for row in found})
    place = {name: number for number, name in enumerate(names)}
    # A total goes by the number of its first series, which may be forgotten already.
    owner = {row.total_id: place[row.service] for row in found} | {row.id: place[row.service] for row in found}
    numbers, which = np.unique(columns.series, return_inverse=True)
    services = np.array([owner[number] for number in numbers.tolist()], np.int64)[which]
    return names, replace(columns, series=services)


def _with_own_stages(columns: Columns) -> Columns:
    """Return *columns* without the stages that only others have: each takes a row of every table."""
    used, stage = np.unique(columns.stage, return_inverse=True)
    return replace(columns, stage=stage, stages=tuple(columns.stages[each] for each in used.tolist()))


def _requests(columns: Columns) -> Ints:
    """Return how many requests each point counts; shape (n,)."""
    held = np.concatenate((np.zeros(1, np.int64), np.cumsum(columns.buckets.amount)))
    return np.diff(held[columns.buckets.offsets]) + columns.zero
