"""Queries of latency distributions, and of the breakdown of latency into stages and stalls at each percentile.

The requests at percentile p are those whose rank is near that of p (`analysis.breakdown.RankWindow`). The breakdown is their
mean stage shares, scaled to the middle of the bucket of p; see `docs/architecture.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...analysis.breakdown import RankWindow, share_bounds
from ...core.columns import Ints
from ...core.histogram import BATCH_SIZES, ZERO_THRESHOLD, Estimate, Histogram, bucket_bounds, bucket_middle
from ...core.names import BATCH_DURATION, REQUEST_DURATION, STAGE_DURATION, STALL_TIME
from ...core.stages import OVERHEAD
from ..selection import Selection
from ..storage import BREAKDOWN_METRICS, Columns, PointQuery, StageCounts, StoreSnapshot, add_up
from .fetch import QueryGroup, fetch, fetch_each, histograms_by_key, request_latency
from .frames import frame, stage_frame

BREAKDOWN_COLUMNS = ("percentile", "n", "value_seconds", "low_seconds", "high_seconds")
SHARE_COLUMNS = ("percentile", "n", "stage", "seconds", "share", "low_share", "high_share")


class LatencyQueries(QueryGroup):
    def latency(self, selection: Selection) -> Histogram:
        with self._snapshot() as snapshot:
            return request_latency(snapshot, selection)

    def latencies(self, selections: Sequence[Selection]) -> list[Histogram]:
        with self._snapshot() as snapshot:
            points = fetch_each(snapshot, [PointQuery(selection, (REQUEST_DURATION,)) for selection in selections])
        return [add_up(columns).histogram() if len(columns) else Histogram() for columns in points]

    def stage_latency(self, selection: Selection) -> dict[str, Histogram]:
        """Return the distribution of the exclusive time in each stage, over requests with the stage, in stage order and seconds.

        `Histogram.fraction_below` returns the rank of a single request's time in a stage.
        """
        with self._snapshot() as snapshot:
            return histograms_by_key(fetch(snapshot, PointQuery(selection, (STAGE_DURATION,))))

    def batches(self, selection: Selection) -> dict[str, Histogram]:
        """Return the run time of the model in each request (forward and prefill), in seconds, by batch size.

        Returns:
            Histogram by batch size bucket (`core.histogram.BATCH_SIZES`) of the last run of each request, smallest first.
        """
        with self._snapshot() as snapshot:
            return batch_latency(snapshot, selection)

    def breakdown(self, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
        """Return the time by stage in the requests at each percentile.

        Returns:
            Columns percentile, n (number of requests over which the shares are averaged), value_seconds (latency at the
            percentile), low_seconds, high_seconds (error bounds of the latency), and one column of seconds for each stage, in the
            order of stages; the stages add up to value_seconds. `attrs["requests"]` is the number of requests in the selection.
            No rows without requests.
        """
        with self._snapshot() as snapshot:
            return breakdown_frame(fetch_mixture(snapshot, selection), percentiles)

    def breakdown_with_shares(
        self, selection: Selection, percentiles: Sequence[float]
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return `breakdown`, and the share of each stage at each percentile with its error.

        Returns:
            The second frame has the columns percentile, n, stage, seconds, share, low_share, high_share (95 % interval, see
            `analysis.breakdown.share_bounds`).
        """
        with self._snapshot() as snapshot:
            mixed = fetch_mixture(snapshot, selection)
            return breakdown_frame(mixed, percentiles), frame(SHARE_COLUMNS, _share_rows(mixed, percentiles))

    def stalls(self, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
        """Return the stalls of the requests at each percentile, as an addition to their `breakdown`.

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
            mixed = fetch_mixture(snapshot, selection)
            rows = [
                {"percentile": quantile, "stage": stage, "share": share}
                for quantile in (percentiles if mixed else ())
                for stage, share in sorted(
                    mixed.at(quantile).dominants.items() if mixed else (), key=lambda item: -item[1]
                )
            ]
            return frame(("percentile", "stage", "share"), rows)


def batch_latency(snapshot: StoreSnapshot, selection: Selection) -> dict[str, Histogram]:
    """Return the run time of the model by batch size bucket."""
    histograms = histograms_by_key(fetch(snapshot, PointQuery(selection, (BATCH_DURATION,))))
    return {band: histograms[band] for band in sorted(histograms, key=BATCH_SIZES.position)}


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
        return self.latency.total

    def at(self, quantile: float) -> PercentileGroup:
        return self.bands((quantile,))[0]

    def bands(self, quantiles: Sequence[float]) -> list[PercentileGroup]:
        window = self._window(quantiles)
        if not len(self.latency.index):
            return [self._untimed()] * len(quantiles)
        weights = window.weights(self._counts)
        spent, held_up = (_mean_times(weights, self._requests, times) for times in (self._times, self._stalls))
        dominants = weights / self._counts @ self._requests.amount.T
        requests = np.where(weights > 0, self._counts, 0).sum(axis=1)
        return [
            PercentileGroup(
                self.latency.value_at(quantile),
                int(requests[index]),
                self._shares(spent[index]),
                self._named(dominants[index]),
                self._named(held_up[index] / (spent[index].sum() or 1.0)),
            )
            if window.rank[index] > 0
            else self._untimed()
            for index, quantile in enumerate(quantiles)
        ]

    def share_bounds(self, quantiles: Sequence[float]) -> list[dict[str, tuple[float, float]]]:
        if not len(self.latency.index):
            return [{} for _ in quantiles]
        spent = _mean_times(np.eye(len(self._counts)), self._requests, self._times)
        shares = spent / np.maximum(spent.sum(axis=1, keepdims=True), 1e-300)
        bounds = np.stack(share_bounds(self._window(quantiles), self._counts, shares), axis=2).tolist()
        return [dict(zip(self._stages, map(tuple, pairs), strict=True)) for pairs in bounds]

    def bounds(self, quantiles: Sequence[float]) -> list[tuple[float, float]]:
        """Return the lowest and the highest latency of the requests at each of *quantiles*, in seconds."""
        window, index, scale = self._window(quantiles), self._requests.index, self._requests.scale
        if not len(index):
            return [(0.0, 0.0)] * len(quantiles)
        inside = [np.flatnonzero(weight) for weight in window.weights(self._counts)]
        return [
            (bucket_bounds(int(index[cells[0]]), scale)[0], bucket_bounds(int(index[cells[-1]]), scale)[1])
            if rank > 0
            else (0.0, 0.0)
            for rank, cells in zip(window.rank, inside, strict=True)
        ]

    def between(self, low: float, high: float) -> dict[str, float]:
        requests, spent = (
            table.amount[:, [low <= bucket_middle(index, table.scale) < high for index in table.index.tolist()]].sum(
                axis=1
            )
            for table in (self._requests, self._times)
        )
        return self._named(spent / 1e6 / requests.sum()) if requests.any() else {}

    @property
    def _counts(self) -> Ints:
        return self._requests.amount.sum(axis=0)

    def _window(self, quantiles: Sequence[float]) -> RankWindow:
        zero = int(self.latency.zero.sum())
        return RankWindow.of(quantiles, [self.n] * len(quantiles), [zero] * len(quantiles))

    def _untimed(self) -> PercentileGroup:
        zero = self.latency.zero
        value = Estimate(0.0, 0.0, ZERO_THRESHOLD)
        return PercentileGroup(value, int(zero.sum()), {OVERHEAD: 1.0}, self._named(zero / zero.sum()))

    def share_of(self, stage: str) -> NDArray[np.float64]:
        in_stage = self._times.amount[[name == stage for name in self._stages]].sum(axis=0)
        shares = dict(zip(self._times.index.tolist(), in_stage / self._times.amount.sum(axis=0), strict=True))
        coarse = self.latency.index >> (self.latency.scale - self._times.scale)
        return np.array([shares.get(bucket, 0.0) for bucket in coarse.tolist()], np.float64)

    def dominated_by(self, stage: str) -> Ints:
        return self.latency.amount[[name == stage for name in self._stages]].sum(axis=0)

    def _shares(self, spent: NDArray[np.float64] | Ints) -> dict[str, float]:
        total = spent.sum()
        # Requests without stage times, as from a client without stages, are overhead.
        return self._named(spent / total) if total else {OVERHEAD: 1.0}

    def _named(self, shares: NDArray[np.float64]) -> dict[str, float]:
        named = zip(self._stages, shares.tolist(), strict=True)
        return {stage: share for stage, share in named if share}


def _mean_times(weights: NDArray[np.float64], requests: StageCounts, times: StageCounts) -> NDArray[np.float64]:
    weight_per_request = weights / np.maximum(requests.amount.sum(axis=0), 1)
    return weights_of_times(weight_per_request, requests.index, times.index, times.scale) @ times.amount.T


def weights_of_times(weights: NDArray[np.float64], requests: Ints, times: Ints, scale: int) -> NDArray[np.float64]:
    """Return *weights* of buckets of requests, shape (n, requests), for buckets of times; 0 without requests in the bucket."""
    if not len(requests) or not len(times):
        return np.zeros((len(weights), len(times)))
    position = np.minimum(np.searchsorted(requests, times), len(requests) - 1)
    return weights[:, position] * np.where(
        requests[position] == times, np.exp2((requests[0] - times) / 2.0**scale), 0.0
    )


def fetch_mixture(snapshot: StoreSnapshot, selection: Selection) -> Mixture | None:
    """Return the requests of *selection* with their stages; None without requests."""
    columns = fetch(snapshot, PointQuery(selection, BREAKDOWN_METRICS))
    return Mixture(columns) if len(columns.of(REQUEST_DURATION)) else None


def breakdown_frame(mixed: Mixture | None, percentiles: Sequence[float]) -> pd.DataFrame:
    table = stage_frame(BREAKDOWN_COLUMNS, breakdown_rows(mixed, percentiles) if mixed else [])
    table.attrs["requests"] = mixed.n if mixed else 0
    return table


def breakdown_rows(mixed: Mixture, percentiles: Sequence[float]) -> list[dict[str, Any]]:
    return [
        breakdown_row(percentile, band, band.shares)
        for percentile, band in zip(percentiles, mixed.bands(percentiles), strict=True)
    ]


def _share_rows(mixed: Mixture | None, percentiles: Sequence[float]) -> list[dict[str, Any]]:
    if mixed is None:
        return []
    groups = zip(percentiles, mixed.bands(percentiles), mixed.share_bounds(percentiles), strict=True)
    rows = (
        (quantile, band.n, stage, share * band.value.value, share, *bounds.get(stage, (0.0, 1.0)))
        for quantile, band, bounds in groups
        for stage, share in band.shares.items()
    )
    return [dict(zip(SHARE_COLUMNS, row, strict=True)) for row in rows]


def breakdown_row(quantile: float, band: PercentileGroup, shares: Mapping[str, float]) -> dict[str, Any]:
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
