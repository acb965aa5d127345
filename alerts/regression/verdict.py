"""The verdict: how much slower where, how sure that is, which stage, and whether the traffic is still the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from ...core.confidence import CONFIDENCE, interval, ratio
from ...core.histogram import Estimate, Histogram, bucket_middle
from .policy import At
from .scoring import Cell
from .stage_attribution import Suspect
from .tally import MEAN, Row
from .traffic import Shift


@dataclass(frozen=True, slots=True)
class TailVerdict:
    """What is said of a regression.

    Args:
        at: The quantile it shows at most, or the mean.
        before: The latency there in the same hours before, with its interval; None without requests. [seconds]
        after: The same in the window. [seconds]
        change: after / before, with its interval. [ratio]
        before_n: Requests before. [count]
        after_n: Requests in the window. [count]
        z: Robust spreads above what is usual.
        stage: Who is to blame, None when no stage has grown.
        runner_up: Who comes next.
        shifts: How the traffic differs; empty when it is the same.
        on_common_mix: after / before as if the traffic had been the same; None when it is, or nothing can be compared. [ratio]
    """

    at: At
    before: Estimate | None
    after: Estimate | None
    change: Estimate | None
    before_n: int
    after_n: int
    z: float
    stage: Suspect | None
    runner_up: Suspect | None
    shifts: tuple[Shift, ...] = ()
    on_common_mix: float | None = None

    @property
    def traffic_changed(self) -> bool:
        """Whether it must be read as: slower, but the traffic changed."""
        return bool(self.shifts)


def conclude(
    row: Row,
    cell: Cell,
    before: Histogram,
    after: Histogram,
    suspects: Sequence[Suspect],
    *,
    shifts: tuple[Shift, ...] = (),
    on_common_mix: tuple[float, float] | None = None,
) -> TailVerdict:
    """Put the verdict together.

    Args:
        row: The question that was answered most clearly.
        cell: The answer.
        before: Latencies of the same hours before, or of the other version.
        after: Those of the window.
        suspects: Stages, the one to blame first.
        shifts: How the traffic differs.
        on_common_mix: What `traffic.on_common_mix` says, when it does.
    """
    grown = [one for one in suspects if one.seconds > 0]
    a, b = estimate(before, row.at), estimate(after, row.at)
    return TailVerdict(
        at=row.at,
        before=a,
        after=b,
        change=ratio(a, b),
        before_n=before.count,
        after_n=after.count,
        z=cell.z,
        stage=grown[0] if grown else None,
        runner_up=grown[1] if len(grown) > 1 else None,
        shifts=shifts,
        on_common_mix=on_common_mix[1] / on_common_mix[0] if on_common_mix and on_common_mix[0] > 0 else None,
    )


def estimate(histogram: Histogram, at: At) -> Estimate | None:
    """Return the quantile or the mean with the interval the true one lies in; None when nothing was recorded."""
    return _mean(histogram) if at == MEAN else interval(histogram, float(at), CONFIDENCE)


def _mean(histogram: Histogram) -> Estimate | None:
    """Return the mean with its normal interval, from the middles of the buckets."""
    n = histogram.count
    if n == 0:
        return None
    values = [(bucket_middle(index, histogram.scale), count) for index, count in histogram.buckets.items()]
    mean = math.fsum(value * count for value, count in values) / n
    square = math.fsum(value * value * count for value, count in values) / n
    reach = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * math.sqrt(max(square - mean * mean, 0.0) / n)
    return Estimate(mean, max(mean - reach, 0.0), mean + reach)
