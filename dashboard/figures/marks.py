"""What is laid over a time chart: alerts while they were open, and steps that have too few requests to tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

import numpy as np
import pandas as pd

from ..format import enough
from .parts import Annotation, Shape, note, releases, safe, span_of
from .time_axis import TimeAxis

# An alert that begins later has its name at its end, where it does not run out of the plot. [ratio of the window]
_LATE = 0.7
# Names of alerts that would stand nearer to each other are left out; their shapes stay. [ratio of the window]
_NAME_WIDTH = 0.2


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert drawn into a time chart.

    Args:
        start: When it was noticed.
        end: When it was over; None while it is not.
        text: What it is about.
        urgent: Whether it woke somebody.
    """

    start: datetime
    end: datetime | None
    text: str
    urgent: bool = True


def release_marks(
    axis: TimeAxis, versions: Mapping[datetime, str] | None, told: Mapping[datetime, str] | None
) -> tuple[list[Shape], list[Annotation]]:
    """Return a line and a name for each version that was first seen, dotted, and for what was reported to have happened, solid.

    A version whose deployment was reported is marked once, where that was.
    """
    reported = told or {}
    unreported = {at: name for at, name in (versions or {}).items() if name not in reported.values()}
    seen = releases({axis.place(at): name for at, name in unreported.items()})
    said = releases({axis.place(at): name for at, name in reported.items()}, told=True)
    return seen[0] + said[0], seen[1] + said[1]


def alert_marks(alerts: Sequence[Alert], axis: TimeAxis) -> tuple[list[Shape], list[Annotation]]:
    """Return each alert as a field from its opening to its end, with a line along its top, its shape and its name."""
    shapes: list[Shape] = []
    notes: list[Annotation] = []
    length = axis.end - axis.start
    named: list[float] = []
    # Where there is room for one name, it is that of the alert that woke somebody.
    for each in sorted(alerts, key=lambda alert: (not alert.urgent, alert.start)):
        start, end = max(each.start, axis.start), min(each.end or axis.end, axis.end)
        if start >= end:
            continue
        colour, shape = ("$bad", "■") if each.urgent else ("$warn", "◆")
        x0, x1 = axis.place(start), axis.place(end)
        shapes += [span_of(x0, x1, 0, 1, f"{colour}@.07"), span_of(x0, x1, 0.99, 1, colour)]
        late = (start - axis.start) > length * _LATE
        at = (x1 - axis.place(axis.end)) / (length.total_seconds() * 1000) + 1 - (_NAME_WIDTH if late else 0)
        at = at if late else (start - axis.start) / length
        clear = all(abs(at - other) >= _NAME_WIDTH for other in named)
        named += [at] if clear else []
        style: Annotation = {"font": {"size": 11, "color": colour}, "bgcolor": "$surface@.8", "borderpad": 1}
        side = {"xanchor": "right" if late else "left", "yanchor": "top", "yshift": -2}
        text = f"{shape} {safe(each.text)}" if clear else shape
        notes.append(note(text, x1 if late else x0, 1, yref="paper", **side, **style))
    return shapes, notes


def without_alert_names(notes: Sequence[Annotation]) -> list[Annotation]:
    """Return *notes*, of an alert its shape only: a narrow screen has no room for more."""
    return [{**each, "text": each["text"][0]} if each["text"][:1] in ("■", "◆") else each for each in notes]


def rough(frame: pd.DataFrame, quantile: float | None) -> np.ndarray:
    """Say of each step (column `n`) whether it has requests, but too few for *quantile*; shape (n,)."""
    n = frame["n"].fillna(0).to_numpy(dtype=float)
    if quantile is None:
        return np.zeros(len(frame), dtype=bool)
    return (n > 0) & ~np.array([enough(int(each), quantile) for each in n], dtype=bool)


def veils(steps: pd.DataFrame, axis: TimeAxis, quantile: float | None, floor: float) -> list[Shape]:
    """Return a veil over each run of steps that have too few requests, from *floor* [ratio of the height] to the top."""
    starts = [pd.Timestamp(each).to_pydatetime() for each in steps["at"]]
    found: list[Shape] = []
    for unsure, run in groupby(zip(rough(steps, quantile), starts, strict=True), key=lambda pair: bool(pair[0])):
        held = [at for _, at in run]
        if unsure:
            x0, x1 = axis.place(held[0]), axis.place(held[-1] + axis.step)
            found.append(span_of(x0, x1, floor, 1, "$surface@.55", above=True))
    return found
