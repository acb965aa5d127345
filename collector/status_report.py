"""Status of a collector, written into the store every ten seconds for the page that shows all collectors."""

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
from ..store.inbox import read_backlog
from ..store.points import PointColumns
from .config import LiveConfig
from .scrape.target_states import TargetState
from .self_metrics import SelfMetrics
from .server.service_shares import FORGOTTEN_SECONDS, ServiceShares

_log = logging.getLogger(__name__)

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
        file: LiveConfig,
        targets: Callable[[], Sequence[TargetState]] = lambda: (),
        shares: ServiceShares | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("vitals")
        self._store, self._metrics, self._file = store, metrics, file
        self._targets, self._clock = targets, clock
        self._shares = shares or ServiceShares()
        self._id, self.name, self._started = secrets.token_hex(8), "", clock()
        self._version = metadata.version("stagelens")
        self._taken: deque[tuple[float, Samples]] = deque(maxlen=_INTERVALS + 1)
        # Time of the first failure of each failing part.
        self._since: dict[str, float] = {}

    def step(self) -> float:
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
        health = self._metrics.health
        failing = health.failing | dict.fromkeys(health.dead, "")
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


def vitals_from_samples(scrapes: Sequence[tuple[float, Samples]]) -> Vitals:
    """Return the vitals of a collector from the samples of its metrics in *scrapes*, oldest first, each with its time."""
    (first, before), (last, after) = scrapes[0], scrapes[-1]
    seconds = max(last - first, 1.0)
    # Before the first sample all counters were zero.
    since: Samples = before if len(scrapes) > 1 else {}
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
        cpu_ratio=grown.get(("process_cpu_seconds_total", ()), 0) / seconds if len(scrapes) > 1 else 0,
    )


def _quantile_bound(grown: Samples, name: str, quantile: float) -> float | None:
    """Return the upper bound of the bucket of *quantile*, at most the last finite bound; None without values."""
    counts = sorted((float(labels[0]), count) for (key, labels), count in grown.items() if key == name)
    if not counts or not counts[-1][1]:
        return None
    bound = next(end for end, count in counts if count >= quantile * counts[-1][1])
    return bound if bound != float("inf") else counts[-2][0]
