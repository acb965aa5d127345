"""The threads that inflate and read bodies: two for the small, one for the large.

Reading is Python and shares one lock, so that more threads would only interleave. What a body takes in memory is bounded
by its inflated size, which shows only when it is inflated: one large body at a time is inflated, few wait for it, and
small ones pass it by. Small ones that wait are read together, a few at a time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..ingest.writer import FullError
from ..otlp.model import TooLargeError
from .body import inflate

D = TypeVar("D")
T = TypeVar("T")
Together: TypeAlias = Callable[[Sequence[D]], Sequence[T]]

# What agents send has a tenth of it.
SMALL_BYTES = 1024**2
# They wait a second or two each at the worst, and an exporter gives up after ten.
_MAX_LARGE = 8
# Small bodies are read together until they have so many bytes: more are no faster, and take longer.
_TOGETHER_BYTES = 256 * 1024


def apart(read: Sequence[T]) -> Sequence[T]:
    """Leave what was read of each body as it is."""
    return read


class _LargeError(Exception):
    """A body is no small one."""


class _Job(NamedTuple):
    body: bytes
    encoding: str
    read: Callable[[bytes], Any]
    together: Together[Any, Any]
    done: Future[Any]


class Decoders:
    """The threads; of one event loop.

    Args:
        max_inflated_bytes: The largest body, inflated.
    """

    def __init__(self, max_inflated_bytes: int) -> None:
        self._max_inflated_bytes = max_inflated_bytes
        self._waiting: deque[_Job] = deque()
        self._small = ThreadPoolExecutor(2, "stagelens-decoder")
        self._large = ThreadPoolExecutor(1, "stagelens-large-decoder")
        self._large_bodies = 0

    async def read(self, body: bytes, encoding: str, read: Callable[[bytes], D], together: Together[D, T]) -> T:
        """Return what *read* and *together* make of *body*, once its Content-Encoding is undone.

        Args:
            body: As it came.
            encoding: Its Content-Encoding.
            read: Reads a body by itself.
            together: Goes on with what was read of several, for whom it is the same function; where it fails for all of
                them, each is tried alone. `apart` for nothing.

        Raises:
            FullError: It is a large one, and too many of these wait.
            WireError: As `inflate` raises it, and as *read* and *together* do.
        """
        job = _Job(body, encoding, read, together, Future())
        self._waiting.append(job)
        self._small.submit(self._read_small)
        try:
            return await asyncio.wrap_future(job.done)
        except _LargeError:
            pass
        if self._large_bodies >= _MAX_LARGE:
            msg = f"{self._large_bodies} other large requests are being read; send it again, or smaller batches"
            raise FullError(msg)
        self._large_bodies += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._large, self._read_large, job)
        finally:
            self._large_bodies -= 1

    def stop(self) -> None:
        """Read what waits, and end."""
        self._small.shutdown()
        self._large.shutdown()

    def _read_small(self) -> None:
        """Read what waits; every body asks for it once, and most find that another has taken it along."""
        shared: defaultdict[Together[Any, Any], list[tuple[Future[Any], Any]]] = defaultdict(list)
        size = 0
        while self._waiting and size < _TOGETHER_BYTES:
            try:
                job = self._waiting.popleft()
            except IndexError:  # the other thread was faster
                break
            if not job.done.set_running_or_notify_cancel():
                continue
            try:
                inflated = self._inflated_small(job)
                size += len(inflated)
                read = job.read(inflated)
            except Exception as error:  # noqa: BLE001 - for whoever waits for it
                job.done.set_exception(error)
            else:
                shared[job.together].append((job.done, read))
        for together, jobs in shared.items():
            _finish(together, jobs)

    def _inflated_small(self, job: _Job) -> bytes:
        if self._max_inflated_bytes <= SMALL_BYTES:
            return inflate(job.body, job.encoding, self._max_inflated_bytes)
        try:
            return inflate(job.body, job.encoding, SMALL_BYTES)
        except TooLargeError as error:
            raise _LargeError from error

    def _read_large(self, job: _Job) -> Any:
        return job.together([job.read(inflate(job.body, job.encoding, self._max_inflated_bytes))])[0]


def _finish(together: Together[Any, Any], jobs: Sequence[tuple[Future[Any], Any]]) -> None:
    try:
        results = together([read for _, read in jobs])
    except Exception as error:  # noqa: BLE001 - as above
        if len(jobs) == 1:
            jobs[0][0].set_exception(error)
            return
        # One body must not cost the others theirs.
        for job in jobs:
            _finish(together, [job])
    else:
        for (done, _), result in zip(jobs, results, strict=True):
            done.set_result(result)
