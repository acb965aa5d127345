"""Self-monitoring of the alerts: metrics for Prometheus and health probes over HTTP.

Metrics are read from the database at each scrape, so all processes that share a database report the same values.

GET /livez    200 while all threads run; after a failure only a restart helps
GET /readyz   200 while the database responds and the last evaluation succeeded, else 503 with the reason

A process on standby is ready: it takes over as soon as the evaluating process is gone. Anyone may read the reasons, so they
contain no addresses and no SQL; the log does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from ..core.errors import StagelensError
from ..store import Store
from . import lease, schema
from .delivery import outbox
from .delivery.channels.heartbeat import EVALUATED_LEASE
from .evaluation.evaluator import LEASE

# Returns whether the check passed, and a text.
Probe = Callable[[], tuple[bool, str]]
log = logging.getLogger(__name__)
_PREFIX = "stagelens_alerts_"
_SEVERITIES = ("page", "ticket")


class Probes:
    """Health probes of one process of the alerts.

    Args:
        store: The database.
        holder: The name of this process, for leases.
        threads: Returns the threads that must be running.
        trouble: Returns why the last evaluation failed; "" if it did not.
        clock: Returns the time. [Unix seconds]

    Attributes:
        by_path: Probes by path.
    """

    def __init__(
        self,
        store: Store,
        holder: str,
        threads: Callable[[], Iterable[threading.Thread]],
        trouble: Callable[[], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._holder = holder
        self._threads = threads
        self._trouble = trouble
        self._clock = clock
        self.by_path: dict[str, Probe] = {"/livez": self._livez, "/readyz": self._readyz}

    def _livez(self) -> tuple[bool, str]:
        ended = [each.name for each in self._threads() if each.ident is not None and not each.is_alive()]
        if ended:
            return False, f"ended, and should run: {', '.join(ended)}; restart the alerts, their log says more"
        return True, "ok"

    def _readyz(self) -> tuple[bool, str]:
        lives, text = self._livez()
        if not lives:
            return False, text
        if trouble := self._trouble():
            return False, f"{trouble}; the log of the alerts says more"
        try:
            with self._store.engine.connect() as connection:
                holder = lease.holder_of(connection, LEASE, self._clock())
        except SQLAlchemyError as error:
            log.warning("alerts: not ready, the store cannot be read: %s", error)
            return False, "the store cannot be read; the log of the alerts says more"
        return True, "ok" if holder in (None, self._holder) else "ok; standing by, another process evaluates"


class AlertMetrics(Collector):
    """The metrics of the alerts over one database.

    Args:
        store: The database.
        clock: Returns the time. [Unix seconds]
        channels: Returns the configured channels, so that those without messages report zero.
    """

    def __init__(
        self, store: Store, clock: Callable[[], float] = time.time, channels: Callable[[], Iterable[str]] = tuple
    ) -> None:
        self._store = store
        self._clock = clock
        self._channels = channels

    def collect(self) -> Iterable[Metric]:
        """Read the metrics; none while the database cannot be read, which Prometheus sees as `absent`."""
        try:
            with self._store.engine.connect() as connection:
                return list(_read(connection, self._clock(), self._channels()))
        except SQLAlchemyError as error:
            log.warning("alerts: their metrics cannot be read: %s", error)
            return []


class Exposition:
    """HTTP server of metrics and probes, in its own thread.

    Args:
        metrics: Metrics to serve, beside those of the process.
        host: Listen address.
        port: Port; 0 for a free one.
        probes: Probes by path; their status is 200 or 503.

    Raises:
        StagelensError: The address cannot be bound.
    """

    def __init__(self, metrics: AlertMetrics, host: str, port: int, probes: Mapping[str, Probe]) -> None:
        registry = CollectorRegistry()
        registry.register(metrics)
        ProcessCollector(registry=registry)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            msg = (
                f"metrics cannot be served on {host}:{port} ({error.strerror or error}).\n"
                "    Stop what uses that address, or choose another with STAGELENS_ALERTS_METRICS_HOST and "
                "STAGELENS_ALERTS_METRICS_PORT."
            )
            raise StagelensError(msg) from error
        self._server.set_app(_probed(make_wsgi_app(registry), probes))
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def stop(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _probed(metrics: WSGIApplication, probes: Mapping[str, Probe]) -> WSGIApplication:
    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        probe = probes.get(environ.get("PATH_INFO", ""))
        if probe is None:
            return metrics(environ, start_response)
        well, text = probe()
        status = "200 OK" if well else "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
        return [f"{text}\n".encode()]

    return application


def _read(connection: Connection, now: float, channels: Iterable[str]) -> Iterator[Metric]:
    messages = GaugeMetricFamily(
        _PREFIX + "messages", "Messages on record, by what became of them.", labels=("channel", "state")
    )
    for (channel, state), number in _messages(connection, channels).items():
        messages.add_metric((channel, state), number)
    yield messages
    since = outbox.oldest_waiting_page(connection)
    waits = 0.0 if since is None else max(0.0, now - since)
    yield _gauge("oldest_page_wait_seconds", "How long the oldest page that nobody took waits; 0 for none.", waits)
    last = lease.done_at(connection, EVALUATED_LEASE) or 0.0
    text = "When all objectives were last evaluated without an error; 0 for never."
    yield _gauge("last_evaluation_timestamp_seconds", text, last)
    trouble = GaugeMetricFamily(_PREFIX + "open_incidents", "Incidents that are open.", labels=("severity",))
    for severity, number in _open_incidents(connection).items():
        trouble.add_metric((severity,), number)
    yield trouble


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _messages(connection: Connection, channels: Iterable[str]) -> dict[tuple[str, str], int]:
    """Return the number of messages by channel and state; those being sent count as waiting."""
    sent = schema.outbox.c
    counted = select(sent.channel, sent.state, func.count()).group_by(sent.channel, sent.state)
    rows = connection.execute(counted).all()
    # Zeros are reported too: an alert needs them before the first message is refused.
    named = dict.fromkeys([*channels, *(row.channel for row in rows)])
    found = {(channel, state): 0 for channel in named for state in ("waiting", "sent", "dead")}
    for channel, state, number in rows:
        key = channel, "waiting" if state == "sending" else state
        found[key] = found.get(key, 0) + number
    return found


def _open_incidents(connection: Connection) -> dict[str, int]:
    held = schema.incidents.c
    counted = select(held.severity, func.count().label("number")).where(held.resolved_at.is_(None))
    found = {row.severity: int(row.number) for row in connection.execute(counted.group_by(held.severity))}
    return {severity: found.get(severity, 0) for severity in _SEVERITIES}
