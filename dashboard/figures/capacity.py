"""Capacity charts: latency by request rate with the fitted curve, and run time by batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...analysis.capacity import Capacity, Curve, Floats
from ..ui.format import axis_duration, count, duration
from .elements import (
    Annotation,
    Figure,
    Shape,
    Trace,
    f4,
    figure,
    fixed_axis,
    horizontal_line,
    line,
    markers,
    note,
    safe,
    ticks,
    vertical_line,
)

# Steps above this quantile may lie outside the plot, so that they do not flatten the rest.
_CEILING_QUANTILE = 0.98
_POINTS = 120
_INK, _GREY = "$ink", "$deco"


@dataclass(frozen=True, slots=True)
class VersionLoad:
    name: str
    rate: Floats
    latency: Floats
    curve: Curve | None = None
    capacity: Capacity | None = None


def load_figure(
    now: VersionLoad, before: VersionLoad | None, threshold_seconds: float | None, percentile: str
) -> Figure:
    """Return the chart of latency by request rate, one dot for each time step, with fitted curves.

    The current version is drawn in the text colour, the previous version in grey.
    """
    sides = [load for load in (before, now) if load is not None]
    low, high = _rate_range(sides)
    top = _latency_ceiling(sides, threshold_seconds)
    data: list[Trace] = []
    shapes: list[Shape] = []
    notes: list[Annotation] = [_axis_title("requests / s")]
    if threshold_seconds is not None and threshold_seconds < top:
        shapes.append(horizontal_line(threshold_seconds, "$bad"))
        style: Annotation = {"font": {"size": 11.5, "color": "$bad"}, "xanchor": "left", "yanchor": "bottom"}
        notes.append(
            note(f"SLO {axis_duration(threshold_seconds)}", 0, threshold_seconds, xref="paper", xshift=4, **style)
        )
    for side in sides:
        present = side is now
        data += [_steps(side, percentile, present=present), *_curve(side, low, high, top, present=present)]
        if side.capacity is not None and threshold_seconds is not None and 0 < side.capacity.rate < high:
            shapes.append(
                vertical_line(side.capacity.rate, 0, threshold_seconds, _INK if present else _GREY, "3px,3px")
            )
            notes.append(_capacity_note(side, present=present, left=side.capacity.rate - low > 0.8 * (high - low)))
    if now.curve is not None and now.curve.knee_is_sure and low < now.curve.knee < high:
        data.append(_knee(now.curve))
    return figure(
        data,
        (56, 14, 12, 42),
        hovermode="closest",
        xaxis=fixed_axis(low, high, showgrid=False, **ticks(low, high, 5, count)),
        yaxis=fixed_axis(0, top, **ticks(0, top)),
        shapes=shapes,
        annotations=notes,
    )


def batch_figure(
    run: Mapping[str, float], below: Mapping[str, float], stage: str, written: Sequence[str], name: str
) -> Figure:
    sizes = list(run)
    x = [f"{safe(size)}\u200b" for size in sizes]
    high, deep = max(run.values()) * 1.15, max(below.values()) * 1.35
    bars: Trace = {"type": "bar", "x": x, "y": f4(list(run.values())), "marker": {"color": f"$st.{stage}@~.92"}}
    bars |= {"hovertemplate": [f"{safe(size)}: <b>{duration(run[size])}</b> a run<extra></extra>" for size in sizes]}
    dotted: Trace = line(x, f4([below[size] for size in sizes]), width=1.8, yaxis="y2", mode="lines+markers")
    dotted |= {"marker": {"size": 6, "color": _INK, "line": {"width": 1.5, "color": "$surface"}}}
    title: Annotation = {"font": {"size": 11.5, "color": "$muted"}, "xanchor": "left", "yanchor": "bottom"}
    value: Annotation = {"font": {"size": 11, "color": _INK}, "yshift": 12, "bgcolor": "$surface@.7"}
    notes = [
        note("time of a run", 0, 1, xref="paper", yref="paper", yshift=2, **title),
        note(safe(name), 0, 0.38, xref="paper", yref="paper", yshift=2, **title),
        *[note(safe(text), x[i], below[size], yref="y2", **value) for i, (size, text) in enumerate(zip(sizes, written, strict=True))],
        _axis_title("batch size"),
    ]  # fmt: skip
    return figure(
        [bars, dotted],
        (54, 12, 24, 42),
        hovermode="closest",
        xaxis={"type": "category", "showgrid": False, "fixedrange": True, "anchor": "y2"},
        yaxis=fixed_axis(0, high, domain=[0.5, 1], **ticks(0, high, 3)),
        yaxis2=fixed_axis(0, deep, domain=[0, 0.38], showticklabels=False, nticks=3),
        annotations=notes,
        bargap=0.4,
    )


def _axis_title(text: str) -> Annotation:
    style: Annotation = {"font": {"size": 11, "color": "$muted"}, "yanchor": "top", "yshift": -22}
    return note(text, 0.5, 0, xref="paper", yref="paper", **style)


def _rate_range(sides: Sequence[VersionLoad]) -> tuple[float, float]:
    rates = np.concatenate([side.rate for side in sides])
    highest = float(rates.max())
    wanted = [side.capacity.rate for side in sides if side.capacity is not None and not side.capacity.beyond]
    low = float(rates.min()) * 0.9
    return low, max([highest, *wanted]) * 1.06 if highest > low else low + 1


def _latency_ceiling(sides: Sequence[VersionLoad], threshold_seconds: float | None) -> float:
    usual = max(float(np.quantile(side.latency, _CEILING_QUANTILE)) for side in sides)
    return max(usual * 1.25, min((threshold_seconds or 0) * 1.15, usual * 3))


def _steps(side: VersionLoad, percentile: str, *, present: bool) -> Trace:
    marker = {"size": 7 if present else 6, "color": _INK if present else f"{_GREY}@.75"}
    marker |= {"line": {"width": 1, "color": "$surface"}}
    texts = [
        f"{safe(side.name)}: <b>{duration(latency)}</b> {percentile} at {count(at)}/s<extra></extra>"
        for at, latency in zip(side.rate.tolist(), side.latency.tolist(), strict=True)
    ]
    return markers(f4(side.rate), f4(side.latency), marker, hovertemplate=texts)


def _curve(side: VersionLoad, low: float, high: float, top: float, *, present: bool) -> list[Trace]:
    if side.curve is None:
        return []
    seen, end = side.curve.highest_rate, min(high, side.curve.saturation * 0.999)
    style = {"width": 2.0 if present else 1.4, "color": _INK if present else _GREY, "dash": "solid" if present else "4px,3px"}  # fmt: skip
    parts = [(low, min(seen, end), style), (seen, end, style | {"dash": "1px,3px"})]
    traces: list[Trace] = []
    for first, last, drawn in parts:
        if last <= first:
            continue
        rates = np.linspace(first, last, _POINTS)
        latency = side.curve.at(rates)
        shown = latency <= top * 1.05
        traces.append({**line(f4(rates[shown]), f4(latency[shown])), "line": drawn})
    return traces


def _capacity_note(side: VersionLoad, *, present: bool, left: bool) -> Annotation:
    rate = f"{count(side.capacity.rate if side.capacity else None)}/s"
    text = f"<b>{rate}</b> {safe(side.name)}" if present else f"{rate} {safe(side.name)}"
    style: Annotation = {"font": {"size": 11.5, "color": _INK if present else "$muted"}, "bgcolor": "$surface@.8"}
    left = left or not present
    beside: Annotation = {"xanchor": "right", "xshift": -4} if left else {"xanchor": "left", "xshift": 4}
    return note(text, side.capacity.rate if side.capacity else 0, 0, yanchor="bottom", yshift=4, **style, **beside)


def _knee(curve: Curve) -> Trace:
    at = curve.knee
    marker = {"symbol": "diamond-open", "size": 11, "color": _INK, "line": {"width": 1.6}}
    text = f"<b>Knee</b> at {count(at)}/s, {duration(float(curve.at(at)))}<br>above it, latency grows faster than throughput<extra></extra>"  # fmt: skip
    named = {"text": ["knee"], "textposition": "bottom right", "textfont": {"size": 11, "color": "$muted"}}
    return markers([at], [float(curve.at(at))], marker, mode="markers+text", hovertemplate=text, **named)
