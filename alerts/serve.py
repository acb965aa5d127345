"""The alerts service: periodic evaluation, delivery threads, metrics for Prometheus and health probes.

The metrics are read from the database at each scrape, so all processes that share a database report the same values. Health
probes over HTTP:

GET /livez    200 while all threads run, else 503; the service must be restarted
GET /readyz   200 while the database responds and the last evaluation succeeded, else 503 with the reason

A process on standby is ready: it takes over as soon as the evaluating process stops. The probes need no authentication, so
their reasons contain no addresses and no SQL; these are in the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from ..core.addresses import host_and_port, server_url
from ..core.errors import StagelensError, StoreError
from ..store import Store, lease
from . import schema
from .config import AlertsConfig
from .delivery import outbox
from .delivery.channels import ChannelEntry
from .delivery.channels.heartbeat import EVALUATED_LEASE, HeartbeatPinger
from .delivery.channels.pagerduty import PagerDutyChannel, ReleaseAnnouncer
from .delivery.outbox import AlertsThread, DeliveryWorker
from .evaluation.evaluator import ClockError, Evaluator
from .objectives.slo_file import Definitions, LiveSloFile, unwatched_line
from .reader import AlertsReader
from .regression.drift import DriftRule
from .regression.watcher import RegressionRule

log = logging.getLogger(__name__)
# Returns whether the check passed, and a text.
Probe = Callable[[], tuple[bool, str]]
_PREFIX = "stagelens_alerts_"
_SEVERITIES = ("page", "ticket")
# After three missed evaluations another process takes over.
_MISSED_TICKS = 3
_MIN_LEASE_SECONDS = 30.0


class AlertMetrics(Collector):
    def __init__(
        self, store: Store, clock: Callable[[], float] = time.time, channels: Callable[[], Iterable[str]] = tuple
    ) -> None:
        self._store = store
        self._clock = clock
        self._channels = channels

    def collect(self) -> Iterable[Metric]:
        """Read the metrics; while the database cannot be read, return none, which `absent` in Prometheus detects."""
        try:
            with self._store.engine.connect() as connection:
                return list(_read_metrics(connection, self._clock(), self._channels()))
        except SQLAlchemyError as error:
            log.warning("alerts: their metrics cannot be read: %s", error)
            return []


class Exposition:
    """HTTP server for metrics and health probes, in a separate thread."""

    def __init__(self, metrics: AlertMetrics, host: str, port: int, probes: Mapping[str, Probe]) -> None:
        registry = CollectorRegistry()
        registry.register(metrics)
        ProcessCollector(registry=registry)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            msg = (
                f"metrics cannot be served on {host_and_port(host, port)} ({error.strerror or error}).\n"
                "    Stop what uses that address, or choose another with STAGELENS_ALERTS_METRICS_HOST and "
                "STAGELENS_ALERTS_METRICS_PORT."
            )
            raise StagelensError(msg) from error
        self._server.set_app(_probe_response(make_wsgi_app(registry), probes))
        self.url = f"{server_url(host, self._server.server_port)}/metrics"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _probe_response(metrics: WSGIApplication, probes: Mapping[str, Probe]) -> WSGIApplication:
    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        probe = probes.get(environ.get("PATH_INFO", ""))
        if probe is None:
            return metrics(environ, start_response)
        well, text = probe()
        status = "200 OK" if well else "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
        return [f"{text}\n".encode()]

    return application


def _read_metrics(connection: Connection, now: float, channels: Iterable[str]) -> Iterator[Metric]:
    messages = GaugeMetricFamily(_PREFIX + "messages", "Messages, by delivery state.", labels=("channel", "state"))
    for (channel, state), number in _messages(connection, channels).items():
        messages.add_metric((channel, state), number)
    yield messages
    since = outbox.oldest_waiting_page(connection)
    waits = 0.0 if since is None else max(0.0, now - since)
    yield _gauge("oldest_page_wait_seconds", "Age of the oldest undelivered page; 0 for none. [seconds]", waits)
    last = lease.done_at(connection, EVALUATED_LEASE) or 0.0
    text = "Time of the last evaluation of all objectives without an error; 0 for never."
    yield _gauge("last_evaluation_timestamp_seconds", text, last)
    trouble = GaugeMetricFamily(_PREFIX + "open_incidents", "Open incidents.", labels=("severity",))
    for severity, number in _open_incidents(connection).items():
        trouble.add_metric((severity,), number)
    yield trouble


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _messages(connection: Connection, channels: Iterable[str]) -> dict[tuple[str, str], int]:
    sent = schema.outbox.c
    counted = select(sent.channel, sent.state, func.count()).group_by(sent.channel, sent.state)
    rows = connection.execute(counted).all()
    # Zeros are reported too: an alert needs the series to exist before the first message is refused.
    named = dict.fromkeys([*channels, *(row.channel for row in rows)])
    messages = {(channel, state): 0 for channel in named for state in ("waiting", "sent", "dead")}
    for channel, state, number in rows:
        key = channel, "waiting" if state == "sending" else state
        messages[key] = messages.get(key, 0) + number
    return messages


def _open_incidents(connection: Connection) -> dict[str, int]:
    held = schema.incidents.c
    counted = select(held.severity, func.count().label("number")).where(held.resolved_at.is_(None))
    open_incidents = {row.severity: int(row.number) for row in connection.execute(counted.group_by(held.severity))}
    return {severity: open_incidents.get(severity, 0) for severity in _SEVERITIES}


class Alerts:
    def __init__(
        self, config: AlertsConfig, store: Store, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.file = LiveSloFile(config.slo_file, config.env)
        self.reader = AlertsReader(store, self.file)
        self.metrics = AlertMetrics(store, channels=self._channel_names)
        self._config = config
        self._store = store
        self._clock = clock
        self.holder = lease.new_holder()
        self._lease_seconds = max(_MISSED_TICKS * config.interval.total_seconds(), _MIN_LEASE_SECONDS)
        rules = [RegressionRule(store), DriftRule(store)]
        self._evaluator = Evaluator(store, self.holder, lease_seconds=self._lease_seconds, rules=rules)
        self._exposition: Exposition | None = None
        self._channel_threads: dict[str, tuple[ChannelEntry, list[AlertsThread]]] = {}
        self._served: Definitions | None = None
        self._stopping = threading.Event()
        self._trouble = "", ""
        self._thread = threading.Thread(target=self._run, name="stagelens-alerts", daemon=True)

    def start(self) -> None:
        """Start the evaluation thread and, if configured, the metrics server; log a warning if no SLO is in force."""
        if self._config.metrics_port is not None:
            probes = {"/livez": self._livez, "/readyz": self._readyz}
            self._exposition = Exposition(self.metrics, self._config.metrics_host, self._config.metrics_port, probes)
        self.file.refresh(self._clock())
        if not self.file.errors and (trouble := unwatched_line(self.file)):
            log.warning("alerts: %s", trouble)
        self._thread.start()

    def stop(self) -> None:
        """Finish the current evaluation and messages, then stop; the next start sends the unsent messages of the outbox."""
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
        watched = unwatched_line(self.file) or str(self.file.path)
        return watched if self._exposition is None else f"{watched}; metrics on {self._exposition.url}"

    def tick(self) -> None:
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
        at = now.timestamp()
        with self._store.transaction() as connection:
            if lease.renew(connection, schema.EVALUATION_LEASE, self.holder, at + self._lease_seconds):
                lease.hold(connection, EVALUATED_LEASE, self.holder, at, self._lease_seconds)
                lease.note_done(connection, EVALUATED_LEASE, at)

    def _sync_channels(self, definitions: Definitions) -> None:
        wanted = {entry.name: entry for entry in definitions.channels}
        for name, (entry, _) in list(self._channel_threads.items()):
            if wanted.get(name) != entry:
                self._stop_channel(name)
        for entry in definitions.channels:
            if entry.lacking:
                fix = "set the variable and restart the alerts, or write the secret into its file"
                log.error("alerts: channel %s cannot send: %s has no secret; %s", entry.name, entry.lacking, fix)
            elif entry.name not in self._channel_threads:
                self._channel_threads[entry.name] = (entry, self._start_threads(entry))
        with self._store.transaction() as connection:
            outbox.abandon_removed_channels(connection, definitions.channel_names, self._clock().timestamp())

    def _start_threads(self, entry: ChannelEntry) -> list[AlertsThread]:
        loops: list[AlertsThread] = []
        if entry.channel is not None:
            loops.append(DeliveryWorker(self._store, entry.channel, self.holder))
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
        definitions = self._with_dashboard_url(self.file.current or Definitions())
        return frozenset(slo.service for slo in definitions.slos), definitions.dashboard_url

    def _evaluation_error(self) -> str:
        """Return the error that prevents evaluation, in an SLO file that was never valid or in the last evaluation, or ""."""
        if self.file.errors and self.file.current is None:
            return "no SLO is evaluated: the SLO file has errors"
        return self._trouble[0]

    def _running(self) -> list[threading.Thread]:
        """Return the threads that must be running; none while stopping."""
        if self._stopping.is_set():
            return []
        return [self._thread, *(loop.thread for _, loops in list(self._channel_threads.values()) for loop in loops)]

    def _livez(self) -> tuple[bool, str]:
        ended = [thread.name for thread in self._running() if thread.ident is not None and not thread.is_alive()]
        if ended:
            return False, f"threads stopped: {', '.join(ended)}; see the log and restart the alerts"
        return True, "ok"

    def _readyz(self) -> tuple[bool, str]:
        lives, text = self._livez()
        if not lives:
            return False, text
        if trouble := self._evaluation_error():
            return False, f"{trouble}; see the log of the alerts"
        try:
            with self._store.engine.connect() as connection:
                holder = lease.holder_of(connection, schema.EVALUATION_LEASE, time.time())
        except SQLAlchemyError as error:
            log.warning("alerts: not ready, the store cannot be read: %s", error)
            return False, "the store cannot be read; see the log of the alerts"
        return True, "ok" if holder in (None, self.holder) else "ok; standing by, another process evaluates"

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._run_logged(self.tick)
            self._stopping.wait(self._config.interval.total_seconds())

    def _run_logged(self, work: Callable[[], object]) -> None:
        """Run *work* and log its error; log the same error once only, and the recovery."""
        try:
            work()
        except (StoreError, SQLAlchemyError) as error:
            self._log_change("the store cannot be used", str(error))
        except ClockError as error:
            self._log_change("nothing is evaluated", str(error))
        except Exception as error:
            if self._log_change("the evaluation failed with an unexpected error", repr(error)):
                log.exception("alerts: traceback of the failed evaluation")
        else:
            self._log_change("", "")

    def _log_change(self, trouble: str, reason: str) -> bool:
        if (trouble, reason) == self._trouble:
            return False
        if trouble:
            log.error("alerts: %s: %s", trouble, reason)
        else:
            log.info("alerts: recovered, evaluation continues")
        self._trouble = trouble, reason
        return True
