"""What the machines of a service did, measure by measure and place by place."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pandas as pd

from ...core.hardware import split_hardware_key
from ...core.names import HARDWARE
from ..columns import Columns, Floats
from ..encoding import Ints
from ..points import Question, Snapshot
from ..selection import Selection
from .fetch import fetch_steps
from .frames import timed

COLUMNS = ("at", "measure", "place", "mean", "most")


def hardware(snapshot: Snapshot, selection: Selection, step: timedelta) -> pd.DataFrame:
    """See `Reader.hardware`."""
    # A machine works for all models and routes, and for requests that fail.
    whole = replace(selection, model=None, route=None, status=None)
    columns, steps = fetch_steps(snapshot, Question(whole, (HARDWARE,)), step)
    told = {
        "at": steps.of(columns.times),
        "name": np.array(columns.stages, object)[columns.stage],
        "n": _observations(columns),
        "sum": columns.sum,
        "most": _most(columns),
    }
    added = {"n": "sum", "sum": "sum", "most": "max"}
    found = pd.DataFrame(told).groupby(["at", "name"], sort=True).agg(added).reset_index()
    names = [split_hardware_key(name) for name in found["name"]]
    made = found.assign(
        measure=[measure for measure, _ in names], place=[place for _, place in names], mean=found["sum"] / found["n"]
    )
    return timed(made[list(COLUMNS)], steps, selection)


def _observations(columns: Columns) -> Ints:
    """Return how many values each point has; shape (n,)."""
    held = np.concatenate((np.zeros(1, np.int64), np.cumsum(columns.buckets.amount)))
    return np.diff(held[columns.buckets.offsets]) + columns.zero


def _most(columns: Columns) -> Floats:
    """Return what no value of each point is above, at most a bucket more than the largest; shape (n,)."""
    filled = columns.buckets.lengths > 0
    last = columns.buckets.index[columns.buckets.offsets[1:][filled] - 1]
    most = np.zeros(len(columns))
    most[filled] = 2.0 ** ((last + 1) / 2.0 ** columns.scale[filled])
    # None is more than all together, so that of a single one it is exact.
    return np.minimum(most, columns.sum)
