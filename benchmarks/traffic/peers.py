"""Two others on the same data: apache-otava's change points, and "p99 is 20 % above the day before"."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from stagelens.analysis.regression.statistic import MinuteHistograms, bucket_middles

from .service import DAY

Floats = NDArray[np.float64]
# Both read p99 in steps. [minutes]
STEP = 5
# The threshold: p99 of half an hour, against the same half hour a day ago.
HALF_HOUR, GROWTH = 30 // STEP, 1.2
# apache-otava: its defaults, a day of points, asked every quarter of an hour; less than ten percent is nothing.
POINTS, EVERY, MAGNITUDE = DAY // STEP, 15 // STEP, 0.10
# A change point is news when it is as young as this; the same one is not told twice within it.
YOUNG = 240 // STEP
# Alarms nearer than this are one. [minutes]
ONE_ALARM = 60

# p99 in steps (from the first on), which steps to judge; the steps that alarm.
Detector = Callable[[Floats, range], list[int]]


def p99(minutes: MinuteHistograms) -> Floats:
    """Return the 99th percentile in seconds, in steps of five minutes; shape (steps,)."""
    steps = np.add.reduceat(minutes.total.astype(np.int64), np.arange(0, len(minutes), STEP), axis=0)
    sums = steps.cumsum(axis=1)
    place = (sums < 0.99 * sums[:, -1:]).sum(axis=1)
    return bucket_middles(minutes.index)[np.minimum(place, len(minutes.index) - 1)]


def threshold(series: Floats, steps: range) -> list[int]:
    """Return the steps at which the last half hour was a fifth slower than the same one a day ago."""
    day = DAY // STEP
    found: list[int] = []
    for step in steps:
        now, before = series[step - HALF_HOUR : step], series[step - day - HALF_HOUR : step - day]
        if np.median(now) > GROWTH * np.median(before):
            found.append(step)
    return found


def otava(series: Floats, steps: range) -> list[int]:
    """Return the steps at which apache-otava sees a young change point upwards that it had not seen before."""
    from otava.analysis import compute_change_points  # noqa: PLC0415  # pyright: ignore - optional

    found: list[int] = []
    reported: list[int] = []
    for step in steps[::EVERY]:
        points, _ = compute_change_points(list(series[step - POINTS : step]), min_magnitude=MAGNITUDE)
        news = [
            step - POINTS + int(point.index)
            for point in points
            if point.stats.forward_rel_change() > 0 and point.index > POINTS - YOUNG
        ]
        if any(all(abs(place - other) > YOUNG for other in reported) for place in news):
            found.append(step)
        reported += news
    return found


def peers() -> dict[str, Detector]:
    """Return those that can run here."""
    found: dict[str, Detector] = {"+20 % over the day before": threshold}
    if find_spec("otava") is not None:
        found["apache-otava"] = otava
    return found


def alarms(steps: list[int]) -> int:
    """Return how many alarms the alarming *steps* are."""
    gaps = np.diff(np.array(steps)) * STEP
    return int((gaps > ONE_ALARM).sum()) + 1 if steps else 0
