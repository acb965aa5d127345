"""Comparison charts: latency added from A to B by percentile and stage, and the latency curves of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ...analysis.breakdown import COLUMNS
from ...core.stages import label, position
from ..ui.format import THIN, change, duration, percentile, signed_change
from .elements import (
    Annotation,
    Figure,
    Trace,
    band,
    band_labels,
    dots,
    f4,
    figure,
    fixed_axis,
    line,
    log_ticks,
    note,
    safe,
    stages_of,
    ticks,
    value_label,
    vertical_line,
    without_side_labels,
)
from .percentile import place

_TICKS = (0.0, 0.5, 0.9, 0.95, 0.99, 0.995, 0.999)
_LABELLED = (0.95, 0.99)
# Increases from this ratio on are red.
_WORSE = 1.05
_MIN_LABEL_SHARE = 0.06
# Maximum number of stages in a hover text, and of letters of a version name beside the plot.
_CAUSES, _MAX_NAME_LETTERS = 2, 9


def delta_figure(a: pd.DataFrame, b: pd.DataFrame, errors: Sequence[float] | None = None) -> Figure:
    stages = sorted({*stages_of(a, COLUMNS), *stages_of(b, COLUMNS)}, key=position)
    quantiles = b["percentile"].to_numpy(dtype=float)
    places = np.array([place(float(quantile), even=False) for quantile in quantiles])
    moved = {stage: _column(b, stage) - _column(a, stage) for stage in stages}
    total = b["value_seconds"].to_numpy(dtype=float) - a["value_seconds"].to_numpy(dtype=float)
    error = np.zeros(len(total)) if errors is None else np.array(errors)
    certain = np.max(np.abs([total, *moved.values()]), axis=0) > error
    moved = {stage: np.where(certain, seconds, 0) for stage, seconds in moved.items()}
    gains = {stage: np.maximum(seconds, 0) for stage, seconds in moved.items()}
    losses = {stage: np.minimum(seconds, 0) for stage, seconds in moved.items()}
    x = f4(places)
    data: list[Trace] = [band(x, gain, stage, group="more") for stage, gain in gains.items()]
    data += [band(x, loss, stage, group="less") for stage, loss in losses.items()]
    texts = _delta_words(a, b, moved, total, certain)
    data.append(line(x, f4(total), width=1.8, hoverinfo="text", hovertemplate="%{text}<extra></extra>", text=texts))
    stacked, saved = _stacked(gains, len(total)), _stacked(losses, len(total))
    # Without any certain change, the error gives the scale.
    noise = (
        0.0
        if certain.any()
        else float(np.max(error, where=error <= b["value_seconds"].max(), initial=np.abs(total).max() * 3))
    )
    high = max(float(max(stacked.max(), total.max())) * 1.12, noise, 1e-6)
    low = min(float(min(saved.min(), total.min())) * 1.12, -noise, -high * 0.04)
    marks = [index for index, quantile in enumerate(quantiles) if np.isclose(quantile, _LABELLED).any()]
    data.append(dots([float(places[i]) for i in marks], [float(total[i]) for i in marks]))
    notes = band_labels({stage: float(gain[-1]) for stage, gain in gains.items()}, high - low, _MIN_LABEL_SHARE)
    less = band_labels({stage: -float(loss[-1]) for stage, loss in losses.items()}, high - low, _MIN_LABEL_SHARE)
    notes += [{**annotation, "y": -float(annotation["y"])} for annotation in less]
    notes += [
        value_label(_signed_or_unsure(float(total[i]), certain[i]), float(places[i]), float(stacked[i]), yshift=7)
        for i in marks
    ]
    # A narrow screen has no space for the names of the stages, which are in the table below the chart.
    narrow_axis = _percentile_axis(quantiles, (0.5, 0.9, 0.99))
    narrow_margin = {"l": 52, "r": 14, "t": 18, "b": 28}
    zero = {"zeroline": True, "zerolinecolor": "$ink", "zerolinewidth": 1}
    return figure(
        data,
        (52, 96, 18, 28),
        narrow={"margin": narrow_margin, "annotations": without_side_labels(notes), "xaxis": narrow_axis},
        xaxis=_percentile_axis(quantiles),
        yaxis=fixed_axis(low, high, **zero, **ticks(low, high)),
        annotations=notes,
        shapes=[vertical_line(float(places[i]), 0, float(total[i]), "$ink@.4") for i in marks],
    )


def _signed_or_unsure(seconds: float, certain: bool) -> str:
    return duration(seconds, sign=True) if certain else f"±{THIN}{duration(abs(seconds))}"


def _delta_words(
    a: pd.DataFrame, b: pd.DataFrame, moved: Mapping[str, np.ndarray], total: np.ndarray, certain: np.ndarray
) -> list[str]:
    texts: list[str] = []
    for index, quantile in enumerate(b["percentile"]):
        causes = sorted(moved, key=lambda stage: -abs(float(moved[stage][index])))[:_CAUSES]
        parts = [f"{safe(label(stage))} {duration(float(moved[stage][index]), sign=True)}" for stage in causes]
        head = f"<b>{percentile(float(quantile))}</b> {_signed_or_unsure(float(total[index]), certain[index])}"
        counts = f"stages of {int(a['n'].iloc[index])} and {int(b['n'].iloc[index])} requests"
        texts.append("<br>".join([head, ", ".join(parts) if certain[index] else "within the error", counts]))
    return texts


def both_figure(
    a: pd.DataFrame, b: pd.DataFrame, names: tuple[str, str], errors: Sequence[float] | None = None
) -> Figure:
    quantiles = b["percentile"].to_numpy(dtype=float)
    places = [place(float(quantile), even=False) for quantile in quantiles]
    first, second = a["value_seconds"].to_numpy(dtype=float), b["value_seconds"].to_numpy(dtype=float)
    x, ya, yb = f4(places), f4(first), f4(second)
    certain = np.abs(second - first) > (0.0 if errors is None else np.array(errors))
    apart = np.where(certain, second, first)
    dashed = {"width": 2, "color": "$deco", "dash": "5px,3px"}
    data: list[Trace] = [
        *_between(x, first, np.maximum(first, apart), "$bad@.10"),
        *_between(x, first, np.minimum(first, apart), "$good@.10"),
        {**line(x, ya, hoverinfo="none"), "line": dashed},
        line(x, yb, width=2.2, hoverinfo="text", hovertemplate="%{text}<extra></extra>", text=_both_words(a, b)),
    ]
    marks = [
        index for index, quantile in enumerate(quantiles) if np.isclose(quantile, (0.5, 0.9, 0.95, 0.99, 0.999)).any()
    ]
    notes = [_change_note(places[i], float(first[i]), float(second[i]), certain[i]) for i in marks]
    # Names at the right edge, separated if the lines meet.
    ends = np.log10([max(float(second[-1]), 1e-9), max(float(first[-1]), 1e-9)])
    nudge = 0.05 if ends[0] >= ends[1] else -0.05
    style: Annotation = {"xref": "paper", "xanchor": "left", "xshift": 6}
    ink, grey = {"size": 11.5, "color": "$ink"}, {"size": 11.5, "color": "$muted"}
    notes.append(note(f"<b>B</b> {safe(_short(names[1]))}", 1, float(ends[0]) + nudge, font=ink, **style))
    notes.append(note(f"A {safe(_short(names[0]))}", 1, float(ends[1]) - nudge, font=grey, **style))
    low = float(min(first[0], second[0]) * 0.8)
    high = float(max(first.max(), second.max()) * 1.3)
    reach = float(np.log10(max(low, 1e-9))), float(np.log10(max(high, 1e-8)))
    yaxis = fixed_axis(*reach, type="log", **log_ticks(low, high))
    # A narrow screen has no space for p95 between its neighbours.
    crowded = place(0.95, even=False)
    narrow = {
        "xaxis": _percentile_axis(quantiles, (0.5, 0.9, 0.99, 0.999)),
        "annotations": [
            annotation for annotation in notes if annotation["xref"] != "x" or not np.isclose(annotation["x"], crowded)
        ],
    }
    xaxis = _percentile_axis(quantiles)
    return figure(data, (50, 84, 14, 28), narrow=narrow, xaxis=xaxis, yaxis=yaxis, annotations=notes)


def _both_words(a: pd.DataFrame, b: pd.DataFrame) -> list[str]:
    """Return the hover text: the change, and both latencies with their error bounds."""
    first, second = a["value_seconds"].to_numpy(dtype=float), b["value_seconds"].to_numpy(dtype=float)
    return [
        f"<b>{percentile(float(quantile))}</b> {signed_change(float(second[i] / max(first[i], 1e-12)) - 1)}"
        f"<br>{_banded('A', a, i)}<br>{_banded('B', b, i)}"
        for i, quantile in enumerate(b["percentile"])
    ]


def _banded(name: str, frame: pd.DataFrame, row: int) -> str:
    value, low, high = (float(frame[column].iloc[row]) for column in ("value_seconds", "low_seconds", "high_seconds"))
    return f"{name} {duration(value)} ({duration(low)} to {duration(high)})"


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME_LETTERS else name[: _MAX_NAME_LETTERS - 1] + "…"


def _between(x: object, base: np.ndarray, edge: np.ndarray, colour: str) -> list[Trace]:
    if np.allclose(base, edge):
        return []
    return [line(x, f4(base), width=0), line(x, f4(edge), width=0, fill="tonexty", fillcolor=colour)]


def _stacked(parts: Mapping[str, np.ndarray], length: int) -> np.ndarray:
    return np.sum([np.zeros(length), *parts.values()], axis=0)


def _change_note(x: float, first: float, second: float, certain: bool) -> Annotation:
    ratio = second / max(first, 1e-12)
    font = {"size": 11.5, "color": "$bad" if ratio > _WORSE and certain else "$muted"}
    top = float(np.log10(max(first, second, 1e-9)))
    text = f"<b>{signed_change(ratio - 1)}</b>" if certain else change(ratio - 1, certain=False)
    return note(text, x, top, yshift=13, xshift=-14, font=font)


def _percentile_axis(quantiles: np.ndarray, shown: Sequence[float] = _TICKS) -> Mapping[str, object]:
    last = float(quantiles[-1])
    named = [quantile for quantile in shown if quantile <= last + 1e-9]
    names = {
        "tickvals": [place(quantile, even=False) for quantile in named],
        "ticktext": [percentile(quantile) for quantile in named],
    }
    return fixed_axis(0, max(place(last, even=False), 0.5), showgrid=False, **names)


def _column(frame: pd.DataFrame, stage: str) -> np.ndarray:
    if stage not in frame.columns:
        return np.zeros(len(frame))
    return frame[stage].to_numpy(dtype=float)
