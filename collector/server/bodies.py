"""Request bodies: received, inflated and decoded within limits of size, time and memory.

A body is received in the event loop, and inflated and decoded in threads. Decoding is Python code and holds the interpreter lock, so
more than two threads would not be faster. The memory of a body follows from its inflated size, which is known only after inflating:
one large body at a time is inflated, few may wait, and small ones do not wait for it. Small bodies that wait at the same time are
decoded together.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias, TypeVar

import zstandard
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...core.errors import WireError
from ...core.names import ENVIRONMENT, SERVICE_NAME
from ..ingest.writer import FullError
from ..otlp.model import Attributes, BodyTooLargeError, UnsupportedError
from ..self_metrics import SelfMetrics

D = TypeVar("D")
T = TypeVar("T")
Hold: TypeAlias = Callable[[int], None]
# Converts the decoded forms of several bodies at once.
DecodeTogether: TypeAlias = Callable[[Sequence[D]], Sequence[T]]

# Default of OTEL_EXPORTER_OTLP_TIMEOUT: exporters time out after it.
MAX_RECEIVE_SECONDS = 10.0
# The rest of a too large body is discarded, up to this multiple of the limit, so that its sender reads the response.
_DISCARD_FACTOR = 4
# zlib's name for "a gzip header and trailer must be there".
_GZIP = 16 + zlib.MAX_WBITS
# RFC 9659: content sent over HTTP needs a window of at most 8 MB. A frame that asks for more is refused.
MAX_WINDOW_BYTES = 8 * 1024**2
# RFC 8878: a block has at least 4 bytes and inflates to at most 128 KiB.
_MAX_INFLATED_PER_BYTE = 128 * 1024 // 4
_MIN_CHUNK_BYTES = 64
# Start of a body that is searched for its service: the first resource of an export is at its start. [bytes]
HEAD_BYTES = 16 * 1024
# Attributes with a text, in JSON and in protobuf: KeyValue {key = 1, value = 2: AnyValue {string_value = 1}}.
_IN_JSON = rb'"%s"\s*,\s*"value"\s*:\s*\{\s*"stringValue"\s*:\s*"([^"\\]{1,200})"'
_IN_PROTOBUF = rb"\x0a%c%s\x12[\x03-\x7f]\x0a([\x01-\x7d])"
# Ten times the size of an agent's export.
SMALL_BYTES = 1024**2
# Decoding a large body takes up to two seconds, and exporters time out after ten.
_MAX_LARGE = 8
# Inflated bytes that are decoded together; larger groups increase the latency without being faster.
_MAX_TOGETHER_BYTES = 512 * 1024


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


def encoding_of(body: bytes) -> str:
    """Return the encoding of *body*, a gRPC message: gRPC does not report it, and no protobuf message starts like gzip."""
    return "gzip" if body.startswith(b"\x1f\x8b") else "identity"


def inflate(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Return *body* without its Content-Encoding; of a too large one, at most *limit_bytes* and 2 MiB are inflated."""
    match encoding.strip().lower():
        case "" | "identity":
            inflated = body
        case "gzip" | "x-gzip":
            inflated = _gunzip(body, limit_bytes)
        case "zstd":
            inflated = _unzstd(body, limit_bytes)
        case _:
            msg = f"Content-Encoding {encoding[:40]!r} is not supported; send gzip, zstd or identity"
            raise UnsupportedError(msg)
    _check_inflated_size(len(inflated), limit_bytes)
    return inflated


def _gunzip(body: bytes, limit_bytes: int) -> bytes:
    stream = zlib.decompressobj(_GZIP)
    try:
        inflated = stream.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        msg = f"the body is not valid gzip ({error})"
        raise WireError(msg) from error
    if len(inflated) <= limit_bytes:
        _check_stream_end("gzip stream", stream.eof, len(body), len(stream.unused_data))
    return inflated


def _unzstd(body: bytes, limit_bytes: int) -> bytes:
    stream = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
    pieces: list[bytes] = []
    at = inflated = 0
    try:
        if body:
            _check_inflated_size(zstandard.frame_content_size(body), limit_bytes)  # -1 for unknown
        while at < len(body) and not stream.eof and inflated <= limit_bytes:
            # A chunk inflates at once, so its size is limited by the remaining capacity.
            end = at + max((limit_bytes - inflated) // _MAX_INFLATED_PER_BYTE, _MIN_CHUNK_BYTES)
            pieces.append(stream.decompress(body[at:end]))
            inflated += len(pieces[-1])
            at = min(end, len(body))
    except zstandard.ZstdError as error:
        msg = f"the body is not valid zstd, or needs a window of more than {MAX_WINDOW_BYTES} bytes ({error})"
        raise WireError(msg) from error
    if inflated <= limit_bytes:
        _check_stream_end("zstd frame", stream.eof, len(body), len(body) - at + len(stream.unused_data))
    return b"".join(pieces)


def _check_inflated_size(size_bytes: int, limit_bytes: int) -> None:
    if size_bytes > limit_bytes:
        msg = f"the body is larger than {limit_bytes} bytes once inflated; send smaller batches"
        raise BodyTooLargeError(msg)


def _check_stream_end(what: str, ended: bool, size_bytes: int, left_bytes: int) -> None:
    if not ended:
        msg = f"the {what} ends early, after {size_bytes} bytes"
        raise WireError(msg)
    if left_bytes:
        msg = f"{left_bytes} bytes follow the end of the {what}; send one {what.split()[1]} a request"
        raise WireError(msg)


def resource_in(head: bytes, encoding: str) -> Attributes:
    """Return service and environment of the first resource of an export that cannot be read, from the *head* of its body."""
    with suppress(zlib.error, zstandard.ZstdError):
        if "gzip" in encoding.lower():
            head = zlib.decompressobj(_GZIP).decompress(head, HEAD_BYTES)
        elif encoding.strip().lower() == "zstd":
            # A block inflates at once, to at most 128 KiB; most services are named in the first one.
            stream = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
            head = stream.decompress(head)
    return {key: text for key in (SERVICE_NAME, ENVIRONMENT) if (text := _text_of(head[:HEAD_BYTES], key.encode()))}


def _text_of(head: bytes, key: bytes) -> str:
    if match := re.search(_IN_JSON % re.escape(key), head):
        return match[1].decode(errors="replace")
    if match := re.search(_IN_PROTOBUF % (len(key), re.escape(key)), head, re.DOTALL):
        return head[match.end() : match.end() + match[1][0]].decode(errors="replace")
    return ""


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
