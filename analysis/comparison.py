"""Comparison of two sets of requests: one decision rule for pages, the API, alerts and `stagelens compare`.

The true quantile of either side lies between two of its requests, whose ranks follow from the binomial distribution for any
latency distribution (`core.histogram`). In the interval of the difference B - A, chance errors add up as squares; the width of the
histogram bucket is not due to chance and is added in full. The interval of the ratio B / A consists of the factors R for which the
interval of B - R x A contains zero, so the ratio is certainly above 1 exactly when the difference is certainly above 0.

All intervals here are at 99 %. At 95 %, one or two of a hundred pairs of equal releases would be reported as slower or faster,
which a fleet of 40 services would see every week; at 99 % it is at most 0.2 of a hundred (400 to 20,000 requests, p50 and p99).

Sources: A. Donner, G. Y. Zou, Statistical Methods in Medical Research 21 (2012), 347-359 (MOVER: differences and ratios);
R. G. Newcombe, Statistics in Medicine 17 (1998), 873-890, method 10 on Wilson's intervals (failure rates).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from statistics import NormalDist
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd

from ..core.histogram import Estimate, Histogram, bucket_middle, confidence_interval, has_enough_samples, ranks
from .breakdown import NAMED_PERCENTILES

CONFIDENCE = 0.99
# Smaller changes count as `same`, because they require no action. [ratio]
MIN_CHANGE = 0.03
# Instead of infinity, which JSON has not. [seconds]
UNKNOWN_ERROR = 1e9
# Default quantiles of a comparison.
QUANTILES = (0.999, 0.99, 0.95, 0.9)
# Minimum share of the growth for a stage to be named. [ratio]
MIN_SHARE = 0.4
# Overlaps up to this length are rollouts, not parallel operation.
ROLLOUT = timedelta(minutes=5)
_QUANTILE = 0.99

ChangeKind: TypeAlias = Literal["regression", "improvement", "same", "not_enough"]


@dataclass(frozen=True, slots=True)
class QuantileComparison:
    """Comparison of B with A at one quantile; latencies in seconds, None without requests, and unknown bounds infinite.

    *kind* is `not_enough` with fewer than `histogram.MIN_TAIL` requests beyond the quantile on either side. *low* and *high* are the
    bounds of B - A, the ratios those of B / A.
    """

    quantile: float
    kind: ChangeKind
    a_value: float | None
    b_value: float | None
    low: float
    high: float
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    a_n: int
    b_n: int

    @property
    def difference(self) -> float:
        return 0.0 if self.a_value is None or self.b_value is None else self.b_value - self.a_value

    @property
    def is_certain(self) -> bool:
        return self.low > 0 or self.high < 0

    @property
    def has_changed(self) -> bool:
        return self.kind in ("regression", "improvement")

    @property
    def growth(self) -> float | None:
        return None if self.ratio is None else self.ratio - 1

    @property
    def error(self) -> float:
        """Differences of this size count as none: the error of `difference`, and at least `MIN_CHANGE` of A [seconds]."""
        reach = self.difference - self.low if self.difference >= 0 else self.high - self.difference
        return max(reach, MIN_CHANGE * (self.a_value or 0.0))


def compare_quantile(
    a: Histogram, b: Histogram, quantile: float, confidence: float = CONFIDENCE, *, a_quantile: float | None = None
) -> QuantileComparison:
    """Compare two latency histograms at *quantile*; A at *a_quantile* if that is another one, such as the median below a tail.

    >>> fast, slow = Histogram(), Histogram()
    >>> fast.record(0.1, 1000), slow.record(0.2, 1000)
    (None, None)
    >>> comparison = compare_quantile(fast, slow, 0.99)
    >>> comparison.kind, round(comparison.ratio_low, 2)
    ('regression', 1.96)
    """
    before = _Side.at_quantile(a, quantile if a_quantile is None else a_quantile, confidence)
    after = _Side.at_quantile(b, quantile, confidence)
    low, high, ratio = -math.inf, math.inf, None
    if before and after:
        if math.isfinite(after.below):
            low = after.low - before.high - math.hypot(after.below, before.above)
        if math.isfinite(before.below):
            high = after.high - before.low + math.hypot(after.above, before.below)
        ratio = _ratio(before, after)
    kind = _classify(low, high, ratio) if has_enough_samples(min(a.count, b.count), quantile) else "not_enough"
    return QuantileComparison(
        quantile,
        kind,
        before.value if before else None,
        after.value if after else None,
        low,
        high,
        ratio.value if ratio else None,
        ratio.low if ratio else None,
        ratio.high if ratio else None,
        a.count,
        b.count,
    )


def errors_along(
    a: Histogram, b: Histogram, quantiles: Sequence[float], *, a_quantile: float | None = None
) -> list[float]:
    """Return the `error` of the comparison at each of *quantiles*; between every sixth and the named ones, interpolated."""
    sampled = [quantile for index, quantile in enumerate(quantiles) if index % 6 == 0 or quantile in NAMED_PERCENTILES]
    errors = [min(compare_quantile(a, b, quantile, a_quantile=a_quantile).error, UNKNOWN_ERROR) for quantile in sampled]
    return np.interp(quantiles, sampled, errors).tolist() if sampled else []


def counts_differ(a: float, b: float, a_seconds: float, b_seconds: float) -> bool:
    """Return whether the rates of *a* events in *a_seconds* and of *b* in *b_seconds* differ by more than chance."""
    if a_seconds <= 0 or b_seconds <= 0:
        return False
    return abs(b / b_seconds - a / a_seconds) > _z() * math.hypot(math.sqrt(a) / a_seconds, math.sqrt(b) / b_seconds)


def compare_means(a: Histogram, b: Histogram) -> Estimate | None:
    """Return the ratio of the mean of *b* to the mean of *a*; None without requests, or if the mean of *a* is zero."""
    before, after = _Side.at_mean(a), _Side.at_mean(b)
    return _ratio(before, after) if before and after else None


def mean_latency(histogram: Histogram) -> float | None:
    """Return the mean latency in seconds, from bucket middles; None without requests."""
    side = _Side.at_mean(histogram)
    return side.value if side else None


def requests_needed(quantile: float) -> int:
    """Return the number of requests that each side needs for both bounds of the interval at *quantile*.

    >>> requests_needed(0.5), requests_needed(0.99)
    (8, 528)
    """
    missed = (1 - CONFIDENCE) / 2
    return math.ceil(math.log(missed) / math.log(max(quantile, 1 - quantile)))


@dataclass(frozen=True, slots=True)
class _Side:
    """One side: its value, the bounds of the bucket of the value, and the chance error beyond them; inf if unknown."""

    value: float
    low: float
    high: float
    below: float
    above: float

    @classmethod
    def at_quantile(cls, latencies: Histogram, quantile: float, confidence: float) -> _Side | None:
        interval, bucket = confidence_interval(latencies, quantile, confidence), latencies.quantile(quantile)
        if interval is None or bucket is None:
            return None
        low, high = max(bucket.low, interval.low), min(bucket.high, interval.high)
        has_low = ranks(latencies.count, quantile, confidence)[0] >= 1
        return cls(interval.value, low, high, low - interval.low if has_low else math.inf, interval.high - high)

    @classmethod
    def at_mean(cls, latencies: Histogram) -> _Side | None:
        if not latencies.count:
            return None
        values = [(bucket_middle(index, latencies.scale), count) for index, count in latencies.buckets.items()]
        mean = math.fsum(value * count for value, count in values) / latencies.count
        square = math.fsum(value * value * count for value, count in values) / latencies.count
        reach = _z() * math.sqrt(max(square - mean * mean, 0.0) / latencies.count)
        return cls(mean, mean, mean, min(reach, mean), reach)


def _ratio(a: _Side, b: _Side) -> Estimate | None:
    """Return B / A with its interval: the ratios R for which the interval of B - R x A contains zero."""
    if a.value <= 0:
        return None
    low = _root(a.high, a.above, b.low, b.below, is_lower=True)
    high = _root(a.low, a.below, b.high, b.above, is_lower=False)
    return Estimate(b.value / a.value, low, high)


def _root(a: float, a_reach: float, b: float, b_reach: float, *, is_lower: bool) -> float:
    """Return R >= 0 that solves b - R a -+ hypot(b_reach, R a_reach) = 0; 0 or inf without a solution."""
    if math.isinf(a_reach) or math.isinf(b_reach):
        return 0.0 if is_lower else math.inf
    square, rest = a * a - a_reach * a_reach, b * b - b_reach * b_reach
    root = math.sqrt(max(a * a * b * b - square * rest, 0.0))
    if is_lower:
        # No division by `square`, which may be zero or negative.
        return max(rest, 0.0) / (a * b + root) if a * b + root > 0 else 0.0
    return (a * b + root) / square if square > 0 else math.inf


def _classify(low: float, high: float, ratio: Estimate | None) -> ChangeKind:
    if low > 0 and (ratio is None or ratio.value >= 1 + MIN_CHANGE):
        return "regression"
    if high < 0 and ratio is not None and ratio.value <= 1 - MIN_CHANGE:
        return "improvement"
    return "same"


@dataclass(frozen=True, slots=True)
class FailureDifference:
    """Failure rates of both sides [ratio], and the confidence interval of their difference."""

    a: float
    b: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        return self.b - self.a

    @property
    def are_more(self) -> bool:
        return self.low > 0

    @property
    def is_certain(self) -> bool:
        return self.low > 0 or self.high < 0


def compare_failures(a_failed: int, a_requests: int, b_failed: int, b_requests: int) -> FailureDifference:
    """Return the difference in failure rate between B and A; both sides need at least one request.

    >>> failures = compare_failures(48, 80, 56, 70)
    >>> failures.are_more
    True
    """
    (a, a_low, a_high), (b, b_low, b_high) = _wilson(a_failed, a_requests), _wilson(b_failed, b_requests)
    return FailureDifference(a, b, b - a - math.hypot(b - b_low, a_high - a), b - a + math.hypot(b_high - b, a - a_low))


@dataclass(frozen=True, slots=True)
class ShareChange:
    """Value whose share of the requests changed most, its shares before and after, and their standard error.

    *distance* is the share of the requests that must change for equal shares of all values.
    """

    value: str
    before: float
    after: float
    error: float
    distance: float

    @property
    def difference(self) -> float:
        return self.after - self.before

    def is_more(self, least: float, errors: float) -> bool:
        """Return whether the change is at least *least*, and more than so many standard *errors*."""
        return abs(self.difference) >= least and abs(self.difference) > errors * self.error


def largest_share_change(before: Mapping[str, float], after: Mapping[str, float]) -> ShareChange | None:
    """Return the largest change between two numbers of requests by value; None without requests on either side.

    >>> largest_share_change({"/buy": 90, "/list": 10}, {"/buy": 60, "/list": 40}).value
    '/list'
    """
    a_n, b_n = sum(before.values()), sum(after.values())
    if not a_n or not b_n:
        return None
    shares = {value: (before.get(value, 0) / a_n, after.get(value, 0) / b_n) for value in sorted({*before, *after})}
    grown = {value: round(b - a, 9) for value, (a, b) in shares.items()}
    # With two values, one grows by as much as the other shrinks: the growing value is reported.
    value = max(grown, key=lambda candidate: (abs(grown[candidate]), grown[candidate]))
    both = (before.get(value, 0) + after.get(value, 0)) / (a_n + b_n)
    error = math.sqrt(both * (1 - both) * (1 / a_n + 1 / b_n))
    return ShareChange(value, *shares[value], error, math.fsum(map(abs, grown.values())) / 2)


def _wilson(failed: int, requests: int) -> tuple[float, float, float]:
    share, square = failed / requests, _z() ** 2 / requests
    middle = share + square / 2
    reach = math.sqrt(square * (share * (1 - share) + square / 4))
    return share, max((middle - reach) / (1 + square), 0.0), min((middle + reach) / (1 + square), 1.0)


@cache
def _z() -> float:
    """Return the half-width of the `CONFIDENCE` interval of a normal distribution, in standard deviations."""
    return NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


@dataclass(frozen=True, slots=True)
class StageGrowth:
    """Growth of the time in one stage [seconds]; its *share* of the total is above 1 when another stage got faster."""

    stage: str
    seconds: float
    share: float


def highest_quantile(count: int, ceiling: float = 0.99) -> float | None:
    """Return the highest quantile that *count* requests are enough for, at most *ceiling*; None if there is none.

    >>> highest_quantile(1000), highest_quantile(725), highest_quantile(50)
    (0.99, 0.95, None)
    """
    candidates = [quantile for quantile in QUANTILES if quantile <= ceiling] or [QUANTILES[-1]]
    return next((quantile for quantile in candidates if has_enough_samples(count, quantile)), None)


def rank_stage_growth(compared: pd.DataFrame) -> tuple[StageGrowth, ...]:
    """Return the stages that grew, largest growth first, from the result of `read.compare`; empty if the total did not grow."""
    return growth_of(dict(zip(compared["stage"], compared["delta_seconds"], strict=True)))


def stage_growth(before: Mapping[str, float], now: Mapping[str, float]) -> tuple[StageGrowth, ...]:
    """Return the stages that grew from *before* to *now*, largest growth first; empty if their sum did not grow.

    >>> stage_growth({"forward": 1.0, "queue": 1.0}, {"forward": 1.0, "queue": 3.0})
    (StageGrowth(stage='queue', seconds=2.0, share=1.0),)
    """
    return growth_of({stage: now.get(stage, 0.0) - before.get(stage, 0.0) for stage in sorted({*before, *now})})


def growth_of(added: Mapping[str, float]) -> tuple[StageGrowth, ...]:
    """Return the stages to which seconds were *added*, most first; empty if the sum did not grow."""
    total = float(sum(added.values()))
    grown = sorted((item for item in added.items() if item[1] > 0), key=lambda item: -item[1]) if total > 0 else []
    return tuple(StageGrowth(str(stage), float(seconds), float(seconds) / total) for stage, seconds in grown)


def dominant_growth(growth: Sequence[StageGrowth]) -> StageGrowth | None:
    """Return the first stage of *growth* if its share of the growth is large enough, else None."""
    return growth[0] if growth and growth[0].share >= MIN_SHARE else None


@dataclass(frozen=True, slots=True)
class ServingPeriod:
    """Period in which a version served requests, or part of it; its end is exclusive."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class VersionTimes:
    """Periods over which two versions are compared; *together* if both serve in the same one."""

    a: ServingPeriod
    b: ServingPeriod
    together: bool


def version_times(
    a: ServingPeriod, b: ServingPeriod, requests: Callable[[ServingPeriod, ServingPeriod], int]
) -> VersionTimes:
    """Return the common period of two versions or, for consecutive versions, two periods without overlap.

    Versions also overlap in a rollout, and after a rollback the older version has a gap in which the newer one served. Such an overlap
    is not used if it has too few requests for p99 and the consecutive periods have more. *requests* returns the smaller request count
    of both sides, for a period of A and a period of B.
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
