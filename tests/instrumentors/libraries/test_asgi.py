"""Starlette and FastAPI: what is counted as a request, what as which stage, and that nothing else changes."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import inspect
import itertools
import logging
import pickle
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, MutableMapping
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import httpx
import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from stagelens import stage
from stagelens.core.partition import partition
from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.libraries import asgi, proxy_waits
from stagelens.instrumentors.libraries.starlette import StarletteInstrumentor
from tests.support.endpoint_work import WORK_NS, own_times, work

if TYPE_CHECKING:
    from conftest import Finished

Message = MutableMapping[str, Any]

INSTRUMENTOR = StarletteInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")


class Item(BaseModel):
    n: int


def send_request(app: Any, method: str, path: str, **options: Any) -> httpx.Response:
    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return await client.request(method, path, **options)

    return asyncio.run(go())


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


def test_reading_parsing_rendering_and_sending_are_stages(finished: Finished) -> None:
    app = FastAPI()

    @app.post("/")
    async def echo(item: Item) -> Item:
        return item

    send_request(app, "POST", "/", json={"n": 1})

    assert finished.stages()[0] == "network"
    assert finished.stages()[-3:] == ["network", "network", "framework"]
    assert set(finished.stages()) == {"network", "serialize", "handler", "framework"}


def test_a_form_is_parsed_in_serialize_and_read_in_network(finished: Finished) -> None:
    async def endpoint(request: Request) -> JSONResponse:
        async with request.form() as form:
            return JSONResponse(dict(form))

    response = send_request(Starlette(routes=[Route("/", endpoint, methods=["POST"])]), "POST", "/", data={"a": "1"})

    assert response.json() == {"a": "1"}
    parsed = finished.stages().index("serialize")
    assert finished.stages()[:parsed] == ["network"] * parsed
    assert finished.stages()[parsed:] == ["serialize", "serialize", "handler", "network", "network", "framework"]
    stages = [mark for mark in finished.marks() if not mark[0].startswith("@")]
    (_, read, _), (_, parse_started, _) = stages[0], stages[parsed]
    assert parse_started <= read


def test_waiting_for_a_thread_is_queue(finished: Finished) -> None:
    inside, release = threading.Event(), threading.Event()
    app = FastAPI()

    # Without a model of the response: older versions of FastAPI fill it on another thread.
    @app.get("/", response_model=None)
    def endpoint() -> None:
        inside.set()
        release.wait(30)

    async def two() -> int:
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = 1
        async with asyncio.timeout(30), asyncio.TaskGroup() as both:
            both.create_task(drive(app, no_body, discard))
            await until(inside.is_set)
            both.create_task(drive(app, no_body, discard))
            await until(lambda: limiter.statistics().tasks_waiting)
            released = records.clock()
            release.set()
        return released

    released = asyncio.run(two())

    first, second = (
        [(start, end) for key, start, end in zip(marks[::3], marks[1::3], marks[2::3], strict=True) if key == "queue"]
        for marks, *_ in finished
    )
    assert [end < released for _, end in first] == [True]
    assert [start < released < end for start, end in second] == [True]


def test_waiting_for_one_of_forty_threads_is_queue_not_forward(finished: Finished) -> None:
    inside, release = itertools.count(1), threading.Event()
    forty = threading.Event()
    app = FastAPI()

    @app.get("/", response_model=None)
    def endpoint() -> None:
        with stage("forward"):
            if next(inside) == 40:
                forty.set()
            release.wait(30)

    async def sixty() -> int:
        limiter = anyio.to_thread.current_default_thread_limiter()
        async with asyncio.timeout(30), asyncio.TaskGroup() as all_of_them:
            for _ in range(60):
                all_of_them.create_task(drive(app, no_body, discard))
            await until(lambda: limiter.statistics().tasks_waiting == 20 and forty.is_set())
            released = records.clock()
            release.set()
        return released

    released = asyncio.run(sixty())
    # What each was doing while the pool was full.
    parts = [
        partition([mark for mark in triples(marks) if mark[0][0] != "@"], t0, released) for marks, t0, *_ in finished
    ]

    assert sorted(part.get("forward", 0) > 0 for part in parts) == [False] * 20 + [True] * 40
    waited = [marks for (marks, *_), part in zip(finished, parts, strict=True) if not part.get("forward")]
    for stages in ({key: (start, end) for key, start, end in triples(marks)} for marks in waited):
        assert stages["queue"][0] < released < stages["queue"][1] <= stages["forward"][0]


def test_waiting_for_the_loop_after_a_thread_is_queue(finished: Finished) -> None:
    inside, release, returned = threading.Event(), threading.Event(), threading.Event()
    app = FastAPI()

    @app.get("/", response_model=None)
    def endpoint() -> None:
        inside.set()
        release.wait(30)
        returned.set()

    async def held() -> tuple[int, int]:
        async with asyncio.timeout(30), asyncio.TaskGroup() as both:
            both.create_task(drive(app, no_body, discard))
            await until(inside.is_set)
            released = records.clock()
            release.set()
            # Of the whole loop.
            returned.wait(30)
            return released, records.clock()

    released, held_until = asyncio.run(held())

    ((started, ended),) = [(start, end) for key, start, end in finished.marks() if key == "queue@loop"]
    assert released < started
    assert held_until < ended


def test_cancellation_before_a_free_thread_is_queue(finished: Finished) -> None:
    async def endpoint(_: Request) -> PlainTextResponse:
        with anyio.move_on_after(0.02):
            await anyio.to_thread.run_sync(int, limiter=anyio.CapacityLimiter(0))
        return PlainTextResponse("")

    send_request(Starlette(routes=[Route("/", endpoint)]), "GET", "/")

    assert finished.stages()[0] == "queue"


def test_proxy_wait_time_is_queue(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGELENS_FORCE_TRACE", "please")
    monkeypatch.setattr(proxy_waits, "trusted", proxy_waits.trusted_networks("127.0.0.0/8"))
    headers = {"X-Request-Start": f"t={time.time() - 0.5:.3f}", "X-Force-Trace": "please"}
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse(""))])
    send_request(app, "GET", "/", headers=headers)

    ((_, t0, t1, *_),) = finished
    (queue,) = [mark for mark in finished.marks() if mark[0] == "queue" and mark[1] == t0]
    assert 490_000_000 <= queue[2] - t0 < t1 - t0
    assert finished.facts()["@force"] == 1


def test_the_first_of_two_proxy_headers_counts(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse(""))])
    monkeypatch.setattr(proxy_waits, "trusted", ("*",))
    sent_at = f"t={time.time() - 0.9:.3f}".encode()

    asyncio.run(drive(app, no_body, discard, headers=[(b"x-request-start", sent_at)] * 2))

    assert finished.stages().count("queue") == 2  # the proxy and the thread pool
    assert finished[0][2] - finished[0][1] < 1_700_000_000


@pytest.mark.parametrize(
    ("path", "route", "status"),
    [
        ("/plain/7", "/plain/{n:int}", 200),
        ("/api/v1/things/7", "/api/v1/things/{n}", 200),
        ("/tenants/acme/rooms/7", "/tenants/{tenant}/rooms/{n}", 200),
        ("/tenants/acme/wp-login.php", "/tenants/{tenant}", 404),
        ("/wp-login.php", "__unmatched__", 404),
        ("/livez", "__probes__", 404),
        ("/secret/9f8e7d", "__unmatched__", 404),
    ],
)
def test_the_route_is_a_template_never_a_path(finished: Finished, path: str, route: str, status: int) -> None:
    async def endpoint(_: Request) -> PlainTextResponse:
        return PlainTextResponse("")

    things = APIRouter(prefix="/things")
    things.add_api_route("/{n}", endpoint)
    version = APIRouter(prefix="/v1")
    version.include_router(things)
    app = FastAPI(routes=[Route("/plain/{n:int}", endpoint)])
    app.include_router(version, prefix="/api")
    app.mount("/tenants/{tenant}", Starlette(routes=[Route("/rooms/{n}", endpoint)]))

    response = send_request(app, "GET", path)

    assert response.status_code == status
    assert [record[3] for record in finished] == [route]


def test_a_wrong_method_still_names_its_route(finished: Finished) -> None:
    app = Starlette(routes=[Route("/here", lambda _: PlainTextResponse(""))])

    response = send_request(app, "BREW", "/here")

    assert response.status_code == 405
    assert finished[0][3] == "/here"
    assert finished.facts() == {"@method": "_OTHER"}


def test_an_exception_is_an_error_and_reaches_the_server(finished: Finished) -> None:
    broken = RuntimeError("broken")

    async def endpoint(_: Request) -> PlainTextResponse:
        raise broken

    with pytest.raises(RuntimeError) as caught:
        asyncio.run(drive(Starlette(routes=[Route("/", endpoint)]), no_body, discard))

    assert caught.value is broken
    assert finished[0][4:6] == ("RuntimeError", 500)


def test_an_application_without_a_response_is_an_error(finished: Finished) -> None:
    async def silent(*_: object) -> None:
        return

    app = Starlette(routes=[Mount("/", silent)])

    asyncio.run(drive(app, no_body, discard))

    assert finished[0][4:6] == ("", 500)


def test_the_request_ends_at_the_last_byte_before_background_tasks(finished: Finished) -> None:
    seen: list[int] = []

    def later() -> None:
        seen.append(len(finished))

    app = FastAPI()

    @app.get("/")
    async def endpoint(tasks: BackgroundTasks) -> None:
        tasks.add_task(later)

    send_request(app, "GET", "/")

    assert seen == [1]
    assert len(finished) == 1


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_stream_is_one_request_to_its_last_chunk(finished: Finished, kind: str) -> None:
    inside: list[records.Marks | None] = []

    def chunks() -> Generator[bytes]:
        for _ in range(3):
            inside.append(records.current.get())
            yield b"x"

    async def async_chunks() -> AsyncGenerator[bytes]:
        for chunk in chunks():
            yield chunk

    async def endpoint(_: Request) -> StreamingResponse:
        return StreamingResponse(chunks() if kind == "sync" else async_chunks())

    response = send_request(Starlette(routes=[Route("/", endpoint)]), "GET", "/")

    assert response.text == "xxx"
    assert [marks is finished[0][0] for marks in inside] == [True, True, True]
    assert records.current.get() is None


@pytest.mark.parametrize(
    ("messages", "headers", "is_stream"),
    [
        ([(b"a", True), (b"b", True), (b"", False)], [], True),
        ([(b"a", True), (b"b", False)], [], True),
        ([(b"", True), (b"a", True), (b"b", False)], [], True),
        # What a middleware makes of an answer in one part.
        ([(b"a", True), (b"", False)], [], False),
        ([(b"a", False)], [], False),
        # A file.
        ([(b"a", True), (b"b", False)], [(b"Content-Length", b"2")], False),
    ],
)
def test_a_stream_has_first_chunk_time_and_longest_gap(
    finished: Finished,
    monkeypatch: pytest.MonkeyPatch,
    messages: list[tuple[bytes, bool]],
    headers: list[tuple[bytes, bytes]],
    is_stream: bool,
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
    with_bytes = [
        1_000 + sum(10**n for n in range(1, pause + 1)) for pause, (body, _) in enumerate(messages, 1) if body
    ]
    gap = max((later - earlier for earlier, later in itertools.pairwise(with_bytes)), default=0)

    assert facts == (
        [("@first_token", with_bytes[0], "first_chunk"), ("@gap", gap, "first_chunk")] if is_stream else []
    )


def test_a_plain_response_through_a_middleware_is_not_a_stream(finished: Finished) -> None:
    async def passes(request: Request, call_next: Callable[[Request], Awaitable[Any]]) -> Any:
        return await call_next(request)

    app = FastAPI()
    app.middleware("http")(passes)
    app.get("/")(lambda: "fine")

    assert send_request(app, "GET", "/").json() == "fine"
    assert finished.facts().keys() == {"@method"}


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
    asyncio.run(drive(Starlette(routes=[Route("/", endpoint)]), receive, send, asgi={"spec_version": "2.3"}))

    assert [record[3:6] for record in finished] == [("/", "", 200)]


def test_no_attribute_of_a_mounted_application_is_needed(finished: Finished, reported: set[str]) -> None:
    class Lazy:
        @property
        def routes(self) -> None:
            raise RuntimeError

        def __getattr__(self, name: str) -> None:
            raise KeyError(name)

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await PlainTextResponse("")(scope, receive, send)

    asyncio.run(drive(Starlette(routes=[Mount("/lazy", Lazy())]), no_body, discard, path="/lazy/"))

    assert [record[4:6] for record in finished] == [("", 200)]
    assert reported == set()


@pytest.mark.since("starlette", "0.42")  # before, it raises an ExceptionGroup, and waits for a disconnect
def test_a_failing_stream_is_an_error_after_a_200_status(finished: Finished) -> None:
    def chunks() -> Generator[bytes]:
        yield b"x"
        message = "half way"
        raise ValueError(message)

    app = Starlette(routes=[Route("/", lambda _: StreamingResponse(chunks()))])

    with pytest.raises(ValueError, match="half way"):
        asyncio.run(drive(app, no_body, discard))

    assert [record[3:6] for record in finished] == [("/", "ValueError", 200)]


def test_a_cancelled_request_is_finished_and_stays_cancelled(finished: Finished) -> None:
    async def endpoint(_: Request) -> PlainTextResponse:
        await asyncio.Event().wait()
        return PlainTextResponse("")

    async def cancel() -> None:
        task = asyncio.create_task(drive(Starlette(routes=[Route("/", endpoint)]), no_body, discard))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())

    assert [record[4] for record in finished] == ["CancelledError"]


def test_concurrent_requests_do_not_mix(finished: Finished) -> None:
    async def endpoint(request: Request) -> PlainTextResponse:
        marks = records.current.get()
        assert marks is not None
        await asyncio.sleep(0.001)
        marks.extend((request.path_params["n"], 1, 2))
        return PlainTextResponse(request.path_params["n"])

    app = Starlette(routes=[Route("/{n}", endpoint)])

    async def many() -> None:
        await asyncio.gather(*(drive(app, no_body, discard, path=f"/{n}") for n in range(50)))
        assert records.current.get() is None

    asyncio.run(many())

    assert sorted(key for marks, *_ in finished for key in marks[::3] if key.isdigit()) == sorted(map(str, range(50)))
    assert all(sum(key.isdigit() for key in marks[::3]) == 1 for marks, *_ in finished)


@pytest.mark.since("starlette", "0.46")  # before, its exceptions are part of reference cycles
def test_requests_leave_no_work_for_the_garbage_collector(finished: Finished) -> None:
    async def endpoint(request: Request) -> PlainTextResponse:
        if request.url.path == "/broken":
            raise ValueError
        return PlainTextResponse("")

    app = Starlette(routes=[Route("/", endpoint), Route("/broken", endpoint)])

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

    response = send_request(Starlette(routes=[Route("/outer", endpoint)]), "GET", "/outer")

    assert response.text == "inner"
    assert [record[3] for record in finished] == ["/outer"]


def test_an_application_may_copy_and_serialize_the_scope(finished: Finished) -> None:
    seen: list[Any] = []

    async def endpoint(request: Request) -> Response:
        theirs = {"app", "router", "endpoint", "route", "starlette.exception_handlers"}
        scope = {key: value for key, value in request.scope.items() if key not in theirs}
        seen.extend((copy.deepcopy(scope), pickle.loads(pickle.dumps(scope))))  # noqa: S301 - our own
        return Response()

    app = Starlette(routes=[Route("/", endpoint)])
    assert send_request(app, "GET", "/").status_code == 200
    assert [copied["stagelens"] for copied in seen] == [None, None]
    assert [record[3] for record in finished] == ["/"]


def test_what_the_application_gets_has_the_names_of_the_server(finished: Finished) -> None:
    seen: list[Any] = []

    async def application(_: Any, scope: Any, receive: Any, send: Any) -> None:
        seen.append([(each.__name__, each.__qualname__, each.__module__) for each in (receive, send)])
        seen.append([inspect.iscoroutinefunction(each) for each in (receive, send)])
        seen.append([each.__self__ for each in (receive, send)])
        await send({"type": "http.response.start" if scope["type"] == "http" else "lifespan.startup.complete"})

    class App:
        __call__ = asgi.recorded(application)

    class Server:
        async def take(self) -> Message:
            return {}

        async def put(self, message: Message) -> None:
            del message

    server = Server()
    for kind in ("http", "lifespan"):
        asyncio.run(drive(App(), server.take, server.put, type=kind))

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

    async def application(_: Any, scope: Any, __: Any, send: Any) -> None:
        seen.extend((list(scope.get("headers", ())), send.note))
        await send({"type": "http.response.start", "status": 200, "headers": iter([header])})
        for more in (True, False):
            await send({"type": "http.response.body", "body": b"x", "more_body": more})

    class App:
        __call__ = asgi.recorded(application)

    for headers in ({"headers": iter([header])}, {}):
        asyncio.run(drive(App(), no_body, Send(), type="http", **headers))

    assert [each for each in seen if not isinstance(each, dict)] == [[header], 1, [], 1]
    assert [list(each["headers"]) for each in seen if isinstance(each, dict) and "headers" in each] == [[header]] * 2
    assert reported == set()
    assert len(finished) == 2


def test_websockets_and_lifespans_are_not_recorded(finished: Finished) -> None:
    sent: list[Message] = []
    started: list[str] = []

    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        started.append("up")
        yield
        started.append("down")

    app = Starlette(routes=[WebSocketRoute("/ws", socket)], lifespan=lifespan)
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def lifespan_messages() -> Message:
        return next(messages)

    async def connect() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(drive(app, connect, send, type="websocket", path="/ws", subprotocols=[]))
    asyncio.run(drive(app, lifespan_messages, send, type="lifespan"))

    assert started == ["up", "down"]
    assert [message["type"] for message in sent][:2] == ["websocket.accept", "websocket.close"]
    assert list(finished) == []


def run_without_asyncio(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run *coroutine*, which waits for nothing, in the event loop of no library."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


def test_a_server_of_another_event_loop_than_asyncio_is_recorded(finished: Finished, reported: set[str]) -> None:
    sent: list[str] = []
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Message:
        return next(messages)

    async def send(message: Message) -> None:
        sent.append(message["type"])

    async def endpoint(_: Request) -> Response:
        return Response()

    app = Starlette(routes=[Route("/", endpoint)])
    run_without_asyncio(drive(app, receive, send, type="lifespan"))
    run_without_asyncio(drive(app, no_body, discard, type="http", method="GET", path="/"))

    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
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
    order: list[str] = []
    monkeypatch.setattr(recorder, "flush", lambda: order.append("flush"))
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Message:
        return next(messages)

    async def send(message: Message) -> None:
        order.append(message["type"])

    async def serve() -> None:
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = 1
        limiter.acquire_on_behalf_of_nowait("a request")
        async with asyncio.timeout(30):
            await drive(FastAPI(), receive, send, type="lifespan")

    asyncio.run(serve())

    assert order == ["lifespan.startup.complete", "flush", "lifespan.shutdown.complete"]


def test_an_agent_failure_is_logged_once_and_the_service_responds(
    finished: Finished, reported: set[str], make_fail: Callable[[Any, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("fine"))])
    make_fail(asgi.AsgiExchange, "_read_head")
    with caplog.at_level(logging.WARNING, "stagelens"):
        texts = [send_request(app, "GET", "/").text for _ in range(3)]

    assert texts == ["fine"] * 3
    assert sum(record.name == "stagelens" for record in caplog.records) == len(reported) == 1
    assert list(finished) == []
    assert records.current.get() is None


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


@pytest.mark.parametrize(
    "made",
    [
        lambda: FastAPI(routes=[APIRoute("/", worker)]),
        lambda: FastAPI(routes=[APIRoute("/", work)]),
        lambda: Starlette(routes=[Route("/", worker)]),
        lambda: Starlette(routes=[Route("/", Worker)]),
        lambda: Starlette(routes=[Mount("/", worker_application)]),
        lambda: Starlette(routes=[Route("/", worker_stream)]),
    ],
)
def test_the_endpoint_is_handler_and_the_rest_framework(finished: Finished, made: Callable[[], Starlette]) -> None:
    app = made()
    app.add_middleware(SlowMiddleware)
    send_request(app, "GET", "/")

    own = own_times(finished)
    assert own["framework"] >= WORK_NS
    assert own["handler"] >= WORK_NS
    assert own["overhead"] == 0


def test_the_documentation_of_fastapi_is_framework(finished: Finished) -> None:
    send_request(FastAPI(), "GET", "/openapi.json")

    assert "handler" not in own_times(finished)


def depends() -> int:
    work()
    return 1


async def depends_later() -> int:
    work()
    return 1


@pytest.mark.parametrize("dependency", [depends, depends_later])
def test_dependencies_are_framework(finished: Finished, dependency: Any) -> None:
    app = FastAPI(routes=[APIRoute("/", worker, dependencies=[Depends(dependency)])])
    send_request(app, "GET", "/")

    own = own_times(finished)
    assert own["framework"] >= WORK_NS
    assert own["handler"] >= WORK_NS
    assert own["overhead"] == 0


def test_a_request_that_fails_validation_is_framework(finished: Finished) -> None:
    app = FastAPI()

    @app.get("/{number}")
    def numbers(number: int) -> int:
        return number

    assert send_request(app, "GET", "/none").status_code == 422

    own = own_times(finished)
    assert "handler" not in own
    assert own["framework"] > 0
