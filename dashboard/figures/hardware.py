"""How busy each machine was over time, below how long slow requests took: what rises together stands above each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from ..format import duration, percent
from .parts import Annotation, Figure, Trace, f4, f8, line, note, safe, ticks
from .time_axis import TimeAxis, gaps_filled

# The lower panel ends and the upper one begins here. [ratio of the plot's height]
_LOWER, _UPPER = 0.56, 0.68
_SIDE: Annotation = {"xref": "paper", "xanchor": "left", "yanchor": "middle", "xshift": 6, "font": {"size": 11.5}}
_NARROW: dict[str, Any] = {"margin": {"l": 44, "r": 12, "t": 22, "b": 24}}


def hardware_figure(shares: pd.DataFrame, tail: pd.DataFrame, axis: TimeAxis, *, name: str, tail_name: str) -> Figure:
    """Return the figure.

    Args:
        shares: Columns at, place and share, of the places to be drawn.
        tail: Columns at and value: how long a slow request took. [seconds]
        axis: The window and the step of both.
        name: What was busy.
        tail_name: What the slow requests are called.
    """
    top = float(tail["value"].max() * 1.08) if len(tail) and tail["value"].max() > 0 else 1.0
    data: list[Trace] = [_course(tail.set_index("at")["value"], axis, tail_name, duration, yaxis="y2")]
    for place, own in shares.groupby("place", sort=True):
        data.append(_course(own.set_index("at")["share"], axis, safe(str(place)), percent))
    notes = [
        note(tail_name, 1, (1 + _UPPER) / 2, yref="paper", **_SIDE),
        note(name, 1, _LOWER / 2, yref="paper", **_SIDE),
    ]
    layout = {
        "margin": {"l": 50, "r": 74, "t": 22, "b": 24},
        "xaxis": {**axis.layout(), "anchor": "y"},
        "yaxis": {"domain": [0, _LOWER], "range": [0, 1.02], "fixedrange": True, **ticks(0, 1, 4, percent)},
        "yaxis2": {"domain": [_UPPER, 1], "range": [0, top], "fixedrange": True, **ticks(0, top, 2)},
        "annotations": notes,
    }
    return {"data": data, "layout": layout, "narrow": {**_NARROW, "annotations": []}}


def _course(values: pd.Series, axis: TimeAxis, name: str, write: Callable[[float], str], yaxis: str = "y") -> Trace:
    """Return a line of *values*, which are by time, with gaps where nothing is known."""
    steps = gaps_filled(values.rename("value").reset_index(), axis)
    known = steps["value"].to_numpy(dtype=float)
    said = [
        f"{pd.Timestamp(at).astimezone(axis.zone):%H:%M:%S}<br>{name} <b>{write(float(value))}</b>"
        if np.isfinite(value)
        else ""
        for at, value in zip(steps["at"], known, strict=True)
    ]
    look: dict[str, Any] = {"text": said, "hovertemplate": "%{text}<extra></extra>", "yaxis": yaxis}
    return line(f8(axis.places(steps["at"])), f4(known), width=1.3, connectgaps=False, **look)
