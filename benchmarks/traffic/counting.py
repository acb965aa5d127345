"""Requests of a simulated service, counted as the collector counts them, and changes of its code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens.analysis.regression.statistic import BUCKETS_A_DOUBLING, MinuteHistograms, StageSeconds

Singles = NDArray[np.float32]
Ints = NDArray[np.int64]
# Latency buckets: 58 µs to 49 s.
LOW, HIGH = -450, 180
# Step of the time in each stage, and about how many requests are simulated at once. [minutes, count]
STEP, CHUNK = 10, 1_000_000


@dataclass(frozen=True, slots=True)
class Change:
    """Change that makes requests slower.

    Args:
        stage: Stage that changes; `queue` if workers lose capacity.
        kind: `scale`: all requests take 1 + *size* times as long in the stage. `add`: they take longer by *size* times its
            usual time. `tail`: one request in twelve takes 1 + 4 *size* times as long. `capacity`: requests occupy a worker
            1 + *size* times as long, although no stage is longer.
        size: Size. [ratio, >= 0]
    """

    stage: str
    kind: str
    size: float


def trimmed(
    start: int, total: NDArray[Any], own: NDArray[Any], spent: NDArray[np.float64], stages: tuple[str, ...]
) -> tuple[MinuteHistograms, StageSeconds]:
    """Return counts of all buckets from `LOW` on as the statistics read them, without the empty outer buckets."""
    used = np.flatnonzero(total.any(axis=0) | own.any(axis=(0, 1)))
    low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
    index = np.arange(LOW + low, LOW + high)
    by_step = np.add.reduceat(total, np.arange(0, len(total), STEP), dtype=np.int32)[:, low:high]
    return (
        MinuteHistograms(start, index, total[:, low:high], stages, own[:, :, low:high]),
        StageSeconds(start, STEP, index, by_step, stages, spent[:, :, low:high]),
    )


def count(taken: list[Singles], minute: Ints, total: NDArray[np.int32], own: NDArray[np.int32]) -> None:
    """Add the requests to *total* of shape (minutes, k), and their times *taken* in the stages to *own* of shape (stages, minutes, k)."""
    place = minute * total.shape[1]
    total += np.bincount(place + bucket(np.sum(taken, axis=0)), minlength=total.size).reshape(total.shape)
    for number, seconds in enumerate(taken):
        had = slice(None) if seconds.all() else seconds > 0
        its = place[had] + bucket(seconds[had])
        own[number] += np.bincount(its, minlength=total.size).reshape(total.shape)


def add_up(taken: list[Singles], step: Ints, spent: NDArray[np.float64]) -> None:
    """Add the seconds of each stage to *spent*, of shape (stages, steps, k), by end-to-end latency."""
    place = step * spent.shape[2] + bucket(np.sum(taken, axis=0))
    size = spent.shape[1] * spent.shape[2]
    for number, seconds in enumerate(taken):
        spent[number] += np.bincount(place, seconds, size).reshape(spent.shape[1:])


def bucket(seconds: Singles) -> Ints:
    """Return the bucket of each time, counted from `LOW`."""
    index = np.ceil(np.log2(seconds) * np.float32(BUCKETS_A_DOUBLING)).astype(np.int64) - 1
    return np.clip(index, LOW, HIGH - 1) - LOW
