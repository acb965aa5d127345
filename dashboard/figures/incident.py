"""Chart of an incident: the burn rate or the latency since before the onset, with the threshold and what happened."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from ...alerts.delivery.message import Trend
from ..ui.format import axis_duration, times
from .budget import release_markers
from .elements import Annotation, Figure, Shape, f8, horizontal_line, line, note, rectangle, ticks
from .time_axis import TimeAxis

# Height of the plot above the largest value. [ratio]
_ROOM_ABOVE = 1.15


def trend_figure(
    trend: Trend,
    axis: TimeAxis,
    *,
    is_burn_rate: bool,
    limit: float | None,
    onset: tuple[datetime, datetime],
    marks: Mapping[datetime, str],
) -> Figure:
    """Return the chart of *trend*."""
    write = _burn_rate if is_burn_rate else axis_duration
    starts = [axis.start + timedelta(seconds=trend.step_seconds * place) for place in range(len(trend.values))]
    x = axis.places(starts)
    pairs = zip(starts, trend.values, strict=True)
    texts = ["" if value is None else f"{axis.text(at)}<br><b>{write(value)}</b>" for at, value in pairs]
    data = [
        {
            **line(f8(x), list(trend.values), width=2),
            "text": texts,
            "hovertemplate": "%{text}<extra></extra>",
            "connectgaps": False,
        }
    ]
    top = max(trend.highest or 0.0, limit or 0.0) * _ROOM_ABOVE or 1.0
    shapes: list[Shape] = [rectangle(axis.place(onset[0]), axis.place(onset[1]), 0, 1, "$bad@.1")]
    notes: list[Annotation] = []
    if limit is not None:
        shapes.append(horizontal_line(limit, "$bad" if is_burn_rate else "$deco"))
        text = f"alerts from {write(limit)}" if is_burn_rate else f"baseline {write(limit)}"
        style: Annotation = {"font": {"size": 11, "color": "$faint"}, "bgcolor": "$surface@.7"}
        notes.append(note(text, 0, limit, xref="paper", xanchor="left", yanchor="bottom", xshift=4, **style))
    more_shapes, more_notes, top_margin = release_markers(axis, None, marks)
    layout = {
        "margin": {"l": 52, "r": 12, "t": top_margin, "b": 24},
        "hovermode": "closest",
        "xaxis": axis.layout(),
        "yaxis": {"range": [0, top], "fixedrange": True, **ticks(0, top, 4, write)},
        "shapes": shapes + more_shapes,
        "annotations": notes + more_notes,
    }
    return {"data": data, "layout": layout}


def _burn_rate(rate: float) -> str:
    return times(rate) if rate else "0"
