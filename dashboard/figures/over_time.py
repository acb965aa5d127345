"""Breakdown over time: the stages of the requests at one percentile in every step, and how many requests there were."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import numpy as np
import pandas as pd

from ..format import count
from .parts import Figure, Trace, band, f4, f8, level, line, releases, stages_of, ticks
from .time_axis import TimeAxis, gaps_filled

COLUMNS = ("at", "n", "value_seconds")
# Where one extreme step would flatten the rest, the axis ends above this quantile of the steps.
_CEILING_QUANTILE = 0.985


def over_time_figure(
    frame: pd.DataFrame,
    axis: TimeAxis,
    *,
    versions: Mapping[datetime, str] | None = None,
    threshold_seconds: float | None = None,
) -> Figure:
    """Return the stack of stages over time above a strip of the request rate.

    Args:
        frame: `at` (UTC), `n`, `value_seconds` and one column a stage [seconds]; steps without data are absent.
        axis: The window and its step.
        versions: When each version was first seen inside the window, to its name.
        threshold_seconds: The promise, drawn as a line when it fits. [seconds]
    """
    stages = stages_of(frame, COLUMNS)
    steps = gaps_filled(frame, axis)
    x = f8(axis.places(steps["at"]))
    total = steps["value_seconds"].to_numpy(dtype=float)
    top = _ceiling(total)
    rate = steps["n"].to_numpy(dtype=float) / axis.covered_seconds(steps["at"])
    data: list[Trace] = [band(x, steps[stage].fillna(0.0).to_numpy(dtype=float), stage) for stage in stages]
    data.append(line(x, f4(total), width=1.3, hoverinfo="none", connectgaps=False))
    strip = {"type": "bar", "x": x, "y": f4(np.nan_to_num(rate)), "yaxis": "y2", "hoverinfo": "none"}
    data.append({**strip, "marker": {"color": "$deco@.55"}})
    shapes, notes = releases({axis.place(at): name for at, name in (versions or {}).items()})
    if threshold_seconds is not None and threshold_seconds < top:
        shapes.append(level(threshold_seconds, "$bad"))
    layout = {
        "margin": {"l": 50, "r": 12, "t": 22, "b": 24},
        "xaxis": {**axis.layout(), "anchor": "y2", "showspikes": True, "spikemode": "across", "spikethickness": 1}
        | {"spikecolor": "$ink@.5", "spikedash": "solid"},
        "yaxis": {"domain": [0.19, 1], "range": [0, top], "fixedrange": True, **ticks(0, top, 4)},
        "yaxis2": _strip_axis(np.nan_to_num(rate)),
        "annotations": notes,
        "shapes": shapes,
        "bargap": 0.25,
    }
    return {"data": data, "layout": layout}


def _ceiling(total: np.ndarray) -> float:
    known = total[np.isfinite(total)]
    if not len(known):
        return 1.0
    return float(max(np.quantile(known, _CEILING_QUANTILE) * 1.22, known.max() if len(known) < 40 else 0) * 1.02)  # noqa: PLR2004 - few steps: none may be cut


def _strip_axis(rate: np.ndarray) -> dict[str, object]:
    busiest = float(rate.max()) if len(rate) else 0.0
    running = rate[rate > 0]
    usual = float(running.mean()) if len(running) else 0.0
    return {
        "domain": [0, 0.12],
        "showgrid": False,
        "range": [0, max(busiest * 1.05, 1e-9)],
        "tickvals": [busiest / 2],
        "ticktext": [f"{count(usual)}/s"],
        "fixedrange": True,
    }
