"""ASGI application of OTLP/HTTP: OTLP and event routes, health probes, /metrics, and helpful errors for other paths."""

from __future__ import annotations

import asyncio
import functools
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ...core import names
from ..ingest.pipeline import Endpoint, IngestPipeline, IngestRequest, refusal_response
from ..otlp.responses import failure_response, http_response, media_type_of
from ..prometheus.exposition import negotiate
from ..self_metrics import Health, SelfMetrics
from .auth import AccessControl, Caller, RefusedError
from .body_reader import BodyReader
from .tls import SCOPE_KEY

PATHS: dict[str, Endpoint] = {
    "/v1/metrics": "metrics",
    "/v1/traces": "traces",
    "/v1/logs": "logs",
    "/v1/events": "events",
}
PROBES = ("/livez", "/readyz", "/healthz")
WELCOME_TEXT = """\
This is a Stagelens collector. It takes OpenTelemetry metrics and traces of inference services over OTLP/HTTP
here and OTLP/gRPC at a port of its own:

  POST /v1/metrics, /v1/traces   protobuf or JSON, gzip, zstd or neither
  POST /v1/events                what happened: {{"text": "v1.2 is out", "service": "shop", "kind": "deploy", "key": "v1.2"}}
  POST /v1/logs                  is answered, and keeps nothing
  GET  /readyz                   whether it can commit what it is sent, and why not; /healthz is the same
  GET  /livez                    whether its threads live, or it should be restarted
  GET  /metrics                  its own metrics, for Prometheus

There is nothing to see here. The dashboard is at {dashboard_url}
"""


async def http_error(request: Request, error: Exception) -> Response:
    """Respond to a request without a route, with a hint at the right path or method."""
    status = HTTPStatus(error.status_code) if isinstance(error, HTTPException) else HTTPStatus.NOT_FOUND
    path = request.url.path[:100]
    headers: dict[str, str] = {}
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        wanted = "POST" if path in PATHS else "GET"
        message = f"{path} takes {wanted}, not {request.method}"
        headers = {"Allow": wanted}
    else:
        message = (
            f"there is nothing at {path}; OTLP goes to /v1/metrics and /v1/traces (give exporters the address without a path), "
            "events to /v1/events"
        )
    return http_response(failure_response(media_type_of(request), status, message, headers))


class HttpApp:
    """The OTLP/HTTP application.

    Args:
        pipeline: Ingests posted requests.
        body_reader: Receives request bodies.
        access_control: Authenticates readers of /metrics.
        health: State shown on /livez and /readyz.
        metrics: Metrics shown on /metrics.
        dashboard_url: URL of the dashboard, for the welcome text.
    """

    def __init__(
        self,
        pipeline: IngestPipeline,
        *,
        body_reader: BodyReader,
        access_control: AccessControl,
        health: Health,
        metrics: SelfMetrics,
        dashboard_url: str,
    ) -> None:
        self._pipeline, self._body_reader, self._access_control = pipeline, body_reader, access_control
        self._health, self._metrics, self._dashboard_url = health, metrics, dashboard_url
        self._rendering = asyncio.Lock()

    def application(self) -> Starlette:
        """Return the ASGI application."""
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
            body=functools.partial(self._body_reader.body, request),
            via=request.headers.get(names.VIA_HEADER, ""),
        )
        return http_response(await self._pipeline.handle(ingest_request))

    async def _livez(self, _request: Request) -> Response:
        return _probe(self._health.dead)

    async def _readyz(self, _request: Request) -> Response:
        return _probe(self._health.reasons)

    async def _exposition(self, request: Request) -> Response:
        self._access_control.admit(_caller(request))
        async with self._rendering:  # one at a time: its cost grows with the load of the collector
            media_type = negotiate(request.headers.get("accept", ""))
            exposition = await asyncio.to_thread(self._metrics.exposition, media_type)
        return Response(exposition, media_type=media_type)

    async def _welcome(self, _request: Request) -> Response:
        return PlainTextResponse(WELCOME_TEXT.format(dashboard_url=self._dashboard_url))


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
