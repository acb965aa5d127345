"""Latency heatmap: latency over time, with each cell coloured by its dominant stage and darker with more requests.

The cells are sent as bytes (`_cells`): the count, the two stages that dominate most of its requests, and their shares. The
browser derives colours and hover text from the bytes; as JSON the cells would be two thirds of the page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ...core.stages import label, position
from ..ui.design_tokens import stage_colour
from ..ui.format import axis_duration
from ..view import trace_name
from .elements import (
    LABEL_GAP,
    Annotation,
    Figure,
    Trace,
    f4,
    f8,
    figure,
    fixed_axis,
    horizontal_line,
    line,
    log_ticks,
    marker_rows,
    markers,
    note,
    raw,
    safe,
)
from .time_axis import TimeAxis, gaps_filled, has_too_few, release_marks

# Maximum number of cells; more cells are slow to draw and too small for a pointer.
_MAX_CELLS = 8_000
_TWO_BYTES = 65_535
# Row of zero latencies, if there are no other latencies.
_SHORTEST_SECONDS = 1e-7
_INK_SCALE = [[0, "$ink@~.06"], [0.35, "$ink@~.22"], [0.7, "$ink@~.5"], [1, "$ink@~.92"]]


def heat_figure(
    cells: pd.DataFrame,
    quantiles: pd.DataFrame,
    axis: TimeAxis,
    *,
    by_stage: bool = True,
    exemplars: Sequence[Mapping[str, Any]] = (),
    versions: Mapping[datetime, str] | None = None,
    reported: Mapping[datetime, str] | None = None,
    threshold_seconds: float | None = None,
    hidden: Collection[str] = (),
) -> Figure:
    grid = _grid(cells, axis, hidden)
    data: list[Trace] = [_cells_trace(grid, axis, by_stage=by_stage)]
    data += _quantile_lines(quantiles, axis)
    data += _diamonds(exemplars, axis)
    shapes, notes = release_marks(axis, versions, reported)
    notes, _ = marker_rows(notes, axis.place(axis.start), axis.place(axis.end), rows=1)
    low, high = float(grid.edges[0]), float(grid.edges[-1])
    notes += _quantile_names(quantiles, high / low)
    if threshold_seconds is not None and low < threshold_seconds < high:
        shapes.append(horizontal_line(threshold_seconds, "$bad"))
        notes.append(_objective_label(threshold_seconds))
    yaxis = fixed_axis(float(np.log10(low)), float(np.log10(high)), type="log", showgrid=False, **log_ticks(low, high))
    return figure(
        data,
        (50, 34, 22, 24),
        hovermode="closest",
        xaxis=axis.layout(),
        yaxis=yaxis,
        annotations=notes,
        shapes=shapes,
    )


@dataclass(frozen=True, slots=True)
class _Grid:
    """Heatmap cells as arrays; shape (latency rows, time columns).

    Args:
        first: Stage that dominates most requests, as an index of *stages*.
        second_share: Share of the requests that *second* dominates; 0 if one stage dominates all. [0..1]
        edges: Borders of the rows, one more than rows. [seconds]
    """

    counts: np.ndarray
    first: np.ndarray
    share: np.ndarray
    second: np.ndarray
    second_share: np.ndarray
    edges: np.ndarray
    starts: list[Any]
    stages: list[str]


def _grid(cells: pd.DataFrame, axis: TimeAxis, hidden: Collection[str]) -> _Grid:
    # The first step starts with the window, which may be between two steps.
    first = axis.begin(cells["at"].min().to_pydatetime())
    starts = list(pd.date_range(first, cells["at"].max(), freq=axis.step))
    column = ((cells["at"] - first) // axis.step).astype(int).to_numpy()
    row, edges = _rows(cells, len(starts))
    n = cells["n"].to_numpy(dtype=float)
    counts = np.zeros((len(edges) - 1, len(starts)))
    np.add.at(counts, (row, column), n)
    stages_in_cells = {*cells["dominant"].unique(), *cells["second"].unique()}
    stages = sorted((str(stage_name) for stage_name in stages_in_cells if stage_name), key=position)
    weight = np.zeros((len(stages), *counts.shape))
    for name, share in (("dominant", "share"), ("second", "second_share")):
        # -1 for no stage.
        stage = pd.Index(stages).get_indexer(pd.Index(cells[name]))
        has_stage = stage >= 0
        np.add.at(
            weight,
            (stage[has_stage], row[has_stage], column[has_stage]),
            (n * cells[share].to_numpy(dtype=float))[has_stage],
        )
    order = np.argsort(-weight, axis=0, kind="stable")
    first, second = order[0], order[min(1, len(stages) - 1)]
    share, other = (
        np.take_along_axis(weight, largest[None], axis=0)[0] / np.maximum(counts, 1) for largest in (first, second)
    )
    counts[np.isin(first, [stages.index(hidden_stage) for hidden_stage in hidden if hidden_stage in stages])] = 0
    return _Grid(counts, first, share, second, np.where(first == second, 0, other), edges, starts, stages)


def _rows(cells: pd.DataFrame, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of each cell and the row borders: the buckets of the store, or several of them merged.

    Bucket widths are a doubling divided by a power of two, so that a bucket never spans two rows.
    """
    low, high = (cells[name].to_numpy(dtype=float) for name in ("low_seconds", "high_seconds"))
    # Zero latencies are in the lowest row.
    is_positive = low > 0
    high = np.where(is_positive, high, high[is_positive].min() if is_positive.any() else _SHORTEST_SECONDS)
    width = float(np.log2(high[is_positive] / low[is_positive]).min()) if is_positive.any() else 1.0
    # Buckets include their upper border; rounding prevents float noise from reaching the next row.
    top = np.round(np.log2(high) / width).astype(int)
    while (top.max() - top.min() + 3) * columns > _MAX_CELLS and top.max() > top.min():
        top, width = -(-top // 2), width * 2
    first, last = int(top.min()) - 1, int(top.max()) + 1
    return top - first, 2.0 ** (np.arange(first - 1, last + 1) * width)


def _cells_trace(grid: _Grid, axis: TimeAxis, *, by_stage: bool) -> Trace:
    wide = grid.counts.max() > _TWO_BYTES
    names = [axis_duration(float(f"{edge:.2g}")) for edge in grid.edges]
    return {
        "type": "heatmap",
        # Borders instead of middles, because a single column would have no width.
        "x": f8([axis.place(start.to_pydatetime()) for start in (*grid.starts, grid.starts[-1] + axis.step)]),
        "y": f8(grid.edges),
        "zmin": 0,
        "zmax": len(grid.stages) if by_stage else 1,
        "colorscale": _stage_scale(grid.stages) if by_stage else _INK_SCALE,
        "showscale": False,
        "hoverongaps": False,
        "xgap": 0.6,
        "ygap": 0.6,
        "hovertemplate": "%{text}<extra></extra>",
        "_cells": {
            "columns": len(grid.starts),
            "byStage": by_stage,
            "wide": bool(wide),
            "counts": raw(grid.counts, "<u4" if wide else "<u2"),
            "dominant": raw(grid.first, "u1"),
            "shares": raw(np.round(grid.share * 100), "u1"),
            "second": raw(np.where(grid.second_share > 0, grid.second, 0), "u1"),
            # Nearly always zero, and therefore compressed to almost nothing.
            "others": raw(np.clip(100 - np.round(grid.share * 100) - np.round(grid.second_share * 100), 0, 100), "u1"),
            "labels": [safe(label(stage)) for stage in grid.stages],
            "rows": [f"{low} to {high}" for low, high in pairwise(names)],
            "times": [axis.text(start) for start in grid.starts],
        },
    }


def _stage_scale(stages: Sequence[str]) -> list[list[float | str]]:
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
    for name, quantile, width in (("p50", 0.5, 1.4), ("p99", 0.99, 1.6)):
        value, unsure = steps[name].to_numpy(dtype=float), has_too_few(steps, quantile)
        y = f4(np.where(unsure, np.nan, value))
        lines += [line(x, y, width=width + 1.8, colour="$surface@.75"), line(x, y, width=width)]
        if unsure.any():
            lines.append(line(x, f4(value), width=1, colour="$ink@.7", dash="2px,2px"))
    return lines


def _quantile_names(quantiles: pd.DataFrame, reach: float) -> list[Annotation]:
    if len(quantiles) < 2:  # noqa: PLR2004 - one step is no line
        return []
    style: Annotation = {"xref": "paper", "xanchor": "left", "xshift": 4, "font": {"size": 11, "color": "$ink"}}
    ends = {name: float(np.log10(max(float(quantiles[name].iloc[-4:].mean()), 1e-9))) for name in ("p50", "p99")}
    if ends["p99"] - ends["p50"] < np.log10(reach) * LABEL_GAP:
        del ends["p50"]
    return [note(f"<b>{name}</b>", 1, at, **style) for name, at in ends.items()]


def _diamonds(exemplars: Sequence[Mapping[str, Any]], axis: TimeAxis) -> list[Trace]:
    if not exemplars:
        return []
    return [
        markers(
            [axis.place(exemplar["at"]) for exemplar in exemplars],
            [float(exemplar["duration_seconds"]) for exemplar in exemplars],
            {"symbol": "diamond", "size": 7, "color": "$surface", "line": {"width": 1.5, "color": "$ink"}},
            customdata=[trace_name(str(exemplar["trace_id"]), str(exemplar["span_id"])) for exemplar in exemplars],
            text=[axis_duration(float(f"{exemplar['duration_seconds']:.3g}")) for exemplar in exemplars],
            hovertemplate="exemplar · <b>%{text}</b><br>click to open the trace<extra></extra>",
        )
    ]


def _objective_label(threshold_seconds: float) -> Annotation:
    style: Annotation = {"font": {"size": 11, "color": "$bad"}, "bgcolor": "$surface@.8", "borderpad": 1, "xshift": 4}
    log_seconds = float(np.log10(threshold_seconds))
    return {**note("SLO", 0, log_seconds, xref="paper"), "xanchor": "left", "yanchor": "bottom", **style}
