"""Other detectors on the same data: the change points of apache-otava, and "p99 is 20 % above the day before"."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from stagelens.analysis.regression.statistic import MinuteHistograms, bucket_middles

from .episodes import DAY

Floats = NDArray[np.float64]
# Step of p99. [minutes]
STEP = 5
# Threshold: median p99 of half an hour, relative to the same half hour a day before. [steps, ratio]
HALF_HOUR, GROWTH = 30 // STEP, 1.2
# apache-otava with its defaults on a day of points, every quarter of an hour; smaller changes do not count. [steps, ratio]
POINTS, EVERY, MAGNITUDE = DAY // STEP, 15 // STEP, 0.10
# Maximum age of a new change point; change points within this time are the same. [steps]
RECENT = 240 // STEP
# Maximum distance of alarms that count as one. [minutes]
ONE_ALARM = 60

# From p99 by step, and the steps to evaluate, to the steps that alarm.
Detector = Callable[[Floats, range], list[int]]


def p99(minutes: MinuteHistograms) -> Floats:
    """Return the 99th percentile in seconds, in steps of five minutes; shape (steps,)."""
    steps = np.add.reduceat(minutes.total.astype(np.int64), np.arange(0, len(minutes), STEP), axis=0)
    sums = steps.cumsum(axis=1)
    place = (sums < 0.99 * sums[:, -1:]).sum(axis=1)
    return bucket_middles(minutes.index)[np.minimum(place, len(minutes.index) - 1)]


def threshold(series: Floats, steps: range) -> list[int]:
    """Return the steps at which the last half hour is 20 % above the same one a day before."""
    day = DAY // STEP
    found: list[int] = []
    for step in steps:
        now, before = series[step - HALF_HOUR : step], series[step - day - HALF_HOUR : step - day]
        if np.median(now) > GROWTH * np.median(before):
            found.append(step)
    return found


def otava(series: Floats, steps: range) -> list[int]:
    """Return the steps at which apache-otava finds a recent increase that it did not find before."""
    from otava.analysis import compute_change_points  # noqa: PLC0415  # pyright: ignore - optional

    found: list[int] = []
    reported: list[int] = []
    for step in steps[::EVERY]:
        points, _ = compute_change_points(list(series[step - POINTS : step]), min_magnitude=MAGNITUDE)
        news = [
            step - POINTS + int(point.index)
            for point in points
            if point.stats.forward_rel_change() > 0 and point.index > POINTS - RECENT
        ]
        if any(all(abs(place - other) > RECENT for other in reported) for place in news):
            found.append(step)
        reported += news
    return found


def peers() -> dict[str, Detector]:
    """Return the detectors that are installed."""
    found: dict[str, Detector] = {"+20 % over the day before": threshold}
    if find_spec("otava") is not None:
        found["apache-otava"] = otava
    return found


def alarms(steps: list[int]) -> int:
    """Return the number of alarms at *steps*."""
    gaps = np.diff(np.array(steps)) * STEP
    return int((gaps > ONE_ALARM).sum()) + 1 if steps else 0
