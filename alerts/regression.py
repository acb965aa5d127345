"""Is B slower than A at this quantile, and which stage is to blame? Histograms in, verdict out; no assumption on the shape.

The interval of a quantile is made of order statistics: how many of n requests lie below the true quantile is binomial,
whatever the distribution, so the requests at two ranks around it enclose the true value with the wanted confidence. Each
end is widened to the edge of the bucket its request lies in.

The binomial takes requests for independent. In a queue they are not: a burst of slow requests is one event. Read the
interval as the least there is, and see the difference over time before you act on a small one.

Source: H. A. David, H. N. Nagaraja, Order Statistics, 3rd ed., section 7.1; normal approximation of the binomial, which
`MIN_TAIL` keeps good enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import pandas as pd

from ..core.histogram import Estimate, Histogram, bucket_bounds

Kind = Literal["regression", "improvement", "same", "not_enough"]

# A percentile is drawn, and judged, with at least so many requests beyond it.
MIN_TAIL = 10
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
class Verdict:
    """How B compares to A at one quantile.

    Args:
        kind: `not_enough` when fewer than `MIN_TAIL` requests lie beyond the quantile on either side.
        a_value: A's latency there, None without requests. [seconds]
        b_value: B's.
        ratio: b / a, None unless both are known and a is above zero.
        ratio_low: Nothing smaller is likely (with the confidence asked for).
        ratio_high: Nothing larger is.
        a_n: Requests of A. [count]
        b_n: Requests of B. [count]
    """

    kind: Kind
    a_value: float | None
    b_value: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    a_n: int
    b_n: int


def verdict(
    a: Histogram, b: Histogram, quantile: float, *, confidence: float = 0.95, min_change: float = MIN_CHANGE
) -> Verdict:
    """Compare two latency histograms at *quantile*.

    Args:
        a: The reference.
        b: What is compared to it.
        quantile: Where. [0 < x < 1]
        confidence: Of each side's interval. The ratio of two such intervals is surer than that. [ratio]
        min_change: Smaller differences are `same`, however sure. [ratio]
    """
    low, high = interval(a, quantile, confidence), interval(b, quantile, confidence)
    a_n, b_n = a.count, b.count
    if low is None or high is None or low.value <= 0:
        return Verdict("not_enough", _value(low), _value(high), None, None, None, a_n, b_n)
    ratio = high.value / low.value
    ratio_low = high.low / low.high
    ratio_high = high.high / low.low if low.low > 0 else math.inf
    enough = min(a_n, b_n) * (1 - quantile) >= MIN_TAIL - 1e-9
    kind = _judge(ratio, ratio_low, ratio_high, min_change) if enough else "not_enough"
    return Verdict(kind, low.value, high.value, ratio, ratio_low, ratio_high, a_n, b_n)


def highest_quantile(count: int, ceiling: float = 0.99) -> float | None:
    """Return the highest quantile that *count* requests can bear, not above *ceiling*; None when they bear none.

    >>> highest_quantile(1000), highest_quantile(725), highest_quantile(50)
    (0.99, 0.95, None)
    """
    candidates = [quantile for quantile in QUANTILES if quantile <= ceiling] or [QUANTILES[-1]]
    return next((quantile for quantile in candidates if count * (1 - quantile) >= MIN_TAIL - 1e-9), None)


def interval(histogram: Histogram, quantile: float, confidence: float = 0.95) -> Estimate | None:
    """Return the value at *quantile* with the interval the true one lies in; None when nothing was recorded."""
    n = histogram.count
    middle = histogram.quantile(quantile)
    if middle is None:
        return None
    reach = NormalDist().inv_cdf(0.5 + confidence / 2) * math.sqrt(n * quantile * (1 - quantile))
    first = math.floor(n * quantile - reach)
    last = math.ceil(n * quantile + reach) + 1
    low = _edges_at(histogram, first)[0] if first >= 1 else 0.0
    high = _edges_at(histogram, last)[1] if last <= n else math.inf
    return Estimate(middle.value, low, high)


def blame(compared: pd.DataFrame) -> tuple[StageGrowth, ...]:
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


def culprit(growth: Sequence[StageGrowth]) -> StageGrowth | None:
    """Return the stage that stands out of *growth*, worst first, if one does."""
    return growth[0] if growth and growth[0].share >= MIN_SHARE else None


def _judge(ratio: float, ratio_low: float, ratio_high: float, min_change: float) -> Kind:
    if ratio_low > 1 and ratio >= 1 + min_change:
        return "regression"
    if ratio_high < 1 and ratio <= 1 - min_change:
        return "improvement"
    return "same"


def _edges_at(histogram: Histogram, rank: int) -> tuple[float, float]:
    left = rank - histogram.zero
    if left <= 0:
        return (0.0, 0.0)
    for index in sorted(histogram.buckets):
        left -= histogram.buckets[index]
        if left <= 0:
            return bucket_bounds(index, histogram.scale)
    raise AssertionError  # the caller asks for ranks that exist


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value
