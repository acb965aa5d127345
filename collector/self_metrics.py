"""Health and metrics of the collector: /livez, /readyz and /metrics."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter as CountOf
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from ..core.errors import StoreError
from ..core.hardware import split_hardware_key
from ..core.names import NOTED_US, OPEN_TIME
from ..core.stages import OTHER
from ..store import Batch, Series, StoreState
from ..store.collectors import lost_points
from ..store.events import STOPPED, StoredLoad
from ..store.inbox import InboxBacklog
from ..store.points import Point, PointColumns, as_columns
from .exposition import PROTOBUF_MEDIA_TYPE, TEXT_MEDIA_TYPE, write_protobuf, write_text
from .ingest.validation import IngestResult, Reason
from .prometheus import Counters
from .traces.inbox import InboxOutcome

_log = logging.getLogger(__name__)


class Health:
    """Health of the parts of the collector that can fail. Thread-safe.

    Each change of state is logged once, not with every report.
    """

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
        """Failing parts with their reasons, one line for each; empty if all parts work."""
        with self._lock:
            return [f"{part} failed: {reason}" for part, reason in self._failing.items()]

    @property
    def failing(self) -> dict[str, str]:
        with self._lock:
            return dict(self._failing)

    def is_failing(self, part: str) -> bool:
        with self._lock:
            return part in self._failing


# Services, and senders, whose losses are counted apart between two reports; all others have one count in common.
_MAX_SERVICES, _MAX_SENDERS = 1000, 20


class CollectorLosses:
    """Refused exports and items, by service or else by sender. Thread-safe and bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_services: CountOf[tuple[Series, str]] = CountOf()
        self._of_senders: CountOf[str] = CountOf()

    def add(self, series: Series, reason: str, number: int = 1) -> None:
        with self._lock:
            if (series, reason) not in self._of_services and len(self._of_services) >= _MAX_SERVICES:
                series = Series(OTHER)
            self._of_services[series, reason] += number

    def add_of_sender(self, sender: str, why: str) -> None:
        with self._lock:
            key = f"{sender}: {why}"
            known = key in self._of_senders or len(self._of_senders) < _MAX_SENDERS
            self._of_senders[key if known else f"others: {why}"] += 1

    @property
    def of_senders(self) -> dict[str, float]:
        with self._lock:
            return dict(self._of_senders)

    def store(self, write: Callable[[PointColumns], object], now: int) -> None:
        """Pass the losses by service since the last call to *write*; after an error they are passed again."""
        with self._lock:
            taken, self._of_services = self._of_services, CountOf()
        if not taken:
            return
        try:
            write(PointColumns.join([lost_points(*key, number, now) for key, number in taken.items()]))
        except StoreError:
            with self._lock:
                self._of_services += taken
            raise


# A process reports every ten seconds while requests are open. [seconds]
STOPPED_AFTER = 60
# Intervals between the reports of a process without one after which it has stopped.
_MISSED_REPORTS = 3
# Bounds the memory; further processes are not watched. [count]
_MAX_PROCESSES = 10_000
_NS = 1_000_000_000
# Microseconds that a process reports for an open request: in a regular report, unless its interval is shorter; and the least, more
# than it notes for all of them between these.
_SEEN_US, _MIN_SEEN_US = 10_000_000, 100_000


@dataclass(slots=True)
class LastReport:
    oldest: Series
    place: str
    # By the clock of the process, and of the collector. [Unix seconds]
    at: int
    received: float
    requests: int
    oldest_seconds: float
    interval_seconds: int = 0

    def include(self, other: LastReport) -> None:
        self.requests += other.requests
        if other.oldest_seconds > self.oldest_seconds:
            self.oldest, self.oldest_seconds = other.oldest, other.oldest_seconds

    def as_stopped(self, instance: str) -> StoredLoad:
        series, ended = self.oldest, int(self.received * _NS)
        names = (series.service, series.version, series.environment, instance, self.place)
        started = ended - int(self.oldest_seconds * _NS)
        return StoredLoad(*names, STOPPED, series.route, "", started, ended, self.requests)


class OpenProcesses:
    """Processes whose last report has open requests: each sends a further report unless it is killed. Thread-safe and bounded.

    An open request is in every report until one that counts it, also in the last report of a process that ends by itself.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[str, LastReport] = {}

    def note(self, instance: str, points: PointColumns) -> None:
        """Note the report of a process. The bodies of one report, in any order, have the same time."""
        if not instance or not len(points):
            return
        opened = [place for place, about in enumerate(points.identities) if about.metric == OPEN_TIME]
        at = int(points.at.max())
        with self._lock:
            before = self._last.get(instance)
            if before is not None and at > before.at:
                del self._last[instance]
            for place in opened if before is None or at >= before.at else ():
                self._add(instance, next(iter(points.between(place, place + 1))), before)

    def _add(self, instance: str, point: Point, before: LastReport | None) -> None:
        buckets = point.histogram.buckets
        if not buckets or (instance not in self._last and len(self._last) >= _MAX_PROCESSES):
            return
        is_regular = min(buckets.values()) >= _MIN_SEEN_US
        seen = min(_SEEN_US, *buckets.values()) if is_regular else NOTED_US
        oldest_seconds = 2.0 ** ((max(buckets) + 1) / 2.0**point.histogram.scale)
        requests = round(sum(buckets.values()) / seen)
        interval = point.at - before.at if before else 0
        place = split_hardware_key(point.stage)[1]
        found = LastReport(point.series, place, point.at, self._clock(), requests, oldest_seconds, interval)
        if instance in self._last:
            self._last[instance].include(found)
        else:
            self._last[instance] = found

    def stopped(self) -> Mapping[str, LastReport]:
        now = self._clock()
        with self._lock:
            return {
                instance: last
                for instance, last in self._last.items()
                if now - last.received > max(STOPPED_AFTER, _MISSED_REPORTS * last.interval_seconds)
            }

    def open_requests(self) -> int:
        with self._lock:
            return sum(last.requests for last in self._last.values())

    def forget(self, stopped: Mapping[str, LastReport]) -> None:
        with self._lock:
            for instance, last in stopped.items():
                if self._last.get(instance) is last:
                    del self._last[instance]


_PREFIX = "stagelens_collector_"
# Of `InboxOutcome`.
_OUTCOMES = ("folded", "late", "repeated", "orphaned", "outside")
# From the duration of an fsync on an idle SSD to that of a commit while the database recovers. [seconds]
_COMMIT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class SelfMetrics:
    """Metrics of the collector in their own registry, and the latency histograms of the services."""

    def __init__(self, health: Health, counters: Counters | None = None) -> None:
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
        self._requests_folded = counter("span_requests", "Requests assembled from spans, by counting process.", ("by",))
        self._fold_failures = counter("fold_failures", "Failed runs that assemble spans into requests.")
        self._spans_waiting = gauge("spans_waiting_bytes", "Size of spans that wait for their traces to complete.")
        self._spans_oldest = gauge("spans_oldest_timestamp_seconds", "Arrival time of the oldest; 0 for none.")
        self._folds = gauge("store_folds", "Dimensions of services above their limit of distinct values.")
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
        for outcome in _OUTCOMES:
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

    def folded(self, outcome: InboxOutcome, points: PointColumns) -> None:
        self._counters.count(points)
        for name in _OUTCOMES:
            self._spans.labels(name).inc(getattr(outcome, name))
        self._requests_folded.labels("spans").inc(outcome.requests)
        self._requests_folded.labels("agent").inc(outcome.known)

    def fold_failed(self) -> None:
        self._fold_failures.inc()

    def waiting(self, waiting: InboxBacklog) -> None:
        self._spans_waiting.set(waiting.size_bytes)
        self._spans_oldest.set(waiting.oldest or 0)

    def receiving(self, size_bytes: int) -> None:
        self._receiving.set(size_bytes)

    def queue(self, batches: int, size_bytes: int) -> None:
        self._queued.set(batches)
        self._queued_bytes.set(size_bytes)

    def store(self, state: StoreState, folds: int) -> None:
        """Set the metrics of the store: its size and budget, and the number of dimensions beyond their cap."""
        self._used.set(state.size_bytes)
        self._budget.set(state.budget_bytes or 0)
        self._folds.set(folds)

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
