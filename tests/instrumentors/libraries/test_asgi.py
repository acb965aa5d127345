"""Starlette and FastAPI: what is counted as a request, what as which stage, and that nothing else changes."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import inspect
import itertools
import pickle
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, MutableMapping
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.endpoints import HTTPEndpoint
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from stagelens import stage
from stagelens.core.partition import partition
from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.libraries import asgi, proxy_waits
from stagelens.instrumentors.libraries.starlette import StarletteInstrumentor
from tests.instrumentors.libraries.drivers import request_asgi
from tests.support.endpoint_work import WORK_NS, own_times, work

if TYPE_CHECKING:
    from conftest import Finished

Message = MutableMapping[str, Any]

INSTRUMENTOR = StarletteInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")


class Item(BaseModel):
    n: int


async def drive(
    app: Any,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
    **scope: Any,
) -> None:
    """Call *app* as a server of ASGI 2.4 does, which raises when the client is gone."""
    http = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "headers": []}
    await app({**http, "asgi": {"version": "3.0", "spec_version": "2.4"}, **scope}, receive, send)


async def until(condition: Callable[[], object]) -> None:
    """Wait for what a thread or AnyIO brings about; the caller sets the deadline."""
    while not condition():  # noqa: ASYNC110 - neither has an event to await
        await asyncio.sleep(0.001)


def triples(marks: records.Marks) -> list[tuple[str, Any, Any]]:
    return list(zip(marks[::3], marks[1::3], marks[2::3], strict=True))


async def no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def discard(message: Message) -> None:
    del message


async def empty(_: Request) -> Response:
    return PlainTextResponse("")


def serving(endpoint: Any = empty) -> Starlette:
    return Starlette(routes=[Route("/", endpoint)])


def test_reading_parsing_rendering_and_sending_are_stages(finished: Finished) -> None:
    app = FastAPI()

    @app.post("/")
    async def echo(item: Item) -> Item:
        return item

    request_asgi(app, "POST", "/", json={"n": 1})

    assert finished.stages()[0] == "network"
    assert finished.stages()[-3:] == ["network", "network", "framework"]
    # Parsing, validation of the body and of the response, and the creation of the response and of one for dependencies.
    assert finished.stages().count("serialize") == 5


def test_a_form_is_parsed_in_serialize_and_read_in_network(finished: Finished) -> None:
    async def endpoint(request: Request) -> JSONResponse:
        async with request.form() as form:
            return JSONResponse(dict(form))

    response = request_asgi(Starlette(routes=[Route("/", endpoint, methods=["POST"])]), "POST", "/", data={"a": "1"})

    assert response.json() == {"a": "1"}
    parsed = finished.stages().index("serialize")
    assert finished.stages()[:parsed] == ["network"] * parsed
    assert finished.stages()[parsed:] == ["serialize", "serialize", "handler", "network", "network", "framework"]
    stages = [mark for mark in finished.marks() if not mark[0].startswith("@")]
    (_, read, _), (_, parse_started, _) = stages[0], stages[parsed]
    assert parse_started <= read


def test_waiting_for_one_of_forty_threads_and_for_the_loop_is_queue_not_forward(finished: Finished) -> None:
    started, ended, release = itertools.count(1), itertools.count(1), threading.Event()
    inside, returned = threading.Event(), threading.Event()
    app = FastAPI()

    # Without a model of the response: older versions of FastAPI fill it on another thread.
    @app.get("/", response_model=None)
    def endpoint() -> None:
        with stage("forward"):
            if next(started) == 40:
                inside.set()
            release.wait(30)
        if next(ended) == 40:
            returned.set()

    async def sixty() -> tuple[int, int]:
        limiter = anyio.to_thread.current_default_thread_limiter()
        async with asyncio.timeout(30), asyncio.TaskGroup() as all_of_them:
            for _ in range(60):
                all_of_them.create_task(drive(app, no_body, discard))
            await until(lambda: limiter.statistics().tasks_waiting == 20 and inside.is_set())
            released = records.clock()
            release.set()
            # Of the whole loop.
            returned.wait(30)
            return released, records.clock()

    released, held_until = asyncio.run(sixty())
    # What each was doing while the pool was full.
    parts = [
        partition([mark for mark in triples(marks) if mark[0][0] != "@"], t0, released) for marks, t0, *_ in finished
    ]

    assert sorted(part.get("forward", 0) > 0 for part in parts) == [False] * 20 + [True] * 40
    for (marks, *_), part in zip(finished, parts, strict=True):
        stages = {key: (start, end) for key, start, end in triples(marks)}
        if part.get("forward"):
            assert released < stages["queue@loop"][0]
            assert held_until < stages["queue@loop"][1]
        else:
            assert stages["queue"][0] < released < stages["queue"][1] <= stages["forward"][0]


def test_cancellation_before_a_free_thread_is_queue(finished: Finished) -> None:
    async def endpoint(_: Request) -> PlainTextResponse:
        with anyio.move_on_after(0.02):
            await anyio.to_thread.run_sync(int, limiter=anyio.CapacityLimiter(0))
        return PlainTextResponse("")

    request_asgi(serving(endpoint), "GET", "/")

    assert finished.stages()[0] == "queue"


def test_the_first_of_two_proxy_headers_counts(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_waits, "trusted", ("*",))
    sent_at = f"t={time.time() - 0.9:.3f}".encode()

    asyncio.run(drive(serving(), no_body, discard, headers=[(b"x-request-start", sent_at)] * 2))

    assert finished.stages().count("queue") == 1
    assert finished[0][2] - finished[0][1] < 1_700_000_000


@pytest.mark.parametrize(
    ("path", "route", "status"),
    [
        ("/plain/7", "/plain/{n:int}", 200),
        ("/here", "/here", 405),
        ("/api/v1/things/7", "/api/v1/things/{n}", 200),
        ("/tenants/acme/rooms/7", "/tenants/{tenant}/rooms/{n}", 200),
        ("/tenants/acme/wp-login.php", "/tenants/{tenant}", 404),
        ("/wp-login.php", "__unmatched__", 404),
        ("/livez", "__probes__", 404),
        ("/secret/9f8e7d", "__unmatched__", 404),
    ],
)
def test_the_route_is_a_template_never_a_path(finished: Finished, path: str, route: str, status: int) -> None:
    things = APIRouter(prefix="/things")
    things.add_api_route("/{n}", empty)
    version = APIRouter(prefix="/v1")
    version.include_router(things)
    app = FastAPI(routes=[Route("/plain/{n:int}", empty), Route("/here", empty, methods=["POST"])])
    app.include_router(version, prefix="/api")
    app.mount("/tenants/{tenant}", Starlette(routes=[Route("/rooms/{n}", empty)]))

    response = request_asgi(app, "GET", path)

    assert response.status_code == status
    assert [record[3] for record in finished] == [route]


def test_an_application_without_a_response_is_an_error(finished: Finished) -> None:
    async def silent(*_: object) -> None:
        return

    app = Starlette(routes=[Mount("/", silent)])

    asyncio.run(drive(app, no_body, discard))

    assert finished[0][4:6] == ("", 500)


def test_the_request_ends_at_the_last_byte_before_background_tasks(finished: Finished) -> None:
    seen: list[int] = []
    later = BackgroundTask(lambda: seen.append(len(finished)))
    request_asgi(serving(lambda _: Response(background=later)), "GET", "/")

    assert seen == [1]
    assert len(finished) == 1


@pytest.mark.parametrize(
    ("messages", "headers", "expected"),
    [
        ([(b"a", True), (b"b", True), (b"", False)], [], (1_010, 100)),
        ([(b"a", True), (b"b", False)], [], (1_010, 100)),
        ([(b"", True), (b"a", True), (b"b", False)], [], (1_110, 1_000)),
        # What a middleware makes of an answer in one part.
        ([(b"a", True), (b"", False)], [], None),
        ([(b"a", False)], [], None),
        # A file.
        ([(b"a", True), (b"b", False)], [(b"Content-Length", b"2")], None),
    ],
)
def test_a_stream_has_first_chunk_time_and_longest_gap(
    finished: Finished,
    monkeypatch: pytest.MonkeyPatch,
    messages: list[tuple[bytes, bool]],
    headers: list[tuple[bytes, bytes]],
    expected: tuple[int, int] | None,
) -> None:
    now = [1_000]
    monkeypatch.setattr(asgi, "clock", lambda: now[0])

    async def streams(_: Any, __: Any, send: Callable[[Message], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for pause, (body, more) in enumerate(messages, 1):
            now[0] += 10**pause
            await send({"type": "http.response.body", "body": body, "more_body": more})

    asyncio.run(drive(Starlette(routes=[Mount("/", streams)]), no_body, discard))

    facts = [mark for mark in finished.marks() if mark[0] in {"@first_token", "@gap"}]
    keys = ("@first_token", "@gap") if expected else ()
    assert facts == [(key, at, "first_chunk") for key, at in zip(keys, expected or (), strict=True)]


def test_a_client_disconnect_finishes_a_stream_once(finished: Finished) -> None:
    streaming = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes]:
        while True:
            yield b"x"
            await asyncio.sleep(0.001)

    async def receive() -> Message:
        await streaming.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            streaming.set()

    async def endpoint(_: Request) -> StreamingResponse:
        return StreamingResponse(endless())

    # Before ASGI 2.4 an application had to listen for the client to leave.
    asyncio.run(drive(serving(endpoint), receive, send, asgi={"spec_version": "2.3"}))

    assert [record[3:6] for record in finished] == [("/", "", 200)]


def test_no_attribute_of_a_mounted_application_is_needed(finished: Finished, reported: set[str]) -> None:
    class Lazy:
        @property
        def routes(self) -> None:
            raise RuntimeError

        def __getattr__(self, name: str) -> None:
            raise KeyError(name)

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await Response()(scope, receive, send)

    asyncio.run(drive(Starlette(routes=[Mount("/lazy", Lazy())]), no_body, discard, path="/lazy/"))

    assert [record[4:6] for record in finished] == [("", 200)]
    assert reported == set()


@pytest.mark.since("starlette", "0.42")  # before, it raises an ExceptionGroup, and waits for a disconnect
def test_a_failing_stream_is_an_error_after_a_200_status(finished: Finished) -> None:
    def chunks() -> Generator[bytes]:
        yield b"x"
        message = "half way"
        raise ValueError(message)

    with pytest.raises(ValueError, match="half way"):
        asyncio.run(drive(serving(lambda _: StreamingResponse(chunks())), no_body, discard))

    assert [record[3:6] for record in finished] == [("/", "ValueError", 200)]


def test_a_cancelled_request_is_finished_and_stays_cancelled(finished: Finished) -> None:
    async def endpoint(_: Request) -> PlainTextResponse:
        await asyncio.Event().wait()
        return PlainTextResponse("")

    async def cancel() -> None:
        task = asyncio.create_task(drive(serving(endpoint), no_body, discard))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())

    assert [record[4] for record in finished] == ["CancelledError"]


@pytest.mark.since("starlette", "0.46")  # before, its exceptions are part of reference cycles
def test_requests_leave_no_work_for_the_garbage_collector(finished: Finished) -> None:
    async def broken(_: Request) -> Response:
        raise ValueError

    app = Starlette(routes=[Route("/", empty), Route("/broken", broken)])

    async def many() -> int:
        for path in ("/", "/broken", "/absent"):
            with contextlib.suppress(ValueError):
                await drive(app, no_body, discard, path=path)
        return sum(type(thing) is asgi.AsgiExchange for thing in gc.get_objects())

    # What an exception of an earlier test still holds is not ours to count.
    gc.collect()
    gc.disable()
    try:
        left = asyncio.run(many())
    finally:
        gc.enable()

    assert len(finished) == 3
    assert left == 0


def test_an_application_called_inside_a_request_is_part_of_it(finished: Finished) -> None:
    inner = Starlette(routes=[Route("/inner", lambda _: PlainTextResponse("inner"))])

    async def endpoint(_: Request) -> PlainTextResponse:
        transport = httpx.ASGITransport(inner)
        async with httpx.AsyncClient(transport=transport, base_url="http://inner") as client:
            return PlainTextResponse((await client.get("/inner")).text)

    assert request_asgi(serving(endpoint), "GET", "/").text == "inner"
    assert [record[3] for record in finished] == ["/"]


def test_an_application_may_copy_and_serialize_the_scope(finished: Finished) -> None:
    seen: list[Any] = []

    async def endpoint(request: Request) -> Response:
        theirs = {"app", "router", "endpoint", "route", "starlette.exception_handlers"}
        scope = {key: value for key, value in request.scope.items() if key not in theirs}
        seen.extend((copy.deepcopy(scope), pickle.loads(pickle.dumps(scope))))  # noqa: S301 - our own
        return Response()

    assert request_asgi(serving(endpoint), "GET", "/").status_code == 200
    assert [copied["stagelens"] for copied in seen] == [None, None]
    assert [record[3] for record in finished] == ["/"]


def test_what_the_application_gets_has_the_names_of_the_server(finished: Finished) -> None:
    seen: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append([(each.__name__, each.__qualname__, each.__module__) for each in (receive, send)])
        seen.append([inspect.iscoroutinefunction(each) for each in (receive, send)])
        seen.append([each.__self__ for each in (receive, send)])
        await send({"type": "http.response.start" if scope["type"] == "http" else "lifespan.startup.complete"})

    class Server:
        async def take(self) -> Message:
            return {}

        async def put(self, message: Message) -> None:
            del message

    server = Server()
    for kind in ("http", "lifespan"):
        asyncio.run(drive(asgi.Served(application), server.take, server.put, type=kind))

    names = [(each.__name__, each.__qualname__, __name__) for each in (server.take, server.put)]
    assert seen == [names, [True, True], [server, server]] * 2
    assert len(finished) == 1


def test_headers_that_can_be_read_once_are_left_to_others(finished: Finished, reported: set[str]) -> None:
    seen: list[Any] = []
    header = (b"content-length", b"2")

    class Send:
        note = 1

        async def __call__(self, message: Message) -> None:
            seen.append(message)

    async def application(scope: Any, _: Any, send: Any) -> None:
        seen.extend((list(scope.get("headers", ())), send.note))
        await send({"type": "http.response.start", "status": 200, "headers": iter([header])})
        for more in (True, False):
            await send({"type": "http.response.body", "body": b"x", "more_body": more})

    for headers in ({"headers": iter([header])}, {}):
        asyncio.run(drive(asgi.Served(application), no_body, Send(), type="http", **headers))

    assert [each for each in seen if not isinstance(each, dict)] == [[header], 1, [], 1]
    assert [list(each["headers"]) for each in seen if isinstance(each, dict) and "headers" in each] == [[header]] * 2
    assert reported == set()
    assert len(finished) == 2


class Lifespan:
    """The lifespan of an application, and what its server is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self._messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    def run(self, app: Any) -> Coroutine[Any, Any, None]:
        return drive(app, self._receive, self._send, type="lifespan")

    async def _receive(self) -> Message:
        return next(self._messages)

    async def _send(self, message: Message) -> None:
        self.sent.append(message["type"])


def run_without_asyncio(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run *coroutine*, which waits for nothing, in the event loop of no library."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


def test_a_server_of_another_event_loop_than_asyncio_is_recorded(finished: Finished, reported: set[str]) -> None:
    app, lifespan = serving(), Lifespan()
    run_without_asyncio(lifespan.run(app))
    run_without_asyncio(drive(app, no_body, discard))

    assert lifespan.sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert [record[3:6] for record in finished] == [("/", "", 200)]
    assert reported == set()


def test_a_shutdown_that_is_cancelled_meanwhile_is_still_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(recorder, "flush", lambda: order.append("flush"))

    async def send(message: Message) -> None:
        order.append(message["type"])

    async def serve() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await asgi.flushing_at_shutdown(send)({"type": "lifespan.shutdown.complete"})

    asyncio.run(serve())

    assert order == ["flush", "lifespan.shutdown.complete"]


def test_the_final_report_precedes_the_lifespan_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    lifespan = Lifespan()
    monkeypatch.setattr(recorder, "flush", lambda: lifespan.sent.append("flush"))

    async def serve() -> None:
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = 1
        limiter.acquire_on_behalf_of_nowait("a request")
        async with asyncio.timeout(30):
            await lifespan.run(FastAPI())

    asyncio.run(serve())

    assert lifespan.sent == ["lifespan.startup.complete", "flush", "lifespan.shutdown.complete"]


async def worker(request: Request) -> Response:
    work()
    return Response(request.url.path)


class Worker(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        return await worker(request)


async def worker_application(scope: Any, receive: Any, send: Any) -> None:
    """Application of another framework, which sends its own response."""
    await (await worker(Request(scope)))(scope, receive, send)


async def worker_stream(_: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(2):
            work()
            yield b"x"

    return StreamingResponse(parts())


class SlowMiddleware:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        work()
        await self.app(scope, receive, send)


def depends() -> int:
    work()
    return 1


async def depends_later() -> int:
    return depends()


@pytest.mark.parametrize(
    ("made", "work_of_framework"),
    [
        (lambda: FastAPI(routes=[APIRoute("/", worker)]), 1),
        (lambda: FastAPI(routes=[APIRoute("/", work)]), 1),
        (lambda: Starlette(routes=[Route("/", worker)]), 1),
        (lambda: Starlette(routes=[Route("/", Worker)]), 1),
        (lambda: Starlette(routes=[Mount("/", worker_application)]), 1),
        (lambda: Starlette(routes=[Route("/", worker_stream)]), 1),
        (lambda: FastAPI(routes=[APIRoute("/", worker, dependencies=[Depends(depends)])]), 2),
        (lambda: FastAPI(routes=[APIRoute("/", worker, dependencies=[Depends(depends_later)])]), 2),
    ],
)
def test_the_endpoint_is_handler_and_the_rest_framework(
    finished: Finished, made: Callable[[], Starlette], work_of_framework: int
) -> None:
    app = made()
    app.add_middleware(SlowMiddleware)
    request_asgi(app, "GET", "/")

    own = own_times(finished)
    assert own["framework"] >= work_of_framework * WORK_NS
    assert own["handler"] >= WORK_NS
    assert own["overhead"] == 0


@pytest.mark.parametrize(("path", "status"), [("/openapi.json", 200), ("/none", 422)])
def test_a_request_that_reaches_no_endpoint_is_framework(finished: Finished, path: str, status: int) -> None:
    app = FastAPI()

    @app.get("/{number}")
    def numbers(number: int) -> int:
        return number

    assert request_asgi(app, "GET", path).status_code == status

    own = own_times(finished)
    assert "handler" not in own
    assert own["framework"] > 0
