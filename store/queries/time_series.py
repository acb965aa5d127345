"""Queries of latency over time: breakdown, quantiles, and the heat map of all requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...analysis.breakdown import RankWindow
from ...core.columns import Floats, Ints
from ...core.histogram import ZERO_THRESHOLD, bucket_bounds
from ...core.names import REQUEST_DURATION, STAGE_TIME
from ...core.stages import OVERHEAD
from ..selection import Selection
from ..storage import BREAKDOWN_METRICS, Columns, PointQuery, Steps
from . import fetch
from .frames import frame, stage_frame, with_step_times
from .latency import weights_of_times

# Scale with eight buckets per doubling: finer cells would be less than a pixel high.
HEAT_SCALE = 3
HEAT_COLUMNS = ("at", "low_seconds", "high_seconds", "n", "dominant", "share", "second", "second_share")


@dataclass(frozen=True, slots=True)
class StepMixtures:
    """Requests of several steps of equal scale, and the time they spent in each stage.

    Args:
        latency: Requests by latency, at their own scale.
        requests: Requests by latency, at the scale shared with `times`.
        times: Time spent in the stages by requests of each latency, for the same steps. [microseconds]
    """

    stages: tuple[str, ...]
    latency: fetch.StepCounts
    requests: fetch.StepCounts
    times: fetch.StepCounts

    def rows(self, quantile: float | None) -> Iterator[dict[str, object]]:
        """Yield a row for each step: start, number of requests, and latency at *quantile* (None: mean) in total and by stage."""
        value, seconds = self.breakdown(quantile)
        totals = zip(self.latency.starts.tolist(), self.latency.total.tolist(), value.tolist(), strict=True)
        for (at, n, whole), by_stage in zip(totals, seconds.tolist(), strict=True):
            named = zip((*self.stages, OVERHEAD), by_stage, strict=True)
            # One of the two columns of overhead is zero.
            seconds_by_stage = {stage: stage_seconds for stage, stage_seconds in named if stage_seconds}
            yield {"at": at, "n": n, "value_seconds": whole, **(seconds_by_stage or {OVERHEAD: whole})}

    def breakdown(self, quantile: float | None) -> tuple[Floats, Floats]:
        """Return the latency of each step at *quantile* (None: mean), and its parts by stage, in seconds; shape (n, stages + 1).

        The last column is overhead: the latency of requests without stage times, as from a client without stages.
        """
        value, spent = self._mean() if quantile is None else self._at(quantile)
        total = spent.sum(axis=1)
        seconds = spent / np.where(total > 0, total, 1)[:, None] * value[:, None]
        return value, np.column_stack((seconds, np.where(total > 0, 0.0, value)))

    def _mean(self) -> tuple[Floats, Ints]:
        return self.latency.sum.sum(axis=1) / self.latency.total, self.times.by_stage

    def _at(self, quantile: float) -> tuple[Floats, Floats]:
        if not len(self.requests.index):  # all requests took less than a nanosecond
            return self.latency.values_at(quantile), np.zeros(self.times.by_stage.shape)
        counts, totals = self.requests.amount.sum(axis=1), self.latency.total.tolist()
        window = RankWindow.of([quantile] * len(totals), totals, self.latency.zero.sum(axis=1).tolist())
        weights = window.weights(counts) / np.maximum(counts, 1)
        near = (
            weights_of_times(weights, self.requests.index, self.times.index, self.times.scale)
            * (window.rank > 0)[:, None]
        )
        return self.latency.values_at(quantile), (near[:, None, :] * self.times.amount).sum(axis=2)


class TimeSeriesQueries(fetch.QueryGroup):
    def breakdown_over_time(self, selection: Selection, quantile: float | None, step: timedelta) -> pd.DataFrame:
        """Return the breakdown at *quantile*, or of the mean if None, for each step with requests.

        Returns:
            Columns at (UTC, start of the step), n (requests in the step), value_seconds, and one column of seconds for each
            stage; the stages add up to value_seconds.
        """
        with self._snapshot() as snapshot:
            question = PointQuery(selection, BREAKDOWN_METRICS, counts_only=quantile is None)
            columns, steps = fetch.fetch_steps(snapshot, question, step)
            rows = [row for mixed in step_mixtures(columns, steps) for row in mixed.rows(quantile)]
            return with_step_times(stage_frame(("at", "n", "value_seconds"), rows), steps, selection)

    def quantiles_over_time(self, selection: Selection, quantiles: Sequence[float], step: timedelta) -> pd.DataFrame:
        """Return the latency at each of *quantiles* for each step with requests.

        Returns:
            Columns at (UTC), n (requests in the step), and one column of seconds for each quantile: p50, p99, p99.9, …
        """
        with self._snapshot() as snapshot:
            columns, steps = fetch.fetch_steps(snapshot, PointQuery(selection, (REQUEST_DURATION,)), step)
            return with_step_times(
                quantiles_of_steps(columns, steps, quantiles).drop(columns="total"), steps, selection
            )

    def heat(self, selection: Selection, step: timedelta) -> pd.DataFrame:
        """Return the number of requests by time and latency, with eight latency buckets per doubling.

        Returns:
            Columns at (UTC), low_seconds, high_seconds (bounds of the latency bucket), n (requests in the cell), dominant (the
            stage that dominates most of these requests), share (the share of requests that it dominates), second and
            second_share (the same for the next stage; "" and 0 if one stage dominates all requests). Only cells with requests
            have a row; all steps have the same latency buckets. Similar shares mean that a cell has more than one cause.
        """
        with self._snapshot() as snapshot:
            columns, steps = fetch.fetch_steps(snapshot, PointQuery(selection, (REQUEST_DURATION,)), step)
            scale = min(HEAT_SCALE, int(columns.scale.min(initial=HEAT_SCALE)))
            cells = [_heat_cells(counts, columns.stages) for counts in fetch.add_up_steps(columns, steps, scale)]
            empty = frame(HEAT_COLUMNS, [])
            return with_step_times(pd.concat(cells, ignore_index=True) if cells else empty, steps, selection)


def step_mixtures(columns: Columns, steps: Steps) -> Iterator[StepMixtures]:
    requests, times = columns.of(REQUEST_DURATION), columns.of(STAGE_TIME)
    counted, timed = fetch.step_edges(requests, steps), fetch.step_edges(times, steps)
    shared = np.minimum(counted.scale, _scales_of(timed, counted.starts, counted.scale))
    # Latency at its own scale, so that all queries return the same number; shares at the common scale of both metrics.
    for chosen in fetch.equal_scale_slices(counted.scale, shared):
        at, scale = counted.starts[chosen], int(shared[chosen.start])
        latency = fetch.count_steps(requests, counted, chosen, int(counted.scale[chosen.start]))
        coarse = latency if scale == latency.scale else fetch.count_steps(requests, counted, chosen, scale)
        here = times.where(np.isin(steps.of(times.times), at))
        spent = fetch.count_at(here, np.searchsorted(at, steps.of(here.times)), at, scale)
        yield StepMixtures(columns.stages, latency, coarse, spent)


def _scales_of(edges: fetch.StepEdges, at: Ints, otherwise: NDArray[np.int64]) -> Ints:
    if not len(edges.starts):
        return otherwise
    position = np.minimum(np.searchsorted(edges.starts, at), len(edges.starts) - 1)
    return np.where(edges.starts[position] == at, edges.scale[position], otherwise)


def quantiles_of_steps(columns: Columns, steps: Steps, quantiles: Sequence[float]) -> pd.DataFrame:
    """Return the frame of `Reader.streams_over_time` for *columns* of one metric, with `at` in Unix seconds."""
    names = ("at", "n", "total", *(f"p{100 * quantile:g}" for quantile in quantiles))
    rows: list[dict[str, object]] = []
    for counts in fetch.add_up_steps(columns, steps):
        values = (counts.values_at(quantile).tolist() for quantile in quantiles)
        sums = counts.sum.sum(axis=1).tolist()
        values_by_step = zip(counts.starts.tolist(), counts.total.tolist(), sums, *values, strict=True)
        rows += [dict(zip(names, step_values, strict=True)) for step_values in values_by_step]
    return frame(names, rows)


def _heat_cells(counts: fetch.StepCounts, stages: Sequence[str]) -> pd.DataFrame:
    bounds = [(0.0, ZERO_THRESHOLD), *(bucket_bounds(index, counts.scale) for index in counts.index.tolist())]
    low, high = np.array(bounds).T
    amount = np.concatenate((counts.zero[:, :, None], counts.amount), axis=2)
    step, bucket = np.nonzero(amount.sum(axis=1))
    cells = amount[step, :, bucket].T
    return pd.DataFrame(
        {
            "at": counts.starts[step],
            "low_seconds": low[bucket],
            "high_seconds": high[bucket],
            "n": cells.sum(axis=0),
            **_top_stages(cells, stages),
        }
    )


def _top_stages(amount: Ints, stages: Sequence[str]) -> dict[str, NDArray[Any]]:
    # An empty stage is added, so that there are always two stages.
    padded = np.vstack((amount, np.zeros_like(amount[:1])))
    order = np.argsort(-padded, axis=0, kind="stable")[:2]
    shares = np.take_along_axis(padded, order, axis=0) / amount.sum(axis=0)
    first, second = np.where(shares > 0, np.array([*stages, ""], object)[order], "")
    return {"dominant": first, "share": shares[0], "second": second, "second_share": shares[1]}
