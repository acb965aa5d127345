"""Receiving bodies: how large one may be, how long it may take, and how much all of them may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager

from starlette.requests import Request

from .selfmetrics import SelfMetrics
from .wire import TooLargeError
from .writer import FullError

# A body that is not here by then is not coming.
MAX_RECEIVE_SECONDS = 30.0
# The rest of a body that is too large is read and thrown away, so that its sender gets to read why; to this multiple.
_DISCARD_FACTOR = 4


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

    @contextmanager
    def held(self) -> Generator[Callable[[int], None]]:
        """Give what accounts for the memory of one body, until the end.

        Raises:
            FullError: All bodies together take too much.
        """
        mine = 0

        def hold(size_bytes: int) -> None:
            nonlocal mine
            if self._held_bytes + size_bytes > self._max_held_bytes:
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

    async def body(self, request: Request, hold: Callable[[int], None] | None = None) -> bytes:
        """Return the body of *request* as it came; nothing of it where there is none to *hold* it.

        Raises:
            TooLargeError: It is larger than the limit.
            TimeoutError: It took too long.
        """
        limit = self._max_body_bytes
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
