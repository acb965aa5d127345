"""Health of the collector, for /livez and /readyz, and its own metrics, on /metrics."""

from __future__ import annotations

import logging
import threading
from collections import Counter as CountOf
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from ..store import Batch, StoreState
from ..store.inbox import InboxBacklog
from ..store.points import PointColumns, as_columns
from .exposition import PROTOBUF_MEDIA_TYPE, TEXT_MEDIA_TYPE, write_protobuf, write_text
from .ingest.validation import IngestResult, Reason
from .losses import CollectorLosses
from .open_processes import OpenProcesses
from .prometheus import Counters
from .traces.inbox import InboxOutcome

_log = logging.getLogger(__name__)

_PREFIX = "stagelens_collector_"
# Label of each count of `InboxOutcome`.
_OUTCOMES = {"aggregated": "folded", **{name: name for name in ("late", "repeated", "orphaned", "outside")}}
# From the duration of an fsync on an idle SSD to that of a commit while the database recovers. [seconds]
_COMMIT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Health:
    """Failing parts and ended threads. Thread-safe; each change of state is logged once, not with every report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing: dict[str, str] = {}
        self._threads: list[threading.Thread] = []

    def watch(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads.append(thread)

    @property
    def dead(self) -> list[str]:
        """Threads that have ended, one line for each; the collector then needs a restart."""
        with self._lock:
            ended = [thread.name for thread in self._threads if not thread.is_alive()]
        return [f"the thread {name} has stopped; see the log and restart the collector" for name in ended]

    def failed(self, part: str, reason: str) -> None:
        with self._lock:
            news = part not in self._failing
            self._failing[part] = reason
        if news:
            _log.error("%s failed: %s", part, reason)

    def succeeded(self, part: str) -> None:
        with self._lock:
            news = self._failing.pop(part, None) is not None
        if news:
            _log.warning("%s works again", part)

    @property
    def reasons(self) -> list[str]:
        with self._lock:
            return [f"{part} failed: {reason}" for part, reason in self._failing.items()]

    @property
    def failing(self) -> dict[str, str]:
        with self._lock:
            return dict(self._failing)

    def is_failing(self, part: str) -> bool:
        with self._lock:
            return part in self._failing


class SelfMetrics:
    def __init__(self, counters: Counters | None = None) -> None:
        self.health = health = Health()
        self.losses, self.processes = CollectorLosses(), OpenProcesses()
        self._counters = counters = counters or Counters()
        self._registry = registry = CollectorRegistry()
        self._others = CollectorRegistry()

        def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(_PREFIX + name, text, registry=registry)

        self._requests = counter("requests", "Exports and events by response.", ("signal", "code"))
        self._points = counter("points", "Data points in the store.", ("metric",))
        self._traces = counter("traces", "Retained traces in the store.")
        self._rejected = counter("rejected", "Data points and spans refused.", ("signal", "reason"))
        self._ignored = counter("ignored", "Metric points, spans and log records that are not stored.", ("signal",))
        self._batches = counter("batches", "Batches, by outcome.", ("outcome",))
        self._dropped = counter("agent_dropped_requests", "Requests that agents could not count, as reported by them.")
        self._maintenance_failures = counter("maintenance_failures", "Failed roll-ups and retention runs.")
        self._commit = Histogram(
            _PREFIX + "commit_seconds", "Time of one transaction.", buckets=_COMMIT_BUCKETS, registry=registry
        )
        self._receiving = gauge("receiving_bytes", "Bodies that are received or wait to be parsed.")
        self._queued = gauge("queue_batches", "Batches that wait to be committed.")
        self._queued_bytes = gauge("queue_bytes", "Size of these batches, decompressed.")
        self._used = gauge("store_bytes", "Size of the store.")
        self._budget = gauge(
            "store_budget_bytes", "Maximum size of the store before the oldest detail is deleted; 0 for no limit."
        )
        self._spans = counter("spans", "Spans that left the inbox, by outcome.", ("outcome",))
        self._aggregated_requests = counter(
            "span_requests", "Requests assembled from spans, by counting process.", ("by",)
        )
        self._aggregation_failures = counter("fold_failures", "Failed runs that assemble spans into requests.")
        self._spans_waiting = gauge("spans_waiting_bytes", "Size of spans that wait for their traces to complete.")
        self._spans_oldest = gauge("spans_oldest_timestamp_seconds", "Arrival time of the oldest; 0 for none.")
        self._capped_dimensions = gauge("store_folds", "Dimensions of services above their limit of distinct values.")
        gauge("open_requests", "Requests that had not ended in the last reports of processes.").set_function(
            self.processes.open_requests
        )
        self._stopped = counter("stopped_processes", "Processes that stopped sending while requests were open.")
        gauge("healthy", "1 while the collector can commit and maintain its store.").set_function(
            lambda: not health.reasons
        )
        gauge("histograms", "Latency histograms on this page.").set_function(lambda: counters.used)
        gauge("histograms_limit", "Maximum number; the rest is aggregated.").set_function(lambda: counters.limit)
        # Created at zero: `increase()` does not see a counter that first appears with the value 1.
        for signal in ("metrics", "traces"):
            self._rejected.labels(signal, Reason.TIME)
        for outcome in ("counted", "duplicate", "unwritable"):
            self._batches.labels(outcome)
        for outcome in _OUTCOMES.values():
            self._spans.labels(outcome)
        ProcessCollector(registry=registry)

    def request(self, signal: str, code: int) -> None:
        self._requests.labels(signal, str(code)).inc()

    def tally(self, signal: str, tally: IngestResult) -> None:
        self._ignored.labels(signal).inc(tally.ignored)
        for reason, count in tally.rejected.items():
            self._rejected.labels(signal, reason).inc(count)

    def committed(self, batches: Sequence[Batch], counted: Sequence[bool], seconds: float) -> None:
        self._commit.observe(seconds)
        points: list[PointColumns] = []
        for batch, new in zip(batches, counted, strict=True):
            if not new:
                self.duplicate()
                continue
            self._batches.labels("counted").inc()
            self._traces.inc(len(batch.traces))
            self._dropped.inc(batch.dropped)
            points.append(as_columns(batch.points))
            self.processes.note(batch.instance, points[-1])
            for metric, count in CountOf(about.metric for about in points[-1].identities).items():
                self._points.labels(metric).inc(count)
        if points:
            self._counters.count(PointColumns.join(points))

    def duplicate(self) -> None:
        self._batches.labels("duplicate").inc()

    def unwritable(self) -> None:
        self._batches.labels("unwritable").inc()

    def stopped(self, processes: int) -> None:
        self._stopped.inc(processes)

    def maintenance_failed(self) -> None:
        self._maintenance_failures.inc()

    def aggregated(self, outcome: InboxOutcome, points: PointColumns) -> None:
        self._counters.count(points)
        for name, label in _OUTCOMES.items():
            self._spans.labels(label).inc(getattr(outcome, name))
        self._aggregated_requests.labels("spans").inc(outcome.requests)
        self._aggregated_requests.labels("agent").inc(outcome.known)

    def aggregation_failed(self) -> None:
        self._aggregation_failures.inc()

    def waiting(self, waiting: InboxBacklog) -> None:
        self._spans_waiting.set(waiting.size_bytes)
        self._spans_oldest.set(waiting.oldest or 0)

    def receiving(self, size_bytes: int) -> None:
        self._receiving.set(size_bytes)

    def queue(self, batches: int, size_bytes: int) -> None:
        self._queued.set(batches)
        self._queued_bytes.set(size_bytes)

    def store(self, state: StoreState, capped_dimensions: int) -> None:
        self._used.set(state.size_bytes)
        self._budget.set(state.budget_bytes or 0)
        self._capped_dimensions.set(capped_dimensions)

    def include(self, others: Collector) -> None:
        self._others.register(others)

    def exposition(self, media_type: str = TEXT_MEDIA_TYPE) -> bytes:
        """Return all metrics in *media_type*, text or protobuf; blocks if an included collector reads a database."""
        if media_type == PROTOBUF_MEDIA_TYPE:
            return write_protobuf([*self._registry.collect(), *self._others.collect()], self._counters.read())
        return generate_latest(self._registry) + generate_latest(self._others) + write_text(self._counters.read())

    def samples(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """Return the current values of the collector's own metrics by name (without the common prefix) and label values."""
        return {
            (sample.name.removeprefix(_PREFIX), tuple(sample.labels.values())): sample.value
            for metric in self._registry.collect()
            for sample in metric.samples
        }
