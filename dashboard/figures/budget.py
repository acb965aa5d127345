"""Error budget charts: remaining budget over its window, burn rate, bad requests by explaining stage, and the trend of an incident."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

from ...alerts.delivery.message import Trend
from ...core.stages import label, position
from ..ui.design_tokens import family, stage_colour
from ..ui.format import TIMES, axis_duration, count, percent, span, times
from .elements import (
    BAND,
    MARKER_ROW,
    Annotation,
    Figure,
    Shape,
    Trace,
    f4,
    f8,
    figure,
    fixed_axis,
    horizontal_line,
    line,
    marker_rows,
    note,
    rectangle,
    safe,
    ticks,
)
from .time_axis import TimeAxis, release_marks

UNEXPLAINED = "unexplained"
SPENT_COLUMNS = ("at", "bad", UNEXPLAINED)
# Bar width as part of the step; the rest is the gap between bars.
_FILL = 0.82
# Colour of bad requests that no stage explains.
_GREY = "$deco@.6"
# The projection is drawn if exhaustion is at most this part of the shown time ahead.
_NEAR = 0.35
_LOWEST, _DEEPEST = -8.0, -120.0
# Above this value the axis does not start at zero; otherwise the line of a new budget would be flat.
_MOSTLY_THERE = 60.0
_NEARLY_ALL = 0.99
# Range of the label along the line of the sustainable pace, above and below the line. [ratio]
_ABOVE_FROM, _BELOW_TO = 0.22, 0.5
# Height of a threshold label, as part of the plot. [ratio]
_NAME_HEIGHT = 0.09
# Height of the plot of an incident above the largest value. [ratio]
_HEADROOM = 1.15


def budget_figure(
    series: pd.DataFrame,
    axis: TimeAxis,
    *,
    allowed_bad: float,
    window: timedelta,
    since: datetime | None = None,
    bad_before: float = 0.0,
    exhausted_in: timedelta | None = None,
    versions: Mapping[datetime, str] | None = None,
    reported: Mapping[datetime, str] | None = None,
) -> Figure:
    ends = axis.place(axis.start), axis.place(axis.end)
    x = [ends[0], *axis.places(series["at"])]
    y = 100 * np.array([1 - bad_before / max(allowed_bad, 1e-9), *budget_left(series, allowed_bad, bad_before)])
    # Budget that a service younger than its window may have spent so far.
    first, last = (100 * (1 - min((at - (since or axis.start)) / window, 1.0)) for at in (axis.start, axis.end))
    times = [axis.text(axis.start), *(axis.text(min(at + axis.step, axis.end)) for at in series["at"])]
    left: Trace = {
        **line(f8(x), f4(y), width=2, fill="tozeroy", fillcolor="$ink@.06"),
        "text": times,
        "hovertemplate": "%{text}<br><b>%{y:.2f} %</b> of the budget left<extra></extra>",
    }
    data = [left, {**line(list(ends), [first, last]), "line": {"width": 1, "color": "$deco", "dash": "1px,4px"}}]
    shapes, notes, top_margin = release_markers(axis, versions, reported)
    notes.append(_pace_note(x, y, ends, (first, last)))
    right, low = ends[1], _axis_floor(min(float(y.min()), last)) if len(series) else _LOWEST
    if exhausted_in is not None and exhausted_in > timedelta() and y[-1] > 0 and low == _LOWEST and len(series):
        right, way, text = _projection(ends[1], ends[1] - ends[0], float(y[-1]), exhausted_in)
        data.append(way)
        notes.append(text)
    return figure(
        data,
        (58, 14, top_margin, 26),
        hovermode="closest",
        xaxis=axis.layout(right),
        yaxis=fixed_axis(low, 100 + (100 - low) * 0.04, ticksuffix=" %", nticks=6),
        shapes=[horizontal_line(0, "$bad", "solid"), *shapes],
        annotations=notes,
    )


def budget_left(series: pd.DataFrame, allowed_bad: float, bad_before: float = 0.0) -> np.ndarray:
    return 1 - (bad_before + np.cumsum(series["bad"].to_numpy(dtype=float))) / max(allowed_bad, 1e-9)


def release_markers(
    axis: TimeAxis, versions: Mapping[datetime, str] | None, reported: Mapping[datetime, str] | None
) -> tuple[list[Shape], list[Annotation], int]:
    shapes, names = release_marks(axis, versions, reported)
    notes, rows = marker_rows(names, axis.place(axis.start), axis.place(axis.end))
    return shapes, notes, 8 + MARKER_ROW * max(rows, 1)


def _pace_note(x: list[float], y: np.ndarray, ends: tuple[float, float], pace: tuple[float, float]) -> Annotation:
    def at(share: float) -> Sequence[float]:
        return [start + share * (end - start) for start, end in (ends, pace)]

    middle, between = at((_ABOVE_FROM + _BELOW_TO) / 2)
    below = np.interp(middle, x, y) >= between
    side: Annotation = {"xanchor": "left", "yanchor": "bottom", "yshift": 4}
    if below:
        side = {"xanchor": "right", "yanchor": "top", "yshift": -4}
    x_position, height = at(_BELOW_TO if below else _ABOVE_FROM)
    return note("sustainable pace", x_position, height, font={"size": 11, "color": "$faint"}, **side)


def _axis_floor(lowest: float) -> float:
    if lowest > _MOSTLY_THERE:
        return 100 - (100 - lowest) * 1.15
    return max(min(_LOWEST, lowest * 1.08), _DEEPEST)


def _projection(end: float, shown: float, left: float, exhausted_in: timedelta) -> tuple[float, Trace, Annotation]:
    needed = exhausted_in.total_seconds() * 1000
    near = shown * _NEAR
    reach = min(needed, near)
    bottom = left * (1 - reach / needed)
    dashed = {"width": 1.6, "color": "$bad", "dash": "3px,3px"}
    style: Annotation = {"xanchor": "right", "yanchor": "bottom", "yshift": 8, "bgcolor": "$surface@.8"}
    style |= {"font": {"size": 11.5, "color": "$bad"}}
    text = note(f"<b>exhausted in {span(exhausted_in)}</b>", end + reach, max(bottom, 0), **style)
    way = {**line([end, end + reach], [left, bottom]), "line": dashed}
    return end + reach * 1.06, way, text


def burn_figure(
    series: pd.DataFrame,
    axis: TimeAxis,
    *,
    objective: float,
    lines: tuple[BurnLine, ...],
    long: timedelta,
    short: timedelta,
    versions: Mapping[datetime, str] | None = None,
    reported: Mapping[datetime, str] | None = None,
) -> Figure:
    x = f8(axis.places(series["at"]))
    data: list[Trace] = []
    tops = [1.3]
    for window, width, colour in ((short, 1.2, "$deco"), (long, 2.0, "$ink")):
        burn = burn_rates(series, window, objective)
        # Hourly data has no burn rate of five minutes, so the rate of the hour is shown.
        name = span(max(window, axis.step))
        tops.append(float(np.nanmax(burn)) if len(burn) and np.isfinite(burn).any() else 0.0)
        hover = f"{name}: <b>%{{y:.1f}}\u00d7</b><extra></extra>"
        data.append({**line(x, f4(burn), width=width, colour=colour), "hoverinfo": "y", "hovertemplate": hover})
    top = max(tops) * 1.12
    shown = [burn_line for burn_line in lines if burn_line.burn < top]
    notes = [
        _threshold_note(burn_line.text, burn_line.burn, burn_line.colour) for burn_line in _named_thresholds(shown, top)
    ]
    version_shapes, version_notes, top_margin = release_markers(axis, versions, reported)
    return figure(
        data,
        (40, 12, top_margin, 24),
        hovermode="x",
        xaxis=axis.layout(),
        yaxis=fixed_axis(0, top, ticksuffix="\u00d7", nticks=5),
        shapes=[horizontal_line(burn_line.burn, burn_line.colour) for burn_line in shown] + version_shapes,
        annotations=notes + version_notes,
    )


def _named_thresholds(lines: Sequence[BurnLine], top: float) -> list[BurnLine]:
    named: list[BurnLine] = []
    for burn_line in sorted(lines, key=lambda line: -line.burn):
        if all(other.burn - burn_line.burn >= _NAME_HEIGHT * top for other in named):
            named.append(burn_line)
    return named


def budget_left_words(ratio: float | None) -> tuple[str, str]:
    r"""Return the remaining share of the budget, or the overspent share, with the word for it.

    >>> budget_left_words(-0.5), budget_left_words(0.9983), budget_left_words(0.24)
    (('50\u202f%', 'overspent'), ('99.8\u202f%', 'left'), ('24\u202f%', 'left'))
    >>> budget_left_words(-18.48) == ("19.5" + TIMES, "spent")
    True
    """
    if ratio is not None and ratio <= -1:
        # Written as a multiple of the budget, because 1848 % is hard to read.
        return f"{1 - ratio:.1f}{TIMES}", "spent"
    if ratio is not None and ratio < 0:
        return percent(-ratio), "overspent"
    if ratio is not None and _NEARLY_ALL < ratio < 1:
        # Truncated, not rounded: 99.98 % is not 100 %.
        return percent(np.floor(ratio * 1000) / 1000, 1), "left"
    return percent(ratio), "left"


def burn_rates(series: pd.DataFrame, window: timedelta, objective: float) -> np.ndarray:
    indexed = series.set_index("at")[["total", "bad"]].astype(float)
    rolled = indexed.rolling(window).sum()
    ratio = rolled["bad"] / rolled["total"].where(rolled["total"] > 0)
    return (ratio / (1 - objective)).to_numpy(dtype=float)


def spent_figure(
    frame: pd.DataFrame,
    axis: TimeAxis,
    address: Callable[[str, datetime], str],
    *,
    versions: Mapping[datetime, str] | None = None,
    reported: Mapping[datetime, str] | None = None,
) -> Figure:
    """Return the chart of *frame*, a result of `read.bad_over_time`: a bar for each step, stacked by stage.

    *address* returns the link of a stage in a step; "" is the stage of failed requests.
    """
    starts = [pd.Timestamp(time).to_pydatetime() for time in frame["at"]]
    x, times = f8(axis.places(frame["at"])), [axis.text(at) for at in starts]
    width = axis.step.total_seconds() * 1000 * _FILL
    data: list[Trace] = []
    for stage in (*spent_stages(frame), ""):
        bad = frame[stage or UNEXPLAINED].to_numpy(dtype=float)
        places = [address(stage, at) if some else "" for at, some in zip(starts, bad, strict=True)]
        if stage or bad.any():
            data.append({**_bars(stage, x, bad, width, places), "hovertext": times})
    shapes, notes, top_margin = release_markers(axis, versions, reported)
    top = float(frame["bad"].max() * 1.12) or 1.0
    return figure(
        data,
        (40, 12, top_margin, 24),
        hovermode="closest",
        barmode="stack",
        xaxis=axis.layout(),
        yaxis=fixed_axis(0, top, **_whole_ticks(top)),
        shapes=shapes,
        annotations=notes,
    )


def spent_stages(frame: pd.DataFrame) -> list[str]:
    return sorted((str(column) for column in frame.columns if column not in SPENT_COLUMNS), key=position)


def _whole_ticks(top: float) -> dict[str, Any]:
    values = [value for value in ticks(0, top, 4)["tickvals"] if value == int(value)]
    return {"tickvals": values, "ticktext": [count(value) for value in values]}


def _bars(stage: str, x: Any, bad: np.ndarray, width: float, places: list[str]) -> Trace:
    name = safe(label(stage)) if stage else "Failed"
    return {
        "type": "bar",
        "x": x,
        "y": f4(bad),
        "width": width,
        "customdata": places,
        "name": name,
        "meta": {"stage": stage, "family": family(stage)} if stage else {},
        "marker": {"color": stage_colour(stage, solid=BAND) if stage else _GREY, "line": {"width": 0}},
        "hovertemplate": f"%{{hovertext}}<br><b>%{{y:,.3~g}}</b> bad, {name}<extra></extra>",
    }


@dataclass(frozen=True, slots=True)
class BurnLine:
    burn: float
    text: str
    colour: str


def trend_figure(
    trend: Trend,
    axis: TimeAxis,
    *,
    is_burn_rate: bool,
    limit: float | None,
    onset: tuple[datetime, datetime],
    marks: Mapping[datetime, str],
) -> Figure:
    write = _burn_rate if is_burn_rate else axis_duration
    starts = [axis.start + timedelta(seconds=trend.step_seconds * index) for index in range(len(trend.values))]
    x = axis.places(starts)
    pairs = zip(starts, trend.values, strict=True)
    texts = ["" if value is None else f"{axis.text(at)}<br><b>{write(value)}</b>" for at, value in pairs]
    style = {"text": texts, "hovertemplate": "%{text}<extra></extra>", "connectgaps": False}
    data = [{**line(f8(x), list(trend.values), width=2), **style}]
    top = max(trend.highest or 0.0, limit or 0.0) * _HEADROOM or 1.0
    shapes: list[Shape] = [rectangle(axis.place(onset[0]), axis.place(onset[1]), 0, 1, "$bad@.1")]
    notes: list[Annotation] = []
    if limit is not None:
        shapes.append(horizontal_line(limit, "$bad" if is_burn_rate else "$deco"))
        text = f"alerts from {write(limit)}" if is_burn_rate else f"baseline {write(limit)}"
        notes.append(_threshold_note(text, limit, "$faint"))
    more_shapes, more_notes, top_margin = release_markers(axis, None, marks)
    return figure(
        data,
        (52, 12, top_margin, 24),
        hovermode="closest",
        xaxis=axis.layout(),
        yaxis=fixed_axis(0, top, **ticks(0, top, 4, write)),
        shapes=shapes + more_shapes,
        annotations=notes + more_notes,
    )


def _threshold_note(text: str, value: float, colour: str) -> Annotation:
    style: Annotation = {"font": {"size": 11, "color": colour}, "bgcolor": "$surface@.7"}
    return note(text, 0, value, xref="paper", xanchor="left", yanchor="bottom", xshift=4, **style)


def _burn_rate(rate: float) -> str:
    return times(rate) if rate else "0"
