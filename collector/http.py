"""OTLP/HTTP: the routes, the limits on what a request may cost, and the right answer to everything else.

The event loop only moves bytes. A body is inflated, read and judged in a worker thread, queued for the writer, and
answered when its transaction is on disk.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from contextlib import contextmanager
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..core import names
from ..core.errors import StagelensError, WireError
from . import writer as committing
from .body import inflate
from .config import CollectorConfig
from .export import Export, Signal, read_export
from .health import Health
from .points import Window
from .replies import JSON, PROTOBUF, Reply, failure, metrics_reply, traces_reply
from .selfmetrics import SelfMetrics
from .triton_pieces import Pieces
from .wire import TooLargeError, UnsupportedError
from .writer import FullError, UncommittedError, UnwritableError, Writer

_log = logging.getLogger(__name__)

PATHS: dict[str, Signal] = {"/v1/metrics": "metrics", "/v1/traces": "traces"}
# A body that is not here by then is not coming; a commit that takes longer outlives most clients' patience (10 s).
MAX_RECEIVE_SECONDS, MAX_COMMIT_SECONDS = 30.0, 9.0
# The rest of a body that is too large is read and thrown away, so that its sender gets to read why; to this multiple.
_DISCARD_FACTOR = 4
_AHEAD_SECONDS = 86_400
_STATUS: tuple[tuple[type[Exception], HTTPStatus], ...] = (  # the first that fits
    (UnsupportedError, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    (TooLargeError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (WireError, HTTPStatus.BAD_REQUEST),
    (FullError, HTTPStatus.TOO_MANY_REQUESTS),
    (UncommittedError, HTTPStatus.SERVICE_UNAVAILABLE),
    (UnwritableError, HTTPStatus.INTERNAL_SERVER_ERROR),
    (TimeoutError, HTTPStatus.REQUEST_TIMEOUT),
)
_RETRY_AFTER = {HTTPStatus.TOO_MANY_REQUESTS: "1", HTTPStatus.SERVICE_UNAVAILABLE: "5"}
_WELCOME = """\
This is a Stagelens collector. It takes OpenTelemetry metrics and traces of inference services over OTLP/HTTP:

  POST /v1/metrics, /v1/traces   protobuf or JSON, gzip or not
  GET  /healthz                  whether it can commit what it is sent
  GET  /metrics                  its own metrics, for Prometheus

There is nothing to see here. The dashboard is at {dashboard_url}
"""


class Intake:
    """The OTLP/HTTP application.

    Args:
        config: Limits, and where the dashboard is.
        writer: Takes the batches.
        decoders: Where bodies are read.
        health: Shown on /healthz.
        metrics: Shown on /metrics.
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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._writer, self._decoders = config, writer, decoders
        self._health, self._metrics, self._clock = health, metrics, clock
        # Bytes of bodies that are being received or wait to be read.
        self._held_bytes = 0
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
                Route("/healthz", self._healthz),
                Route("/metrics", self._exposition),
                Route("/", self._welcome),
            ],
            exception_handlers={HTTPException: _http_error},
        )
        application.router.redirect_slashes = False  # exporters do not follow redirects; they log what a 404 says
        return application

    async def _export(self, request: Request, signal: Signal) -> Response:
        media_type = _media_type(request)
        try:
            reply = await self._take_in(request, signal, media_type)
        except (StagelensError, TimeoutError) as error:
            reply = self._failure(media_type, error)
        except ClientDisconnect:  # nobody is left to answer
            reply = failure(media_type, HTTPStatus.BAD_REQUEST, "the request ended early")
        except Exception as error:  # noqa: BLE001 - one body must not cost others their connection
            _log.exception("an export could not be read for a fault of the collector's own")
            message = f"the collector failed ({type(error).__name__}); its log says more"
            reply = failure(media_type, HTTPStatus.INTERNAL_SERVER_ERROR, message)
        self._metrics.request(signal, reply.status)
        return _response(reply)

    async def _take_in(self, request: Request, signal: Signal, media_type: str) -> Reply:
        if media_type not in (PROTOBUF, JSON):
            await self._receive(request)
            msg = f"Content-Type {media_type[:60]!r} is not supported; send {PROTOBUF} or {JSON}"
            raise UnsupportedError(msg)
        with self._held() as hold:
            body = await self._receive(request, hold)
            export = await asyncio.get_running_loop().run_in_executor(
                self._decoders, functools.partial(self._read, request, signal, media_type, body)
            )
        if export.empty or await self._commit(export):
            self._metrics.tally(signal, export.tally)
        answer = metrics_reply if signal == "metrics" else traces_reply
        tally = export.tally
        rejected = tally.rejected.total() + (tally.ignored if signal == "traces" else 0)
        return answer(media_type, rejected, tally.error_message)

    async def _receive(self, request: Request, hold: Callable[[int], None] | None = None) -> bytes:
        """Return the body as it came.

        Raises:
            TooLargeError: It is larger than the limit.
            TimeoutError: It took too long.
        """
        limit = self._config.max_body_bytes
        chunks: list[bytes] = []
        size = 0
        async with asyncio.timeout(MAX_RECEIVE_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit * _DISCARD_FACTOR:
                    break
                if size > limit or hold is None:
                    chunks.clear()
                    continue
                hold(len(chunk))
                chunks.append(chunk)
        if size > limit:
            msg = f"the body is larger than {limit} bytes; send smaller batches or raise STAGELENS_MAX_BODY"
            raise TooLargeError(msg)
        return b"".join(chunks)

    @contextmanager
    def _held(self) -> Generator[Callable[[int], None]]:
        """Account for the memory of one body, and refuse it when all bodies together take too much."""
        mine = 0

        def hold(size_bytes: int) -> None:
            nonlocal mine
            if self._held_bytes + size_bytes > self._config.queue_bytes:
                msg = f"{self._held_bytes} bytes of other requests are being read"
                raise FullError(msg)
            mine += size_bytes
            self._held_bytes += size_bytes
            self._metrics.receiving(self._held_bytes)

        try:
            yield hold
        finally:
            self._held_bytes -= mine
            self._metrics.receiving(self._held_bytes)

    def _read(self, request: Request, signal: Signal, media_type: str, body: bytes) -> Export:
        now = int(self._clock())
        # Of what is older, the name may be forgotten already: a retry would count twice.
        oldest = now - int(self._config.retention.batches.total_seconds())
        inflated = inflate(body, request.headers.get("content-encoding", ""), self._config.max_inflated_bytes)
        name = request.headers.get(names.BATCH_HEADER)
        return read_export(signal, media_type, inflated, name, Window(oldest, now + _AHEAD_SECONDS), self._pieces)

    async def _commit(self, export: Export) -> bool:
        sender = asyncio.wrap_future(self._writer.submit(export.batch, export.size_bytes))
        try:
            async with asyncio.timeout(MAX_COMMIT_SECONDS):
                return await sender
        except TimeoutError as error:
            msg = f"the store has not committed within {MAX_COMMIT_SECONDS:g} s; the batch stays queued"
            raise UncommittedError(msg) from error

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
        return Response(self._metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _welcome(self, _request: Request) -> Response:
        return PlainTextResponse(_WELCOME.format(dashboard_url=self._config.dashboard_url))


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, reply.headers, media_type=reply.media_type)


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer what no route takes, with a hint at what would have been right."""
    status = HTTPStatus(error.status_code) if isinstance(error, HTTPException) else HTTPStatus.NOT_FOUND
    path = request.url.path[:100]
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        wanted = "POST" if path in PATHS else "GET"
        message = f"{path} takes {wanted}, not {request.method}"
        headers = {"Allow": wanted}
    elif path == "/v1/logs":
        message, headers = "Stagelens keeps no logs; set OTEL_LOGS_EXPORTER=none in the sending process", {}
    else:
        message = (
            f"there is nothing at {path}; OTLP goes to {' and '.join(PATHS)}: give exporters the address without a path"
        )
        headers = {}
    return _response(failure(_media_type(request), status, message, headers))
