"""OTLP/HTTP and events: the routes, the limits on what a request may cost, and the right answer to everything else.

The event loop only moves bytes. A body is inflated, read and judged in a worker thread, queued for the writer, and
answered when its transaction is on disk.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..core import names
from ..core.errors import StagelensError, StoreError, WireError
from . import writer as committing
from .body import inflate
from .config import CollectorConfig
from .export import Export, Signal, read_export
from .health import Health
from .otherwise import EVENTS_PATH, PATHS, WELCOME, http_error, media_type_of, response_of
from .points import Window
from .receiving import MAX_RECEIVE_SECONDS, Receiving
from .replies import JSON, PROTOBUF, Reply, event_reply, failure, metrics_reply, traces_reply
from .selfmetrics import SelfMetrics
from .store.events import Event, from_json
from .triton_pieces import Pieces
from .wire import TooLargeError, UnsupportedError
from .writer import FullError, UncommittedError, UnwritableError, Writer

_log = logging.getLogger(__name__)

T = TypeVar("T")

# A commit that takes longer outlives most clients' patience (10 s).
MAX_COMMIT_SECONDS = 9.0
_AHEAD_SECONDS = 86_400
_STATUS: tuple[tuple[type[Exception], HTTPStatus], ...] = (  # the first that fits
    (UnsupportedError, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    (TooLargeError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (WireError, HTTPStatus.BAD_REQUEST),
    (FullError, HTTPStatus.TOO_MANY_REQUESTS),
    (UncommittedError, HTTPStatus.SERVICE_UNAVAILABLE),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
    (UnwritableError, HTTPStatus.INTERNAL_SERVER_ERROR),
    (TimeoutError, HTTPStatus.REQUEST_TIMEOUT),
)
_RETRY_AFTER = {HTTPStatus.TOO_MANY_REQUESTS: "1", HTTPStatus.SERVICE_UNAVAILABLE: "5"}


class Intake:
    """The OTLP/HTTP application.

    Args:
        config: Limits, and where the dashboard is.
        writer: Takes the batches.
        decoders: Where bodies are read.
        health: Shown on /healthz.
        metrics: Shown on /metrics.
        add_event: Keeps an event; what it raises is a StoreError.
        clock: Unix seconds.
    """

    def __init__(
        self,
        config: CollectorConfig,
        *,
        writer: Writer,
        decoders: Executor,
        health: Health,
        metrics: SelfMetrics,
        add_event: Callable[[Event], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._writer, self._decoders = config, writer, decoders
        self._health, self._metrics, self._clock = health, metrics, clock
        self._add_event = add_event
        self._receiving = Receiving(config.max_body_bytes, config.queue_bytes, metrics)
        self._pieces = Pieces()

    def application(self) -> Starlette:
        """Return the ASGI application."""
        exports = [
            Route(path, functools.partial(self._export, signal=signal), methods=["POST"])
            for path, signal in PATHS.items()
        ]
        application = Starlette(
            routes=[
                *exports,
                Route(EVENTS_PATH, self._event, methods=["POST"]),
                Route("/healthz", self._healthz),
                Route("/metrics", self._exposition),
                Route("/", self._welcome),
            ],
            exception_handlers={HTTPException: http_error},
        )
        application.router.redirect_slashes = False  # exporters do not follow redirects; they log what a 404 says
        return application

    async def _export(self, request: Request, signal: Signal) -> Response:
        media_type = media_type_of(request)
        return await self._answered(signal, media_type, self._take_in(request, signal, media_type))

    async def _event(self, request: Request) -> Response:
        media_type = media_type_of(request)
        return await self._answered("events", media_type, self._take_event(request, media_type))

    async def _answered(self, signal: str, media_type: str, taking: Awaitable[Reply]) -> Response:
        try:
            reply = await taking
        except (StagelensError, TimeoutError) as error:
            reply = self._failure(media_type, error)
        except ClientDisconnect:  # nobody is left to answer
            reply = failure(media_type, HTTPStatus.BAD_REQUEST, "the request ended early")
        except Exception as error:  # noqa: BLE001 - one body must not cost others their connection
            _log.exception("a request could not be read for a fault of the collector's own")
            message = f"the collector failed ({type(error).__name__}); its log says more"
            reply = failure(media_type, HTTPStatus.INTERNAL_SERVER_ERROR, message)
        self._metrics.request(signal, reply.status)
        return response_of(reply)

    async def _take_in(self, request: Request, signal: Signal, media_type: str) -> Reply:
        if media_type not in (PROTOBUF, JSON):
            await self._receiving.body(request)
            msg = f"Content-Type {media_type[:60]!r} is not supported; send {PROTOBUF} or {JSON}"
            raise UnsupportedError(msg)
        with self._receiving.held() as hold:
            body = await self._receiving.body(request, hold)
            export = await asyncio.get_running_loop().run_in_executor(
                self._decoders, functools.partial(self._read, request, signal, media_type, body)
            )
        if export.empty or await self._commit(export):
            self._metrics.tally(signal, export.tally)
        answer = metrics_reply if signal == "metrics" else traces_reply
        tally = export.tally
        rejected = tally.rejected.total() + (tally.ignored if signal == "traces" else 0)
        return answer(media_type, rejected, tally.error_message)

    async def _take_event(self, request: Request, media_type: str) -> Reply:
        if media_type != JSON:
            await self._receiving.body(request)
            msg = f"Content-Type {media_type[:60]!r} is not supported; send {JSON}"
            raise UnsupportedError(msg)
        with self._receiving.held() as hold:
            body = await self._receiving.body(request, hold)
            event = await asyncio.get_running_loop().run_in_executor(
                self._decoders, functools.partial(self._read_event, request, body)
            )
        # Not in a thread of the decoders: while the store is slow, exports are read on.
        await _committed(asyncio.to_thread(self._add_event, event), "send it again")
        return event_reply()

    def _read_event(self, request: Request, body: bytes) -> Event:
        inflated = self._inflated(request, body)
        try:
            return from_json(inflated, datetime.fromtimestamp(self._clock(), UTC))
        except ValueError as error:
            raise WireError(str(error)) from error

    def _read(self, request: Request, signal: Signal, media_type: str, body: bytes) -> Export:
        now = int(self._clock())
        # Of what is older, the name may be forgotten already: a retry would count twice.
        oldest = now - int(self._config.retention.batches.total_seconds())
        inflated = self._inflated(request, body)
        name = request.headers.get(names.BATCH_HEADER)
        return read_export(signal, media_type, inflated, name, Window(oldest, now + _AHEAD_SECONDS), self._pieces)

    def _inflated(self, request: Request, body: bytes) -> bytes:
        return inflate(body, request.headers.get("content-encoding", ""), self._config.max_inflated_bytes)

    async def _commit(self, export: Export) -> bool:
        sender = asyncio.wrap_future(self._writer.submit(export.batch, export.size_bytes))
        return await _committed(sender, "the batch stays queued")

    def _failure(self, media_type: str, error: Exception) -> Reply:
        status = next(status for kind, status in _STATUS if isinstance(error, kind))
        if status == HTTPStatus.TOO_MANY_REQUESTS and self._health.is_failing(committing.PART):
            status = HTTPStatus.SERVICE_UNAVAILABLE
        headers = {"Retry-After": _RETRY_AFTER[status]} if status in _RETRY_AFTER else {}
        if status in (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.REQUEST_TIMEOUT):
            headers["Connection"] = "close"
        message = str(error) or f"the body was not received within {MAX_RECEIVE_SECONDS:g} s"
        return failure(media_type, status, message, headers)

    async def _healthz(self, _request: Request) -> Response:
        reasons = self._health.reasons
        if reasons:
            return PlainTextResponse("\n".join(reasons) + "\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return PlainTextResponse("ok\n")

    async def _exposition(self, _request: Request) -> Response:
        exposition = await asyncio.to_thread(self._metrics.exposition)
        return Response(exposition, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _welcome(self, _request: Request) -> Response:
        return PlainTextResponse(WELCOME.format(dashboard_url=self._config.dashboard_url))


async def _committed(writing: Awaitable[T], cure: str) -> T:
    """Return what *writing* does; *cure* is what is said to who has waited too long."""
    try:
        async with asyncio.timeout(MAX_COMMIT_SECONDS):
            return await writing
    except TimeoutError as error:
        msg = f"the store has not committed within {MAX_COMMIT_SECONDS:g} s; {cure}"
        raise UncommittedError(msg) from error
