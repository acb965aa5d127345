"""The alerts service: evaluates on an interval, runs the delivery threads, and stops them cleanly."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy.exc import SQLAlchemyError

from ..core.errors import StoreError
from ..store import Store
from . import lease
from .config import AlertsConfig
from .delivery import outbox
from .delivery.channels import ChannelEntry
from .delivery.channels.heartbeat import EVALUATED_LEASE, HeartbeatPinger
from .delivery.channels.pagerduty import PagerDutyChannel, ReleaseAnnouncer
from .delivery.outbox import LEASE_SECONDS, AlertsThread, DeliveryWorker
from .evaluation.evaluator import LEASE, Evaluator
from .metrics import AlertMetrics, Exposition, Probes
from .objectives.slo_file import Definitions, LiveFile, unwatched_line
from .reader import AlertsReader
from .regression.watcher import RegressionRule

log = logging.getLogger(__name__)

# After three missed evaluations another process takes over.
_MISSED_TICKS = 3
_MIN_LEASE_SECONDS = 30.0


class Alerts:
    """Evaluates the SLOs of one file and notifies its channels.

    Args:
        config: The settings.
        store: The database, with requests, incidents and the outbox.
        clock: Returns the time.
        delivery_lease_seconds: Lease of a message while it is being sent. [seconds]

    Attributes:
        file: The SLO file in force.
        reader: Read access to SLOs and incidents.
        metrics: Metrics of the alerts.
        holder: Holder name of this process for leases.
    """

    def __init__(
        self,
        config: AlertsConfig,
        store: Store,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        delivery_lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.file = LiveFile(config.slo_file, config.env)
        self.reader = AlertsReader(store, self.file)
        self.metrics = AlertMetrics(store, channels=self._channel_names)
        self._config = config
        self._store = store
        self._clock = clock
        self._delivery_lease_seconds = delivery_lease_seconds
        self.holder = lease.new_holder()
        self._lease_seconds = max(_MISSED_TICKS * config.interval.total_seconds(), _MIN_LEASE_SECONDS)
        rules = [RegressionRule(store)]
        self._evaluator = Evaluator(store, self.holder, lease_seconds=self._lease_seconds, rules=rules)
        self._exposition: Exposition | None = None
        self._channel_threads: dict[str, tuple[ChannelEntry, list[AlertsThread]]] = {}
        self._served: Definitions | None = None
        self._stopping = threading.Event()
        self._trouble = "", ""
        self._thread = threading.Thread(target=self._run, name="stagelens-alerts", daemon=True)

    def start(self) -> None:
        """Start evaluation and delivery; without an SLO file, log that and do nothing.

        Raises:
            StagelensError: The metrics address cannot be bound.
        """
        if self._config.metrics_port is not None:
            probes = Probes(self._store, self.holder, self._running, self._evaluation_error)
            self._exposition = Exposition(
                self.metrics, self._config.metrics_host, self._config.metrics_port, probes.by_path
            )
        self.file.refresh(self._clock())
        if not self.file.errors and (trouble := unwatched_line(self.file)):
            log.warning("alerts: %s", trouble)
        self._thread.start()

    def stop(self) -> None:
        """Finish the current evaluation and messages, then stop; the next start sends what is left in the outbox."""
        self._stopping.set()
        self._thread.join()
        for name in list(self._channel_threads):
            self._stop_channel(name)
        if self.file.path is not None:
            self._run_logged(self._evaluator.release)
        if self._exposition is not None:
            self._exposition.stop()

    @property
    def place(self) -> str:
        """The SLO file and the metrics address as text."""
        watched = unwatched_line(self.file) or str(self.file.path)
        return watched if self._exposition is None else f"{watched}; metrics on {self._exposition.url}"

    def tick(self) -> None:
        """Reload the file if it changed, evaluate once, and wake the delivery threads after a transition.

        Raises:
            StoreError: The store cannot be used.
        """
        now = self._clock()
        self.file.refresh(now)
        definitions = self.file.current
        if definitions is None:
            return
        if definitions is not self._served:
            self._sync_channels(definitions)
            self._served = definitions
        happened = self._evaluator.tick(self._with_dashboard_url(definitions), now)
        self._record_success(now)
        if happened:
            for _, loops in self._channel_threads.values():
                for loop in loops:
                    loop.wake()

    def _with_dashboard_url(self, definitions: Definitions) -> Definitions:
        return replace(definitions, dashboard_url=definitions.dashboard_url or self._config.dashboard_url)

    def _record_success(self, now: datetime) -> None:
        """Record a successful evaluation if this process made it; heartbeats and metrics depend on it."""
        at = now.timestamp()
        with self._store.transaction() as connection:
            if lease.renew(connection, LEASE, self.holder, at, self._lease_seconds):
                lease.hold(connection, EVALUATED_LEASE, self.holder, at, self._lease_seconds)
                lease.note_done(connection, EVALUATED_LEASE, at)

    def _sync_channels(self, definitions: Definitions) -> None:
        """Run the threads of each channel of the file: keep unchanged ones, restart the others."""
        wanted = {entry.name: entry for entry in definitions.channels}
        for name, (entry, _) in list(self._channel_threads.items()):
            if wanted.get(name) != entry:
                self._stop_channel(name)
        for entry in definitions.channels:
            if entry.lacking:
                fix = "a file is read again when it changes, a variable when alerts start again"
                log.error("alerts: channel %s waits: %s holds no secret; %s", entry.name, entry.lacking, fix)
            elif entry.name not in self._channel_threads:
                self._channel_threads[entry.name] = (entry, self._start_threads(entry))
        with self._store.transaction() as connection:
            outbox.abandon_removed_channels(connection, definitions.channel_names, self._clock().timestamp())

    def _start_threads(self, entry: ChannelEntry) -> list[AlertsThread]:
        """Start the threads of *entry*: delivery, release announcements, or heartbeat."""
        loops: list[AlertsThread] = []
        if entry.channel is not None:
            lease_seconds = self._delivery_lease_seconds
            loops.append(DeliveryWorker(self._store, entry.channel, self.holder, lease_seconds=lease_seconds))
        if isinstance(entry.channel, PagerDutyChannel):
            loops.append(ReleaseAnnouncer(self._store, entry.channel, self._watched_services))
        if entry.heartbeat is not None:
            loops.append(HeartbeatPinger(self._store, entry.heartbeat))
        for loop in loops:
            loop.start()
        return loops

    def _stop_channel(self, name: str) -> None:
        for loop in self._channel_threads.pop(name)[1]:
            loop.stop()

    def _channel_names(self) -> tuple[str, ...]:
        return self.file.current.channel_names if self.file.current is not None else ()

    def _watched_services(self) -> tuple[frozenset[str], str]:
        """Return the services with an SLO, and the dashboard address."""
        definitions = self._with_dashboard_url(self.file.current or Definitions())
        return frozenset(slo.service for slo in definitions.slos), definitions.dashboard_url

    def _evaluation_error(self) -> str:
        """Return why not everything is evaluated; "" if it is. A file that was never valid defines nothing."""
        if self.file.errors and self.file.current is None:
            return "nothing is watched, the SLO file has mistakes"
        return self._trouble[0]

    def _running(self) -> list[threading.Thread]:
        """Return the threads that must be running; none while stopping."""
        if self._stopping.is_set():
            return []
        return [self._thread, *(loop.thread for _, loops in list(self._channel_threads.values()) for loop in loops)]

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._run_logged(self.tick)
            self._stopping.wait(self._config.interval.total_seconds())

    def _run_logged(self, work: Callable[[], object]) -> None:
        """Run *work*; log an error once, and again when it changes or ends."""
        try:
            work()
        except (StoreError, SQLAlchemyError) as error:
            self._log_change("the store cannot be used", str(error))
        except Exception as error:
            if self._log_change("the evaluation failed in a way nobody thought of", repr(error)):
                log.exception("alerts: where it failed")
        else:
            self._log_change("", "")

    def _log_change(self, trouble: str, reason: str) -> bool:
        """Log *trouble* with its *reason* if it changed, and return whether it did."""
        if (trouble, reason) == self._trouble:
            return False
        if trouble:
            log.error("alerts: %s: %s", trouble, reason)
        else:
            log.info("alerts: the trouble is over, evaluating again")
        self._trouble = trouble, reason
        return True
