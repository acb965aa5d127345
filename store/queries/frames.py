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


def with_step_times(made: pd.DataFrame, steps: Steps, selection: Selection) -> pd.DataFrame:
    """Return the frame *made* with `at` converted from Unix seconds to times, and with the width of its steps in `attrs`."""
    start, end = selection.seconds
    made["at"] = utc_times(made["at"])
    made.attrs["step_seconds"] = steps.width or end - start
    return made


def stage_frame(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    stages = {name for row in rows for name in row} - set(columns)
    made = frame([*columns, *ordered(stages)], rows)
    made[ordered(stages)] = made[ordered(stages)].fillna(0.0)
    return made
