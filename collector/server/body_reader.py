"""Request bodies, received in the event loop within limits of size, time and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...core.errors import WireError
from ..ingest.writer import FullError
from ..otlp.model import BodyTooLargeError
from ..self_metrics import SelfMetrics
from .inflate import HEAD_BYTES

# Default of OTEL_EXPORTER_OTLP_TIMEOUT: exporters time out after it.
MAX_RECEIVE_SECONDS = 10.0
# The rest of a too large body is discarded, up to this multiple of the limit, so that its sender reads the response.
_DISCARD_FACTOR = 4

Hold: TypeAlias = Callable[[int], None]


class BodyReader:
    def __init__(self, max_body_bytes: int, max_held_bytes: int, metrics: SelfMetrics) -> None:
        self._max_body_bytes, self._max_held_bytes, self._metrics = max_body_bytes, max_held_bytes, metrics
        self._held_bytes = 0

    @contextmanager
    def held(self) -> Generator[Hold]:
        mine = 0

        def hold(size_bytes: int) -> None:
            nonlocal mine
            # A single body is always admitted; otherwise a large one could never be received.
            if self._held_bytes > mine and self._held_bytes + size_bytes > self._max_held_bytes:
                msg = f"{self._held_bytes - mine} bytes of other requests are being read; send it again"
                raise FullError(msg)
            mine += size_bytes
            self._held_bytes += size_bytes
            self._metrics.receiving(self._held_bytes)

        try:
            yield hold
        finally:
            self._held_bytes -= mine
            self._metrics.receiving(self._held_bytes)

    async def body(self, request: Request, hold: Hold | None) -> bytes:
        """Return the body of *request* as received, or discard it if *hold* is None."""
        fix = "; send smaller batches or raise STAGELENS_MAX_BODY"
        try:
            return await receive_body(request, self._max_body_bytes, hold, fix)
        except ClientDisconnect as error:
            msg = "the request ended early"
            raise WireError(msg) from error


async def receive_body(request: Request, limit_bytes: int, hold: Hold | None, fix: str = "") -> bytes:
    """Return the body of *request*, or discard it if *hold* is None; *hold* gets the size of each chunk.

    Raises BodyTooLargeError, TimeoutError after `MAX_RECEIVE_SECONDS`, and ClientDisconnect.
    """
    chunks: list[bytes] = []
    size, head = 0, b""
    async with asyncio.timeout(MAX_RECEIVE_SECONDS):
        async for chunk in request.stream():
            size += len(chunk)
            head = head or chunk[:HEAD_BYTES]
            if size > limit_bytes * _DISCARD_FACTOR:
                break
            if size > limit_bytes or hold is None:
                chunks.clear()
                continue
            hold(len(chunk))
            chunks.append(chunk)
    if size > limit_bytes:
        msg = f"the body is larger than {limit_bytes} bytes{fix}"
        raise BodyTooLargeError(msg, head)
    return b"".join(chunks)


def with_complete_bodies(application: ASGIApp, limit_bytes: int) -> ASGIApp:
    """Return *application*, called for requests whose body is complete and not larger than *limit_bytes*."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        received = list[Message]()
        if scope["type"] == "http":
            try:
                body = await receive_body(Request(scope, receive), limit_bytes, lambda _size: None)
            except ClientDisconnect:
                return
            except (BodyTooLargeError, TimeoutError) as error:
                too_large = isinstance(error, BodyTooLargeError)
                status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE if too_large else HTTPStatus.REQUEST_TIMEOUT
                text = str(error) or f"the body was not received within {MAX_RECEIVE_SECONDS:g} s"
                await PlainTextResponse(f"{text}\n", status, {"Connection": "close"})(scope, receive, send)
                return
            received.append({"type": "http.request", "body": body, "more_body": False})

        async def next_message() -> Message:
            return received.pop() if received else await receive()

        await application(scope, next_message, send)

    return call
