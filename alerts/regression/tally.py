"""What is kept of a minute: how many requests there were, and how many beyond fixed thresholds.

The thresholds are the quantiles of the reference. A row is one question: the whole or a stage, beyond one quantile or in
the mean. The mean is a count too: seconds in units of the mean square over the mean, whose number scatters about as much
as that of so many requests would. What is slower than nearly all counts in it as those do: a few cold starts would
otherwise outweigh thousands of requests, and the quantiles see them anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.histogram import Histogram
from .minutes import BUCKETS_A_DOUBLING, Floats, Minutes, middles
from .policy import At, TailPolicy

# The whole, beside the stages.
WHOLE = ""
MEAN = "mean"
# No request counts in the mean as more than this quantile of the reference.
MOST = 0.99


@dataclass(frozen=True, slots=True)
class Row:
    """One question.

    Args:
        stage: Whose time; `WHOLE` for the end-to-end latency.
        at: The quantile, or the mean.
        edge: The last bucket that is not beyond; of the mean, the one that slower requests count as.
        unit: What counts as one, of the mean; of a quantile, unused. [seconds]
        expected: The share of the requests that the reference has beyond; of the mean, units a request.
    """

    stage: str
    at: At
    edge: int
    unit: float
    expected: float


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts by minute.

    Args:
        start: The first minute, counted from the epoch.
        requests: All requests; shape (minutes,).
        n: Requests that had the row's stage; shape (rows, minutes).
        beyond: How many of them were beyond; shape (rows, minutes).
    """

    start: int
    requests: Floats
    n: Floats
    beyond: Floats

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def end(self) -> int:
        """The first minute after them."""
        return self.start + len(self)

    def last(self, minutes: int) -> Tally:
        """Return the last *minutes* of them."""
        first = max(len(self) - minutes, 0)
        return Tally(self.start + first, self.requests[first:], self.n[:, first:], self.beyond[:, first:])


def rows_of(policy: TailPolicy, total: Histogram, own: dict[str, Histogram]) -> tuple[Row, ...]:
    """Return the questions to ask, from the histograms of the reference: the whole first."""
    rows = [_row(WHOLE, at, total) for at in policy.at]
    key = policy.stage_key
    rows += [_row(stage, at, own[stage]) for stage in sorted(own) if stage not in key.left_out for at in key.at]
    return tuple(row for row in rows if row is not None)


def tally(rows: Sequence[Row], minutes: Minutes) -> Tally:
    """Count *minutes* for *rows*."""
    whole, own = _from_above(minutes.total), _from_above(minutes.own)
    width = len(minutes.index)
    firsts = np.searchsorted(minutes.index, [row.edge for row in rows], side="right").tolist()
    n = np.zeros((len(rows), len(minutes)))
    beyond = np.zeros_like(n)
    for number, (row, first) in enumerate(zip(rows, firsts, strict=True)):
        if row.stage and row.stage not in minutes.stages:
            continue
        counts = own[minutes.stages.index(row.stage)] if row.stage else whole
        n[number] = counts[:, width]
        if row.at == MEAN:
            beyond[number] = minutes.total @ middles(np.minimum(minutes.index, row.edge)) / row.unit
        else:
            beyond[number] = counts[:, width - first]
    return Tally(minutes.start, whole[:, width].astype(np.float64), n, beyond)


def join(first: Tally, second: Tally) -> Tally:
    """Return *second* after *first*; minutes between them had no requests, those of both count as *second* has them."""
    kept = max(min(second.start - first.start, len(first)), 0)
    gap = max(second.start - first.end, 0)
    parts = [
        np.concatenate((a[..., :kept], np.zeros((*a.shape[:-1], gap)), b), axis=-1)
        for a, b in ((first.requests, second.requests), (first.n, second.n), (first.beyond, second.beyond))
    ]
    return Tally(min(first.start, second.start), *parts)


def _from_above(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many are in the last 0, 1, 2 … buckets; *counts* of shape (..., k), the result one longer."""
    sums = np.zeros((*counts.shape[:-1], counts.shape[-1] + 1), np.int64)
    np.cumsum(counts[..., ::-1], axis=-1, out=sums[..., 1:])
    return sums


def _row(stage: str, at: At, histogram: Histogram) -> Row | None:
    return _mean_row(stage, histogram) if at == MEAN else _quantile_row(stage, float(at), histogram)


def _quantile_row(stage: str, quantile: float, histogram: Histogram) -> Row | None:
    """Return the row whose edge of a bucket leaves a share nearest to that beyond *quantile*."""
    index = np.array(sorted(histogram.buckets))
    if not len(index):
        return None
    amount = np.array([histogram.buckets[each] for each in index.tolist()], np.float64)
    share = 1 - (histogram.zero + np.cumsum(amount)) / histogram.count
    usable = share > 0
    if not usable.any():
        return None
    best = int(np.argmin(np.where(usable, np.abs(np.log(np.maximum(share, 1e-12) / (1 - quantile))), np.inf)))
    return Row(stage, quantile, int(index[best]), 1.0, float(share[best]))


def _mean_row(stage: str, histogram: Histogram) -> Row | None:
    index = np.array(sorted(histogram.buckets))
    if not len(index):
        return None
    amount = np.array([histogram.buckets[each] for each in index.tolist()], np.float64)
    place = np.searchsorted(histogram.zero + np.cumsum(amount), MOST * histogram.count)
    edge = int(index[min(int(place), len(index) - 1)])
    seconds = middles(np.minimum(index, edge))
    unit = float(amount @ seconds**2 / (amount @ seconds))
    return Row(stage, MEAN, edge, unit, float(amount @ seconds) / histogram.count / unit)


def growth_to_count(row: Row, histogram: Histogram, growth: float) -> float:
    """Return the log of how many times as many requests are beyond when all take (1 + *growth*) as long."""
    if row.at == MEAN or not growth:
        return float(np.log1p(growth))
    index = np.array(sorted(histogram.buckets))
    amount = np.array([histogram.buckets[each] for each in index.tolist()], np.float64)
    share = 1 - (histogram.zero + np.cumsum(amount)) / histogram.count
    moved = row.edge - BUCKETS_A_DOUBLING * np.log2(1 + growth)
    return float(np.log(np.interp(moved, index, share, left=1.0) / np.interp(row.edge, index, share)))
