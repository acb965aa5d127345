"""The reader: the only door through which pages and alerts see the data.

Each answer is read in one transaction, so that it is of one moment. The same selection gives the same number in every
answer: all of them add up the same rows by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Literal

import pandas as pd
from sqlalchemy import Engine

from ...core.histogram import Histogram
from ...core.names import STAGE_DURATION
from . import (
    batches,
    breakdown,
    comparison,
    database,
    first_token,
    folds,
    latency,
    over_time,
    services,
    slo,
    storage,
    traces,
    whatif,
)
from .folds import Fold
from .points import Points, Snapshot
from .records import KeptTrace
from .retention import Retention
from .selection import Selection
from .series import SeriesCaps
from .services import StoreState
from .slo import SloCounts
from .storage import Storage


class Reader:
    """Questions to the store. Thread-safe.

    Times are aware; windows are half open and stand for the 10 s buckets that start in them. Frames without data have
    their columns and no rows. Steps begin at multiples of their width since the epoch; a step as wide as the window is
    the window. Where steps are finer than what is still kept, or would take too many rows, they are wider than asked:
    `attrs["step_seconds"]` says how wide they are (None for the whole window).

    Every method raises StoreError if the database cannot be read.

    Args:
        engine: Where to read.
        points: Where the points are.
        retention: How long things are kept.
        caps: How many series are told apart.
        clock: The time. [Unix seconds]
    """

    def __init__(
        self, engine: Engine, points: Points, retention: Retention, caps: SeriesCaps, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._points = points
        self._retention = retention
        self._caps = caps
        self._clock = clock

    @contextmanager
    def _snapshot(self) -> Generator[Snapshot]:
        with database.reading(self._engine) as connection:
            yield Snapshot(connection, self._points)

    def services(self, start: datetime, end: datetime) -> pd.DataFrame:
        """Return the services that have requests in `[start, end)`.

        Returns:
            Columns service, versions (list, latest seen first), model and environment (of the series seen last), requests,
            errors (counts in the window), first_seen, last_seen (UTC, buckets within the window); sorted by service.
        """
        with self._snapshot() as snapshot:
            return services.services(snapshot, start, end)

    def versions(self, selection: Selection) -> pd.DataFrame:
        """Return the versions of a selection over its whole history.

        Returns:
            Columns version, first_seen, last_seen (UTC, of all that is kept, exact to 10 s), requests (in the window, 0 if
            none); sorted by first_seen.
        """
        with self._snapshot() as snapshot:
            return services.versions(snapshot, selection)

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

    def streams(self, selection: Selection, metric: str) -> dict[str, Histogram]:
        """Return what requests of *selection* that answer bit by bit were like, or their calls out that failed.

        Args:
            selection: Whose requests.
            metric: `names.FIRST_TOKEN`, `OUTPUT_TOKEN`, `STREAM_GAP` or `FAILED_CALL` (seconds), or `TOKENS` (tokens a request).

        Returns:
            The definition it was measured by, which must not be mixed with another, or the type of token, or what became
            of the call, to its histogram.
        """
        with self._snapshot() as snapshot:
            return latency.distributions(snapshot, selection, metric)

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

    def first_token_breakdown(
        self, selection: Selection, percentiles: Sequence[float], definition: str | None = None
    ) -> pd.DataFrame:
        """Return where the time to the first token goes, in the requests at each percentile of it.

        Args:
            selection: Whose requests.
            percentiles: [0..1]
            definition: How the first token was found; None for the way that most of the requests were measured by.

        Returns:
            The columns of `breakdown`, with the time to the first token for the latency. `attrs`: definition ("" without
            requests), definitions (requests of the selection by definition), requests (that are counted here), left_out
            (that are not, because their series knows other definitions too: their stages cannot be told apart).
        """
        with self._snapshot() as snapshot:
            return first_token.breakdown(snapshot, selection, percentiles, definition)

    def batches(self, selection: Selection) -> dict[str, Histogram]:
        """Return how long the model of a request ran (its forward and prefill), in seconds, by how many items it ran at once.

        Returns:
            The band of the batch size (`core.batch_bands`), smallest first, to the requests whose last run said it was in it.
        """
        with self._snapshot() as snapshot:
            return batches.batches(snapshot, selection)

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

    def compare(self, a: Selection, b: Selection, quantile: float) -> pd.DataFrame:
        """Return what changed by stage from *a* to *b*, in the requests at *quantile*.

        Returns:
            Columns stage, a_seconds, b_seconds, delta_seconds (b - a), share (of the change of the latency; negative for a
            stage that moved against it), by falling delta. `attrs`: a_value, b_value (seconds, None without requests), a_n,
            b_n (requests of the selections), ratio (b / a), ratio_low, ratio_high (what `core.order_statistics` is sure of
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

    def exemplars(
        self,
        selection: Selection,
        *,
        limit: int = 20,
        dominant: str | None = None,
        order: Literal["slow", "time"] = "slow",
    ) -> pd.DataFrame:
        """Return kept requests: the slowest, or the newest, first.

        Args:
            selection: Whose requests; by the time they started.
            limit: How many at most.
            dominant: Only those this stage took most of.
            order: "slow" or "time".

        Returns:
            Columns trace_id, span_id (of the root), at (UTC, to the nanosecond), service, version, route,
            duration_seconds, rank (0..1, the share of the selection's requests that are not slower; NaN without any),
            status, dominant, because, stages (seconds by stage). Their names, `<trace_id>-<span_id>`, never change.
            `attrs`: rule (by which requests are kept, in words), kept (requests of the selection that are kept, by
            because), retention_seconds (for how long), kept_a_service (how many at most, the newest).
        """
        with self._snapshot() as snapshot:
            return traces.exemplars(snapshot, selection, self._retention, limit=limit, dominant=dominant, order=order)

    def one_per_cause(self, selection: Selection, limit: int) -> pd.DataFrame:
        """Return the slowest kept request of each dominant stage, slowest first, then the next slowest of all.

        Returns:
            The columns and `attrs` of `exemplars`.
        """
        with self._snapshot() as snapshot:
            return traces.one_per_cause(snapshot, selection, self._retention, limit)

    def trace(self, trace_id: str) -> KeptTrace | None:
        """Return a kept request by its id.

        Args:
            trace_id: `<trace id>-<span id of the root>` names one request exactly. The trace id alone, or at least eight
                digits of its beginning, names the newest of those it fits.
        """
        with self._snapshot() as snapshot:
            return traces.trace(snapshot, trace_id)

    def slo_counts(self, selection: Selection, threshold_seconds: float | None) -> SloCounts:
        """Return how many requests there are, and how many failed or took longer than *threshold_seconds* (None: failed)."""
        with self._snapshot() as snapshot:
            return slo.slo_counts(snapshot, selection, threshold_seconds)

    def slo_series(self, selection: Selection, threshold_seconds: float | None, step: timedelta) -> pd.DataFrame:
        """Return the same for each step that has requests.

        Returns:
            Columns at (UTC), total, bad.
        """
        with self._snapshot() as snapshot:
            return slo.slo_series(snapshot, selection, threshold_seconds, step)

    def bad_breakdown(self, selection: Selection, threshold_seconds: float | None) -> pd.DataFrame:
        """Return how much more time bad requests spend in each stage than good ones.

        Returns:
            Columns stage, bad_mean_seconds, good_mean_seconds (time in the stage a bad or good request; 0 without any),
            excess_seconds (bad - good), share (of the whole excess), by falling excess.
        """
        with self._snapshot() as snapshot:
            return slo.bad_breakdown(snapshot, selection, threshold_seconds)

    def revision(self, service: str | None = None) -> int:
        """Return a number that grows whenever something of *service*, or of any, was written; 0 before the first time."""
        with self._snapshot() as snapshot:
            return services.revision(snapshot, service)

    def state(self) -> StoreState:
        """Return how fresh and how large the store is."""
        with self._snapshot() as snapshot:
            return services.state(snapshot, self._retention, int(self._clock()))

    def storage(self) -> Storage:
        """Return what takes the store's room, and how large it will get."""
        with self._snapshot() as snapshot:
            return storage.storage(snapshot, self._retention, int(self._clock()))

    def folds(self) -> list[Fold]:
        """Return where values of the last day were folded into `__other__`, by service."""
        with self._snapshot() as snapshot:
            return folds.folds(snapshot, self._caps, int(self._clock()))
