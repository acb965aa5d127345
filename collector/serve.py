"""The collector: HTTP and gRPC servers in one event loop, with the writer, background threads and scraper around one store."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from ssl import SSLContext

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..core import names
from ..core.addresses import listening_url
from ..core.errors import StagelensError
from ..store import Store
from .background import Maintenance, SpanAggregator
from .config import CollectorConfig, LiveConfig
from .exposition import negotiate
from .ingest.pipeline import Endpoint, IngestPipeline, IngestRequest, refusal_response
from .ingest.writer import Writer
from .otlp.responses import failure_response, http_response, media_type_of
from .prometheus import Counters
from .scrape.scraper import Scraper
from .self_metrics import SelfMetrics
from .server.access_config import check_exposure
from .server.auth import AccessControl, Caller, RefusedError
from .server.bodies import BodyReader, DecoderPool
from .server.connection_limits import ConnectionLimits
from .server.connections import SCOPE_KEY
from .server.grpc_server import GrpcServer
from .server.http_server import DRAIN_SECONDS, HttpServer, open_listener
from .server.tls import GrpcTls, HttpTls
from .status_report import StatusReporter
from .traces.sampling import SamplingPolicy
from .traces.span_reader import SpanReader

__all__ = ["Collector", "CollectorConfig"]

_log = logging.getLogger(__name__)

# Exporters post every 1, 5, 10 or 60 s: a connection that closes at that moment would lose an export.
_KEEP_ALIVE_SECONDS = 3
_PORT_FIX = (
    "Stop the process on that address, or choose another with STAGELENS_COLLECTOR_HOST and STAGELENS_COLLECTOR_PORT\n"
    "    (agents find it by OTEL_EXPORTER_OTLP_ENDPOINT)."
)
_MAINTENANCE_SECONDS = 10.0
_AGGREGATION_SECONDS = 2.0

PATHS: dict[str, Endpoint] = {
    "/v1/metrics": "metrics",
    "/v1/traces": "traces",
    "/v1/logs": "logs",
    "/v1/events": "events",
}
PROBES = ("/livez", "/readyz", "/healthz")
WELCOME_TEXT = """\
This is a Stagelens collector. It receives OpenTelemetry metrics and traces of inference services: over OTLP/HTTP on
this port, and over OTLP/gRPC on another port.

  POST /v1/metrics, /v1/traces   OTLP as protobuf or JSON; gzip, zstd or uncompressed
  POST /v1/events                an event, such as {{"text": "v1.2 is out", "service": "shop", "kind": "deploy", "key": "v1.2"}}
  POST /v1/logs                  accepted, but logs are not stored
  GET  /readyz                   200 if it can store data, else 503 with the reason; /healthz is the same
  GET  /livez                    200 if its threads run, else restart it
  GET  /metrics                  metrics of requests and of the collector, for Prometheus

The dashboard is at {dashboard_url}
"""


async def http_error(request: Request, error: Exception) -> Response:
    status = HTTPStatus(error.status_code) if isinstance(error, HTTPException) else HTTPStatus.NOT_FOUND
    path = request.url.path[:100]
    headers: dict[str, str] = {}
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        wanted = "POST" if path in PATHS else "GET"
        message = f"{path} accepts {wanted}, not {request.method}"
        headers = {"Allow": wanted}
    else:
        message = (
            f"there is no {path}; send OTLP to /v1/metrics and /v1/traces (set the endpoint of exporters without a path), "
            "and events to /v1/events"
        )
    return http_response(failure_response(media_type_of(request), status, message, headers))


@dataclass
class HttpApp:
    pipeline: IngestPipeline
    body_reader: BodyReader
    access_control: AccessControl
    metrics: SelfMetrics
    dashboard_url: str
    # One at a time: its cost grows with the load of the collector.
    rendering: asyncio.Lock = field(default_factory=asyncio.Lock)

    def application(self) -> Starlette:
        posts = [
            Route(path, functools.partial(self._post, endpoint=endpoint), methods=["POST"])
            for path, endpoint in PATHS.items()
        ]
        application = Starlette(
            routes=[
                *posts,
                *(Route(path, self._livez if path == "/livez" else self._readyz) for path in PROBES),
                Route("/metrics", self._exposition),
                Route("/", self._welcome),
            ],
            exception_handlers={HTTPException: http_error, RefusedError: _refused},
        )
        application.router.redirect_slashes = False  # exporters do not follow redirects, but log the text of a 404
        return application

    async def _post(self, request: Request, endpoint: Endpoint) -> Response:
        ingest_request = IngestRequest(
            endpoint=endpoint,
            media_type=media_type_of(request),
            encoding=request.headers.get("content-encoding", ""),
            name=request.headers.get(names.BATCH_HEADER),
            caller=_caller(request),
            body=functools.partial(self.body_reader.body, request),
        )
        return http_response(await self.pipeline.handle(ingest_request))

    async def _livez(self, _request: Request) -> Response:
        return _probe(self.metrics.health.dead)

    async def _readyz(self, _request: Request) -> Response:
        return _probe(self.metrics.health.reasons)

    async def _exposition(self, request: Request) -> Response:
        self.access_control.admit(_caller(request))
        async with self.rendering:
            media_type = negotiate(request.headers.get("accept", ""))
            exposition = await asyncio.to_thread(self.metrics.exposition, media_type)
        return Response(exposition, media_type=media_type)

    async def _welcome(self, _request: Request) -> Response:
        return PlainTextResponse(WELCOME_TEXT.format(dashboard_url=self.dashboard_url))


def _caller(request: Request) -> Caller:
    return Caller(
        address=request.client.host if request.client else "",
        authorization=request.headers.get("authorization", ""),
        certificate=request.scope.get(SCOPE_KEY, ""),
    )


def _probe(reasons: list[str]) -> Response:
    if reasons:
        return PlainTextResponse("\n".join(reasons) + "\n", HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "5"})
    return PlainTextResponse("ok\n")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)  # noqa: S101 - the type it is registered for
    return http_response(refusal_response(media_type_of(request), error))


class Servers(HttpServer):
    """The HTTP and gRPC servers, which start and stop together; *grpc_port*: the gRPC port once it accepts calls."""

    def __init__(
        self, application: Starlette, limits: ConnectionLimits, tls: SSLContext | None, grpc: GrpcServer | None
    ) -> None:
        # HTTP and gRPC connections together stay below the usual limit of 1024 open files; the database needs some of them, too.
        super().__init__(application, limits, tls=tls, max_body_bytes=None, keep_alive_seconds=_KEEP_ALIVE_SECONDS)
        self._grpc = grpc
        self.grpc_port: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._grpc is not None:
            self.grpc_port = await self._grpc.start()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(super().shutdown(sockets))
            if self._grpc is not None:
                both.create_task(self._grpc.stop(DRAIN_SECONDS))


class Collector:
    """The collector: OTLP servers and background threads around one store.

    Raises:
        ConfigError: The collector would be reachable without credentials, or its TLS files cannot be used.
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
        self.metrics = metrics = SelfMetrics(Counters(lambda: self._file.current.prometheus))
        self._writer = Writer(store, max_batches=config.queue_batches, max_bytes=config.queue_bytes, metrics=metrics)
        self._aggregation = SpanAggregator(
            store,
            interval_seconds=_AGGREGATION_SECONDS,
            # The inbox counts towards the size of the store, so its limit must leave capacity for metrics.
            max_waiting_bytes=min(config.spans_waiting_bytes, (config.retention.budget_bytes or sys.maxsize) // 4),
            metrics=metrics,
            keep=SamplingPolicy(everything=config.keeps_all_traces),
        )
        self._maintenance = Maintenance(store, interval_seconds=maintenance_seconds, metrics=metrics)
        self._scraper = Scraper(store, lambda: self._file.current.scrape or (), self._file.env, clock=clock)
        metrics.include(self._scraper.states)
        self._access_control = AccessControl(lambda: self._file.current.access, is_open=config.is_open)
        self._decoders = DecoderPool(config.max_inflated_bytes)
        self._reporter = StatusReporter(
            store,
            metrics=metrics,
            file=self._file,
            targets=self._scraper.states.all,
            shares=self._access_control.shares,
        )
        self._reporter.update_shares()
        self._server = self._servers(store, clock)
        self._address: tuple[str, int] | None = None
        self._runs = False

    def _servers(self, store: Store, clock: Callable[[], float]) -> Servers:
        config, metrics = self._config, self.metrics
        access = self._file.current.access
        body_reader = BodyReader(config.max_body_bytes, config.queue_bytes, metrics)
        pipeline = IngestPipeline(
            config,
            access_control=self._access_control,
            writer=self._writer,
            decoders=self._decoders,
            body_reader=body_reader,
            metrics=metrics,
            spans=SpanReader(lambda: self._file.current.rules, config.probes),
            admit_spans=self._aggregation.admit,
            add_event=store.add_event,
            clock=clock,
        )
        http = HttpApp(pipeline, body_reader, self._access_control, metrics, config.dashboard_url)
        grpc = None
        if config.grpc_port is not None:
            grpc = GrpcServer(
                (config.host, config.grpc_port),
                max_body_bytes=config.max_body_bytes,
                pipeline=pipeline,
                health=metrics.health,
                credentials=GrpcTls(access.tls).credentials if access.tls else None,
            )
        # The other half of the queue is for complete requests.
        most_bytes = max(config.queue_bytes, 4 * config.max_body_bytes) // 2
        limits = ConnectionLimits("collector", PROBES, most_bytes=most_bytes, refused=metrics.losses.add_of_sender)
        return Servers(http.application(), limits, HttpTls(access.tls).context if access.tls else None, grpc)

    @property
    def places(self) -> list[str]:
        scheme = "https" if self._file.current.access.tls else "http"
        host, port = self.address
        places = [f"OTLP/HTTP  {listening_url(host, port, scheme)}"]
        grpc = [] if self.grpc_port is None else [f"OTLP/gRPC  {listening_url(host, self.grpc_port, scheme)}"]
        return [*places, *grpc]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the HTTP server; StagelensError before the start."""
        if self._address is None:
            msg = "the collector has no address before its start"
            raise StagelensError(msg)
        return self._address

    @property
    def grpc_port(self) -> int | None:
        return self._server.grpc_port

    def start(self) -> None:
        listening = open_listener(self._config.host, self._config.port, "collector", _PORT_FIX)
        host, port, *_ = listening.getsockname()
        self._address, self._runs = (host, port), True
        self._file.start()
        self._writer.start()
        for part in (self._aggregation, self._maintenance, self._scraper):
            part.start()
            self.metrics.health.watch(part.thread)
        try:
            self._server.begin(listening)
        except StagelensError:
            self.stop()
            raise
        self._reporter.name = f"{socket.gethostname()}:{port}"
        self._reporter.start()
        _log.info("collecting %s", " and ".join(" ".join(endpoint.split()) for endpoint in self.places))

    def stop(self) -> None:
        """Finish requests in progress, commit batches, process the inbox and maintain the store; a second call does nothing."""
        if not self._runs:
            return
        self._runs = False
        self._writer.drain_now()
        self._server.end()
        self._scraper.stop()
        self._file.stop()
        self._reporter.stop()
        self._decoders.stop()
        self._writer.stop()
        self._aggregation.stop()
        self._aggregation.run_once()
        self._maintenance.stop()
        self._maintenance.run_once()
