"""Queries of latency distributions, and of the breakdown of latency into stages and stalls at each percentile.

The requests at percentile p are those in the bucket of that rank (nearest rank) and in as many neighbouring buckets on both
sides as are needed for `MIN_REQUESTS`. The breakdown is their mean stage shares, scaled to the middle of the bucket; see
`docs/architecture.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.histogram import BATCH_SIZES, ZERO_THRESHOLD, Estimate, Histogram, bucket_bounds, bucket_middle, rank_of
from ...core.names import BATCH_DURATION, REQUEST_DURATION, STAGE_DURATION, STALL_TIME
from ...core.stages import OVERHEAD
from ..points import Ints
from ..selection import Selection
from ..storage import BREAKDOWN_METRICS, Columns, PointQuery, StageCounts, StoreSnapshot, add_up
from .fetch import QueryGroup, fetch, fetch_each, histograms_by_key, request_latency
from .frames import frame, stage_frame


class LatencyQueries(QueryGroup):
    """Queries of the latency of requests and of its stages."""

    def latency(self, selection: Selection) -> Histogram:
        """Return the latency of all requests of *selection*, in seconds."""
        with self._snapshot() as snapshot:
            return request_latency(snapshot, selection)

    def latencies(self, selections: Sequence[Selection]) -> list[Histogram]:
        """Return `latency` of each of *selections*, all in few statements."""
        with self._snapshot() as snapshot:
            found = fetch_each(snapshot, [PointQuery(each, (REQUEST_DURATION,)) for each in selections])
        return [add_up(each).histogram() if len(each) else Histogram() for each in found]

    def stage_latency(self, selection: Selection) -> dict[str, Histogram]:
        """Return the distribution of the exclusive time in each stage, over requests with the stage, in stage order and seconds.

        `Histogram.fraction_below` returns the rank of a single request's time in a stage.
        """
        with self._snapshot() as snapshot:
            return histograms_by_key(snapshot, selection, STAGE_DURATION)

    def batches(self, selection: Selection) -> dict[str, Histogram]:
        """Return the run time of the model in each request (forward and prefill), in seconds, by batch size.

        Returns:
            Histogram by batch size bucket (`core.histogram.BATCH_SIZES`) of the last run of each request, smallest first.
        """
        with self._snapshot() as snapshot:
            return batch_latency(snapshot, selection)

    def breakdown(self, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
        """Return the time by stage in the requests at each percentile.

        Args:
            selection: Selection of the requests.
            percentiles: Percentiles of the latency. [0..1]

        Returns:
            Columns percentile, n (number of requests over which the shares are averaged), value_seconds (latency at the
            percentile), low_seconds, high_seconds (error bounds of the latency), and one column of seconds for each stage, in the
            order of stages; the stages add up to value_seconds. `attrs["requests"]` is the number of requests in the selection.
            No rows without requests.
        """
        with self._snapshot() as snapshot:
            return _breakdown(snapshot, selection, percentiles)

    def stalls(self, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
        """Return the stalls of the requests at each percentile, as an addition to their `breakdown`.

        Args:
            selection: Selection of the requests.
            percentiles: Percentiles of the latency. [0..1]

        Returns:
            The columns of `breakdown`, but with stall keys such as `gc:forward` (`core.stages.stall_key`) instead of stages: the
            part of the seconds of the stage in which the cause stalled it. No rows without stalls.
        """
        with self._snapshot() as snapshot:
            return _stalls(snapshot, selection, percentiles)

    def dominants(self, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
        """Return the dominant stages of the requests at each percentile.

        Returns:
            Columns percentile, stage, share (of the requests at the percentile; adds up to 1), in descending order of share.
        """
        with self._snapshot() as snapshot:
            return _dominants(snapshot, selection, percentiles)


def batch_latency(snapshot: StoreSnapshot, selection: Selection) -> dict[str, Histogram]:
    """Return the run time of the model by batch size bucket."""
    found = histograms_by_key(snapshot, selection, BATCH_DURATION)
    return {band: found[band] for band in sorted(found, key=BATCH_SIZES.position)}


MIN_REQUESTS = 8
BREAKDOWN_COLUMNS = ("percentile", "n", "value_seconds", "low_seconds", "high_seconds")


@dataclass(frozen=True, slots=True)
class PercentileGroup:
    """Requests at one percentile.

    Args:
        value: Latency at the percentile. [seconds]
        n: Number of requests over which the shares are averaged.
        shares: Share of the time by stage; adds up to 1.
        dominants: Share of the requests by dominant stage; adds up to 1.
        held_up: Share of the time that was stalled, by stall key; part of `shares`.
    """

    value: Estimate
    n: int
    shares: dict[str, float]
    dominants: dict[str, float]
    held_up: dict[str, float] = field(default_factory=dict[str, float])

    def seconds(self) -> dict[str, float]:
        """Return the time by stage, which adds up to `value`, in seconds."""
        return {stage: share * self.value.value for stage, share in self.shares.items()}


class Mixture:
    """Requests by latency, and the time that they spent in each stage.

    Args:
        columns: Points of both *metrics*, at least one of the first metric; also points of `STALL_TIME` if stalls are wanted.
        metrics: Metric that counts requests by latency, and metric with the time by stage in the same buckets.
    """

    def __init__(self, columns: Columns, metrics: tuple[str, str] = BREAKDOWN_METRICS) -> None:
        requests, times, stalls = (columns.of(metric) for metric in (*metrics, STALL_TIME))
        self._stages = columns.stages
        # Latency at its own scale, so that all queries return the same number; shares at the common scale of all
        # metrics.
        self.latency = add_up(requests)
        shared = int(np.concatenate((times.scale, stalls.scale)).min(initial=self.latency.scale))
        self._times, self._stalls = add_up(times, shared), add_up(stalls, shared)
        self._requests = add_up(requests, shared) if shared < self.latency.scale else self.latency

    @property
    def n(self) -> int:
        """Number of requests."""
        return self.latency.total

    @property
    def mean(self) -> float:
        """Mean latency, in seconds."""
        return float(self.latency.sum.sum()) / self.n

    def mean_shares(self) -> dict[str, float]:
        return self._shares(self._times.amount.sum(axis=1) + self._times.zero)

    def at(self, quantile: float) -> PercentileGroup:
        return self.bands((quantile,))[0]

    def bands(self, quantiles: Sequence[float]) -> list[PercentileGroup]:
        ranks = self._ranks(quantiles)
        if not len(self.latency.index):
            return [self._untimed()] * len(ranks)
        buckets, centres, reaches = self._around(ranks)
        inside = _amounts_between(self._requests, centres - reaches, centres + reaches)
        spent = _amounts_between(self._times, centres - reaches, centres + reaches)
        held_up = _amounts_between(self._stalls, centres - reaches, centres + reaches)
        return [
            self._band(bucket, inside[place], spent[place], held_up[place]) if ranks[place] > 0 else self._untimed()
            for place, bucket in enumerate(buckets.tolist())
        ]

    def bounds(self, quantiles: Sequence[float]) -> list[tuple[float, float]]:
        """Return the lowest and the highest latency of the requests at each of *quantiles*, in seconds."""
        ranks, scale = self._ranks(quantiles), self._requests.scale
        if not len(self.latency.index):
            return [(0.0, 0.0)] * len(ranks)
        _, centres, reaches = self._around(ranks)
        ends = zip(ranks.tolist(), (centres - reaches).tolist(), (centres + reaches).tolist(), strict=True)
        return [
            (bucket_bounds(low, scale)[0], bucket_bounds(high, scale)[1]) if rank > 0 else (0.0, 0.0)
            for rank, low, high in ends
        ]

    def between(self, low: float, high: float) -> dict[str, float]:
        """Return the mean seconds by stage of the requests whose bucket has its middle in `[low, high)` seconds; {} without any."""
        requests, spent = (
            each.amount[:, [low <= bucket_middle(index, each.scale) < high for index in each.index.tolist()]].sum(
                axis=1
            )
            for each in (self._requests, self._times)
        )
        return self._named(spent / 1e6 / requests.sum()) if requests.any() else {}

    def _ranks(self, quantiles: Sequence[float]) -> Ints:
        """Return the ranks of *quantiles* among the requests whose latency is above zero."""
        return np.array([rank_of(each, self.n) for each in quantiles], np.int64) - int(self.latency.zero.sum())

    def _around(self, ranks: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the bucket of each of *ranks*, its common bucket, and the number of common buckets on each side."""
        held = np.cumsum(self.latency.amount.sum(axis=0))
        buckets = self.latency.index[np.searchsorted(held, np.maximum(ranks, 1))]
        centres = buckets >> (self.latency.scale - self._requests.scale)
        return buckets, centres, _bucket_reaches(self._requests, centres)

    def _band(self, bucket: int, inside: Ints, spent: Ints, held_up: Ints) -> PercentileGroup:
        scale, n = self.latency.scale, int(inside.sum())
        value = Estimate(bucket_middle(bucket, scale), *bucket_bounds(bucket, scale))
        return PercentileGroup(
            value, n, self._shares(spent), self._named(inside / n), self._named(held_up / max(int(spent.sum()), 1))
        )

    def _untimed(self) -> PercentileGroup:
        zero = self.latency.zero
        value = Estimate(0.0, 0.0, ZERO_THRESHOLD)
        return PercentileGroup(value, int(zero.sum()), {OVERHEAD: 1.0}, self._named(zero / zero.sum()))

    def share_of(self, stage: str) -> NDArray[np.float64]:
        """Return the share of time in *stage* of the requests in each bucket of `latency`; shape (k,)."""
        in_stage = self._times.amount[[name == stage for name in self._stages]].sum(axis=0)
        shares = dict(zip(self._times.index.tolist(), in_stage / self._times.amount.sum(axis=0), strict=True))
        coarse = self.latency.index >> (self.latency.scale - self._times.scale)
        return np.array([shares.get(bucket, 0.0) for bucket in coarse.tolist()], np.float64)

    def dominated_by(self, stage: str) -> Ints:
        """Return the number of requests with the dominant stage *stage* in each bucket of `latency`; shape (k,)."""
        return self.latency.amount[[name == stage for name in self._stages]].sum(axis=0)

    def _shares(self, spent: Ints) -> dict[str, float]:
        total = spent.sum()
        # Requests without stage times, as from a client without stages, are overhead.
        return self._named(spent / total) if total else {OVERHEAD: 1.0}

    def _named(self, shares: NDArray[np.float64]) -> dict[str, float]:
        named = zip(self._stages, shares.tolist(), strict=True)
        return {stage: share for stage, share in named if share}


def _bucket_reaches(requests: StageCounts, centres: Ints) -> Ints:
    """Return the number of buckets on each side of each of *centres* that hold `MIN_REQUESTS`, or all requests."""
    distance = np.abs(requests.index - centres[:, None])
    order = np.argsort(distance, axis=1, kind="stable")
    held = np.cumsum(requests.amount.sum(axis=0)[order], axis=1)
    place = (held < np.minimum(MIN_REQUESTS, held[:, -1:])).sum(axis=1)
    return np.take_along_axis(np.take_along_axis(distance, order, axis=1), place[:, None], axis=1)[:, 0]


def _amounts_between(counts: StageCounts, low: Ints, high: Ints) -> Ints:
    """Return the sums of *counts* by stage over the buckets *low* to *high*, inclusive; shape (n, stages)."""
    held = np.cumsum(np.pad(counts.amount, ((0, 0), (1, 0))), axis=1)
    last, first = np.searchsorted(counts.index, high, "right"), np.searchsorted(counts.index, low)
    return (held[:, last] - held[:, first]).T


def fetch_mixture(snapshot: StoreSnapshot, selection: Selection) -> Mixture | None:
    """Return the requests of *selection* with their stages; None without requests."""
    columns = fetch(snapshot, PointQuery(selection, BREAKDOWN_METRICS))
    return Mixture(columns) if len(columns.of(REQUEST_DURATION)) else None


def _breakdown(snapshot: StoreSnapshot, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
    return breakdown_frame(fetch_mixture(snapshot, selection), percentiles)


def breakdown_frame(mixed: Mixture | None, percentiles: Sequence[float]) -> pd.DataFrame:
    """Return the frame of `Reader.breakdown` for *mixed*, or without rows for None."""
    made = stage_frame(BREAKDOWN_COLUMNS, breakdown_rows(mixed, percentiles) if mixed else [])
    made.attrs["requests"] = mixed.n if mixed else 0
    return made


def breakdown_rows(mixed: Mixture, percentiles: Sequence[float]) -> list[dict[str, Any]]:
    """Return a row of `Reader.breakdown` for each of *percentiles* of the requests *mixed*."""
    return [
        breakdown_row(each, band, band.shares) for each, band in zip(percentiles, mixed.bands(percentiles), strict=True)
    ]


def _dominants(snapshot: StoreSnapshot, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
    mixed = fetch_mixture(snapshot, selection)
    rows = [
        {"percentile": quantile, "stage": stage, "share": share}
        for quantile in (percentiles if mixed else ())
        for stage, share in _by_falling_share(mixed.at(quantile).dominants if mixed else {})
    ]
    return frame(("percentile", "stage", "share"), rows)


def _by_falling_share(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])


def breakdown_row(quantile: float, band: PercentileGroup, shares: Mapping[str, float]) -> dict[str, Any]:
    """Return the requests at *quantile* as a row of `BREAKDOWN_COLUMNS`, with the seconds of each key of *shares*."""
    value = band.value
    head = zip(BREAKDOWN_COLUMNS, (quantile, band.n, value.value, value.low, value.high), strict=True)
    return {**dict(head), **{name: share * value.value for name, share in shares.items()}}


def _stalls(snapshot: StoreSnapshot, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
    # Most services have no stalls, and need no second query.
    if not len(fetch(snapshot, PointQuery(selection, (STALL_TIME,)))):
        return stage_frame(BREAKDOWN_COLUMNS, [])
    mixed = Mixture(fetch(snapshot, PointQuery(selection, (*BREAKDOWN_METRICS, STALL_TIME))))
    bands = zip(percentiles, mixed.bands(percentiles), strict=True)
    return stage_frame(BREAKDOWN_COLUMNS, [breakdown_row(quantile, band, band.held_up) for quantile, band in bands])
