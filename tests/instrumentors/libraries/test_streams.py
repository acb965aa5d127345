"""Streamed responses of a real server: their time is the handler's, their first token has content, and their code is named."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import Response, StreamingResponse
from starlette.middleware.base import BaseHTTPMiddleware

from stagelens.core.code_stack import split_stack_key
from stagelens.core.partition import segments
from stagelens.instrumentors import records
from stagelens.instrumentors.agent import profile
from stagelens.instrumentors.agent.profile import Profiler
from stagelens.instrumentors.libraries.asgi import AsgiInstrumentor
from stagelens.instrumentors.request_marks import read_request

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = AsgiInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")
LATER = 3600 * 10**9


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
        """Send as the two others do."""
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})
        await self._release.wait_for_token()
        await send({"type": "http.response.body", "body": b"data: a\n\n", "more_body": False})


async def passing(request: Any, call_next: Any) -> Any:
    return await call_next(request)


@contextlib.contextmanager
def served(app: Any) -> Generator[str]:
    """Serve an application on a thread that is in no request; yield its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    started = threading.Event()
    startup = server.startup

    async def announced(*args: Any, **options: Any) -> None:
        await startup(*args, **options)
        started.set()

    server.startup = announced  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    assert started.wait(60)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Profiler]:
    """A profiler whose looks the test takes, and for which each request is slow after a second."""
    monkeypatch.setattr(profile, "unpatched", _without_thread)
    found = Profiler(random.Random(1))
    for _ in range(profile.MIN_REQUESTS):
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
    """In whatever task the server runs it; a comment is no token."""
    release = Release()
    app = FastAPI()
    app.get("/")(lambda: respond(release))
    if has_middleware:
        app.add_middleware(BaseHTTPMiddleware, dispatch=passing)
    with served(app) as url, httpx.stream("GET", url, timeout=60) as response:
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
