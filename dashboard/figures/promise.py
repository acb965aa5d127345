"""The promise of an objective in the percentile chart: its line, its words, and where the latency crosses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..format import axis_duration, percent, target
from .parts import Annotation, Trace, note

# The SLO's sentence needs this part of the height above the curve, in the left half, to stand clear of it.
_CLEAR = 0.86
# An attained share known less well than this is written as an interval. [ratio]
_CERTAIN = 0.0005


@dataclass(frozen=True, slots=True)
class Objective:
    """The promise drawn into a latency chart.

    Args:
        threshold_seconds: Slower is bad. [seconds]
        target: The share of good requests promised. [ratio]
        inside: The share that was. [ratio]
        between: What it lies between, where the threshold splits a bucket. [ratio]
    """

    threshold_seconds: float
    target: float
    inside: float | None = None
    between: tuple[float, float] | None = None


def crossing(places: np.ndarray, total: np.ndarray, threshold: float) -> list[Trace]:
    """Mark the percentile where the latency crosses the promise, if it does within the axis."""
    if not total[0] <= threshold <= total[-1]:
        return []
    marker = {"symbol": "x-thin", "size": 9, "line": {"width": 2, "color": "$bad"}}
    at = float(np.interp(threshold, np.maximum.accumulate(total), places))
    return [{"type": "scatter", "mode": "markers", "x": [at], "y": [threshold], "marker": marker, "hoverinfo": "skip"}]


def beside(threshold: float, notes: Sequence[Annotation], top: float, crowded: Sequence[float]) -> list[Annotation]:
    """Leave out the values at *crowded* places (the median's) where the promise is written, at the left above its line."""
    return [
        each
        for each in notes
        if each["xref"] == "paper" or each["x"] not in crowded or not -0.11 < (each["y"] - threshold) / top < 0.06  # noqa: PLR2004 - the height of a line of text
    ]


def promise(places: np.ndarray, total: np.ndarray, objective: Objective) -> Annotation:
    """Return the words at the promise's line: how many requests are inside where there is room for it, else its time alone."""
    text = f"SLO {axis_duration(objective.threshold_seconds)}"
    clear = float(np.interp(places[-1] * 0.52, places, total)) < objective.threshold_seconds * _CLEAR
    if clear and objective.inside is not None:
        text += f" · {_inside(objective)} of requests inside, target {target(objective.target)}"
    style: Annotation = {"font": {"size": 11.5, "color": "$bad"}, "xshift": 6, "yshift": 1}
    return note(text, 0, objective.threshold_seconds, xref="paper", xanchor="left", yanchor="bottom", **style)


def _inside(objective: Objective) -> str:
    low, high = objective.between or (objective.inside, objective.inside)
    if low is None or high is None or high - low < _CERTAIN:
        return percent(objective.inside, 2)
    ends = dict.fromkeys((percent(low, 1), percent(high, 1)))
    return " to ".join(ends)
