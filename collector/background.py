"""Background threads: aggregation of received spans, maintenance of the store (roll-ups and retention), and status reports.

A status report is written into the store every ten seconds, for the page that shows all collectors.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata

from ..core.background_tasks import PeriodicThread
from ..core.errors import StoreError
from ..store import Batch, Store
from ..store.collectors import Report, Vitals, remove_collector, write_report
from ..store.events import StoredLoad, forget_returned, write_stopped
from ..store.inbox import AggregationInput, AggregationResult, read_backlog
from ..store.points import PointColumns, as_columns
from .config import LiveConfig
from .ingest.writer import FullError
from .scrape.target_states import TargetState
from .self_metrics import Health, SelfMetrics
from .server.auth import FORGOTTEN_SECONDS, ServiceShares
from .traces.inbox import InboxLimits, InboxOutcome, process_inbox
from .traces.sampling import SamplingPolicy

_log = logging.getLogger(__name__)

MAINTENANCE_PART = "maintaining the store"


class Maintenance(PeriodicThread):
    def __init__(self, store: Store, *, interval_seconds: float, health: Health, metrics: SelfMetrics) -> None:
        super().__init__("maintenance", rest_seconds=interval_seconds)
        self._store, self._interval_seconds = store, interval_seconds
        self._health, self._metrics = health, metrics

    def step(self) -> float:
        self.run_once()
        return self._interval_seconds

    def run_once(self) -> None:
        """Maintain the store; failures are logged and reported as unhealthy, not raised."""
        try:
            self._store.maintain()
            self._metrics.store(self._store.about.state(), len(self._store.about.folds()))
        except Exception as error:  # noqa: BLE001 - the thread must survive; the next run may succeed
            self._metrics.maintenance_failed()
            self._health.failed(MAINTENANCE_PART, f"{type(error).__name__}: {error}")
        else:
            self._health.succeeded(MAINTENANCE_PART)


FOLDING_PART = "folding spans"
# Size of the inbox that is processed at once: two seconds at 200,000 spans a second.
INBOX_BYTES = 24 * 1024**2


class SpanFolder(PeriodicThread):
    """Thread that turns the spans in the inbox of the store into points and traces."""

    def __init__(
        self,
        store: Store,
        *,
        interval_seconds: float,
        max_waiting_bytes: int,
        health: Health,
        metrics: SelfMetrics,
        keep: SamplingPolicy | None = None,
        limits: InboxLimits | None = None,
    ) -> None:
        super().__init__("folding")
        self._store, self._interval_seconds, self._max_waiting_bytes = store, interval_seconds, max_waiting_bytes
        self._health, self._metrics = health, metrics
        self._keep, self._limits = keep or SamplingPolicy(), limits or InboxLimits()
        self._waiting_bytes = 0

    def step(self) -> float:
        """Process complete requests, and return the delay before the next run, in seconds."""
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
                more = self._fold() and not self.is_stopping
                # After each step: capacity must become free while a backlog is processed.
                self._update_waiting()
        except Exception as error:  # noqa: BLE001 - the thread must survive; the next run may succeed
            self._metrics.fold_failed()
            self._health.failed(FOLDING_PART, f"{type(error).__name__}: {error}")
            if not isinstance(error, StoreError):
                _log.exception("collector: spans could not be assembled into requests; they are retried")
        else:
            self._health.succeeded(FOLDING_PART)

    def _fold(self) -> bool:
        """Process a part of the inbox; return whether more complete requests wait."""
        outcome, folded = InboxOutcome(), AggregationResult()

        def work(delivery: AggregationInput) -> AggregationResult:
            nonlocal outcome, folded
            folded, outcome = process_inbox(delivery, self._limits, self._keep)
            return folded

        changed = self._store.fold(work, INBOX_BYTES)
        if changed:
            self._metrics.folded(outcome, as_columns(folded.points))
        return changed and outcome.more

    def _update_waiting(self) -> None:
        waiting = self._store.waiting()
        self._waiting_bytes = waiting.size_bytes
        self._metrics.waiting(waiting)


Samples = Mapping[tuple[str, tuple[str, ...]], float]

INTERVAL_SECONDS = 10.0
# Period over which rates are averaged. [seconds]
_INTERVALS = 6
_P99 = 0.99
# Length of each shown reason, and number of shown targets and senders.
_MAX_CHARS, _MAX_DOWN = 300, 20


class StatusReporter(PeriodicThread):
    """Thread that writes the status of one collector, under its `name`, which is set before it starts."""

    def __init__(
        self,
        store: Store,
        *,
        metrics: SelfMetrics,
        health: Health,
        file: LiveConfig,
        targets: Callable[[], Sequence[TargetState]] = lambda: (),
        shares: ServiceShares | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("vitals")
        self._store, self._metrics, self._health, self._file = store, metrics, health, file
        self._targets, self._clock = targets, clock
        self._shares = shares or ServiceShares()
        self._id, self.name, self._started = secrets.token_hex(8), "", clock()
        self._version = metadata.version("stagelens")
        self._taken: deque[tuple[float, Samples]] = deque(maxlen=_INTERVALS + 1)
        # Time of the first failure of each failing part.
        self._since: dict[str, float] = {}

    def step(self) -> float:
        """Write the status; store errors are ignored. Return the delay before the next report, in seconds."""
        try:
            self.report()
        except StoreError as error:
            # The writer and maintenance report store errors, and the page marks an outdated status.
            _log.debug("%s", error)
        return INTERVAL_SECONDS

    def stop(self) -> None:
        """Stop the thread and delete the status, so that the page does not show a stopped collector as missing."""
        super().stop()
        if self.thread.ident is None:
            return
        try:
            self._store_losses()
            with self._store.transaction() as connection:
                remove_collector(connection, self._id)
        except StoreError as error:
            _log.warning("the status of the collector could not be deleted, so pages show it as Silent: %s", error)

    def _store_losses(self) -> None:
        def write(points: PointColumns) -> None:
            self._store.write([Batch(f"lost#{secrets.token_hex(8)}", points)])

        self._metrics.losses.store(write, int(self._clock()))

    def _store_stopped(self) -> None:
        stopped = self._metrics.processes.stopped()
        with self._store.transaction() as connection:
            forget_returned(connection, int(self._clock()))
            written = write_stopped(connection, [last.as_stopped(instance) for instance, last in stopped.items()])
        self._metrics.processes.forget(stopped)
        self._metrics.stopped(len(written))
        for service in dict.fromkeys(load.service for load in written):
            _log_stopped(service, [load for load in written if load.service == service])

    def update_shares(self) -> None:
        self._shares.update(self._store.services(), self._store.services(int(self._clock() - FORGOTTEN_SECONDS)))

    def report(self) -> None:
        now = self._clock()
        self._taken.append((now, self._metrics.samples()))
        failing = self._health.failing | dict.fromkeys(self._health.dead, "")
        self._since = {part: self._since.get(part, now) for part in failing}
        targets = self._targets()
        down = [state for state in targets if state.state == "down"]
        vitals = replace(
            vitals_from_samples(self._taken),
            targets_up=sum(state.state == "up" for state in targets),
            targets_down={state.url: state.error[:_MAX_CHARS] for state in down[:_MAX_DOWN]},
            failing=tuple((part, why[:_MAX_CHARS], self._since[part]) for part, why in failing.items()),
            file_errors=tuple(line[:_MAX_CHARS] for line in self._file.errors),
            greedy=tuple(self._shares.greedy()[:_MAX_DOWN]),
            refused=self._metrics.losses.of_senders,
        )
        self.update_shares()
        self._store_losses()
        self._store_stopped()
        with self._store.transaction() as connection:
            spans = read_backlog(connection)
            seconds = max(now - spans.oldest, 0) if spans.oldest else 0
            vitals = replace(vitals, spans_waiting_bytes=spans.size_bytes, spans_waiting_seconds=seconds)
            write_report(connection, Report(self._id, self.name, self._version, self._started, now, vitals))


def _log_stopped(service: str, stopped: Sequence[StoredLoad]) -> None:
    last, others = stopped[0], f" and {len(stopped) - 1} more" if len(stopped) > 1 else ""
    _log.warning(
        "collector: process %s%s of %s stopped sending with open requests (%d, the oldest for %.0f s); they, and those that it "
        "finished after its last report, may not be counted; see its restarts, memory and time limits",
        last.place,
        others,
        service,
        sum(load.own for load in stopped),
        max(load.ended - load.started for load in stopped) / 1e9,
    )


def vitals_from_samples(taken: Sequence[tuple[float, Samples]]) -> Vitals:
    """Return the vitals of a collector from the samples of its metrics in *taken*, oldest first, each with its time."""
    (first, before), (last, after) = taken[0], taken[-1]
    seconds = max(last - first, 1.0)
    # Before the first sample all counters were zero.
    since: Samples = before if len(taken) > 1 else {}
    grown = {key: value - since.get(key, 0.0) for key, value in after.items()}
    exports: dict[str, float] = {}
    refused: dict[str, float] = {}
    for (name, labels), count in grown.items():
        if name == "requests_total" and count > 0:
            signal, code = labels
            into, key = (exports, signal) if code.startswith("2") else (refused, code)
            into[key] = into.get(key, 0.0) + count / seconds
    return Vitals(
        exports_per_second=exports,
        refused_per_second=refused,
        rejected={" ".join(key): value for (name, key), value in after.items() if name == "rejected_total" and value},
        queue_batches=after.get(("queue_batches", ()), 0),
        queue_bytes=after.get(("queue_bytes", ()), 0),
        receiving_bytes=after.get(("receiving_bytes", ()), 0),
        commit_p99_seconds=_quantile_bound(grown, "commit_seconds_bucket", _P99),
        store_bytes=after.get(("store_bytes", ()), 0),
        store_budget_bytes=after.get(("store_budget_bytes", ()), 0),
        memory_bytes=after.get(("process_resident_memory_bytes", ()), 0),
        cpu_ratio=grown.get(("process_cpu_seconds_total", ()), 0) / seconds if len(taken) > 1 else 0,
    )


def _quantile_bound(grown: Samples, name: str, quantile: float) -> float | None:
    """Return the upper bound of the bucket of *quantile*, at most the last finite bound; None without values."""
    counts = sorted((float(labels[0]), count) for (key, labels), count in grown.items() if key == name)
    if not counts or not counts[-1][1]:
        return None
    bound = next(end for end, count in counts if count >= quantile * counts[-1][1])
    return bound if bound != float("inf") else counts[-2][0]
