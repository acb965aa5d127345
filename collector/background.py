"""Background threads of the collector: aggregation of received spans, and maintenance of the store (roll-ups and retention)."""

from __future__ import annotations

import logging

from ..core.background_tasks import PeriodicThread
from ..core.errors import StoreError
from ..store import Store
from ..store.inbox import AggregationInput, AggregationResult
from ..store.points import as_columns
from .ingest.writer import FullError
from .self_metrics import SelfMetrics
from .traces.inbox import InboxLimits, InboxOutcome, process_inbox
from .traces.sampling import SamplingPolicy

_log = logging.getLogger(__name__)

MAINTENANCE_PART, AGGREGATION_PART = "maintaining the store", "aggregating spans"
# Size of the inbox that is processed at once: two seconds at 200,000 spans a second.
INBOX_BYTES = 24 * 1024**2


class Maintenance(PeriodicThread):
    def __init__(self, store: Store, *, interval_seconds: float, metrics: SelfMetrics) -> None:
        super().__init__("maintenance", rest_seconds=interval_seconds)
        self._store, self._interval_seconds, self._metrics = store, interval_seconds, metrics

    def step(self) -> float:
        self.run_once()
        return self._interval_seconds

    def run_once(self) -> None:
        """Maintain the store; failures are logged and reported as unhealthy, not raised."""
        try:
            self._store.maintain()
            self._metrics.store(self._store.about.state(), len(self._store.about.capped_dimensions()))
        except Exception as error:  # noqa: BLE001 - the thread must survive; the next run may succeed
            self._metrics.maintenance_failed()
            self._metrics.health.failed(MAINTENANCE_PART, f"{type(error).__name__}: {error}")
        else:
            self._metrics.health.succeeded(MAINTENANCE_PART)


class SpanAggregator(PeriodicThread):
    def __init__(
        self,
        store: Store,
        *,
        interval_seconds: float,
        max_waiting_bytes: int,
        metrics: SelfMetrics,
        keep: SamplingPolicy | None = None,
        limits: InboxLimits | None = None,
    ) -> None:
        super().__init__("aggregation")
        self._store, self._interval_seconds, self._max_waiting_bytes = store, interval_seconds, max_waiting_bytes
        self._metrics = metrics
        self._keep, self._limits = keep or SamplingPolicy(), limits or InboxLimits()
        self._waiting_bytes = 0

    def step(self) -> float:
        self.run_once()
        return self._interval_seconds

    def admit(self, size_bytes: int) -> None:
        if self._waiting_bytes + size_bytes > self._max_waiting_bytes:
            msg = (
                f"{self._waiting_bytes} bytes of spans wait for their traces to "
                "complete; retry later, add a collector, or raise STAGELENS_SPANS_WAITING"
            )
            raise FullError(msg)
        self._waiting_bytes += size_bytes

    def run_once(self) -> None:
        """Process all complete requests; failures are logged and reported as unhealthy, not raised."""
        try:
            more = True
            while more:
                more = self._aggregate() and not self.is_stopping
                # After each step: capacity must become free while a backlog is processed.
                self._update_waiting()
        except Exception as error:  # noqa: BLE001 - the thread must survive; the next run may succeed
            self._metrics.aggregation_failed()
            self._metrics.health.failed(AGGREGATION_PART, f"{type(error).__name__}: {error}")
            if not isinstance(error, StoreError):
                _log.exception("collector: spans could not be assembled into requests; they are retried")
        else:
            self._metrics.health.succeeded(AGGREGATION_PART)

    def _aggregate(self) -> bool:
        outcome, aggregated = InboxOutcome(), AggregationResult()

        def work(delivery: AggregationInput) -> AggregationResult:
            nonlocal outcome, aggregated
            aggregated, outcome = process_inbox(delivery, self._limits, self._keep)
            return aggregated

        changed = self._store.aggregate(work, INBOX_BYTES)
        if changed:
            self._metrics.aggregated(outcome, as_columns(aggregated.points))
        return changed and outcome.more

    def _update_waiting(self) -> None:
        waiting = self._store.waiting()
        self._waiting_bytes = waiting.size_bytes
        self._metrics.waiting(waiting)
