"""Questions to the store about latency, and the stages it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pandas as pd

from ...core.histogram import Histogram
from ...core.names import STAGE_DURATION
from ..selection import Selection
from . import batches, breakdown, comparison, latency, minutes, over_time, stalls, whatif
from .base import Questions
from .minutes import MinuteCounts, SpentCounts


class LatencyQuestions(Questions):
    """How long requests take, where their time goes, and what changes it."""

    def latency(self, selection: Selection) -> Histogram:
        """Return the latency of all requests of *selection*, in seconds."""
        with self._snapshot() as snapshot:
            return latency.latency(snapshot, selection)

    def stage_latency(self, selection: Selection) -> dict[str, Histogram]:
        """Return the distribution of each stage's own time, in seconds, over the requests that had it; in stage order.

        The rank of one request's time in a stage is its `fraction_below`.
        """
        with self._snapshot() as snapshot:
            return latency.distributions(snapshot, selection, STAGE_DURATION)

    def batches(self, selection: Selection) -> dict[str, Histogram]:
        """Return how long the model of a request ran (its forward and prefill), in seconds, by how many items it ran at once.

        Returns:
            The band of the batch size (`core.histogram`), smallest first, to the requests whose last run said it was in it.
        """
        with self._snapshot() as snapshot:
            return batches.batches(snapshot, selection)

    def breakdown(self, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
        """Return where the time goes in the requests at each percentile.

        Args:
            selection: Whose requests.
            percentiles: [0..1]

        Returns:
            Columns percentile, n (requests the shares are the mean of), value_seconds (the latency there), low_seconds,
            high_seconds (its error band), then one column of seconds for each stage, in the order of stages; stages add up
            to value_seconds. `attrs["requests"]` is the number of requests in the selection. No rows without requests.
        """
        with self._snapshot() as snapshot:
            return breakdown.breakdown(snapshot, selection, percentiles)

    def stalls(self, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
        """Return what held up the requests at each percentile, beside their `breakdown`.

        Args:
            selection: Whose requests.
            percentiles: [0..1]

        Returns:
            Columns as those of `breakdown`, but for what `core.stages.stall_key` makes, such as `gc:forward`, in the place of
            the stages: the seconds of the stage in which the cause held it up, a part of it. No rows where nothing did.
        """
        with self._snapshot() as snapshot:
            return stalls.stalls(snapshot, selection, percentiles)

    def dominants(self, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
        """Return which stages dominate the requests at each percentile.

        Returns:
            Columns percentile, stage, share (of the requests there; adds up to 1 for a percentile), by falling share.
        """
        with self._snapshot() as snapshot:
            return breakdown.dominants(snapshot, selection, percentiles)

    def breakdown_over_time(self, selection: Selection, quantile: float | None, step: timedelta) -> pd.DataFrame:
        """Return the breakdown at *quantile*, or of the mean if None, for each step that has requests.

        Returns:
            Columns at (UTC, start of the step), n (requests in the step), value_seconds, then one column of seconds for
            each stage, adding up to value_seconds.
        """
        with self._snapshot() as snapshot:
            return over_time.breakdown_over_time(snapshot, selection, quantile, step)

    def quantiles_over_time(self, selection: Selection, quantiles: Sequence[float], step: timedelta) -> pd.DataFrame:
        """Return the latency at each of *quantiles* for each step that has requests.

        Returns:
            Columns at (UTC), n (requests in the step), and one of seconds for each quantile: p50, p99, p99.9, …
        """
        with self._snapshot() as snapshot:
            return over_time.quantiles_over_time(snapshot, selection, quantiles, step)

    def heat(self, selection: Selection, step: timedelta) -> pd.DataFrame:
        """Return every request by time and latency, eight bands a doubling.

        Returns:
            Columns at (UTC), low_seconds, high_seconds (the band), n (requests), dominant (the stage that dominates most of
            them), share (of them it dominates), second, second_share (the same of the stage after it; "" and 0 where one
            dominates all); only cells that have requests. All steps have the same bands. The more the two shares are
            alike, the less a cell has one cause.
        """
        with self._snapshot() as snapshot:
            return over_time.heat(snapshot, selection, step)

    def minutes(self, selection: Selection) -> MinuteCounts:
        """Return the requests of *selection*, minute by minute, as `all_minutes` counts those of a group."""
        with self._snapshot() as snapshot:
            return minutes.minutes(snapshot, selection)

    def spent(self, selection: Selection, step: timedelta) -> SpentCounts:
        """Return where the time of requests went, in steps of whole minutes, as finely as `minutes`."""
        with self._snapshot() as snapshot:
            return minutes.spent(snapshot, selection, step)

    def compare(self, a: Selection, b: Selection, quantile: float) -> pd.DataFrame:
        """Return what changed by stage from *a* to *b*, in the requests at *quantile*.

        Returns:
            Columns stage, a_seconds, b_seconds, delta_seconds (b - a), share (of the change of the latency; negative for a
            stage that moved against it), by falling delta. `attrs`: a_value, b_value (seconds, None without requests), a_n,
            b_n (requests of the selections), ratio (b / a), ratio_low, ratio_high (what `core.confidence` is sure of
            at 95 % a side; None without requests).
        """
        with self._snapshot() as snapshot:
            return comparison.compare(snapshot, a, b, quantile)

    def mix(self, a: Selection, b: Selection) -> pd.DataFrame:
        """Return how much the requests themselves differ from *a* to *b*: whether they can be compared at all.

        Returns:
            One row for each of route, model, status, device and batch (the size in bands) that both sides tell: columns
            dimension, value (whose share of the requests differs most), a_share, b_share, change (b - a), distance (the
            share of the requests that would have to be others for both to be alike; 0..1), changed (the change is at least
            five points, and more than three of its standard errors).
        """
        with self._snapshot() as snapshot:
            return comparison.mix(snapshot, a, b)

    def whatif(
        self,
        selection: Selection,
        stage: str,
        percentiles: Sequence[float],
        *,
        floor: float = 0.5,
        factor: float | None = None,
    ) -> pd.DataFrame:
        """Return what the percentiles would be if *stage* were faster: no request left where it is, all sorted again.

        Args:
            selection: Whose requests.
            stage: Which stage.
            percentiles: [0..1]
            floor: No request spends more in the stage than those at this quantile of its own time do. [0..1]
            factor: Instead: every request spends so many times as long in it. [>= 0]

        Returns:
            Columns percentile, before_seconds, after_seconds, ceiling_seconds (if the stage took no time at all: nobody
            gets further than that by working on it). No rows without requests. `attrs`: requests, floor_seconds (what
            *floor* is; None with a factor, or where nobody had the stage).
        """
        with self._snapshot() as snapshot:
            return whatif.whatif(snapshot, selection, stage, percentiles, floor=floor, factor=factor)
