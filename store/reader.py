"""The reader: the only door through which pages and alerts see the data.

Each answer is read in one transaction, so that it is of one moment. The same selection gives the same number in every
answer: all of them add up the same rows by the same code.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Literal

import pandas as pd

from . import tiers
from .queries import events, services, traces
from .queries.engine_queries import EngineQuestions
from .queries.latency_queries import LatencyQuestions
from .queries.service_queries import ServiceQuestions
from .queries.slo_queries import SloQuestions
from .queries.store_queries import StoreQuestions
from .queries.stream_queries import StreamQuestions
from .records import KeptTrace
from .selection import Selection, moment


class Reader(ServiceQuestions, LatencyQuestions, StreamQuestions, SloQuestions, EngineQuestions, StoreQuestions):
    """All questions to the store, also those about single requests and events. Thread-safe.

    Times are aware; windows are half open and stand for the 10 s buckets that start in them. Frames without data have
    their columns and no rows. Steps begin at multiples of their width since the epoch; a step as wide as the window is
    the window. Where steps are finer than what is still kept, or would take too many rows, they are wider than asked:
    `attrs["step_seconds"]` says how wide they are (that of the window where it is one step).

    Every method raises StoreError if the database cannot be read.
    """

    def exemplars(
        self,
        selection: Selection,
        *,
        limit: int = 20,
        dominant: str | None = None,
        order: Literal["slow", "time"] = "slow",
        between_seconds: tuple[float, float] | None = None,
        attribute: tuple[str, str] | None = None,
    ) -> pd.DataFrame:
        """Return kept requests: the slowest, or the newest, first.

        Args:
            selection: Whose requests; by the time they started.
            limit: How many at most.
            dominant: Only those this stage took most of.
            order: "slow" or "time".
            between_seconds: Only those that took at least the one and less than the other.
            attribute: Only those that have this attribute, key and value as text, at their root or one of their spans; looked
                for in the first 5,000 that fit otherwise.

        Returns:
            Columns trace_id, span_id (of the root), at (UTC, to the nanosecond), service, version, route,
            duration_seconds, rank (0..1, the share of the selection's requests that are not slower; NaN without any),
            status, dominant, because, stages (seconds by stage). Their names, `<trace_id>-<span_id>`, never change.
            `attrs`: rule (by which requests are kept, in words), requests (how many the ranks are among), kept (requests of the selection that are kept, by
            because), retention_seconds (for how long), kept_a_service (how many at most, the newest).
        """
        with self._snapshot() as snapshot:
            return traces.exemplars(
                snapshot,
                selection,
                self._retention,
                limit=limit,
                dominant=dominant,
                order=order,
                between_seconds=between_seconds,
                attribute=attribute,
            )

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

    def events(
        self, start: datetime, end: datetime, *, service: str | None = None, kind: str | None = None
    ) -> pd.DataFrame:
        """Return what people and pipelines told that happened in `[start, end)`.

        Args:
            start: Of the window.
            end: Of the window.
            service: Only its events and those of all services; None for everybody's.
            kind: Only of this kind, see `store.events.KINDS`.

        Returns:
            Columns at (UTC), service ("" for all), kind, key, text, link; newest first.
        """
        with self._snapshot() as snapshot:
            return events.events(snapshot, start, end, service, kind)

    def whole(self, start: datetime, end: datetime) -> tuple[datetime, datetime]:
        """Return `[start, end)` grown to whole buckets of what is kept there: hours where the minutes are forgotten.

        A bucket counts where it begins, so a window that begins in the middle of one has nothing of it, and one that ends
        there has all.
        """
        with self._snapshot() as snapshot:
            known = tiers.read(snapshot.connection)
        first, last = tiers.whole(known, math.floor(start.timestamp()), math.ceil(end.timestamp()))
        return moment(first), moment(last)

    def revision(self, service: str | None = None) -> int:
        """Return a number that grows whenever something of *service*, or of any, was written; 0 before the first time."""
        with self._snapshot() as snapshot:
            return services.revision(snapshot, service)
