"""The collector: HTTP and gRPC servers in one event loop, with the writer, background threads, scraper and forwarder around one store."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Callable
from ssl import SSLContext

from starlette.applications import Starlette

from ..core.errors import StagelensError
from ..store import Store
from .background import Maintenance, SpanFolder
from .config import CollectorConfig
from .config_file import LiveConfig
from .forward.forwarder import Forwarder
from .ingest.pipeline import IngestPipeline
from .ingest.writer import Writer
from .prometheus.counters import Counters
from .scrape.scraper import Scraper
from .self_metrics import Health, SelfMetrics
from .server.access_config import check_exposure
from .server.auth import AccessControl
from .server.body_reader import BodyReader, DecoderPool
from .server.connections import ConnectionLimits
from .server.grpc_server import GrpcServer
from .server.http_app import PROBES, HttpApp
from .server.http_server import HttpServer, open_listener
from .server.tls import GrpcTls, HttpTls
from .status_reporter import StatusReporter
from .traces.sampling import SamplingPolicy
from .traces.span_reader import SpanReader

_DRAIN_SECONDS = 15
# Exporters post every 1, 5, 10 or 60 s: a connection that closes at that moment would lose an export.
_KEEP_ALIVE_SECONDS = 3


class Servers(HttpServer):
    """The HTTP and gRPC servers, which start and stop together.

    Args:
        application: The ASGI application.
        tls: TLS context; None serves plain text.
        grpc: The gRPC server; None for none.

    Attributes:
        grpc_port: The gRPC port once it accepts calls.
    """

    def __init__(self, application: Starlette, tls: SSLContext | None, grpc: GrpcServer | None) -> None:
        # Together with gRPC below the usual limit of 1024 open files of a process, some of which the database needs.
        super().__init__(
            application,
            ConnectionLimits("collector", PROBES),
            tls=tls,
            keep_alive_seconds=_KEEP_ALIVE_SECONDS,
            drain_seconds=_DRAIN_SECONDS,
        )
        self._grpc = grpc
        self.grpc_port: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        if self._grpc is not None:
            self.grpc_port = await self._grpc.start()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and finish requests in progress."""
        async with asyncio.TaskGroup() as both:
            both.create_task(super().shutdown(sockets))
            if self._grpc is not None:
                both.create_task(self._grpc.stop(_DRAIN_SECONDS))


__all__ = ["Collector", "CollectorConfig"]

_log = logging.getLogger(__name__)

_PORT_FIX = (
    "Stop what uses that address, or choose another with STAGELENS_COLLECTOR_HOST and STAGELENS_COLLECTOR_PORT\n"
    "    (agents find it by OTEL_EXPORTER_OTLP_ENDPOINT)."
)
_MAINTENANCE_SECONDS = 10.0
_FOLD_SECONDS = 2.0


class Collector:
    """Serves OTLP in background threads.

    Args:
        config: Addresses and limits.
        store: The store; it stays open when the collector stops.
        file: The collector's file; without one no credentials are needed.
        maintenance_seconds: Time between two runs of roll-ups and retention.
        clock: Unix seconds, to validate the times of points.

    Raises:
        ConfigError: It would be reachable without credentials, or its TLS files cannot be used.
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
        check_exposure(config.host, self._file.current.access, is_open=config.is_open)
        self.health = health = Health()
        self.metrics = metrics = SelfMetrics(health, Counters(lambda: self._file.current.prometheus))
        self._writer = Writer(
            store, max_batches=config.queue_batches, max_bytes=config.queue_bytes, health=health, metrics=metrics
        )
        self._folding = SpanFolder(
            store,
            interval_seconds=_FOLD_SECONDS,
            # The inbox counts towards the size of the store, so it must leave capacity for metrics.
            max_waiting_bytes=min(config.spans_waiting_bytes, (config.retention.budget_bytes or sys.maxsize) // 4),
            health=health,
            metrics=metrics,
            keep=SamplingPolicy(everything=config.keeps_all_traces),
        )
        self._maintenance = Maintenance(store, interval_seconds=maintenance_seconds, health=health, metrics=metrics)
        self._scraper = Scraper(store, lambda: self._file.current.scrape or (), self._file.env, clock=clock)
        metrics.include(self._scraper.states)
        self._forwarder = Forwarder(
            store,
            lambda: self._file.current.forward,
            self._file.env,
            budget_bytes=config.retention.budget_bytes,
            clock=clock,
        )
        self.destinations = self._forwarder.states
        metrics.include(self.destinations)
        self._access_control = AccessControl(
            lambda: self._file.current.access, is_open=config.is_open, known_services=store.services()
        )
        self._decoders = DecoderPool(config.max_inflated_bytes)
        self._reporter = StatusReporter(
            store,
            metrics=metrics,
            health=health,
            file=self._file,
            targets=self._scraper.states.all,
            destinations=self.destinations.all,
            greedy=self._access_control.shares.greedy,
        )
        self._server = self._servers(store, clock)
        self._address: tuple[str, int] | None = None
        self._runs = False

    def _servers(self, store: Store, clock: Callable[[], float]) -> Servers:
        """Return the servers for HTTP and gRPC, which share one ingestion pipeline."""
        config, health, metrics = self._config, self.health, self.metrics
        access = self._file.current.access
        body_reader = BodyReader(config.max_body_bytes, config.queue_bytes, metrics)
        pipeline = IngestPipeline(
            config,
            access_control=self._access_control,
            writer=self._writer,
            decoders=self._decoders,
            body_reader=body_reader,
            health=health,
            metrics=metrics,
            spans=SpanReader(lambda: self._file.current.rules),
            admit_spans=self._folding.admit,
            forward=self._forwarder.room,
            add_event=store.add_event,
            clock=clock,
        )
        http = HttpApp(
            pipeline,
            body_reader=body_reader,
            access_control=self._access_control,
            health=health,
            metrics=metrics,
            dashboard_url=config.dashboard_url,
        )
        grpc = None
        if config.grpc_port is not None:
            grpc = GrpcServer(
                (config.host, config.grpc_port),
                max_body_bytes=config.max_body_bytes,
                pipeline=pipeline,
                body_reader=body_reader,
                health=health,
                credentials=GrpcTls(access.tls).credentials if access.tls else None,
            )
        return Servers(http.application(), HttpTls(access.tls).context if access.tls else None, grpc)

    @property
    def places(self) -> list[str]:
        """Its addresses, a line for each protocol."""
        scheme = "https" if self._file.current.access.tls else "http"
        host, port = self.address
        places = [f"OTLP/HTTP  {scheme}://{host}:{port}"]
        return places if self.grpc_port is None else [*places, f"OTLP/gRPC  {scheme}://{host}:{self.grpc_port}"]

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that it listens on.

        Raises:
            StagelensError: It was not started.
        """
        if self._address is None:
            msg = "the collector has no address before it is started"
            raise StagelensError(msg)
        return self._address

    @property
    def grpc_port(self) -> int | None:
        """The gRPC port; None without gRPC, or before it is started."""
        return self._server.grpc_port

    def start(self) -> None:
        """Listen, and return once requests are served.

        Raises:
            StagelensError: An address is not available.
        """
        listening = open_listener(self._config.host, self._config.port, "collector", _PORT_FIX)
        host, port, *_ = listening.getsockname()
        self._address, self._runs = (host, port), True
        self._file.start()
        self._writer.start()
        for part in (self._folding, self._maintenance, self._scraper, self._forwarder):
            part.start()
            self.health.watch(part.thread)
        try:
            self._server.begin(listening)
        except StagelensError:
            self.stop()
            raise
        self._reporter.name = f"{socket.gethostname()}:{port}"
        self._reporter.start()
        _log.info("collecting %s", " and ".join(" ".join(place.split()) for place in self.places))

    def stop(self) -> None:
        """Finish requests in progress, commit, process the inbox and maintain the store; a second call does nothing."""
        if not self._runs:
            return
        self._runs = False
        self._writer.hurry()
        self._server.end()
        self._scraper.stop()
        self._file.stop()
        self._reporter.stop()
        self._decoders.stop()
        self._writer.stop()
        self._forwarder.stop()
        self._folding.stop()
        self._folding.run_once()
        self._maintenance.stop()
        self._maintenance.run_once()
