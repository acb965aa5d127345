"""Creation of data frames: times, the order of stages, and empty results with all columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...core.stages import ordered
from ..selection import Selection
from ..storage import Steps


def utc_times(seconds: Iterable[int]) -> pd.DatetimeIndex:
    return pd.to_datetime(np.array(list(seconds), np.int64), unit="s", utc=True)


def frame(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return *rows* as a data frame with the given *columns*, all of which are present even if there are no rows."""
    return pd.DataFrame(list(rows), columns=list(columns))


def with_step_times(table: pd.DataFrame, steps: Steps, selection: Selection) -> pd.DataFrame:
    """Return the frame *table* with `at` converted from Unix seconds to times, and with the width of its steps in `attrs`."""
    start, end = selection.seconds
    table["at"] = utc_times(table["at"])
    table.attrs["step_seconds"] = steps.width or end - start
    return table


def stage_frame(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    stages = {name for row in rows for name in row} - set(columns)
    table = frame([*columns, *ordered(stages)], rows)
    table[ordered(stages)] = table[ordered(stages)].fillna(0.0)
    return table
