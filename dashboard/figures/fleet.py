"""Where the fleet spends its time: the stages of all services over time, in seconds a second."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..format import count
from .parts import Figure, Trace, band, f4, f8, line, stages_of, ticks
from .time_axis import TimeAxis, gaps_filled

FLEET_COLUMNS = ("at", "n", "value_seconds")


def busy_seconds(frame: pd.DataFrame, axis: TimeAxis) -> pd.DataFrame:
    """Return how many seconds requests spend in each stage, in every second: how many of them are in it at a time.

    Args:
        frame: The mean breakdown over time: `COLUMNS` and one column a stage [seconds a request]; steps without
            requests are absent.
        axis: The window and its step.

    Returns:
        `at` (UTC) and one column a stage; every step of the axis, 0 in those without requests.
    """
    stages = stages_of(frame, FLEET_COLUMNS)
    steps = gaps_filled(frame, axis)
    rate = steps["n"].fillna(0).to_numpy(dtype=float) / axis.covered_seconds(steps["at"])
    told = steps[stages].fillna(0.0).to_numpy(dtype=float) * rate[:, None]
    return pd.concat([steps[["at"]].reset_index(drop=True), pd.DataFrame(told, columns=stages)], axis=1)


def fleet_figure(busy: pd.DataFrame, axis: TimeAxis) -> Figure:
    """Return the stack of stages over time.

    Args:
        busy: As `busy_seconds` gives it, at least one row.
        axis: The window and its step.
    """
    stages = stages_of(busy, ("at",))
    x = f8(axis.places(busy["at"]))
    stack = busy[stages].to_numpy(dtype=float)
    total = stack.sum(axis=1)
    top = float(total.max(initial=0.0) * 1.1) or 1.0
    data: list[Trace] = [band(x, stack[:, place], stage) for place, stage in enumerate(stages)]
    data.append(line(x, f4(np.array(total)), width=1.3, hoverinfo="none"))
    layout = {
        "margin": {"l": 44, "r": 12, "t": 10, "b": 24},
        "xaxis": {**axis.layout(), "showspikes": True, "spikemode": "across", "spikethickness": 1}
        | {"spikecolor": "$ink@.5", "spikedash": "solid"},
        "yaxis": {"range": [0, top], "fixedrange": True, **ticks(0, top, 4, count)},
    }
    return {"data": data, "layout": layout}
