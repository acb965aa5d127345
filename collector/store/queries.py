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
from sqlalchemy import Connection, Engine

from ...core.histogram import Histogram
from ...core.names import STAGE_DURATION
from . import breakdown, database, latency, over_time, services, slo, traces
from .records import KeptTrace
from .selection import Selection
from .services import StoreState
from .slo import SloCounts


class Reader:
    """Questions to the store. Thread-safe.

    Times are aware; windows are half open and stand for the 10 s buckets that start in them. Frames without data have
    their columns and no rows. Steps begin at multiples of their width since the epoch; a step as wide as the window is
    the window. Where steps are finer than what is still kept, or would take too many rows, they are wider than asked:
    `attrs["step_seconds"]` says how wide they are (None for the whole window).

    Every method raises StoreError if the database cannot be read.

    Args:
        engine: Where to read.
        clock: The time. [Unix seconds]
    """

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock

    @contextmanager
    def _snapshot(self) -> Generator[Connection]:
        with database.explained(self._engine.url, "cannot read"), self._engine.connect() as connection:
            yield connection

    def services(self, start: datetime, end: datetime) -> pd.DataFrame:
        """Return the services that have requests in `[start, end)`.

        Returns:
            Columns service, versions (list, latest seen first), model and environment (of the series seen last), requests,
            errors (counts in the window), first_seen, last_seen (UTC, buckets within the window); sorted by service.
        """
        with self._snapshot() as connection:
            return services.services(connection, start, end)

    def versions(self, selection: Selection) -> pd.DataFrame:
        """Return the versions of a selection over its whole history.

        Returns:
            Columns version, first_seen, last_seen (UTC, of all that is kept, exact to 10 s), requests (in the window, 0 if
            none); sorted by first_seen.
        """
        with self._snapshot() as connection:
            return services.versions(connection, selection)

    def latency(self, selection: Selection) -> Histogram:
        """Return the latency of all requests of *selection*, in seconds."""
        with self._snapshot() as connection:
            return latency.latency(connection, selection)

    def stage_latency(self, selection: Selection) -> dict[str, Histogram]:
        """Return the distribution of each stage's own time, in seconds, over the requests that had it; in stage order."""
        with self._snapshot() as connection:
            return latency.distributions(connection, selection, STAGE_DURATION)

    def streams(self, selection: Selection, metric: str) -> dict[str, Histogram]:
        """Return what requests of *selection* that answer bit by bit were like, or their calls out that failed.

        Args:
            selection: Whose requests.
            metric: `names.FIRST_TOKEN`, `OUTPUT_TOKEN`, `STREAM_GAP` or `FAILED_CALL` (seconds), or `TOKENS` (tokens a request).

        Returns:
            The definition it was measured by, which must not be mixed with another, or the type of token, or what became
            of the call, to its histogram.
        """
        with self._snapshot() as connection:
            return latency.distributions(connection, selection, metric)

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
        with self._snapshot() as connection:
            return breakdown.breakdown(connection, selection, percentiles)

    def dominants(self, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
        """Return which stages dominate the requests at each percentile.

        Returns:
            Columns percentile, stage, share (of the requests there; adds up to 1 for a percentile), by falling share.
        """
        with self._snapshot() as connection:
            return breakdown.dominants(connection, selection, percentiles)

    def breakdown_over_time(self, selection: Selection, quantile: float | None, step: timedelta) -> pd.DataFrame:
        """Return the breakdown at *quantile*, or of the mean if None, for each step that has requests.

        Returns:
            Columns at (UTC, start of the step), n (requests in the step), value_seconds, then one column of seconds for
            each stage, adding up to value_seconds.
        """
        with self._snapshot() as connection:
            return over_time.breakdown_over_time(connection, selection, quantile, step)

    def quantiles_over_time(self, selection: Selection, quantiles: Sequence[float], step: timedelta) -> pd.DataFrame:
        """Return the latency at each of *quantiles* for each step that has requests.

        Returns:
            Columns at (UTC), n (requests in the step), and one of seconds for each quantile: p50, p99, p99.9, …
        """
        with self._snapshot() as connection:
            return over_time.quantiles_over_time(connection, selection, quantiles, step)

    def heat(self, selection: Selection, step: timedelta) -> pd.DataFrame:
        """Return every request by time and latency, eight bands a doubling.

        Returns:
            Columns at (UTC), low_seconds, high_seconds (the band), n (requests), dominant (the stage that dominates most of
            them); only cells that have requests. All steps have the same bands.
        """
        with self._snapshot() as connection:
            return over_time.heat(connection, selection, step)

    def compare(self, a: Selection, b: Selection, quantile: float) -> pd.DataFrame:
        """Return what changed by stage from *a* to *b*, in the requests at *quantile*.

        Returns:
            Columns stage, a_seconds, b_seconds, delta_seconds (b - a), share (of the change of the latency; negative for a
            stage that moved against it), by falling delta. `attrs`: a_value, b_value (seconds, None without requests), a_n,
            b_n (requests of the selections).
        """
        with self._snapshot() as connection:
            return breakdown.compare(connection, a, b, quantile)

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
            status, dominant, because, stages (seconds by stage).
        """
        with self._snapshot() as connection:
            return traces.exemplars(connection, selection, limit=limit, dominant=dominant, order=order)

    def one_per_cause(self, selection: Selection, limit: int) -> pd.DataFrame:
        """Return the slowest kept request of each dominant stage, slowest first, then the next slowest of all.

        Returns:
            The columns of `exemplars`.
        """
        with self._snapshot() as connection:
            return traces.one_per_cause(connection, selection, limit)

    def trace(self, trace_id: str) -> KeptTrace | None:
        """Return a kept request by its id.

        Args:
            trace_id: `<trace id>-<span id of the root>` names one request exactly. The trace id alone, or at least eight
                digits of its beginning, names the newest of those it fits.
        """
        with self._snapshot() as connection:
            return traces.trace(connection, trace_id)

    def slo_counts(self, selection: Selection, threshold_seconds: float | None) -> SloCounts:
        """Return how many requests there are, and how many failed or took longer than *threshold_seconds* (None: failed)."""
        with self._snapshot() as connection:
            return slo.slo_counts(connection, selection, threshold_seconds)

    def slo_series(self, selection: Selection, threshold_seconds: float | None, step: timedelta) -> pd.DataFrame:
        """Return the same for each step that has requests.

        Returns:
            Columns at (UTC), total, bad.
        """
        with self._snapshot() as connection:
            return slo.slo_series(connection, selection, threshold_seconds, step)

    def bad_breakdown(self, selection: Selection, threshold_seconds: float | None) -> pd.DataFrame:
        """Return how much more time bad requests spend in each stage than good ones.

        Returns:
            Columns stage, bad_mean_seconds, good_mean_seconds (time in the stage a bad or good request; 0 without any),
            excess_seconds (bad - good), share (of the whole excess), by falling excess.
        """
        with self._snapshot() as connection:
            return slo.bad_breakdown(connection, selection, threshold_seconds)

    def revision(self, service: str | None = None) -> int:
        """Return a number that grows whenever something of *service*, or of any, was written; 0 before the first time."""
        with self._snapshot() as connection:
            return services.revision(connection, service)

    def state(self) -> StoreState:
        """Return how fresh and how large the store is."""
        with self._snapshot() as connection:
            return services.state(connection, int(self._clock()))
