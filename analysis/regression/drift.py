"""Slow growth of a latency over weeks, which a baseline that is learned again every day does not show.

Requests of one day are not independent, so one day is one sample. The last week is compared with the first one by the differences
between days of the same weekday. Their mean has a confidence interval from Student's t distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from ...core.histogram import BUCKETS_A_DOUBLING, has_enough_samples
from ..comparison import StageGrowth, growth_of
from ..policies import shipped_policy
from .stage_attribution import mean_growth
from .statistic import WEEK, Floats, StageSeconds

# Student's t by degrees of freedom, two-sided at 98 %. A week needs at least five days with enough requests.
# https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
_T = {4: 3.747, 5: 3.365, 6: 3.143}
LEAST_DAYS = min(_T) + 1


@dataclass(frozen=True, slots=True)
class DriftPolicy:
    at: tuple[float, ...]
    weeks: int
    growth: float
    step: float
    remaining: float
    load: float


@cache
def default_drift_policy() -> DriftPolicy:
    return shipped_policy(DriftPolicy, "drift")


@dataclass(frozen=True, slots=True)
class Drift:
    """Slow growth of a quantile from the first to the last week [seconds], with the bounds of after / before."""

    at: float
    before: float
    after: float
    low: float
    high: float
    z: float


def find_drift(policy: DriftPolicy, days: StageSeconds) -> Drift | None:
    """Return the most certain slow growth in *days*, the consecutive days of all weeks of *policy*; None without one."""
    drifts = [day_drift for at in policy.at if (day_drift := _drift_at(policy, at, _day_logs(days, at))) is not None]
    return max(drifts, key=lambda drift: drift.low, default=None)


def weekly_latency(days: StageSeconds, at: float) -> float | None:
    """Return quantile *at* of the last week of *days* in seconds; None with too few requests."""
    week = _day_logs(days, at)[-WEEK:]
    has_data = np.isfinite(week)
    return float(np.exp(week[has_data].mean())) if has_data.sum() >= LEAST_DAYS else None


def daily_latency(days: StageSeconds, at: float) -> tuple[float | None, ...]:
    """Return quantile *at* of each day in seconds; None with too few requests."""
    return tuple(None if math.isnan(value) else math.exp(value) for value in _day_logs(days, at).tolist())


def stage_growth(first: StageSeconds, last: StageSeconds, at: float) -> tuple[StageGrowth, ...]:
    """Return the growth of each stage in the requests at or beyond quantile *at*, largest growth first.

    For the median, it is the growth in all requests.
    """
    quantile = at if at > 0.5 else 0.0  # noqa: PLR2004 - the median
    return growth_of(mean_growth(quantile, first, last))


def _drift_at(policy: DriftPolicy, at: float, logs: Floats) -> Drift | None:
    weeks = logs.reshape(-1, WEEK)
    pairs = weeks[-1] - weeks[0]
    pairs = pairs[np.isfinite(pairs)]
    if (np.isfinite(weeks).sum(axis=1) < LEAST_DAYS).any() or len(pairs) < LEAST_DAYS:
        return None
    growth, error = float(pairs.mean()), float(pairs.std(ddof=1)) / math.sqrt(len(pairs))
    reach = _T[len(pairs) - 1] * error
    if growth - reach < math.log1p(policy.growth):
        return None
    starts = range(WEEK, len(logs) - WEEK + 1)
    changes = [np.nanmean(logs[day : day + WEEK]) - np.nanmean(logs[day - WEEK : day]) for day in starts]
    if max(changes) > policy.step * growth or min(changes[::WEEK]) < -reach:
        return None
    before, after = (float(np.exp(np.nanmean(week))) for week in (weeks[0], weeks[-1]))
    low, high = math.exp(growth - reach), math.exp(growth + reach)
    return Drift(at, before, after, low, high, growth / max(error, 1e-9))


def _day_logs(days: StageSeconds, at: float) -> Floats:
    """Return the log of quantile *at* of each day, interpolated within its bucket; nan with too few requests."""
    logs = np.full(len(days.total), np.nan)
    for day, counts in enumerate(days.total):
        n = int(counts.sum())
        if n and has_enough_samples(n, at):
            edge = np.interp(at * n, np.cumsum(counts), days.index + 1)
            logs[day] = edge * math.log(2) / BUCKETS_A_DOUBLING
    return logs
