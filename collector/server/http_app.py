"""OTLP/HTTP and events: the routes, and the right answer to everything else."""

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
from ..health import Health
from ..ingest.pipeline import Arrival, Destination, Intake, refused
from ..prometheus import formats
from ..self_metrics import SelfMetrics
from .auth import Caller, Gate, RefusedError
from .body_reader import Receiving
from .misc_routes import PATHS, PROBES, WELCOME, http_error, media_type_of, response_of
from .tls import SCOPE_KEY


class Http:
    """The OTLP/HTTP application.

    Args:
        intake: Takes in what is posted.
        receiving: Receives it.
        gate: Who may read /metrics.
        health: Shown on /livez and /readyz.
        metrics: Shown on /metrics.
        dashboard_url: Where people find the dashboard.
    """

    def __init__(
        self,
        intake: Intake,
        *,
        receiving: Receiving,
        gate: Gate,
        health: Health,
        metrics: SelfMetrics,
        dashboard_url: str,
    ) -> None:
        self._intake, self._receiving, self._gate = intake, receiving, gate
        self._health, self._metrics, self._dashboard_url = health, metrics, dashboard_url
        self._rendering = asyncio.Lock()

    def application(self) -> Starlette:
        """Return the ASGI application."""
        posts = [
            Route(path, functools.partial(self._post, destination=destination), methods=["POST"])
            for path, destination in PATHS.items()
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
        application.router.redirect_slashes = False  # exporters do not follow redirects; they log what a 404 says
        return application

    async def _post(self, request: Request, destination: Destination) -> Response:
        arrival = Arrival(
            destination=destination,
            media_type=media_type_of(request),
            encoding=request.headers.get("content-encoding", ""),
            name=request.headers.get(names.BATCH_HEADER),
            caller=_caller(request),
            body=functools.partial(self._receiving.body, request),
            via=request.headers.get(names.VIA_HEADER, ""),
        )
        return response_of(await self._intake.answer(arrival))

    async def _livez(self, _request: Request) -> Response:
        return _probe(self._health.dead)

    async def _readyz(self, _request: Request) -> Response:
        return _probe(self._health.reasons)

    async def _exposition(self, request: Request) -> Response:
        self._gate.admit(_caller(request))
        async with self._rendering:  # one at a time: it costs the more the busier the collector is
            media_type = formats.chosen(request.headers.get("accept", ""))
            exposition = await asyncio.to_thread(self._metrics.exposition, media_type)
        return Response(exposition, media_type=media_type)

    async def _welcome(self, _request: Request) -> Response:
        return PlainTextResponse(WELCOME.format(dashboard_url=self._dashboard_url))


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
    assert isinstance(error, RefusedError)  # noqa: S101 - what it is registered for
    return response_of(refused(media_type_of(request), error))
