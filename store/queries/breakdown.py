"""Where the time goes in the requests at a percentile: the rule of `docs/architecture.md`, on counts.

The requests at percentile p are those in the bucket the p-th request (nearest rank) falls into, widened bucket by bucket
on both sides until it holds `MIN_REQUESTS`. Their mean stage shares, scaled to the bucket's middle, are the breakdown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.histogram import ZERO_THRESHOLD, Estimate, bucket_bounds, bucket_middle, rank_of
from ...core.names import REQUEST_DURATION, STAGE_TIME, STALL_TIME
from ...core.stages import OVERHEAD
from ..columns import Columns, Counts, add_up
from ..encoding import Ints
from ..points import Question, Snapshot
from ..selection import Selection
from .fetch import fetch
from .frames import frame, staged

MIN_REQUESTS = 8
METRICS = (REQUEST_DURATION, STAGE_TIME)
COLUMNS = ("percentile", "n", "value_seconds", "low_seconds", "high_seconds")


@dataclass(frozen=True, slots=True)
class Band:
    """The requests at a percentile.

    Args:
        value: The latency there. [seconds]
        n: How many requests the shares are the mean of.
        shares: Share of their time by stage; adds up to 1.
        dominants: Share of these requests by the stage that took most of each; adds up to 1.
        held_up: Share of their time in which something held them up, by what and in which stage; part of `shares`.
    """

    value: Estimate
    n: int
    shares: dict[str, float]
    dominants: dict[str, float]
    held_up: dict[str, float] = field(default_factory=dict[str, float])

    def seconds(self) -> dict[str, float]:
        """Return the time by stage; adds up to the value."""
        return {stage: share * self.value.value for stage, share in self.shares.items()}


class Mixture:
    """The requests of one step, with the time they spent in each stage.

    Args:
        columns: Points of *metrics*, at least one of them of the first; and of `STALL_TIME`, where that is asked for.
        metrics: What counts requests by a time, and what holds the time by stage in the same buckets.
    """

    def __init__(self, columns: Columns, metrics: tuple[str, str] = METRICS) -> None:
        requests, times, stalls = (columns.of(metric) for metric in (*metrics, STALL_TIME))
        self._stages = columns.stages
        # The latency at its own scale, so that it is the same number everywhere; shares at one all metrics have.
        self.latency = add_up(requests)
        shared = int(np.concatenate((times.scale, stalls.scale)).min(initial=self.latency.scale))
        self._times, self._stalls = add_up(times, shared), add_up(stalls, shared)
        self._requests = add_up(requests, shared) if shared < self.latency.scale else self.latency

    @property
    def n(self) -> int:
        """How many requests there are."""
        return self.latency.total

    @property
    def mean(self) -> float:
        """The mean latency, in seconds."""
        return float(self.latency.sum.sum()) / self.n

    def mean_shares(self) -> dict[str, float]:
        """Return the share of all time by stage."""
        return self._shares(self._times.amount.sum(axis=1))

    def at(self, quantile: float) -> Band:
        """Return the requests at *quantile*."""
        return self.bands((quantile,))[0]

    def bands(self, quantiles: Sequence[float]) -> list[Band]:
        """Return the requests at each of *quantiles*."""
        zero = self.latency.zero
        ranks = np.array([rank_of(quantile, self.n) for quantile in quantiles], np.int64) - int(zero.sum())
        if not len(self.latency.index):
            return [self._untimed()] * len(ranks)
        held = np.cumsum(self.latency.amount.sum(axis=0))
        buckets = self.latency.index[np.searchsorted(held, np.maximum(ranks, 1))]
        centres = buckets >> (self.latency.scale - self._requests.scale)
        reaches = _reaches(self._requests, centres)
        inside = _between(self._requests, centres - reaches, centres + reaches)
        spent = _between(self._times, centres - reaches, centres + reaches)
        held_up = _between(self._stalls, centres - reaches, centres + reaches)
        return [
            self._band(bucket, inside[place], spent[place], held_up[place]) if ranks[place] > 0 else self._untimed()
            for place, bucket in enumerate(buckets.tolist())
        ]

    def _band(self, bucket: int, inside: Ints, spent: Ints, held_up: Ints) -> Band:
        scale, n = self.latency.scale, int(inside.sum())
        value = Estimate(bucket_middle(bucket, scale), *bucket_bounds(bucket, scale))
        return Band(
            value, n, self._shares(spent), self._named(inside / n), self._named(held_up / max(int(spent.sum()), 1))
        )

    def _untimed(self) -> Band:
        """Return the requests that took no time."""
        zero = self.latency.zero
        value = Estimate(0.0, 0.0, ZERO_THRESHOLD)
        return Band(value, int(zero.sum()), {OVERHEAD: 1.0}, self._named(zero / zero.sum()))

    def share_of(self, stage: str) -> NDArray[np.float64]:
        """Return the share of their time that the requests in each bucket of `latency` spend in *stage*; shape (k,)."""
        in_stage = self._times.amount[[name == stage for name in self._stages]].sum(axis=0)
        shares = dict(zip(self._times.index.tolist(), in_stage / self._times.amount.sum(axis=0), strict=True))
        coarse = self.latency.index >> (self.latency.scale - self._times.scale)
        return np.array([shares.get(bucket, 0.0) for bucket in coarse.tolist()], np.float64)

    def dominated_by(self, stage: str) -> Ints:
        """Return how many requests in each bucket of `latency` *stage* takes most of; shape (k,)."""
        return self.latency.amount[[name == stage for name in self._stages]].sum(axis=0)

    def _shares(self, spent: Ints) -> dict[str, float]:
        total = spent.sum()
        # Time nobody claimed, as from a client that knows no stages, is overhead.
        return self._named(spent / total) if total else {OVERHEAD: 1.0}

    def _named(self, shares: NDArray[np.float64]) -> dict[str, float]:
        named = zip(self._stages, shares.tolist(), strict=True)
        return {stage: share for stage, share in named if share}


def _reaches(requests: Counts, centres: Ints) -> Ints:
    """Return how many buckets on both sides of each of *centres* it takes to hold `MIN_REQUESTS`, or all there are."""
    distance = np.abs(requests.index - centres[:, None])
    order = np.argsort(distance, axis=1, kind="stable")
    held = np.cumsum(requests.amount.sum(axis=0)[order], axis=1)
    place = (held < np.minimum(MIN_REQUESTS, held[:, -1:])).sum(axis=1)
    return np.take_along_axis(np.take_along_axis(distance, order, axis=1), place[:, None], axis=1)[:, 0]


def _between(counts: Counts, low: Ints, high: Ints) -> Ints:
    """Return what *counts* has by stage from each of the buckets *low* to *high*, both among them; shape (n, stages)."""
    held = np.cumsum(np.pad(counts.amount, ((0, 0), (1, 0))), axis=1)
    last, first = np.searchsorted(counts.index, high, "right"), np.searchsorted(counts.index, low)
    return (held[:, last] - held[:, first]).T


def mixture(snapshot: Snapshot, selection: Selection) -> Mixture | None:
    """Return the requests of *selection*, or None if there are none."""
    columns = fetch(snapshot, Question(selection, METRICS))
    return Mixture(columns) if len(columns.of(REQUEST_DURATION)) else None


def breakdown(snapshot: Snapshot, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
    """See `Reader.breakdown`."""
    return at_percentiles(mixture(snapshot, selection), percentiles)


def at_percentiles(mixed: Mixture | None, percentiles: Sequence[float]) -> pd.DataFrame:
    """Return the frame of `Reader.breakdown`; None stands for no requests."""
    made = staged(COLUMNS, rows(mixed, percentiles) if mixed else [])
    made.attrs["requests"] = mixed.n if mixed else 0
    return made


def rows(mixed: Mixture, percentiles: Sequence[float]) -> list[dict[str, Any]]:
    """Return the rows of the frame of `Reader.breakdown`."""
    return [row(each, band, band.shares) for each, band in zip(percentiles, mixed.bands(percentiles), strict=True)]


def dominants(snapshot: Snapshot, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
    """See `Reader.dominants`."""
    mixed = mixture(snapshot, selection)
    rows = [
        {"percentile": quantile, "stage": stage, "share": share}
        for quantile in (percentiles if mixed else ())
        for stage, share in _falling(mixed.at(quantile).dominants if mixed else {})
    ]
    return frame(("percentile", "stage", "share"), rows)


def _falling(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])


def row(quantile: float, band: Band, shares: Mapping[str, float]) -> dict[str, Any]:
    """Return the requests at *quantile* as a row of `COLUMNS`, and of seconds by what there are *shares* of."""
    value = band.value
    head = zip(COLUMNS, (quantile, band.n, value.value, value.low, value.high), strict=True)
    return {**dict(head), **{name: share * value.value for name, share in shares.items()}}
