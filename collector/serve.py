"""The collector as a whole: two servers in one event loop, a writer and a maintenance thread around one store."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable

from ..core.errors import StagelensError
from .access.exposure import check_exposure
from .access.gate import Gate
from .access.tls import GrpcTls, HttpTls
from .config import CollectorConfig
from .config_file import LiveConfig
from .decoders import Decoders
from .folding import Folding
from .grpc_server import GrpcServer
from .health import Health
from .http import Http
from .intake import Intake
from .maintenance import Maintenance
from .receiving import Receiving
from .scrape.scraper import Scraper
from .selfmetrics import SelfMetrics
from .servers import Servers, listen
from .store import Store
from .traces.keeping import Keep
from .traces.reading import SpanReader
from .vitals import Reporter
from .writer import Writer

__all__ = ["Collector", "CollectorConfig"]

_log = logging.getLogger(__name__)

_MAINTENANCE_SECONDS = 10.0
_FOLD_SECONDS = 2.0


class Collector:
    """Serves OTLP in background threads.

    Args:
        config: Where to listen and what to accept.
        store: Where to write; it stays open when the collector stops.
        file: Who may send; without one all may.
        maintenance_seconds: The time between two runs of roll-ups and retention.
        clock: Unix seconds, to judge the times of points by.

    Raises:
        ConfigError: It would listen where others reach it and ask nobody who they are, or its TLS files cannot be used.
    """

    def __init__(
        self,
        config: CollectorConfig,
        store: Store,
        *,
        file: LiveConfig | None = None,
        maintenance_seconds: float = _MAINTENANCE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._file = file or LiveConfig(None, {})
        access = self._file.current.access
        check_exposure(config.host, access, is_open=config.is_open)
        self.health = health = Health()
        self.metrics = metrics = SelfMetrics(health)
        self._writer = Writer(
            store, max_batches=config.queue_batches, max_bytes=config.queue_bytes, health=health, metrics=metrics
        )
        self._folding = Folding(
            store,
            interval_seconds=_FOLD_SECONDS,
            # What waits counts as room of the store: it must leave some for the numbers.
            max_waiting_bytes=min(config.spans_waiting_bytes, (config.retention.budget_bytes or sys.maxsize) // 4),
            health=health,
            metrics=metrics,
            keep=Keep(everything=config.keeps_all_traces),
        )
        self._maintenance = Maintenance(store, interval_seconds=maintenance_seconds, health=health, metrics=metrics)
        self._scraper = Scraper(store, lambda: self._file.current.scrape or (), self._file.env, clock=clock)
        metrics.include(self._scraper.states)
        self._reporter = Reporter(
            store, metrics=metrics, health=health, file=self._file, targets=self._scraper.states.all
        )
        self._decoders = Decoders(config.max_inflated_bytes)
        gate = Gate(lambda: self._file.current.access, is_open=config.is_open)
        receiving = Receiving(config.max_body_bytes, config.queue_bytes, metrics)
        intake = Intake(
            config,
            gate=gate,
            writer=self._writer,
            decoders=self._decoders,
            receiving=receiving,
            health=health,
            metrics=metrics,
            spans=SpanReader(lambda: self._file.current.rules),
            admit_spans=self._folding.admit,
            add_event=store.add_event,
            clock=clock,
        )
        self._http = Http(
            intake, receiving=receiving, gate=gate, health=health, metrics=metrics, dashboard_url=config.dashboard_url
        )
        grpc = None
        if config.grpc_port is not None:
            grpc = GrpcServer(
                (config.host, config.grpc_port),
                max_body_bytes=config.max_body_bytes,
                intake=intake,
                receiving=receiving,
                health=health,
                credentials=GrpcTls(access.tls).credentials if access.tls else None,
            )
        self._server = Servers(self._http.application(), HttpTls(access.tls).context if access.tls else None, grpc)
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self._failure: BaseException | None = None

    @property
    def places(self) -> list[str]:
        """Where it listens, a line for each protocol."""
        scheme = "https" if self._file.current.access.tls else "http"
        host, port = self.address
        places = [f"OTLP/HTTP  {scheme}://{host}:{port}"]
        return places if self.grpc_port is None else [*places, f"OTLP/gRPC  {scheme}://{host}:{self.grpc_port}"]

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port it listens on.

        Raises:
            StagelensError: It was not started.
        """
        if self._socket is None:
            msg = "the collector has no address before it is started"
            raise StagelensError(msg)
        return self._address

    @property
    def grpc_port(self) -> int | None:
        """The port it listens on for gRPC; None without gRPC, or before it is started."""
        return self._server.grpc_port

    def start(self) -> None:
        """Listen, and return once requests are answered.

        Raises:
            StagelensError: An address cannot be listened on.
        """
        self._socket = listen(self._config.host, self._config.port)
        host, port, *_ = self._socket.getsockname()
        self._address: tuple[str, int] = (host, port)
        self._file.start()
        self._writer.start()
        self._folding.start()
        self._maintenance.start()
        self._scraper.start()
        self.health.watch(self._scraper.thread)
        self._thread = threading.Thread(
            target=self._serve, args=(self._socket,), name="stagelens-collector", daemon=True
        )
        self._thread.start()
        while not self._server.ready.wait(0.05):
            if not self._thread.is_alive():
                self.stop()
                if isinstance(self._failure, StagelensError):
                    raise self._failure
                msg = "the collector's server ended while it started; the log says why"
                raise StagelensError(msg)
        self._reporter.start(f"{socket.gethostname()}:{port}")
        _log.info("collecting %s", " and ".join(" ".join(place.split()) for place in self.places))

    def _serve(self, listening: socket.socket) -> None:
        with listening:
            try:
                self._server.run([listening])
            except BaseException as error:  # noqa: BLE001 - SystemExit too, which is how the server gives up; start() reports it
                self._failure = error
                if not isinstance(error, StagelensError):
                    _log.exception("the collector's server ended")

    def stop(self) -> None:
        """Accept no more, answer what was accepted, commit and maintain; a second call does nothing."""
        if self._thread is None:
            return
        self._server.should_exit = True
        self._writer.hurry()
        self._thread.join()
        self._thread = None
        self._scraper.stop()
        self._file.stop()
        self._reporter.stop()
        self._decoders.stop()
        self._writer.stop()
        self._folding.stop()
        self._folding.run_once()
        self._maintenance.stop()
        self._maintenance.run_once()
