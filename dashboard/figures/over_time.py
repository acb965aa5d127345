"""Breakdown over time: the stages of the requests at one percentile in every step, and how many requests there were.

Steps with too few requests for the percentile are greyed, steps without any are gaps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from ...core.stages import label
from ..format import count, duration, needed, percent, percentile, whole
from .parts import Figure, Trace, band, f4, f8, level, line, marker_rows, safe, stages_of, ticks
from .time_axis import Alert, TimeAxis, alert_marks, gaps_filled, release_marks, rough, veils, without_alert_names

OVER_TIME_COLUMNS = ("at", "n", "value_seconds")
# Where one extreme step would flatten the rest, the axis ends above this quantile of the steps.
_CEILING_QUANTILE = 0.985
# Where the stack begins; below it stands the strip of the request rate. [ratio of the plot's height]
_FLOOR = 0.19


def over_time_figure(
    frame: pd.DataFrame,
    axis: TimeAxis,
    *,
    quantile: float | None = None,
    versions: Mapping[datetime, str] | None = None,
    told: Mapping[datetime, str] | None = None,
    alerts: Sequence[Alert] = (),
    threshold_seconds: float | None = None,
    hidden: Collection[str] = (),
) -> Figure:
    """Return the stack of stages over time above a strip of the request rate.

    Args:
        frame: `at` (UTC), `n`, `value_seconds` and one column a stage [seconds]; steps without data are absent.
        axis: The window and its step.
        quantile: Which percentile it is about; None for the mean, for which every step has enough requests.
        versions: When each version was first seen inside the window, to its name.
        told: What somebody wrote down, such as a deploy.
        alerts: Alerts of the service that reach into the window.
        threshold_seconds: The promise, drawn as a line when it fits. [seconds]
        hidden: Stages to leave out; the axis then fits the others, and the line of the whole latency is not drawn.
    """
    shown = stages_of(frame, OVER_TIME_COLUMNS)
    stages = [each for each in shown if each not in hidden]
    steps = gaps_filled(frame, axis)
    places, rows = _runs(steps, axis)
    x = f8(places)
    total = steps["value_seconds"].to_numpy(dtype=float)
    part = len(stages) < len(shown)
    drawn = _top(steps, stages) if part else total
    top = _ceiling(drawn)
    rate = steps["n"].to_numpy(dtype=float) / axis.covered_seconds(steps["at"])
    data: list[Trace] = [band(x, _taken(steps[stage].to_numpy(dtype=float), rows, 0.0), stage) for stage in stages]
    said = [*_said(steps, shown, quantile, axis), ""]
    hover: dict[str, Any] = {"text": [said[row] for row in rows], "hovertemplate": "%{text}<extra></extra>"}
    data.append(line(x, f4(_taken(drawn, rows, np.nan)), width=0 if part else 1.3, connectgaps=False, **hover))
    strip = {"type": "bar", "x": f8(axis.places(steps["at"])), "y": f4(np.nan_to_num(rate)), "yaxis": "y2"}
    data.append({**strip, "hoverinfo": "none", "marker": {"color": "$deco@.55"}})
    (shapes, notes), (fields, names) = release_marks(axis, versions, told), alert_marks(alerts, axis)
    notes, _ = marker_rows(notes, axis.place(axis.start), axis.place(axis.end), rows=1)
    shapes, notes = [*shapes, *fields, *veils(steps, axis, quantile, _FLOOR)], [*notes, *names]
    if threshold_seconds is not None and threshold_seconds < top and not part:
        shapes.append(level(threshold_seconds, "$bad"))
    layout = {**_layout(axis, top, np.nan_to_num(rate)), "annotations": notes, "shapes": shapes}
    return {"data": data, "layout": layout, "narrow": {"annotations": without_alert_names(notes)}}


def _layout(axis: TimeAxis, top: float, rate: np.ndarray) -> dict[str, Any]:
    spike = {
        "showspikes": True,
        "spikemode": "across",
        "spikethickness": 1,
        "spikecolor": "$ink@.5",
        "spikedash": "solid",
    }
    return {
        "margin": {"l": 50, "r": 12, "t": 22, "b": 24},
        "xaxis": {**axis.layout(), "anchor": "y2", **spike},
        "yaxis": {"domain": [_FLOOR, 1], "range": [0, top], "fixedrange": True, **ticks(0, top, 4)},
        "yaxis2": _strip_axis(rate),
        "bargap": 0.25,
    }


def _runs(steps: pd.DataFrame, axis: TimeAxis) -> tuple[list[float], list[int]]:
    """Return where to draw which row of *steps*: middles, and the outer edges of each run, so that one step is seen too.

    A row of -1 stands for nothing: between two runs, at both of their edges.
    """
    half = axis.step.total_seconds() * 500
    places: list[float] = []
    rows: list[int] = []
    for there, run in groupby(
        enumerate(np.isfinite(steps["value_seconds"].to_numpy(dtype=float))), key=lambda pair: bool(pair[1])
    ):
        held = [row for row, _ in run]
        middles = axis.places(steps["at"].iloc[held])
        edges = middles[0] - half, middles[-1] + half
        places += [edges[0], *middles, edges[1]] if there else edges
        rows += [held[0], *held, held[-1]] if there else [-1, -1]
    return places, rows


def _taken(values: np.ndarray, rows: Sequence[int], nothing: float) -> np.ndarray:
    return np.array([values[row] if row >= 0 else nothing for row in rows])


def _said(steps: pd.DataFrame, stages: Sequence[str], quantile: float | None, axis: TimeAxis) -> list[str]:
    """Return what stands beside the pointer at each step, in three lines: when, value and n, and the stage that takes most."""
    name = "mean" if quantile is None else percentile(quantile)
    values = zip(steps["value_seconds"], steps["n"], rough(steps, quantile), steps[stages].to_numpy(float), strict=True)
    said: list[str] = []
    for at, (value, n, unsure, parts) in zip(steps["at"], values, strict=True):
        if not np.isfinite(value):
            said.append("")
            continue
        few = f", needs {whole(needed(quantile))}" if unsure and quantile is not None else ""
        said.append(
            f"{pd.Timestamp(at).astimezone(axis.zone):%H:%M:%S}<br><b>{name} {duration(float(value))}</b> · n {count(float(n))}{few}{_mostly(stages, parts)}"
        )
    return said


def _mostly(stages: Sequence[str], parts: np.ndarray) -> str:
    if not parts.sum():
        return ""
    most = int(np.nanargmax(parts))
    return f"<br>mostly {safe(label(stages[most]))} {percent(float(parts[most] / parts.sum()))}"


def _top(steps: pd.DataFrame, stages: Sequence[str]) -> np.ndarray:
    return steps[list(stages)].sum(axis=1, min_count=1).to_numpy(dtype=float)


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
