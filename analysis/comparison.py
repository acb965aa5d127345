"""Is B slower than A at this quantile, and which stage is to blame? Histograms in, verdict out; no assumption on the shape.

How sure a quantile is, and what that takes for granted, says `core.confidence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from ..core.confidence import CONFIDENCE, interval
from ..core.confidence import ratio as ratio_of
from ..core.histogram import Estimate, Histogram

Kind = Literal["regression", "improvement", "same", "not_enough"]

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
        kind: `not_enough` when fewer than `confidence.MIN_TAIL` requests lie beyond the quantile on either side.
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
    a: Histogram, b: Histogram, quantile: float, *, confidence: float = CONFIDENCE, min_change: float = MIN_CHANGE
) -> Verdict:
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
        return Verdict("not_enough", _value(before), _value(after), None, None, None, a_n, b_n)
    kind = _judge(ratio, min_change) if has_enough_samples(min(a_n, b_n), quantile) else "not_enough"
    return Verdict(kind, _value(before), _value(after), ratio.value, ratio.low, ratio.high, a_n, b_n)


def highest_quantile(count: int, ceiling: float = 0.99) -> float | None:
    """Return the highest quantile that *count* requests can bear, not above *ceiling*; None when they bear none.

    >>> highest_quantile(1000), highest_quantile(725), highest_quantile(50)
    (0.99, 0.95, None)
    """
    candidates = [quantile for quantile in QUANTILES if quantile <= ceiling] or [QUANTILES[-1]]
    return next((quantile for quantile in candidates if has_enough_samples(count, quantile)), None)


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


def _judge(ratio: Estimate, min_change: float) -> Kind:
    if ratio.low > 1 and ratio.value >= 1 + min_change:
        return "regression"
    if ratio.high < 1 and ratio.value <= 1 - min_change:
        return "improvement"
    return "same"


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value
