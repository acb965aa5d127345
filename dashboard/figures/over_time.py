"""Time series charts: stage breakdown of a service, stage time of the fleet, and utilization of machines.

In the breakdown, steps with too few requests for the percentile are grey, and steps without requests are gaps. The hardware
chart shows utilization below the latency of slow requests, so that simultaneous increases are visible.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from ...core.histogram import samples_needed
from ...core.stages import label
from ..ui.format import count, duration, percent, percentile, whole
from .elements import (
    Annotation,
    Figure,
    Trace,
    band,
    f4,
    f8,
    figure,
    fixed_axis,
    horizontal_line,
    line,
    marker_rows,
    note,
    safe,
    spike,
    stages_of,
    ticks,
)
from .time_axis import Alert, TimeAxis, alert_marks, gaps_filled, has_too_few, release_marks, veils, without_alert_names

# Upper end of the lower panel, and lower end of the upper panel. [ratio of the plot's height]
_LOWER, _UPPER = 0.56, 0.68
_SIDE: Annotation = {"xref": "paper", "xanchor": "left", "yanchor": "middle", "xshift": 6, "font": {"size": 11.5}}
OVER_TIME_COLUMNS = ("at", "n", "value_seconds")
# If one extreme step would flatten the rest, the axis ends above this quantile of the steps.
_CEILING_QUANTILE = 0.985
# Lower end of the stack; below it is the strip of the request rate. [ratio of the plot's height]
_FLOOR = 0.19


def over_time_figure(
    frame: pd.DataFrame,
    axis: TimeAxis,
    *,
    quantile: float | None = None,
    versions: Mapping[datetime, str] | None = None,
    reported: Mapping[datetime, str] | None = None,
    alerts: Sequence[Alert] = (),
    threshold_seconds: float | None = None,
    hidden: Collection[str] = (),
) -> Figure:
    shown = stages_of(frame, OVER_TIME_COLUMNS)
    stages = [stage for stage in shown if stage not in hidden]
    steps = gaps_filled(frame, axis)
    places, rows = _runs(steps, axis)
    x = f8(places)
    total = steps["value_seconds"].to_numpy(dtype=float)
    part = len(stages) < len(shown)
    drawn = steps[list(stages)].sum(axis=1, min_count=1).to_numpy(dtype=float) if part else total
    top = _ceiling(drawn)
    rate = steps["n"].to_numpy(dtype=float) / axis.covered_seconds(steps["at"])
    data: list[Trace] = [
        band(x, _values_at_rows(steps[stage].to_numpy(dtype=float), rows, 0.0), stage) for stage in stages
    ]
    texts = [*_hover_lines(steps, shown, quantile, axis), ""]
    hover: dict[str, Any] = {"text": [texts[row] for row in rows], "hovertemplate": "%{text}<extra></extra>"}
    data.append(line(x, f4(_values_at_rows(drawn, rows, np.nan)), width=0 if part else 1.3, connectgaps=False, **hover))
    strip = {"type": "bar", "x": f8(axis.places(steps["at"])), "y": f4(np.nan_to_num(rate)), "yaxis": "y2"}
    data.append({**strip, "hoverinfo": "none", "marker": {"color": "$deco@.55"}})
    (shapes, notes), (fields, names) = release_marks(axis, versions, reported), alert_marks(alerts, axis)
    notes, _ = marker_rows(notes, axis.place(axis.start), axis.place(axis.end), rows=1)
    shapes, notes = [*shapes, *fields, *veils(steps, axis, quantile, _FLOOR)], [*notes, *names]
    if threshold_seconds is not None and threshold_seconds < top and not part:
        shapes.append(horizontal_line(threshold_seconds, "$bad"))
    return figure(
        data,
        (50, 12, 22, 24),
        narrow={"annotations": without_alert_names(notes)},
        xaxis={**axis.layout(), "anchor": "y2", **spike("$ink@.5")},
        yaxis=fixed_axis(0, top, domain=[_FLOOR, 1], **ticks(0, top, 4)),
        yaxis2=_strip_axis(np.nan_to_num(rate)),
        bargap=0.25,
        annotations=notes,
        shapes=shapes,
    )


def _runs(steps: pd.DataFrame, axis: TimeAxis) -> tuple[list[float], list[int]]:
    """Return x positions and row numbers to draw: step middles, and the outer edges of each run of steps.

    Row -1 means no data: between two runs, and at both edges of the axis.
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


def _values_at_rows(values: np.ndarray, rows: Sequence[int], nothing: float) -> np.ndarray:
    return np.array([values[row] if row >= 0 else nothing for row in rows])


def _hover_lines(steps: pd.DataFrame, stages: Sequence[str], quantile: float | None, axis: TimeAxis) -> list[str]:
    name = "mean" if quantile is None else percentile(quantile)
    values = zip(
        steps["value_seconds"], steps["n"], has_too_few(steps, quantile), steps[stages].to_numpy(float), strict=True
    )
    texts: list[str] = []
    for at, (value, n, unsure, parts) in zip(steps["at"], values, strict=True):
        if not np.isfinite(value):
            texts.append("")
            continue
        few = f", needs {whole(samples_needed(quantile))}" if unsure and quantile is not None else ""
        texts.append(
            f"{axis.text(at)}<br><b>{name} {duration(float(value))}</b> · n {count(float(n))}{few}{_dominant_words(stages, parts)}"
        )
    return texts


def _dominant_words(stages: Sequence[str], parts: np.ndarray) -> str:
    if not parts.sum():
        return ""
    most = int(np.nanargmax(parts))
    return f"<br>mostly {safe(label(stages[most]))} {percent(float(parts[most] / parts.sum()))}"


def _ceiling(total: np.ndarray) -> float:
    finite = total[np.isfinite(total)]
    if not len(finite):
        return 1.0
    return float(max(np.quantile(finite, _CEILING_QUANTILE) * 1.22, finite.max() if len(finite) < 40 else 0) * 1.02)  # noqa: PLR2004 - with few steps none may be cut off


def _strip_axis(rate: np.ndarray) -> dict[str, Any]:
    busiest = float(rate.max()) if len(rate) else 0.0
    running = rate[rate > 0]
    usual = float(running.mean()) if len(running) else 0.0
    tick = {"tickvals": [busiest / 2], "ticktext": [f"{count(usual)}/s"]}
    return fixed_axis(0, max(busiest * 1.05, 1e-9), domain=[0, 0.12], showgrid=False, **tick)


def hardware_figure(
    shares: pd.DataFrame, tail: pd.DataFrame, axis: TimeAxis, *, name: str, tail_name: str, named: str
) -> Figure:
    """Return the chart of utilization by device (at, place, share), below the latency of slow requests (at, value [seconds]).

    The line of the device *named* is black and above the others, which are grey; "" for none.
    """
    top = float(tail["value"].max() * 1.08) if len(tail) and tail["value"].max() > 0 else 1.0
    data: list[Trace] = [_gapped_line(tail.set_index("at")["value"], axis, tail_name, duration, yaxis="y2")]
    for place, rows in sorted(shares.groupby("place"), key=lambda pair: (pair[0] == named, pair[0])):
        colour = "$ink" if place == named else "$deco"
        data.append(_gapped_line(rows.set_index("at")["share"], axis, safe(str(place)), percent, colour=colour))
    notes = [
        note(tail_name, 1, (1 + _UPPER) / 2, yref="paper", **_SIDE),
        note(name, 1, _LOWER / 2, yref="paper", **_SIDE),
    ]
    return figure(
        data,
        (50, 74, 22, 24),
        narrow={"margin": {"l": 44, "r": 12, "t": 22, "b": 24}, "annotations": []},
        xaxis={**axis.layout(), "anchor": "y"},
        yaxis=fixed_axis(0, 1.02, domain=[0, _LOWER], **ticks(0, 1, 4, percent)),
        yaxis2=fixed_axis(0, top, domain=[_UPPER, 1], **ticks(0, top, 2)),
        annotations=notes,
    )


def _gapped_line(
    values: pd.Series, axis: TimeAxis, name: str, write: Callable[[float], str], **line_style: str
) -> Trace:
    steps = gaps_filled(values.rename("value").reset_index(), axis)
    numbers = steps["value"].to_numpy(dtype=float)
    texts = [
        f"{axis.text(at)}<br>{name} <b>{write(float(value))}</b>" if np.isfinite(value) else ""
        for at, value in zip(steps["at"], numbers, strict=True)
    ]
    style: dict[str, Any] = {"text": texts, "hovertemplate": "%{text}<extra></extra>", **line_style}
    return line(f8(axis.places(steps["at"])), f4(numbers), width=1.3, connectgaps=False, **style)


def busy_seconds(frame: pd.DataFrame, axis: TimeAxis) -> pd.DataFrame:
    """Return the seconds per second spent in each stage, which is the mean number of concurrent requests in the stage.

    Returns:
        `at` (UTC) and one column for each stage; every step of the axis, 0 in steps without requests.
    """
    stages = stages_of(frame, OVER_TIME_COLUMNS)
    steps = gaps_filled(frame, axis)
    rate = steps["n"].fillna(0).to_numpy(dtype=float) / axis.covered_seconds(steps["at"])
    busy = steps[stages].fillna(0.0).to_numpy(dtype=float) * rate[:, None]
    return pd.concat([steps[["at"]].reset_index(drop=True), pd.DataFrame(busy, columns=stages)], axis=1)


def fleet_figure(busy: pd.DataFrame, axis: TimeAxis) -> Figure:
    stages = stages_of(busy, ("at",))
    x = f8(axis.places(busy["at"]))
    stack = busy[stages].to_numpy(dtype=float)
    total = stack.sum(axis=1)
    top = float(total.max(initial=0.0) * 1.1) or 1.0
    data: list[Trace] = [band(x, stack[:, index], stage) for index, stage in enumerate(stages)]
    data.append(line(x, f4(np.array(total)), width=1.3, hoverinfo="none"))
    xaxis = {**axis.layout(), **spike("$ink@.5")}
    return figure(data, (44, 12, 10, 24), xaxis=xaxis, yaxis=fixed_axis(0, top, **ticks(0, top, 4, count)))
