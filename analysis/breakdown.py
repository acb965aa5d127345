"""Latency breakdown by stage and percentile: a row for each percentile with `COLUMNS` and the seconds of each stage, which add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..core.histogram import has_enough_samples, rank_of
from ..core.stages import BY_KEY

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
COLUMNS = ("percentile", "n", "value_seconds", "low_seconds", "high_seconds")
NAMED_PERCENTILES = (0.0, 0.5, 0.9, 0.95, 0.99, 0.995, 0.999)
# Three nines: the highest percentile is p99.9.
MAX_NINES = 3.0
_STEPS_A_NINE = 40


def _percentiles() -> tuple[float, ...]:
    """Return the grid of percentiles, evenly spaced in nines (-log10(1 - quantile)), with the named ones added."""
    even = 1 - 10.0 ** -np.arange(0, MAX_NINES, 1 / _STEPS_A_NINE)
    short = [round(float(quantile), 3 if quantile < 0.99 else 4) for quantile in even]  # noqa: PLR2004 - p97.8 and p99.44
    return tuple(sorted({*short, *NAMED_PERCENTILES}))


PERCENTILES = _percentiles()


def percentile_grid(requests: int) -> tuple[float, ...]:
    """Return those of `PERCENTILES` that have at least ten of *requests* above them."""
    return (
        tuple(percentile for percentile in PERCENTILES if has_enough_samples(requests, percentile))
        if has_enough_samples(requests, 0.0)
        else ()
    )


AT_P50, AT_P99 = PERCENTILES.index(0.5), PERCENTILES.index(0.99)
# Half-width of the window of a percentile: in standard errors of its rank, at least this number of requests.
_REACH_ERRORS, _MIN_REACH = 3.0, 8
# Normal quantile of the 95 % interval of a share; distance at which shares beside a percentile are read, in standard errors of its
# rank; weight of the prior variance, in pairs of buckets; and number of buckets beside the window that show the variance.
_Z, _BESIDE, _PRIOR, _MARGIN = 1.96, 1.5, 2.0, 3


@dataclass(frozen=True, slots=True)
class RankWindow:
    """Windows of ranks around percentiles, from 0, with the standard error of the rank [requests]; the arrays have equal shapes."""

    rank: Floats
    error: Floats

    @classmethod
    def of(cls, quantiles: Sequence[float], requests: Sequence[int], zero: Sequence[int]) -> RankWindow:
        """Return a window for each of *quantiles*, among *requests* of which *zero* are below all buckets."""
        ranks = [rank_of(at, n) - below - 0.5 for at, n, below in zip(quantiles, requests, zero, strict=True)]
        share = np.array(quantiles)
        return cls(np.array(ranks), np.sqrt(np.array(requests) * share * (1 - share)))

    def weights(self, counts: Ints, shift: float = 0.0) -> Floats:
        """Return the weight of each bucket (..., k), in order of latency, in the mean over the requests around the percentile; adds up to 1.

        A request counts less the farther its rank is from the percentile: a triangle of three standard errors of the rank on both
        sides, because within them the sample does not show which request is at the percentile. In simulations of known requests
        (`tests/analysis/test_breakdown.py`), this has a smaller error than a number of requests, or a width in percentiles.
        *shift* is the distance from the percentile, in standard errors of its rank.
        """
        held = np.cumsum(counts, axis=-1)
        last = held[..., -1:]
        rank = np.clip((self.rank + shift * self.error)[..., None], 0.5, np.maximum(last - 0.5, 0.5))
        reach = np.maximum(_MIN_REACH, _REACH_ERRORS * self.error)[..., None]
        weights = _triangle((held - rank) / reach) - _triangle((held - counts - rank) / reach)
        return weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)


def _triangle(x: Floats) -> Floats:
    near = np.clip(x, -1, 1)
    return np.where(near < 0, (1 + near) ** 2, 2 - (1 - near) ** 2) / 2


def share_bounds(window: RankWindow, counts: Ints, shares: Floats) -> tuple[Floats, Floats]:
    """Return the 95 % interval of the share of each stage at percentiles; two arrays of shape (percentiles, stages).

    It adds up two errors: the variation among requests of similar latency, seen in neighbouring buckets, and the change of the share
    within the error of the percentile's rank. Requests count as independent: where slow requests come in bursts, it is a lower bound.
    *counts* are the requests of each bucket (k,), *shares* the mean share of each stage in them (k, stages).
    """
    weights = window.weights(counts)
    # Rounded sums can be just above 1.
    centre = np.clip(weights @ shares, 0, 1)
    beside = [np.abs(window.weights(counts, side) @ shares - centre) for side in (-_BESIDE, _BESIDE)]
    # Variance of the share of one request, from differences of neighbouring buckets.
    steps = np.diff(shares, axis=0) ** 2 / (1 / counts[1:] + 1 / counts[:-1])[:, None]
    held = np.concatenate((np.zeros((1, shares.shape[1])), np.cumsum(steps, axis=0)))
    inside = weights > 0
    first = np.maximum(inside.argmax(axis=1) - _MARGIN, 0)
    last = np.minimum(len(counts) - 1 - inside[:, ::-1].argmax(axis=1) + _MARGIN, len(counts) - 1)
    pairs = (last - first)[:, None]
    variance = (held[last] - held[first] + _PRIOR * centre * (1 - centre)) / (pairs + _PRIOR)
    reach = _Z * np.sqrt(variance * (weights**2 / counts).sum(axis=1)[:, None] + np.maximum(*beside) ** 2)
    return np.clip(centre - reach, 0, 1), np.clip(centre + reach, 0, 1)


def stages_at(frame: pd.DataFrame, row: int) -> dict[str, float]:
    """Return the non-zero stage times of one row of a breakdown by stage, in seconds."""
    values = frame.iloc[row].to_dict()
    return {str(name): float(value) for name, value in values.items() if name not in COLUMNS and value > 0}


# A waiting stage causes the tail: minimum share of p99, maximum share of p50, minimum ratio of p99 to p50.
_TAIL_SHARE, _USUAL_SHARE, _TAIL_RATIO = 0.4, 0.15, 4.0


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of a selection of requests; times in seconds, None or empty with too few requests."""

    requests: int
    errors: int
    p50: float | None
    p99: float | None
    median_stages: dict[str, float]
    tail_stages: dict[str, float]

    @property
    def error_ratio(self) -> float | None:
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
