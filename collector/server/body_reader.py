"""Receiving bodies: how large one may be, how long it may take, and how much all of them may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from starlette.requests import ClientDisconnect, Request

from ...core.errors import WireError
from ..ingest.writer import FullError
from ..otlp.model import TooLargeError
from ..self_metrics import SelfMetrics

# An OTLP exporter gives up after so long (OTEL_EXPORTER_OTLP_TIMEOUT): a body that is not here by then is not coming.
MAX_RECEIVE_SECONDS = 10.0
# How much memory a body takes shows only when a message of gRPC is here as a whole, so few are received at once.
MESSAGES_AT_ONCE = 16
# The rest of a body that is too large is read and thrown away, so that its sender gets to read why; to this multiple.
_DISCARD_FACTOR = 4

Hold: TypeAlias = Callable[[int], None]


class Receiving:
    """The bodies that are being received or wait to be read; of one event loop.

    Args:
        max_body_bytes: The largest body.
        max_held_bytes: The most that all of them may hold together.
        metrics: Told how much they hold.
    """

    def __init__(self, max_body_bytes: int, max_held_bytes: int, metrics: SelfMetrics) -> None:
        self._max_body_bytes, self._max_held_bytes, self._metrics = max_body_bytes, max_held_bytes, metrics
        self._held_bytes = 0
        self._messages = asyncio.Semaphore(MESSAGES_AT_ONCE)

    @contextmanager
    def held(self) -> Generator[Hold]:
        """Give what accounts for the memory of one body, until the end.

        Raises:
            FullError: All bodies together take too much.
        """
        mine = 0

        def hold(size_bytes: int) -> None:
            nonlocal mine
            # One that is alone may be as large as any: else it could never be received.
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
        """Return the body of *request* as it came; nothing of it where there is none to *hold* it.

        Raises:
            FullError: All bodies together take too much.
            TooLargeError: It is larger than the limit.
            TimeoutError: It took too long.
            WireError: The sender left before its end.
        """
        limit = self._max_body_bytes
        chunks: list[bytes] = []
        size = 0
        try:
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
        except ClientDisconnect as error:  # nobody is left to read it
            msg = "the request ended early"
            raise WireError(msg) from error
        if size > limit:
            msg = f"the body is larger than {limit} bytes; send smaller batches or raise STAGELENS_MAX_BODY"
            raise TooLargeError(msg)
        return b"".join(chunks)

    async def message(self, read: Callable[[], Awaitable[bytes]], hold: Hold) -> bytes:
        """Return the message of gRPC that *read* waits for, which must hold no more than a body may.

        Raises:
            FullError: All bodies together take too much.
            TimeoutError: It took too long, or others did before it.
        """
        async with asyncio.timeout(MAX_RECEIVE_SECONDS), self._messages:
            message = await read()
        hold(len(message))
        return message


async def discard(request: Request) -> None:
    """Throw the body of *request* away, so that its sender gets to read the answer; as far as it comes in time."""
    with suppress(ClientDisconnect, TimeoutError):
        async with asyncio.timeout(MAX_RECEIVE_SECONDS):
            async for _ in request.stream():
                pass
