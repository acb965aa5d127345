"""What spent an error budget: bad requests over time, stacked by the stage that explains them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from ...core.stages import label, position
from ..design_tokens import family, stage_colour
from ..format import count
from .budget import markers
from .parts import BAND, Figure, Trace, f4, f8, safe, ticks
from .time_axis import TimeAxis

UNEXPLAINED = "unexplained"
COLUMNS = ("at", "bad", UNEXPLAINED)
# Of a bar's step; the rest is the gap.
_FILL = 0.82
# What no stage explains.
_GREY = "$deco@.6"


def spent_figure(
    frame: pd.DataFrame,
    axis: TimeAxis,
    address: Callable[[str, datetime], str],
    *,
    versions: Mapping[datetime, str] | None = None,
    told: Mapping[datetime, str] | None = None,
) -> Figure:
    """Return one bar a step, each stage a part of it.

    Args:
        frame: The frame of `read.bad_over_time`.
        axis: The shown time and its step.
        address: Returns where a click on a stage of a step leads; "" for what no stage explains.
        versions: When each version was first seen inside the shown time, to its name.
        told: What was told to have happened in it, to a short name.
    """
    starts = [pd.Timestamp(each).to_pydatetime() for each in frame["at"]]
    x = f8(axis.places(frame["at"]))
    width = axis.step.total_seconds() * 1000 * _FILL
    data: list[Trace] = []
    for stage in stages_of(frame):
        bad = frame[stage].to_numpy(dtype=float)
        places = [address(stage, at) if some else "" for at, some in zip(starts, bad, strict=True)]
        data.append(_bars(stage, x, bad, width, places))
    rest = frame[UNEXPLAINED].to_numpy(dtype=float)
    if rest.any():
        places = [address("", at) if some else "" for at, some in zip(starts, rest, strict=True)]
        data.append(_bars("", x, rest, width, places))
    shapes, notes, room = markers(axis, versions, told)
    top = float(frame["bad"].max() * 1.12) or 1.0
    layout = {
        "margin": {"l": 40, "r": 12, "t": room, "b": 24},
        "hovermode": "closest",
        "barmode": "stack",
        "xaxis": axis.layout(),
        "yaxis": {"range": [0, top], "fixedrange": True, **_whole_ticks(top)},
        "shapes": shapes,
        "annotations": notes,
    }
    return {"data": data, "layout": layout}


def stages_of(frame: pd.DataFrame) -> list[str]:
    """Return the stages that explain anything, in their fixed order."""
    return sorted((str(each) for each in frame.columns if each not in COLUMNS), key=position)


def _whole_ticks(top: float) -> dict[str, Any]:
    """Return ticks without parts of a request."""
    values = [value for value in ticks(0, top, 4)["tickvals"] if value == int(value)]
    return {"tickvals": values, "ticktext": [count(value) for value in values]}


def _bars(stage: str, x: Any, bad: np.ndarray, width: float, places: list[str]) -> Trace:
    name = safe(label(stage)) if stage else "no stage stands out"
    return {
        "type": "bar",
        "x": x,
        "y": f4(bad),
        "width": width,
        "customdata": places,
        "name": name,
        "meta": {"stage": stage, "family": family(stage)} if stage else {},
        "marker": {"color": stage_colour(stage, solid=BAND) if stage else _GREY, "line": {"width": 0}},
        "hovertemplate": f"%{{x|%-d %b %H:%M}}<br><b>%{{y:,.3~g}}</b> bad, {name}<extra></extra>",
    }
