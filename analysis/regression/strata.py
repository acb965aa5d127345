"""Pooling over the routes or models of a service: each latency is taken relative to those of its own route or model.

A change that slows all routes is hard to see in their mixture: its slowest requests are those of one route, and another mix looks
like slower code. So the latencies of each route are shifted on the logarithmic scale to those of the whole service before they are
counted beyond thresholds (stratification).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .statistic import END_TO_END, Ints, MinuteHistograms

# Dimensions over which a service is pooled: the first with several values.
Dimension: TypeAlias = Literal["route", "model"]
DIMENSIONS: tuple[Dimension, ...] = ("route", "model")
# Quantile of the latency that is the same for all strata: between the median and the tail, which are both evaluated.
_COMMON = 0.75
# Minimum share of the requests of a stratum, and minimum distance for which pooling is worth its cost. [buckets, 20 %]
_MIN_SHARE, _MIN_SHIFT = 0.02, 8
# Maximum number of strata, the largest ones; other requests are counted without a shift.
MAX_STRATA = 16


@dataclass(frozen=True, slots=True)
class Strata:
    """Distances of the latencies of the routes or models of a service from those of the whole service, by value and stage."""

    dimension: Dimension
    shifts: Mapping[str, Mapping[str, int]]


def learn_strata(
    dimension: Dimension, whole: MinuteHistograms, parts: Mapping[str, MinuteHistograms], left_out: Collection[str]
) -> Strata | None:
    """Learn the strata from the sums over the reference; None if fewer than two differ."""
    requests = int(whole.total.sum())
    large = {value: part for value, part in parts.items() if part.total.sum() >= max(_MIN_SHARE * requests, 1)}
    usual = _quantiles(whole, left_out)
    shifts = {
        value: {stage: at - usual[stage] for stage, at in _quantiles(part, left_out).items() if stage in usual}
        for value, part in large.items()
    }
    whole_shifts = [stage_shifts.get(END_TO_END, 0) for stage_shifts in shifts.values()]
    if len(shifts) < 2 or max(whole_shifts) - min(whole_shifts) < _MIN_SHIFT:  # noqa: PLR2004 - one is the whole
        return None
    return Strata(dimension, shifts)


def pool(strata: Strata, whole: MinuteHistograms, parts: Mapping[str, MinuteHistograms]) -> MinuteHistograms:
    """Return the requests of *whole* with those of each stratum shifted."""
    moved = [
        (part, strata.shifts[value]) for value, part in parts.items() if value in strata.shifts and len(part.index)
    ]
    if not moved:
        return whole
    reached = [part.index[[0, -1]] - by for part, shift in moved for by in (0, *shift.values())]
    ends = np.concatenate([whole.index[[0, -1]], *reached])
    first, last = int(ends.min()), int(ends.max())
    total, stage_counts = (
        np.zeros((*counts.shape[:-1], last - first + 1), np.int64) for counts in (whole.total, whole.own)
    )
    total[..., whole.index - first], stage_counts[..., whole.index - first] = whole.total, whole.own
    for part, shift in moved:
        _move(total, part.total, part.index - first, shift.get(END_TO_END, 0))
        for stage, counts in zip(part.stages, part.own, strict=True):
            if stage in whole.stages and stage in shift:
                _move(stage_counts[whole.stages.index(stage)], counts, part.index - first, shift[stage])
    index = np.arange(first, last + 1)
    return MinuteHistograms(whole.start, index, np.maximum(total, 0), whole.stages, np.maximum(stage_counts, 0))


def _move(target: Ints, counts: NDArray[np.int64], positions: Ints, shift: int) -> None:
    target[..., positions] -= counts
    target[..., positions - shift] += counts


def _quantiles(minutes: MinuteHistograms, left_out: Collection[str]) -> dict[str, int]:
    by_stage = {END_TO_END: minutes.total} | {
        stage: counts for stage, counts in zip(minutes.stages, minutes.own, strict=True) if stage not in left_out
    }
    quantiles: dict[str, int] = {}
    for stage, counts in by_stage.items():
        sums = counts.sum(axis=0, dtype=np.int64).cumsum()
        if len(sums) and sums[-1]:
            quantiles[stage] = int(minutes.index[np.searchsorted(sums, _COMMON * sums[-1])])
    return quantiles
