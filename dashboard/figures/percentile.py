"""Percentile chart: stage breakdown of the latency at each percentile, with the objective as a line.

Each column is the mean stage time of the requests at that percentile, and adds up to the latency of the percentile. The column
is not the sum of each stage's own p99.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from ...analysis.breakdown import COLUMNS, NAMED_PERCENTILES
from ..ui.format import attained, axis_duration, duration, interval, percent, percentile, target
from . import elements

# Height above the curve that must be free for the objective label, in the left half.
_CLEAR = 0.86
# Width of a letter of the label of an objective. [ratio of the axis]
_LETTER = 0.0088
# A less precise attainment is written as an interval. [ratio]
_CERTAIN = 0.0005
MARKS = (0.5, 0.9, 0.95, 0.99, 0.999)
_EVEN_TICKS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99)
# Our buckets are 2.2 % wide; a less precise latency comes from a source with fixed buckets.
_FINE = 1.025
# A pinned percentile replaces named percentiles closer than this. [nines]
_CROWDED = 0.12


def percentile_figure(
    frame: pd.DataFrame,
    *,
    share: bool = False,
    even: bool = False,
    objective: Objective | None = None,
    pinned: float | None = None,
    hidden: Collection[str] = (),
) -> elements.Figure:
    stages = [stage for stage in elements.stages_of(frame, COLUMNS) if stage not in hidden]
    total = frame["value_seconds"].to_numpy(dtype=float)
    quantiles = frame["percentile"].to_numpy(dtype=float)
    places = np.array([place(float(quantile), even=even) for quantile in quantiles])
    stack = frame[stages].to_numpy(dtype=float)
    stack = stack / np.maximum(total, 1e-12)[:, None] if share else stack
    whole = not [stage for stage in elements.stages_of(frame, COLUMNS) if stage in hidden]
    highest = np.where(has_wide_bucket(frame), frame["high_seconds"], total) if whole else stack.sum(axis=1)
    top = 1.0 if share else max(float(highest.max()) * 1.10, 1e-9)
    x = elements.f4(places)
    data: list[elements.Trace] = [elements.band(x, stack[:, index], stage) for index, stage in enumerate(stages)]
    notes = elements.band_labels(dict(zip(stages, map(float, stack[-1]), strict=True)), top)
    values = _latency_texts(frame)
    marks = _marks(quantiles, pinned, values)
    shapes: list[elements.Shape]
    if share:
        notes += [
            elements.value_label(values[i], float(places[i]), 1, xanchor=_anchor(j, marks), yshift=2)
            for j, i in enumerate(marks)
        ]
        shapes = [elements.vertical_line(float(places[index]), 0, 1, "$surface@.8") for index in marks]
    elif whole:
        data += _bands_of_error(x, frame)
        data += [
            elements.line(x, elements.f4(total), hoverinfo="none"),
            elements.dots(list(places[marks]), list(total[marks])),
        ]
        notes += [
            elements.value_label(values[i], float(places[i]), float(total[i]), xanchor=_anchor(j, marks))
            for j, i in enumerate(marks)
        ]
        shapes = [elements.vertical_line(float(places[index]), 0, float(total[index]), "$ink@.28") for index in marks]
    else:
        shapes = []
    if objective is not None and not share and whole and objective.threshold_seconds < top:
        data += crossing_marker(places, total, objective.threshold_seconds)
        shapes.append(elements.horizontal_line(objective.threshold_seconds, "$bad"))
        notes = values_beside_label(
            objective.threshold_seconds, notes, top, [place(0.5, even=False), place(0.5, even=True)]
        )
        notes.append(objective_label(places, total, objective))
    shapes += _pin(places, quantiles, pinned)
    return _figure(data, notes, shapes, quantiles, top, share=share, even=even)


def nearest(quantiles: Iterable[float], wanted: float) -> int:
    """Return the index of the entry of *quantiles* that is nearest to *wanted*, measured in nines."""
    places = np.array([place(float(quantile), even=False) for quantile in quantiles])
    return int(np.argmin(np.abs(places - place(wanted, even=False))))


def _marks(quantiles: np.ndarray, pinned: float | None, values: Sequence[str]) -> list[int]:
    """Return the rows with a value label: the named percentiles, with priority for the pinned one.

    If several percentiles lie in the same wide bucket, its bounds are written once.
    """
    every = [index for index, quantile in enumerate(quantiles) if np.isclose(quantile, MARKS, atol=1e-9).any()]
    named = every[:1] + [index for before, index in pairwise(every) if values[before] != values[index]]
    if pinned is None:
        return named
    chosen = nearest(quantiles, pinned)
    at = place(float(quantiles[chosen]), even=False)
    clear = [index for index in named if abs(place(float(quantiles[index]), even=False) - at) > _CROWDED]
    return sorted({*clear, chosen})


def _latency_texts(frame: pd.DataFrame) -> list[str]:
    """Return the latency of each row as text: a number, or its error bounds if the source has wide buckets."""
    rows = zip(has_wide_bucket(frame), frame["value_seconds"], frame["low_seconds"], frame["high_seconds"], strict=True)
    return [interval(float(low), float(high)) if wide else duration(float(value)) for wide, value, low, high in rows]


def _bands_of_error(x: dict[str, str], frame: pd.DataFrame) -> list[elements.Trace]:
    """Return the error bounds of the latency, if the buckets of the source are too wide for a line."""
    wide = has_wide_bucket(frame)
    if not wide.any():
        return []
    low, high = (np.where(wide, frame[name], frame["value_seconds"]) for name in ("low_seconds", "high_seconds"))
    return [elements.line(x, elements.f4(bound), width=1, colour="$ink@.7", dash="2px,2px") for bound in (low, high)]


def _pin(places: np.ndarray, quantiles: np.ndarray, pinned: float | None) -> list[elements.Shape]:
    if pinned is None:
        return []
    return [elements.vertical_line(float(places[nearest(quantiles, pinned)]), 0, 1, "$ink", "solid", yref="paper")]


def _figure(
    data: list[elements.Trace],
    notes: list[elements.Annotation],
    shapes: list[elements.Shape],
    quantiles: np.ndarray,
    top: float,
    *,
    share: bool,
    even: bool,
) -> elements.Figure:
    last = float(quantiles[-1])
    named = [quantile for quantile in (_EVEN_TICKS if even else NAMED_PERCENTILES) if quantile <= last + 1e-9]
    xaxis = {
        **elements.fixed_axis(0, max(place(last, even=even), 0.5), showgrid=False),
        **_percentile_ticks(named, even=even),
        **elements.spike("$ink@.6"),
        "spikesnap": "hovered data",
    }
    write = elements.ticks(0, 1, 4, percent) if share else elements.ticks(0, top)
    narrow = {
        "margin": {"l": 50, "r": 14, "t": 24 if share else 16, "b": 28},
        "annotations": _narrow_notes(notes),
        "xaxis": _percentile_ticks([quantile for quantile in named if quantile not in (0.95, 0.995, 0.9)], even=even),
    }
    yaxis, margin = elements.fixed_axis(0, top, **write), (50, 104, 24 if share else 14, 30)
    return elements.figure(data, margin, narrow=narrow, xaxis=xaxis, yaxis=yaxis, annotations=notes, shapes=shapes)


def _percentile_ticks(named: Sequence[float], *, even: bool) -> dict[str, list[float] | list[str]]:
    return {
        "tickvals": [place(quantile, even=even) for quantile in named],
        "ticktext": [percentile(quantile) for quantile in named],
    }


def _anchor(position: int, marks: Sequence[int]) -> str:
    return "right" if position == len(marks) - 1 else "center"


def _narrow_notes(notes: list[elements.Annotation]) -> list[elements.Annotation]:
    visible = elements.without_side_labels(notes)
    crowded = {place(0.9, even=False), place(0.9, even=True)}
    visible = [annotation for annotation in visible if annotation["xref"] == "paper" or annotation["x"] not in crowded]
    return [
        {**annotation, "text": str(annotation["text"]).split(" · ")[0]}
        if str(annotation["text"]).startswith("SLO")
        else annotation
        for annotation in visible
    ]


@dataclass(frozen=True, slots=True)
class Objective:
    """Latency objective drawn in a chart, and the shares of requests that met it; *between*, if the threshold splits a bucket."""

    threshold_seconds: float
    target: float
    inside: float | None = None
    good: float | None = None
    between: tuple[float, float] | None = None

    @property
    def shares(self) -> str:
        inside, good = attained(self.inside, self.target), attained(self.good, self.target)
        if self.between is not None and self.between[1] - self.between[0] >= _CERTAIN:
            good = " to ".join(dict.fromkeys(attained(share, self.target) for share in self.between))
            return f"{good} of requests inside and without error"
        return f"{inside} of requests inside" + (
            "" if self.good is None or good == inside else f", {good} also without error"
        )


def crossing_marker(places: np.ndarray, total: np.ndarray, threshold: float) -> list[elements.Trace]:
    if not total[0] <= threshold <= total[-1]:
        return []
    marker = {"symbol": "x-thin", "size": 9, "line": {"width": 2, "color": "$bad"}}
    at = float(np.interp(threshold, np.maximum.accumulate(total), places))
    return [elements.markers([at], [threshold], marker, hoverinfo="skip")]


def values_beside_label(
    threshold: float, notes: Sequence[elements.Annotation], top: float, crowded: Sequence[float]
) -> list[elements.Annotation]:
    return [
        annotation
        for annotation in notes
        if annotation["xref"] == "paper"
        or annotation["x"] not in crowded
        or not -0.11 < (annotation["y"] - threshold) / top < 0.06  # noqa: PLR2004 - height of a line of text
    ]


def objective_label(places: np.ndarray, total: np.ndarray, objective: Objective) -> elements.Annotation:
    text = f"SLO {axis_duration(objective.threshold_seconds)}"
    whole = f"{text} · {objective.shares}, target {target(objective.target)}"
    end = places[-1] * len(whole) * _LETTER
    clear = float(np.interp(end, places, total)) < objective.threshold_seconds * _CLEAR
    if clear and objective.inside is not None:
        text = whole
    style: elements.Annotation = {"font": {"size": 11.5, "color": "$bad"}, "xshift": 6, "yshift": 1}
    return elements.note(text, 0, objective.threshold_seconds, xref="paper", xanchor="left", yanchor="bottom", **style)


def place(quantile: float, *, even: bool) -> float:
    return quantile if even else float(-np.log10(max(1 - quantile, 1e-9)))


def has_wide_bucket(frame: pd.DataFrame) -> np.ndarray:
    """Return for each row of a breakdown whether its latency lies in a wide bucket; shape (n,)."""
    low, high = (frame[name].to_numpy(dtype=float) for name in ("low_seconds", "high_seconds"))
    return (low > 0) & (high > low * _FINE)
