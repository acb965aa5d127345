"""Threads that inflate and decode bodies: two for small bodies, one for large ones.

Decoding is Python code and holds the interpreter lock, so more threads would not be faster. The memory of a body follows from its
inflated size, which is known only after inflating: one large body at a time is inflated, few may wait, and small ones do not wait for
it. Small bodies that wait at the same time are decoded together.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..ingest.writer import FullError
from ..otlp.model import BodyTooLargeError
from .inflate import inflate

D = TypeVar("D")
T = TypeVar("T")
# Converts the decoded forms of several bodies at once.
DecodeTogether: TypeAlias = Callable[[Sequence[D]], Sequence[T]]

# Ten times the size of an agent's export.
SMALL_BYTES = 1024**2
# Decoding a large body takes up to two seconds, and exporters time out after ten.
_MAX_LARGE = 8
# Inflated bytes that are decoded together; larger groups increase the latency without being faster.
_MAX_TOGETHER_BYTES = 512 * 1024


def identity(read: Sequence[T]) -> Sequence[T]:
    return read


class _LargeError(Exception):
    """An inflated body is larger than `SMALL_BYTES`."""


class _Job(NamedTuple):
    body: bytes
    encoding: str
    read: Callable[[bytes], Any]
    together: DecodeTogether[Any, Any]
    done: Future[Any]


class DecoderPool:
    def __init__(self, max_inflated_bytes: int) -> None:
        self._max_inflated_bytes = max_inflated_bytes
        self._waiting: deque[_Job] = deque()
        self._small = ThreadPoolExecutor(2, "stagelens-decoder")
        self._large = ThreadPoolExecutor(1, "stagelens-large-decoder")
        self._large_bodies = 0

    async def read(self, body: bytes, encoding: str, read: Callable[[bytes], D], together: DecodeTogether[D, T]) -> T:
        """Inflate *body* and decode it with *read*; *together* converts all bodies that wait, after a failure each one alone."""
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
        self._small.shutdown()
        self._large.shutdown()

    def _read_small(self) -> None:
        """Decode the waiting bodies; called once for each body, so most calls find no body left."""
        shared: defaultdict[DecodeTogether[Any, Any], list[tuple[Future[Any], Any]]] = defaultdict(list)
        size = 0
        while self._waiting and size < _MAX_TOGETHER_BYTES:
            try:
                job = self._waiting.popleft()
            except IndexError:  # the other thread decodes the last body
                break
            if not job.done.set_running_or_notify_cancel():
                continue
            try:
                inflated = self._inflated_small(job)
                size += len(inflated)
                read = job.read(inflated)
            except Exception as error:  # noqa: BLE001 - raised where the request waits
                job.done.set_exception(error)
            else:
                shared[job.together].append((job.done, read))
        for together, jobs in shared.items():
            _finish_together(together, jobs)

    def _inflated_small(self, job: _Job) -> bytes:
        if self._max_inflated_bytes <= SMALL_BYTES:
            return inflate(job.body, job.encoding, self._max_inflated_bytes)
        try:
            return inflate(job.body, job.encoding, SMALL_BYTES)
        except BodyTooLargeError as error:
            raise _LargeError from error

    def _read_large(self, job: _Job) -> Any:
        return job.together([job.read(inflate(job.body, job.encoding, self._max_inflated_bytes))])[0]


def _finish_together(together: DecodeTogether[Any, Any], jobs: Sequence[tuple[Future[Any], Any]]) -> None:
    try:
        results = together([read for _, read in jobs])
    except Exception as error:  # noqa: BLE001 - as above
        if len(jobs) == 1:
            jobs[0][0].set_exception(error)
            return
        # One bad body must not fail the others.
        for job in jobs:
            _finish_together(together, [job])
    else:
        for (done, _), result in zip(jobs, results, strict=True):
            done.set_result(result)
