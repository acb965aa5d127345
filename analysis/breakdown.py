"""Latency breakdown by stage and percentile: the percentile grid, smoothing of the stage shares, and p50 and p99.

A breakdown is a table with one row for each percentile: the columns `COLUMNS`, and one column for each stage [seconds].
The stage times of a row add up to its latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core.histogram import has_enough_samples
from ..core.stages import BY_KEY

Floats: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[np.int64]
COLUMNS = ("percentile", "n", "value_seconds", "low_seconds", "high_seconds")
NAMED_PERCENTILES = (0.0, 0.5, 0.9, 0.95, 0.99, 0.995, 0.999)
# Three nines: the highest percentile is p99.9.
MAX_NINES = 3.0
_STEPS_A_NINE = 40


def _percentiles() -> tuple[float, ...]:
    """Return the grid of percentiles, evenly spaced in nines (-log10(1 - quantile)), with the named ones added."""
    even = 1 - 10.0 ** -np.arange(0, MAX_NINES, 1 / _STEPS_A_NINE)
    short = [round(float(each), 3 if each < 0.99 else 4) for each in even]  # noqa: PLR2004 - p97.8 and p99.44
    return tuple(sorted({*short, *NAMED_PERCENTILES}))


PERCENTILES = _percentiles()


def percentile_grid(requests: int) -> tuple[float, ...]:
    """Return those of `PERCENTILES` that have at least ten of *requests* above them."""
    return (
        tuple(each for each in PERCENTILES if has_enough_samples(requests, each))
        if has_enough_samples(requests, 0.0)
        else ()
    )


# Neighbouring percentiles within this distance are averaged: an eighth of a nine on both sides.
_NEIGHBOURS = 6
# With more requests than this, neighbours get less and less weight.
_PLENTY = 50
AT_P50, AT_P99 = PERCENTILES.index(0.5), PERCENTILES.index(0.99)
# Positions of the percentiles needed for p50 and p99 alone.
SMOOTHED_ROWS = tuple(
    place for place in range(len(PERCENTILES)) if min(abs(place - AT_P50), abs(place - AT_P99)) < _NEIGHBOURS
)


def smoothed(frame: pd.DataFrame) -> pd.DataFrame:
    """Smooth the stage shares of each percentile over neighbouring percentiles, with closer ones weighted more.

    Without smoothing, single requests would make the stages jump between percentiles when there are few requests. The latency of
    a percentile does not change, and its stages still add up to it. With many requests the neighbours have little weight.

    Args:
        frame: Breakdown at percentiles evenly spaced in nines: `COLUMNS` and one column for each stage. [seconds]
    """
    if frame.empty:
        return frame
    stages = [str(each) for each in frame.columns if each not in COLUMNS]
    total = frame["value_seconds"].to_numpy(dtype=float)
    steps = np.arange(len(frame))
    made = frame.copy()
    made[stages] = smooth(frame[stages].to_numpy(dtype=float), total, frame["n"].to_numpy(dtype=float), steps, steps)
    return made


def smooth(seconds: Floats, total: Floats, requests: Floats, steps: Places, wanted: Places) -> Floats:
    """Average stage shares over neighbouring percentiles as `smoothed` does, for any number of breakdowns at once.

    Args:
        seconds: Time in each stage; shape (..., rows, stages). [seconds]
        total: Latency; shape (..., rows). [seconds]
        requests: Requests behind each mean share; shape (..., rows).
        steps: Position of each row among percentiles evenly spaced in nines; shape (rows,).
        wanted: Positions to return, a subset of *steps*; shape (k,).

    Returns:
        Smoothed time in each stage; shape (..., k, stages). [seconds]
    """
    rows = np.searchsorted(steps, wanted)
    shares = seconds / np.maximum(total, 1e-12)[..., None]
    near = np.maximum(1 - np.abs(np.subtract.outer(wanted, steps)) / _NEIGHBOURS, 0)
    requests = np.maximum(requests, 1)
    borrowed = np.minimum(1, _PLENTY / requests)[..., rows, None]
    weight = near * requests[..., None, :] * np.where(np.equal.outer(wanted, steps), 1, borrowed)
    return weight @ shares / weight.sum(axis=-1, keepdims=True) * total[..., rows, None]


def stages_at(frame: pd.DataFrame, row: int) -> dict[str, float]:
    """Return the non-zero stage times of one row of a breakdown by stage, in seconds."""
    values = {str(name): float(frame[name].iloc[row]) for name in frame.columns if name not in COLUMNS}
    return {stage: seconds for stage, seconds in values.items() if seconds > 0}


# A waiting stage causes the tail: minimum share of p99, maximum share of p50, minimum ratio of p99 to p50.
_TAIL_SHARE, _USUAL_SHARE, _TAIL_RATIO = 0.4, 0.15, 4.0


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of a selection of requests.

    Args:
        requests: Number of requests. [count]
        errors: Number of failed requests. [count]
        p50: Median latency; None with too few requests. [seconds]
        p99: 99th percentile of the latency; None with too few requests. [seconds]
        median_stages: Stage times of the median request. [seconds]
        tail_stages: Stage times at p99; empty if `p99` is None. [seconds]
    """

    requests: int
    errors: int
    p50: float | None
    p99: float | None
    median_stages: dict[str, float]
    tail_stages: dict[str, float]

    @property
    def error_ratio(self) -> float | None:
        """Share of failed requests."""
        return self.errors / self.requests if self.requests else None

    @property
    def waiting_share(self) -> float | None:
        """Share of p99 spent in waiting stages."""
        total = sum(self.tail_stages.values())
        waited = sum(
            seconds for stage, seconds in self.tail_stages.items() if stage in BY_KEY and BY_KEY[stage].waiting
        )
        return waited / total if total else None

    @property
    def tail_wait(self) -> str | None:
        """Waiting stage that makes p99 far longer than p50: large at p99 and small at p50; None if there is none."""
        if not self.tail_stages or not self.p50 or self.p99 is None or self.p99 < _TAIL_RATIO * self.p50:
            return None
        stage = max(self.tail_stages, key=lambda key: self.tail_stages[key])
        waits = stage in BY_KEY and BY_KEY[stage].waiting
        is_large = share_of(self.tail_stages, stage) >= _TAIL_SHARE
        return stage if waits and is_large and share_of(self.median_stages, stage) <= _USUAL_SHARE else None


NO_REQUESTS = Measures(0, 0, None, None, {}, {})


def share_of(stages: Mapping[str, float], stage: str) -> float:
    """Return the share of *stage* in the sum of *stages*; 0 if there is no time at all."""
    return stages.get(stage, 0.0) / (sum(stages.values()) or 1.0)


def measures_of(
    requests: int, errors: int, latency: tuple[float, float], stages: tuple[dict[str, float], dict[str, float]]
) -> Measures:
    """Return measures in which p50, p99 and their stages are set only if there are enough requests."""
    has_median, has_tail = has_enough_samples(requests, 0.5), has_enough_samples(requests, 0.99)
    return Measures(
        requests,
        errors,
        latency[0] if has_median else None,
        latency[1] if has_tail else None,
        stages[0],
        stages[1] if has_tail else {},
    )
