"""Streamed responses: which chunks have content; from a real server, their time is the handler's, and their code is named."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import Response, StreamingResponse
from starlette.middleware.base import BaseHTTPMiddleware

from stagelens.core.code_stack import split_stack_key
from stagelens.core.partition import segments
from stagelens.instrumentors import records
from stagelens.instrumentors.agent import profile
from stagelens.instrumentors.agent.profile import Profiler
from stagelens.instrumentors.agent.recent_durations import MIN_REQUESTS
from stagelens.instrumentors.libraries.starlette import StarletteInstrumentor
from stagelens.instrumentors.libraries.streams import ResponseStream
from stagelens.instrumentors.request_marks import read_request
from tests.support.uvicorn_server import uvicorn_server

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = StarletteInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")
LATER = 3600 * 10**9
SSE = "text/event-stream; charset=utf-8"
CHAT = b'data: {"id": "1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": %s}}]}\n\n'


class Release:
    """What the stream waits for, once the client has a keep-alive."""

    def __init__(self) -> None:
        self.loop: Any = None
        self._event = asyncio.Event()

    async def wait_for_token(self) -> None:
        self.loop = asyncio.get_running_loop()
        await self._event.wait()

    def set(self) -> None:
        self.loop.call_soon_threadsafe(self._event.set)


def generated(release: Release) -> StreamingResponse:
    async def chunks() -> AsyncGenerator[bytes]:
        yield b": ping\n\n"
        await release.wait_for_token()
        yield b"data: a\n\n"

    return StreamingResponse(chunks(), media_type="text/event-stream")


def events(release: Release) -> Any:
    async def chunks() -> AsyncGenerator[dict[str, str]]:
        yield {"comment": "ping"}
        await release.wait_for_token()
        yield {"data": "a"}

    return pytest.importorskip("sse_starlette").EventSourceResponse(chunks())


class OwnResponse(Response):
    """A class of the user that handles ASGI itself."""

    def __init__(self, release: Release) -> None:
        super().__init__()
        self._release = release

    async def __call__(self, _: Any, __: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})
        await self._release.wait_for_token()
        await send({"type": "http.response.body", "body": b"data: a\n\n", "more_body": False})


async def passing(request: Any, call_next: Any) -> Any:
    return await call_next(request)


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Profiler]:
    """A profiler whose looks the test takes, and for which each request is slow after a second."""
    monkeypatch.setattr(profile, "unpatched", _without_thread)
    found = Profiler(random.Random(1))
    for _ in range(MIN_REQUESTS):
        found.recent.add("/fast", 10**9)
    found.allow(1.0)
    yield found
    found.allow(0.0)


def _without_thread(module: str, name: str) -> Any:
    return (lambda *_: None) if name == "start_new_thread" else getattr(__import__(module), name)


@pytest.mark.parametrize("has_middleware", [False, True], ids=["alone", "middleware"])
@pytest.mark.parametrize("respond", [generated, pytest.param(events, marks=pytest.mark.stacks), OwnResponse])
def test_a_stream_is_the_work_of_its_handler(
    finished: Finished,
    profiler: Profiler,
    until: Callable[..., None],
    respond: Callable[[Release], Any],
    has_middleware: bool,
) -> None:
    release = Release()
    app = FastAPI()
    app.get("/")(lambda: respond(release))
    if has_middleware:
        app.add_middleware(BaseHTTPMiddleware, dispatch=passing)
    with uvicorn_server(app) as url, httpx.stream("GET", url, timeout=60) as response:
        body = response.iter_raw()
        assert next(body).startswith(b": ping")
        until(lambda: release.loop is not None, "the wait for the token")
        looked_at = records.clock()
        assert profiler.sample(looked_at + LATER)
        release.set()
        assert b"data: a" in b"".join(body)
    (record,) = finished
    facts, intervals = read_request(record)
    (stage,) = [name for name, start, end in segments(intervals, *record[1:3]) if start <= looked_at < end]
    now = looked_at + 2 * LATER
    (key,) = profiler.take(record[0], {"overhead": now}, [], record[1], now)

    assert stage == "handler"
    assert looked_at < facts["@first_token"][0]
    assert "Release.wait_for_token" in [frame.function for frame in split_stack_key(key)[1]]


@pytest.mark.parametrize(
    ("media_type", "chunks", "first"),
    [
        (SSE, [b": ping - 12:00\r\n\r\n", b"data: a\n\n"], 1),
        (SSE, [b"retry: 100\n\n", b"id: 1\n\n", b"data:\n\n", b"event: ping\ndata: {}\n\n", b"data: a\n\n"], 4),
        (
            SSE,
            [b"data: \n\n", b"event: metadata\ndata: {}\n\n", b'data: {"type": "text-start"}\n\n', b"data:  \n\n"],
            3,
        ),
        (SSE, [b"event: token\n", b"data: Hel", b"lo\n\n", b"data: again\n\n"], 1),
        (SSE, [b": ping\n\ndata: a\n\n", b": ping\n\n"], 0),
        (SSE, [*[b": ping\n"] * 12_000, b"data: a\n\n"], 12_000),
        (SSE, [CHAT % b'""', CHAT % b"null", CHAT[:80], CHAT[80:] % b'"Hi"', b"data: [DONE]\n\n"], 3),
        (SSE, [b'data: {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}\n\n', b"data: [DONE]\n\n"], 0),
        (SSE, [b'data: {"choices": [{"delta": {"reasoning_content": "Hm"}}]}\n\n', b"data: [DONE]\n\n"], 0),
        (SSE, [b'data: {"type":"response.created"}\n\n', b'data: {"type":"response.output_text.delta"}\n\n'], 1),
        (SSE, [b'data: {"type": "message_start"}\n\n', b'data: {"type": "content_block_delta"}\n\n'], 1),
        (SSE, [b'data: {"type": "heartbeat"}\n\n', b'data: {"type": "token", "text": "a"}\n\n'], 1),
        (SSE, [b"data: " + b"a" * 100_000, b"a\n\n"], 0),
        ("application/x-ndjson", [b"\n", b" \r\n", b'{"a": 1}\n', b"\n"], 2),
        ("text/plain", [b": ping\n", b"a"], 0),
        ("application/octet-stream", [memoryview(b"\0"), bytearray(b"a")], 0),
        ("", [True, False], None),
    ],
)
def test_the_first_chunk_with_content_counts(media_type: str, chunks: list[Any], first: int | None) -> None:
    stream = ResponseStream([("Content-Type", media_type)])
    for at, chunk in enumerate(chunks, 1):
        stream.add(at, chunk)

    assert stream.facts()[1:2] == ([] if first is None else [first + 1])


def test_a_compressed_stream_is_not_read() -> None:
    stream = ResponseStream([(b"content-type", SSE.encode()), (b"Content-Encoding", b"gzip")])
    stream.add(1, b"\x1f\x8b")
    stream.add(9, b"\x00")

    assert stream.facts() == ["@first_token", 1, "first_chunk", "@gap", 8, "first_chunk"]
