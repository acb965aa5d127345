"""Every request: latency over time, each cell tinted by the stage that dominates it, deeper where there are more.

The cells travel as bytes (`_cells`): two for the count and one for the stage. The browser makes the colours and the
hover text from them; as JSON they would be two thirds of the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from ...core.stages import label, position
from ..format import axis_duration
from ..tokens import stage_colour
from ..view import trace_name
from .parts import Annotation, Figure, Trace, f4, f8, level, line, log_ticks, note, raw, releases, safe
from .time_axis import TimeAxis, gaps_filled

# Six rows a doubling: with 120 columns well below 8 000 cells.
_ROWS_A_DOUBLING = 6
_MAX_COUNT = 65_535


def heat_figure(
    cells: pd.DataFrame,
    quantiles: pd.DataFrame,
    axis: TimeAxis,
    *,
    by_stage: bool = True,
    exemplars: Sequence[Mapping[str, Any]] = (),
    versions: Mapping[datetime, str] | None = None,
    threshold_seconds: float | None = None,
) -> Figure:
    """Return the heatmap of all requests with p50 and p99 on it.

    Args:
        cells: `at` (UTC), `low_seconds`, `high_seconds`, `n`, `dominant`.
        quantiles: `at` (UTC), `n`, `p50`, `p99` [seconds].
        axis: The window and its step.
        by_stage: Tint by dominating stage; otherwise ink by count.
        exemplars: Kept traces to mark: `at`, `duration_seconds`, `trace_id`, `span_id`.
        versions: When each version was first seen inside the window, to its name.
        threshold_seconds: The promise. [seconds]
    """
    grid = _grid(cells, axis)
    data: list[Trace] = [_cells_trace(grid, axis, by_stage=by_stage)]
    data += _quantile_lines(quantiles, axis)
    data += _diamonds(exemplars, axis)
    shapes, notes = releases({axis.place(at): name for at, name in (versions or {}).items()})
    low, high = grid.edges[0], grid.edges[-1]
    notes += _quantile_names(quantiles)
    if threshold_seconds is not None and low < threshold_seconds < high:
        shapes.append(level(threshold_seconds, "$bad"))
        notes.append(_promise(threshold_seconds))
    layout = {
        "margin": {"l": 50, "r": 34, "t": 22, "b": 24},
        "hovermode": "closest",
        "xaxis": axis.layout(),
        "yaxis": {
            "type": "log",
            "showgrid": False,
            "fixedrange": True,
            **log_ticks(low, high),
            "range": [float(np.log10(low)), float(np.log10(high))],
        },
        "annotations": notes,
        "shapes": shapes,
    }
    return {"data": data, "layout": layout}


class _Grid:
    """The cells as arrays: rows of latency, columns of time."""

    def __init__(self, counts: np.ndarray, dominant: np.ndarray, edges: np.ndarray, starts: list[Any]) -> None:
        self.counts = counts
        self.dominant = dominant
        self.edges = edges
        self.starts = starts
        self.stages: list[str] = []


def _grid(cells: pd.DataFrame, axis: TimeAxis) -> _Grid:
    edges = cells[["low_seconds", "high_seconds"]].to_numpy(dtype=float)
    middle = np.sqrt(np.maximum(edges, 1e-9).prod(axis=1))
    row_number = np.floor(np.log2(middle) * _ROWS_A_DOUBLING).astype(int)
    first, last = int(row_number.min()) - 1, int(row_number.max()) + 1
    starts = list(pd.date_range(cells["at"].min(), cells["at"].max(), freq=axis.step))
    column = ((cells["at"] - cells["at"].min()) / axis.step).round().astype(int).to_numpy()
    stages = sorted({str(each) for each in cells["dominant"]}, key=position)
    weight = np.zeros((len(stages), last - first + 1, len(starts)))
    stage_number = np.array([stages.index(str(each)) for each in cells["dominant"]], dtype=int)
    np.add.at(weight, (stage_number, row_number - first, column), cells["n"].to_numpy(dtype=float))
    edges = 2.0 ** (np.arange(first, last + 2) / _ROWS_A_DOUBLING)
    grid = _Grid(weight.sum(axis=0), weight.argmax(axis=0), edges, starts)
    grid.stages = stages
    return grid


def _cells_trace(grid: _Grid, axis: TimeAxis, *, by_stage: bool) -> Trace:
    middles = np.sqrt(grid.edges[:-1] * grid.edges[1:])
    return {
        "type": "heatmap",
        "x": f8(axis.places(grid.starts)),
        "y": f8(middles),
        "zmin": 0,
        "zmax": len(grid.stages) if by_stage else 1,
        "colorscale": _stage_scale(grid.stages) if by_stage else _INK_SCALE,
        "showscale": False,
        "hoverongaps": False,
        "xgap": 0.6,
        "ygap": 0.6,
        "hovertemplate": "%{x|%H:%M:%S} · %{text}<extra></extra>",
        "_cells": {
            "columns": len(grid.starts),
            "byStage": by_stage,
            "counts": raw(np.minimum(grid.counts, _MAX_COUNT), "<u2"),
            "dominant": raw(grid.dominant, "u1"),
            "labels": [safe(label(stage)) for stage in grid.stages],
            "rows": [axis_duration(float(f"{middle:.2g}")) for middle in middles],
        },
    }


_INK_SCALE = [[0, "$ink@~.06"], [0.35, "$ink@~.22"], [0.7, "$ink@~.5"], [1, "$ink@~.92"]]


def _stage_scale(stages: Sequence[str]) -> list[list[float | str]]:
    """Give each stage its own stretch of the scale, from pale to its full hue."""
    scale: list[list[float | str]] = []
    width = 1 / len(stages)
    for index, stage in enumerate(stages):
        start, end = index * width, (index + 1) * width
        last = index == len(stages) - 1
        scale.append([start + 1e-6 if index else 0, stage_colour(stage, solid=0.22)])
        scale.append([start + width * 0.4, stage_colour(stage, solid=0.62)])
        scale.append([1 if last else end - 1e-6, stage_colour(stage)])
    return scale


def _quantile_lines(quantiles: pd.DataFrame, axis: TimeAxis) -> list[Trace]:
    if quantiles.empty:
        return []
    steps = gaps_filled(quantiles, axis)
    x = f8(axis.places(steps["at"]))
    lines: list[Trace] = []
    for name, width in (("p50", 1.4), ("p99", 1.6)):
        y = f4(steps[name].to_numpy(dtype=float))
        lines += [line(x, y, width=width + 1.8, colour="$surface@.75"), line(x, y, width=width)]
    return lines


def _quantile_names(quantiles: pd.DataFrame) -> list[dict[str, Any]]:
    if quantiles.empty:
        return []
    style: Annotation = {"xref": "paper", "xanchor": "left", "xshift": 4, "font": {"size": 11, "color": "$ink"}}
    return [
        note(f"<b>{name}</b>", 1, float(np.log10(max(float(quantiles[name].iloc[-4:].mean()), 1e-9))), **style)
        for name in ("p50", "p99")
    ]


def _diamonds(exemplars: Sequence[Mapping[str, Any]], axis: TimeAxis) -> list[Trace]:
    if not exemplars:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [axis.place(each["at"]) for each in exemplars],
            "y": [float(each["duration_seconds"]) for each in exemplars],
            "customdata": [trace_name(str(each["trace_id"]), str(each["span_id"])) for each in exemplars],
            "text": [axis_duration(float(f"{each['duration_seconds']:.3g}")) for each in exemplars],
            "marker": {"symbol": "diamond", "size": 7, "color": "$surface", "line": {"width": 1.5, "color": "$ink"}},
            "hovertemplate": "exemplar · <b>%{text}</b><br>click to open the trace<extra></extra>",
        }
    ]


def _promise(threshold_seconds: float) -> Annotation:
    style: Annotation = {"font": {"size": 11, "color": "$bad"}, "bgcolor": "$surface@.8", "borderpad": 1, "xshift": 4}
    place = float(np.log10(threshold_seconds))
    return {**note("SLO", 0, place, xref="paper"), "xanchor": "left", "yanchor": "bottom", **style}
