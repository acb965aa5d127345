"""Queries for the comparison of two selections, and prediction of the latency if one stage were faster.

Subtracting the time of a stage from a percentile predicts too much, because other requests then become the requests at that
percentile. So `whatif` reduces the latency of all requests by their time in the stage beyond the remaining time, sorts the
requests again, and reads the percentiles.

The store has no times of single requests. For every bucket of the latency it has the total time that the requests of the bucket
spent in the stage, and the number of requests that the stage dominates. Requests that the stage does not dominate are assumed to
spend the median time in the stage, but not more than the mean of the bucket; the remaining time is assigned to the requests that
the stage dominates. Without this split, the prediction would also speed up requests that were slow for another reason, and would
be too optimistic for the tail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ...analysis.comparison import compare_quantile, largest_share_change
from ...core.columns import Floats, Ints
from ...core.histogram import Histogram, bucket_middle, rank_of
from ...core.names import REQUEST_DURATION, STAGE_DURATION
from ..selection import Selection
from ..storage import BREAKDOWN_METRICS, Columns, PointQuery, StageCounts, StoreSnapshot, add_up
from .fetch import QueryGroup, fetch
from .frames import frame
from .latency import Mixture, batch_latency, fetch_mixture
from .services import series_with_requests

WHATIF_COLUMNS = ("percentile", "before_seconds", "after_seconds", "ceiling_seconds")
STAGE_COLUMNS = ("stage", "a_seconds", "b_seconds", "delta_seconds", "share")
MIX_COLUMNS = ("dimension", "value", "a_share", "b_share", "change", "distance", "changed")
# Dimensions whose composition is compared, besides `batch`. Not the version, which usually distinguishes the two selections.
MIX_DIMENSIONS = ("route", "model", "status", "device")
# Minimum change of a share, and number of its standard errors, from which a composition counts as changed.
MIN_SHIFT = 0.05
MIN_STANDARD_ERRORS = 3.0


@dataclass(frozen=True, slots=True)
class LatencyGroups:
    """Groups of requests with equal latency and equal time in one stage."""

    latency: Floats
    spent: Floats
    requests: Ints

    def quantiles(self, left: Floats, wanted: Sequence[float]) -> list[float]:
        """Return the latency at the *wanted* quantiles (nearest rank), in seconds, with the stage time reduced to *left*."""
        # The saving is subtracted from the latency, so that a latency without saving stays exactly equal.
        moved = self.latency - (self.spent - left)
        order = np.argsort(moved, kind="stable")
        held = np.cumsum(self.requests[order])
        ranks = [rank_of(quantile, int(held[-1])) for quantile in wanted]
        return moved[order][np.searchsorted(held, ranks)].tolist()


class ComparisonQueries(QueryGroup):
    """Queries for the comparison of two selections, and for the prediction of a faster stage."""

    def compare(self, a: Selection, b: Selection, quantile: float) -> pd.DataFrame:
        """Return the change of the time in each stage from *a* to *b*, for the requests at *quantile*.

        Returns:
            Columns stage, a_seconds, b_seconds, delta_seconds (b - a), share (of the change of the latency; negative for a
            stage that changed in the opposite direction), in descending order of delta. `attrs`: a_value, b_value (latency in
            seconds, None without requests), a_n, b_n (number of requests), ratio (b / a), ratio_low, ratio_high (confidence
            interval of the ratio, see `analysis.comparison`; None without requests).
        """
        with self._snapshot() as snapshot:
            before, after = fetch_mixture(snapshot, a), fetch_mixture(snapshot, b)
            ratio = _latency_ratio(before, after, quantile)
            change = (ratio["b_value"] or 0.0) - (ratio["a_value"] or 0.0)
            a_seconds, b_seconds = _stage_seconds(before, quantile), _stage_seconds(after, quantile)
            rows = [
                _stage_row(stage, a_seconds.get(stage, 0.0), b_seconds.get(stage, 0.0), change)
                for stage in a_seconds | b_seconds
            ]
            comparison = frame(STAGE_COLUMNS, rows).sort_values("delta_seconds", ascending=False, ignore_index=True)
            comparison.attrs.update(ratio)
            return comparison

    def mix(self, a: Selection, b: Selection) -> pd.DataFrame:
        """Return the differences in the composition of the requests between *a* and *b*.

        Returns:
            One row for each of route, model, status, device and batch (size bucket) that both selections have: columns
            dimension, value (the value whose share of the requests differs most), a_share, b_share, change (b - a), distance
            (share of the requests that must change for equal compositions; 0..1), changed (whether the change is at least five
            percentage points, and more than three standard errors).
        """
        with self._snapshot() as snapshot:
            before, after = _requests_by_dimension(snapshot, a), _requests_by_dimension(snapshot, b)
            rows: list[dict[str, Any]] = []
            for dimension in before:
                change = largest_share_change(before[dimension], after[dimension])
                if change is not None:
                    changed = change.is_more(MIN_SHIFT, MIN_STANDARD_ERRORS)
                    shares = (change.before, change.after, change.difference, change.distance)
                    rows.append(dict(zip(MIX_COLUMNS, (dimension, change.value, *shares, changed), strict=True)))
            return frame(MIX_COLUMNS, rows)

    def whatif(
        self,
        selection: Selection,
        stage: str,
        percentiles: Sequence[float],
        *,
        floor: float = 0.5,
        factor: float | None = None,
    ) -> pd.DataFrame:
        """Return the predicted percentiles if *stage* were faster.

        Returns:
            Columns percentile, before_seconds, after_seconds, ceiling_seconds (latency if the stage took no time, the limit
            of any improvement of the stage). No rows without requests. `attrs`: requests, floor_seconds (time at *floor*; None
            with a factor, or if no request has the stage).
        """
        with self._snapshot() as snapshot:
            columns = fetch(snapshot, PointQuery(selection, (*BREAKDOWN_METRICS, STAGE_DURATION)))
            rows: list[dict[str, float]] = []
            requests, floor_seconds = 0, None
            if len(columns.of(REQUEST_DURATION)):
                durations = _stage_durations(columns.of(STAGE_DURATION), stage)
                groups = _latency_groups(
                    Mixture(columns), stage, durations.value_at(0.5).value if durations.total else 0.0
                )
                requests = int(groups.requests.sum())
                if factor is None and durations.total:
                    floor_seconds = durations.value_at(floor).value
                rows = _whatif_rows(groups, percentiles, _remaining_time(groups.spent, floor_seconds, factor))
            estimates = frame(WHATIF_COLUMNS, rows)
            estimates.attrs |= {"requests": requests, "floor_seconds": floor_seconds}
            return estimates


def _stage_durations(durations: Columns, stage: str) -> StageCounts:
    return add_up(durations.where(np.array([name == stage for name in durations.stages], bool)[durations.stage]))


def _latency_groups(mixed: Mixture, stage: str, usual_seconds: float) -> LatencyGroups:
    counts = mixed.latency
    latency = np.array([bucket_middle(index, counts.scale) for index in counts.index.tolist()], np.float64)
    requests, dominated = counts.amount.sum(axis=0), mixed.dominated_by(stage)
    in_others, in_dominated = split_stage_time(
        latency * mixed.share_of(stage), latency, requests, dominated, usual_seconds
    )
    # Requests with zero latency stay at zero.
    return LatencyGroups(
        np.concatenate(([0.0], latency, latency)),
        np.concatenate(([0.0], in_others, in_dominated)),
        np.concatenate(([counts.zero.sum()], requests - dominated, dominated)),
    )


def split_stage_time(
    mean: Floats, latency: Floats, requests: Ints, dominated: Ints, usual_seconds: float
) -> tuple[Floats, Floats]:
    """Return the stage time in each bucket of requests that the stage does not dominate, and of those that it dominates.

    The mean over both kinds of requests is *mean*; no request spends more than its latency.
    """
    others = requests - dominated
    total = mean * requests
    usual = np.minimum(mean, usual_seconds)
    in_dominated = np.minimum((total - others * usual) / np.maximum(dominated, 1), latency)
    in_others = (total - dominated * in_dominated) / np.maximum(others, 1)
    return np.where(others > 0, in_others, mean), np.where(dominated > 0, in_dominated, mean)


def _remaining_time(spent: Floats, floor_seconds: float | None, factor: float | None) -> Floats:
    if factor is not None:
        return spent * factor
    return spent if floor_seconds is None else np.minimum(spent, floor_seconds)


def _whatif_rows(groups: LatencyGroups, percentiles: Sequence[float], left: Floats) -> list[dict[str, float]]:
    read = [groups.quantiles(times, percentiles) for times in (groups.spent, left, np.zeros_like(left))]
    return [dict(zip(WHATIF_COLUMNS, values, strict=True)) for values in zip(percentiles, *read, strict=True)]


def _stage_seconds(mixed: Mixture | None, quantile: float) -> dict[str, float]:
    return mixed.at(quantile).seconds() if mixed else {}


def _stage_row(stage: str, a_seconds: float, b_seconds: float, change: float) -> dict[str, Any]:
    delta = b_seconds - a_seconds
    values = (stage, a_seconds, b_seconds, delta, delta / change if change else 0.0)
    return dict(zip(STAGE_COLUMNS, values, strict=True))


def _latency_ratio(a: Mixture | None, b: Mixture | None, quantile: float) -> dict[str, Any]:
    before, after = (one.latency.histogram() if one else Histogram() for one in (a, b))
    ratio = compare_quantile(before, after, quantile)
    columns = ("a_value", "b_value", "ratio", "ratio_low", "ratio_high", "a_n", "b_n")
    return {column: getattr(ratio, column) for column in columns}


def _requests_by_dimension(snapshot: StoreSnapshot, selection: Selection) -> dict[str, dict[str, int]]:
    seen = series_with_requests(snapshot, selection)
    by_dimension: dict[str, Counter[str]] = {dimension: Counter() for dimension in MIX_DIMENSIONS}
    for dimension, requests in by_dimension.items():
        for value, n in zip(seen[dimension], seen["requests"], strict=True):
            requests[value] += int(n)
    by_band = {band: runs.count for band, runs in batch_latency(snapshot, selection).items()}
    return {**by_dimension, "batch": by_band}
