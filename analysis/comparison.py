"""Comparison of two latency distributions at a quantile, the stage that grew most, and the periods to compare.

Histograms in, result out, without assumptions on the distribution. `core.order_statistics` defines the error bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import pandas as pd

from ..core.confidence import CONFIDENCE, interval
from ..core.confidence import ratio as ratio_of
from ..core.histogram import Estimate, Histogram

# Two versions overlap for some minutes in every rollout: that is no time in which both served.
ROLLOUT = timedelta(minutes=5)
_QUANTILE = 0.99


@dataclass(frozen=True, slots=True)
class ServingPeriod:
    """When a version served, or a part of that time.

    Args:
        start: The first request.
        end: The end of the last bucket, itself outside.
    """

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class VersionTimes:
    """Over which time each of two versions is compared.

    Args:
        a: The time of A.
        b: The time of B.
        together: Whether both are the same time, in which both served.
    """

    a: ServingPeriod
    b: ServingPeriod
    together: bool


def version_times(
    a: ServingPeriod, b: ServingPeriod, requests: Callable[[ServingPeriod, ServingPeriod], int]
) -> VersionTimes:
    """Return the time both served in; of versions that followed each other, the earlier one until the later one began.

    Versions overlap in a rollout too, and after a rollback the older one has a gap where the newer one served. Such an overlap has
    too few requests for p99 where the times after each other have more.

    Args:
        a: When A served.
        b: When B served.
        requests: Returns the number of requests of the side that has fewer, for a time of A and a time of B.
    """
    first, second = _consecutive(a, b)
    shared = ServingPeriod(max(a.start, b.start), min(a.end, b.end))
    if shared.end - shared.start > ROLLOUT:
        count = requests(shared, shared)
        if bears(count, _QUANTILE) or count >= requests(first, second):
            return VersionTimes(shared, shared, together=True)
    return VersionTimes(first, second, together=False)


def _consecutive(a: ServingPeriod, b: ServingPeriod) -> tuple[ServingPeriod, ServingPeriod]:
    if a.start == b.start:
        return a, b
    return (_until(a, b.start), b) if a.start < b.start else (a, _until(b, a.start))


def _until(life: ServingPeriod, end: datetime) -> ServingPeriod:
    return ServingPeriod(life.start, min(life.end, end))


ChangeKind = Literal["regression", "improvement", "same", "not_enough"]

# Where a comparison looks when nobody says where.
QUANTILES = (0.999, 0.99, 0.95, 0.9)
# A stage is named when it made at least so much of the excess; below it nothing stands out.
MIN_SHARE = 0.4
# What nobody would act on is the same.
MIN_CHANGE = 0.03


@dataclass(frozen=True, slots=True)
class StageGrowth:
    """How much one stage adds, and its share of all that was added.

    Args:
        stage: The stage's key.
        seconds: What it adds to a request. [seconds]
        share: Of the whole excess; above 1 when another stage got faster. [ratio]
    """

    stage: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class QuantileComparison:
    """How B compares to A at one quantile.

    Args:
        kind: `not_enough` when fewer than `confidence.MIN_TAIL` requests lie beyond the quantile on either side.
        a_value: A's latency there, None without requests. [seconds]
        b_value: B's.
        ratio: b / a, None unless both are known and a is above zero.
        ratio_low: Nothing smaller is likely (with the confidence asked for).
        ratio_high: Nothing larger is.
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
        b: What is compared to it.
        quantile: Where. [0 < x < 1]
        confidence: Of each side's interval. The ratio of two such intervals is surer than that. [ratio]
        min_change: Smaller differences are `same`, however sure. [ratio]
    """
    before, after = interval(a, quantile, confidence), interval(b, quantile, confidence)
    a_n, b_n = a.count, b.count
    ratio = ratio_of(before, after)
    if ratio is None:
        return QuantileComparison("not_enough", _value(before), _value(after), None, None, None, a_n, b_n)
    kind = _classify(ratio, min_change) if bears(min(a_n, b_n), quantile) else "not_enough"
    return QuantileComparison(kind, _value(before), _value(after), ratio.value, ratio.low, ratio.high, a_n, b_n)


def highest_quantile(count: int, ceiling: float = 0.99) -> float | None:
    """Return the highest quantile that *count* requests can bear, not above *ceiling*; None when they bear none.

    >>> highest_quantile(1000), highest_quantile(725), highest_quantile(50)
    (0.99, 0.95, None)
    """
    candidates = [quantile for quantile in QUANTILES if quantile <= ceiling] or [QUANTILES[-1]]
    return next((quantile for quantile in candidates if has_enough_samples(count, quantile)), None)


def rank_stage_growth(compared: pd.DataFrame) -> tuple[StageGrowth, ...]:
    """Return the stages that grew, the one to blame first, from a frame of `read.compare`.

    Args:
        compared: Columns stage, delta_seconds and share of the total change.

    Returns:
        Empty when the whole did not grow: there is nothing to blame.
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
    """Return the stage that stands out of *growth*, worst first, if one does."""
    return growth[0] if growth and growth[0].share >= MIN_SHARE else None


def _classify(ratio: Estimate, min_change: float) -> ChangeKind:
    if ratio.low > 1 and ratio.value >= 1 + min_change:
        return "regression"
    if ratio.high < 1 and ratio.value <= 1 - min_change:
        return "improvement"
    return "same"


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value
