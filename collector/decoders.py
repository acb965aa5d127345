"""The threads that inflate and read bodies: two for the small, one for the large.

Reading is Python and shares one lock, so that more threads would only interleave. What a body takes in memory is bounded
by its inflated size, which shows only when it is inflated: one large body at a time is inflated, few wait for it, and
small ones pass it by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .body import inflate
from .wire import TooLargeError
from .writer import FullError

T = TypeVar("T")

# What agents send has a tenth of it.
SMALL_BYTES = 1024**2
# They wait a second or two each at the worst, and an exporter gives up after ten.
_MAX_LARGE = 8


class _LargeError(Exception):
    """A body is no small one."""


class Decoders:
    """The threads; of one event loop.

    Args:
        max_inflated_bytes: The largest body, inflated.
    """

    def __init__(self, max_inflated_bytes: int) -> None:
        self._max_inflated_bytes = max_inflated_bytes
        self._small = ThreadPoolExecutor(2, "stagelens-decoder")
        self._large = ThreadPoolExecutor(1, "stagelens-large-decoder")
        self._large_bodies = 0

    async def read(self, body: bytes, encoding: str, read: Callable[[bytes], T]) -> T:
        """Return what *read* makes of *body*, once its Content-Encoding is undone.

        Raises:
            FullError: It is a large one, and too many of these wait.
            WireError: As `inflate` raises it, and as *read* does.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._small, self._read_small, body, encoding, read)
        except _LargeError:
            pass
        if self._large_bodies >= _MAX_LARGE:
            msg = f"{self._large_bodies} other large requests are being read; send it again, or smaller batches"
            raise FullError(msg)
        self._large_bodies += 1
        try:
            return await loop.run_in_executor(self._large, self._read_large, body, encoding, read)
        finally:
            self._large_bodies -= 1

    def stop(self) -> None:
        """Read what waits, and end."""
        self._small.shutdown()
        self._large.shutdown()

    def _read_small(self, body: bytes, encoding: str, read: Callable[[bytes], T]) -> T:
        if self._max_inflated_bytes <= SMALL_BYTES:
            return self._read_large(body, encoding, read)
        try:
            inflated = inflate(body, encoding, SMALL_BYTES)
        except TooLargeError as error:
            raise _LargeError from error
        return read(inflated)

    def _read_large(self, body: bytes, encoding: str, read: Callable[[bytes], T]) -> T:
        return read(inflate(body, encoding, self._max_inflated_bytes))
