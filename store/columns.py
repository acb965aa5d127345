"""Rows of `points` as numpy columns, and adding them up.

Counts are added up as integers: the order of rows, tiers and parts cannot change a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.histogram import MAX_SCALE, ZERO_THRESHOLD, Estimate, Histogram, bucket_bounds, bucket_middle, rank_of
from . import schema
from .encoding import Buckets, Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """How a stretch of time is cut: at multiples of *width* since the epoch, so that a later stretch is cut alike.

    Args:
        start: Start of the stretch, and of its first step. [Unix seconds]
        width: Of a step; None for one step that takes all. [seconds]
    """

    start: int
    width: int | None

    def of(self, at: Ints) -> Ints:
        """Return the start of the step each of *at* is in."""
        if self.width is None:
            return np.full(len(at), self.start)
        return np.maximum(at - at % self.width, self.start)

    def number(self, at: Ints) -> Ints:
        """Return which step each of *at* is in, counted from the one *start* is in."""
        return np.zeros_like(at) if self.width is None else at // self.width - self.start // self.width


@dataclass(frozen=True, slots=True)
class Columns:
    """Points, sorted by time.

    Args:
        times: Start of the bucket; shape (n,). [Unix seconds]
        series: Series number; shape (n,).
        metric: Metric code; shape (n,).
        stage: Position in `stages`; shape (n,).
        stages: The stages that occur.
        scale: Shape (n,).
        zero: Shape (n,).
        sum: Shape (n,).
        buckets: Of each point.
    """

    times: Ints
    series: Ints
    metric: Ints
    stage: Ints
    stages: tuple[str, ...]
    scale: Ints
    zero: Ints
    sum: Floats
    buckets: Buckets

    def __len__(self) -> int:
        return len(self.times)

    def where(self, chosen: NDArray[np.bool_]) -> Columns:
        """Return the *chosen* points; shape (n,)."""
        lengths = self.buckets.lengths
        kept = np.repeat(chosen, lengths)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths[chosen])))
        buckets = Buckets(offsets, self.buckets.index[kept], self.buckets.amount[kept])
        return self._with(chosen, buckets)

    def of(self, metric: str) -> Columns:
        """Return the points of *metric*."""
        return self.where(self.metric == schema.METRIC_CODES[metric])

    def between(self, low: int, high: int) -> Columns:
        """Return the points from number *low* up to *high*."""
        return self._with(slice(low, high), self.buckets.between(low, high))

    def _with(self, chosen: Any, buckets: Buckets) -> Columns:
        return Columns(
            times=self.times[chosen],
            series=self.series[chosen],
            metric=self.metric[chosen],
            stage=self.stage[chosen],
            stages=self.stages,
            scale=self.scale[chosen],
            zero=self.zero[chosen],
            sum=self.sum[chosen],
            buckets=buckets,
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """Points added up: one row a stage, one column a bucket.

    Args:
        scale: Of the buckets: the coarsest that was among the points.
        index: The buckets that have anything, ascending; shape (k,).
        amount: Requests, or microseconds; shape (stages, k).
        zero: Values below a nanosecond; shape (stages,).
        sum: Shape (stages,). [seconds]
    """

    scale: int
    index: Ints
    amount: Ints
    zero: Ints
    sum: Floats

    @property
    def total(self) -> int:
        """Everything that was counted."""
        return int(self.amount.sum() + self.zero.sum())

    def histogram(self, stage: int | None = None) -> Histogram:
        """Return the counts of one stage, or of all together, as a histogram."""
        rows = slice(None) if stage is None else slice(stage, stage + 1)
        amount = self.amount[rows].sum(axis=0)
        filled = {index: count for index, count in zip(self.index.tolist(), amount.tolist(), strict=True) if count}
        return Histogram(self.scale, filled, int(self.zero[rows].sum()), float(self.sum[rows].sum()))

    def bucket_of(self, quantile: float) -> int | None:
        """Return the index of the bucket the request at *quantile* is in (nearest rank); None if it is below them all."""
        rank = rank_of(quantile, self.total) - int(self.zero.sum())
        if rank <= 0:
            return None
        return int(self.index[np.searchsorted(np.cumsum(self.amount.sum(axis=0)), rank)])

    def value_at(self, quantile: float) -> Estimate:
        """Return the value at *quantile* (nearest rank), the same as `Histogram.quantile`; there must be one."""
        bucket = self.bucket_of(quantile)
        if bucket is None:
            return Estimate(0.0, 0.0, ZERO_THRESHOLD)
        return Estimate(bucket_middle(bucket, self.scale), *bucket_bounds(bucket, self.scale))


def table(columns: Columns, place: Ints, n_rows: int, scale: int) -> tuple[Ints, Ints]:
    """Add up the buckets of *columns* in a table.

    Args:
        columns: What to add up.
        place: The row of each point; shape (n,).
        n_rows: Rows of the table.
        scale: Of its buckets.

    Returns:
        The buckets that have anything, ascending, shape (k,); and the table, shape (n_rows, k).
    """
    lengths = columns.buckets.lengths
    index = columns.buckets.index >> np.repeat(columns.scale - scale, lengths)
    low = int(index.min(initial=0))
    present = np.zeros(int(index.max(initial=0)) - low + 1, bool)
    present[index - low] = True
    filled = np.flatnonzero(present)
    position = np.cumsum(present) - 1
    amount = np.zeros(n_rows * len(filled), np.int64)
    np.add.at(amount, np.repeat(place, lengths) * len(filled) + position[index - low], columns.buckets.amount)
    return filled + low, amount.reshape(n_rows, len(filled))


def add_up(columns: Columns, scale: int | None = None) -> Counts:
    """Add up *columns*, of one metric, by stage; at their coarsest scale, or at *scale* if it is coarser still."""
    coarsest = int(columns.scale.min(initial=MAX_SCALE if scale is None else scale))
    index, amount = table(columns, columns.stage, len(columns.stages), coarsest)
    zero = np.zeros(len(columns.stages), np.int64)
    np.add.at(zero, columns.stage, columns.zero)
    total = np.zeros(len(columns.stages), np.float64)
    np.add.at(total, columns.stage, columns.sum)
    return Counts(coarsest, index, amount, zero, total)
