"""How fast tokens come when many requests decode at once: steps of the window, sorted by load.

Little's law: the mean number of requests in a stage is the time they spend there for each second of the clock. It holds
whatever the order and the lengths of the requests are; a request that lasts longer than a step counts where it ended.

Source: Little, A Proof for the Queuing Formula: L = λW, Operations Research 9 (1961).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.names import OUTPUT_TOKEN, STAGE_DURATION, TOKENS, TOKENS_OUT
from ..columns import Columns
from ..encoding import Ints
from ..points import Question, Snapshot
from ..selection import Selection
from .fetch import fetch_steps
from .frames import frame
from .step_counts import count_at
from .streams import only

COLUMNS = (
    *("load", "low_load", "high_load", "steps", "n"),
    *("p50_seconds", "p99_seconds", "output_per_second"),
)
_METRICS = (STAGE_DURATION, OUTPUT_TOKEN, TOKENS)
_STAGE = "decode"


def speed_by_load(
    snapshot: Snapshot, selection: Selection, definition: str, step: timedelta, groups: int
) -> pd.DataFrame:
    """See `Reader.speed_by_load`."""
    columns, cut = fetch_steps(snapshot, Question(selection, _METRICS), step)
    paced = only(columns.of(OUTPUT_TOKEN), definition)
    # A window of one step has no course.
    steps = _steps(columns, paced, cut.width, selection.seconds) if cut.width else pd.DataFrame()
    made = _grouped(steps, paced, cut.width, groups) if cut.width and len(steps) else frame(COLUMNS, [])
    newest = float(steps["load"].loc[steps.index.max()]) if len(steps) else None
    made.attrs.update(step_seconds=cut.width, steps=len(steps), newest_load=newest)
    return made


def _steps(columns: Columns, paced: Columns, width: int, window: tuple[int, int]) -> pd.DataFrame:
    """Return load, n and output_per_second of the whole steps in which something decoded, by rising load."""
    decoded, output = only(columns.of(STAGE_DURATION), _STAGE), only(columns.of(TOKENS), TOKENS_OUT)
    held = np.concatenate((np.zeros(1, np.int64), np.cumsum(paced.buckets.amount)))
    found = pd.DataFrame(
        {
            "load": _added(decoded, decoded.sum / width, width),
            "n": _added(paced, paced.zero + np.diff(held[paced.buckets.offsets]), width),
            "output_per_second": _added(output, output.sum / width, width),
        }
    ).fillna(0.0)
    whole = (found.index >= window[0]) & (found.index + width <= window[1])
    return found[whole & (found["load"] > 0) & (found["n"] > 0)].sort_values("load", kind="stable")


def _added(columns: Columns, values: NDArray[Any], width: int) -> pd.Series[Any]:
    """Add up *values*, one a point of *columns*, by the start of the step it is in."""
    return pd.Series(values).groupby(_starts(columns, width)).sum()


def _starts(columns: Columns, width: int) -> Ints:
    return columns.times - columns.times % width


def _grouped(steps: pd.DataFrame, paced: Columns, width: int, groups: int) -> pd.DataFrame:
    """Take neighbours in load together, about equally many requests each."""
    middle = steps["n"].cumsum() - steps["n"] / 2
    group = pd.Series(pd.factorize((middle / steps["n"].sum() * groups).astype(int))[0], steps.index)
    chosen = paced.where(np.isin(_starts(paced, width), steps.index))
    place = group.reindex(_starts(chosen, width)).to_numpy(np.int64)
    counts = count_at(chosen, place, np.arange(int(group.max()) + 1), int(chosen.scale.min()))
    load = steps["load"].groupby(group)
    made = {
        "load": load.mean(),
        "low_load": load.min(),
        "high_load": load.max(),
        "steps": load.size(),
        "n": counts.total,
        "p50_seconds": counts.values_at(0.5),
        "p99_seconds": counts.values_at(0.99),
        "output_per_second": steps["output_per_second"].groupby(group).mean(),
    }
    return pd.DataFrame(made, columns=list(COLUMNS))
