"""Comparison of two latency distributions at a quantile, the stage that grew most, and the periods to compare.

Histograms in, result out, without assumptions on the distribution. `core.confidence` defines the error bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import pandas as pd

from ..core.confidence import CONFIDENCE, has_enough_samples, interval
from ..core.confidence import ratio as ratio_of
from ..core.histogram import Estimate, Histogram

# Overlaps up to this length are rollouts and not parallel operation.
ROLLOUT = timedelta(minutes=5)
_QUANTILE = 0.99
# Default quantiles of a comparison.
QUANTILES = (0.999, 0.99, 0.95, 0.9)
# Minimum share of the growth for a stage to be named. [ratio]
MIN_SHARE = 0.4
# Smaller changes count as `same`. [ratio]
MIN_CHANGE = 0.03


@dataclass(frozen=True, slots=True)
class ServingPeriod:
    """Period in which a version served, or part of it.

    Args:
        start: Time of the first request.
        end: End of the last bucket, exclusive.
    """

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class VersionTimes:
    """Periods over which two versions are compared.

    Args:
        a: Period of A.
        b: Period of B.
        together: Whether both are the same period, in which both served.
    """

    a: ServingPeriod
    b: ServingPeriod
    together: bool


def version_times(
    a: ServingPeriod, b: ServingPeriod, requests: Callable[[ServingPeriod, ServingPeriod], int]
) -> VersionTimes:
    """Return the common period of two versions; for consecutive versions, the earlier one until the later one began.

    Versions also overlap in a rollout, and after a rollback the older one has a gap where the newer one served. Such an overlap is
    not used if it has too few requests for p99 and the consecutive periods have more.

    Args:
        a: Period of A.
        b: Period of B.
        requests: Returns the requests of the side with fewer, for a period of A and a period of B.
    """
    first, second = _consecutive(a, b)
    shared = ServingPeriod(max(a.start, b.start), min(a.end, b.end))
    if shared.end - shared.start > ROLLOUT:
        count = requests(shared, shared)
        if has_enough_samples(count, _QUANTILE) or count >= requests(first, second):
            return VersionTimes(shared, shared, together=True)
    return VersionTimes(first, second, together=False)


def _consecutive(a: ServingPeriod, b: ServingPeriod) -> tuple[ServingPeriod, ServingPeriod]:
    if a.start == b.start:
        return a, b
    return (_until(a, b.start), b) if a.start < b.start else (a, _until(b, a.start))


def _until(life: ServingPeriod, end: datetime) -> ServingPeriod:
    return ServingPeriod(life.start, min(life.end, end))


ChangeKind = Literal["regression", "improvement", "same", "not_enough"]


@dataclass(frozen=True, slots=True)
class StageGrowth:
    """Growth of one stage.

    Args:
        stage: Key of the stage.
        seconds: Additional time per request. [seconds]
        share: Share of the total growth; above 1 when another stage got faster. [ratio]
    """

    stage: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class QuantileComparison:
    """Comparison of B with A at one quantile.

    Args:
        kind: `not_enough` when fewer than `confidence.MIN_TAIL` requests lie beyond the quantile on either side.
        a_value: Latency of A, None without requests. [seconds]
        b_value: Latency of B.
        ratio: b / a; None unless both are known and a is above zero.
        ratio_low: Lower bound at the given confidence.
        ratio_high: Upper bound.
        a_n: Requests of A. [count]
        b_n: Requests of B. [count]
    """

    kind: ChangeKind
    a_value: float | None
    b_value: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    a_n: int
    b_n: int


def compare_quantile(
    a: Histogram, b: Histogram, quantile: float, *, confidence: float = CONFIDENCE, min_change: float = MIN_CHANGE
) -> QuantileComparison:
    """Compare two latency histograms at *quantile*.

    Args:
        a: The reference.
        b: The histogram compared with it.
        quantile: Quantile. [0 < x < 1]
        confidence: Confidence of each side's interval; the bounds of the ratio are wider. [ratio]
        min_change: Smaller changes are `same` however certain. [ratio]
    """
    before, after = interval(a, quantile, confidence), interval(b, quantile, confidence)
    a_n, b_n = a.count, b.count
    ratio = ratio_of(before, after)
    if ratio is None:
        return QuantileComparison("not_enough", _value(before), _value(after), None, None, None, a_n, b_n)
    kind = _classify(ratio, min_change) if has_enough_samples(min(a_n, b_n), quantile) else "not_enough"
    return QuantileComparison(kind, _value(before), _value(after), ratio.value, ratio.low, ratio.high, a_n, b_n)


def highest_quantile(count: int, ceiling: float = 0.99) -> float | None:
    """Return the highest quantile with enough samples in *count* requests, at most *ceiling*; None if there is none.

    >>> highest_quantile(1000), highest_quantile(725), highest_quantile(50)
    (0.99, 0.95, None)
    """
    candidates = [quantile for quantile in QUANTILES if quantile <= ceiling] or [QUANTILES[-1]]
    return next((quantile for quantile in candidates if has_enough_samples(count, quantile)), None)


def rank_stage_growth(compared: pd.DataFrame) -> tuple[StageGrowth, ...]:
    """Return the stages that grew, largest growth first, from a frame of `read.compare`.

    Args:
        compared: Columns stage, delta_seconds and share of the total change.

    Returns:
        Empty if the total did not grow.
    """
    rows = compared.sort_values("delta_seconds", ascending=False)
    total = float(rows["delta_seconds"].sum())
    if total <= 0:
        return ()
    return tuple(
        StageGrowth(str(stage), float(delta), float(delta) / total)
        for stage, delta in zip(rows["stage"], rows["delta_seconds"], strict=True)
        if delta > 0
    )


def dominant_growth(growth: Sequence[StageGrowth]) -> StageGrowth | None:
    """Return the first stage of *growth* if its share is large enough."""
    return growth[0] if growth and growth[0].share >= MIN_SHARE else None


def _classify(ratio: Estimate, min_change: float) -> ChangeKind:
    if ratio.low > 1 and ratio.value >= 1 + min_change:
        return "regression"
    if ratio.high < 1 and ratio.value <= 1 - min_change:
        return "improvement"
    return "same"


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value
