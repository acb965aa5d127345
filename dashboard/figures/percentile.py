"""Where the time goes, by percentile: the one chart that says why p99 is slow.

Each column is the average stage time of the requests at that percentile and adds up to that percentile's latency; it
is not the sum of each stage's own p99.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..format import axis_duration, duration, enough, percent, percentile, target
from .parts import (
    Annotation,
    Figure,
    Shape,
    Trace,
    band,
    band_labels,
    dots,
    f4,
    level,
    line,
    note,
    plate,
    stages_of,
    ticks,
    upright,
    without_side_labels,
)

COLUMNS = ("percentile", "n", "value_seconds", "low_seconds", "high_seconds")
MARKS = (0.5, 0.9, 0.95, 0.99, 0.999)
_TICKS = (0.0, 0.5, 0.9, 0.95, 0.99, 0.995, 0.999)
_EVEN_TICKS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99)
# Three nines: the axis ends at p99.9.
MAX_NINES = 3.0
_STEPS_A_NINE = 40
# The SLO's sentence needs this part of the height above the curve, in the left half, to stand clear of it.
_CLEAR = 0.86


@dataclass(frozen=True, slots=True)
class Objective:
    """The promise drawn into a latency chart.

    Args:
        threshold_seconds: Slower is bad. [seconds]
        target: The share of good requests promised. [ratio]
        inside: The share that was. [ratio]
    """

    threshold_seconds: float
    target: float
    inside: float | None = None


def _percentiles() -> tuple[float, ...]:
    """Return the percentiles of the axis: evenly spaced in nines, with names that can be read, the named ones among them."""
    even = 1 - 10.0 ** -np.arange(0, MAX_NINES, 1 / _STEPS_A_NINE)
    short = [round(float(each), 3 if each < 0.99 else 4) for each in even]  # noqa: PLR2004 - p97.8 and p99.44
    return tuple(sorted({*short, *_TICKS}))


PERCENTILES = _percentiles()


def percentile_grid(requests: int) -> tuple[float, ...]:
    """Return those of `PERCENTILES` that *requests* requests can tell: at least ten stand above each."""
    return tuple(each for each in PERCENTILES if enough(requests, each)) if enough(requests, 0.0) else ()


def place(quantile: float, *, even: bool) -> float:
    """Return where *quantile* stands on the x axis: one width a nine (Tail), or linear (Even)."""
    return quantile if even else float(-np.log10(max(1 - quantile, 1e-9)))


def percentile_figure(
    frame: pd.DataFrame, *, share: bool = False, even: bool = False, objective: Objective | None = None
) -> Figure:
    """Return the stack of stages over percentiles.

    Args:
        frame: A breakdown: `COLUMNS` and one column a stage [seconds], sorted by percentile.
        share: Show each stage's share of the latency instead of its time.
        even: Give every percentile the same width instead of every nine.
        objective: The promise, drawn as a line when it fits; not with *share*.
    """
    stages = stages_of(frame, COLUMNS)
    total = frame["value_seconds"].to_numpy(dtype=float)
    quantiles = frame["percentile"].to_numpy(dtype=float)
    places = np.array([place(float(each), even=even) for each in quantiles])
    stack = frame[stages].to_numpy(dtype=float)
    stack = stack / np.maximum(total, 1e-12)[:, None] if share else stack
    top = 1.0 if share else float(total.max() * 1.10)
    x = f4(places)
    data: list[Trace] = [band(x, stack[:, index], stage) for index, stage in enumerate(stages)]
    notes = band_labels(dict(zip(stages, map(float, stack[-1]), strict=True)), top)
    marks = [index for index, each in enumerate(quantiles) if np.isclose(each, MARKS, atol=1e-9).any()]
    shapes: list[Shape]
    if share:
        notes += _share_marks(places, total, marks)
        shapes = [upright(float(places[index]), 0, 1, "$surface@.8") for index in marks]
    else:
        data += [line(x, f4(total), hoverinfo="none"), dots(list(places[marks]), list(total[marks]))]
        notes += _time_marks(places, total, marks)
        shapes = [upright(float(places[index]), 0, float(total[index]), "$ink@.28") for index in marks]
    if objective is not None and not share and objective.threshold_seconds < top:
        data += _crossing(places, total, objective.threshold_seconds)
        shapes.append(level(objective.threshold_seconds, "$bad"))
        notes = _beside(objective.threshold_seconds, notes, top)
        notes.append(_promise(places, total, objective))
    return _assembled(data, notes, shapes, quantiles, top, share=share, even=even)


def _assembled(
    data: list[Trace],
    notes: list[Annotation],
    shapes: list[Shape],
    quantiles: np.ndarray,
    top: float,
    *,
    share: bool,
    even: bool,
) -> Figure:
    last = float(quantiles[-1])
    named = [each for each in (_EVEN_TICKS if even else _TICKS) if each <= last + 1e-9]
    spike = {"showspikes": True, "spikemode": "across", "spikethickness": 1, "spikecolor": "$ink@.6"}
    xaxis = {
        "range": [0, max(place(last, even=even), 0.5)],
        **_percentile_ticks(named, even=even),
        "showgrid": False,
        "fixedrange": True,
        **spike,
        "spikedash": "solid",
        "spikesnap": "hovered data",
    }
    write = ticks(0, 1, 4, percent) if share else ticks(0, top)
    layout = {
        "margin": {"l": 50, "r": 104, "t": 24 if share else 14, "b": 30},
        "xaxis": xaxis,
        "yaxis": {"range": [0, top], "fixedrange": True, **write},
        "annotations": notes,
        "shapes": shapes,
    }
    narrow = {
        "margin": {"l": 50, "r": 14, "t": 24 if share else 16, "b": 28},
        "annotations": _narrow_notes(notes),
        "xaxis": _percentile_ticks([each for each in named if each not in (0.95, 0.995, 0.9)], even=even),
    }
    return {"data": data, "layout": layout, "narrow": narrow}


def _percentile_ticks(named: Sequence[float], *, even: bool) -> dict[str, list[float] | list[str]]:
    return {
        "tickvals": [place(each, even=even) for each in named],
        "ticktext": [percentile(each) for each in named],
    }


def _anchor(position: int, marks: Sequence[int]) -> str:
    return "right" if position == len(marks) - 1 else "center"


def _time_marks(places: np.ndarray, total: np.ndarray, marks: Sequence[int]) -> list[Annotation]:
    return [
        plate(duration(float(total[i])), float(places[i]), float(total[i]), xanchor=_anchor(j, marks))
        for j, i in enumerate(marks)
    ]


def _share_marks(places: np.ndarray, total: np.ndarray, marks: Sequence[int]) -> list[Annotation]:
    return [
        plate(duration(float(total[i])), float(places[i]), 1, xanchor=_anchor(j, marks), yshift=2)
        for j, i in enumerate(marks)
    ]


def _crossing(places: np.ndarray, total: np.ndarray, threshold: float) -> list[Trace]:
    """Mark the percentile where the latency crosses the promise, if it does within the axis."""
    if not total[0] <= threshold <= total[-1]:
        return []
    marker = {"symbol": "x-thin", "size": 9, "line": {"width": 2, "color": "$bad"}}
    at = float(np.interp(threshold, np.maximum.accumulate(total), places))
    return [{"type": "scatter", "mode": "markers", "x": [at], "y": [threshold], "marker": marker, "hoverinfo": "skip"}]


def _beside(threshold: float, notes: list[Annotation], top: float) -> list[Annotation]:
    """Leave out the value of the median where the promise is written, at the left and just above its line."""
    crowded = {place(0.5, even=False), place(0.5, even=True)}
    return [
        each
        for each in notes
        if each["xref"] == "paper" or each["x"] not in crowded or not -0.11 < (each["y"] - threshold) / top < 0.06  # noqa: PLR2004 - the height of a line of text
    ]


def _promise(places: np.ndarray, total: np.ndarray, objective: Objective) -> Annotation:
    text = f"SLO {axis_duration(objective.threshold_seconds)}"
    clear = float(np.interp(places[-1] * 0.52, places, total)) < objective.threshold_seconds * _CLEAR
    if clear and objective.inside is not None:
        text += f" · {percent(objective.inside, 2)} of requests inside, target {target(objective.target)}"
    style: Annotation = {"font": {"size": 11.5, "color": "$bad"}, "xshift": 6, "yshift": 1}
    return note(text, 0, objective.threshold_seconds, xref="paper", xanchor="left", yanchor="bottom", **style)


def _narrow_notes(notes: list[Annotation]) -> list[Annotation]:
    """Keep what a phone has room for: no side labels, no p90, the promise in two words."""
    kept = without_side_labels(notes)
    crowded = {place(0.9, even=False), place(0.9, even=True)}
    kept = [each for each in kept if each["xref"] == "paper" or each["x"] not in crowded]
    return [
        {**each, "text": str(each["text"]).split(" · ")[0]} if str(each["text"]).startswith("SLO") else each
        for each in kept
    ]
