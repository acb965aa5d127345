"""aiohttp's server: what is counted as a request, what as which stage, and that nothing else changes."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import logging
import sys
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import aiohttp
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request

from stagelens.instrumentors import records
from stagelens.instrumentors.libraries import aiohttp_server as module
from stagelens.instrumentors.libraries.aiohttp_server import AioHttpServerInstrumentor
from tests.instrumentors.libraries.drivers import request_aiohttp
from tests.support.endpoint_work import WORK_NS, own_times, work

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = AioHttpServerInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Client: TypeAlias = "TestClient[web.Request, web.Application]"


async def item(request: web.Request) -> web.Response:
    return web.Response(text=request.match_info["item"])


def streams(*parts: bytes, **options: Any) -> Handler:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(**options)
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        return response

    return stream


def application(*routes: tuple[str, str, Handler]) -> web.Application:
    app = web.Application()
    app.add_routes([web.route(method, path, handler) for method, path, handler in routes])
    return app


def serving(app: web.Application, drive: Callable[[Client], Awaitable[Any]]) -> Any:
    """Serve *app* on a socket, and return what *drive* does with a client of it."""

    async def go() -> Any:
        async with asyncio.timeout(60), TestClient(TestServer(app)) as client:
            return await drive(client)

    return asyncio.run(go())


def test_a_body_wait_is_network_and_its_parsing_serialize(finished: Finished) -> None:
    waiting = asyncio.Event()

    async def reads(request: web.Request) -> web.Response:
        waiting.set()
        how = {"json": request.json, "post": request.post, "content": request.content.read}
        return web.Response(text=str(await how[request.match_info["how"]]()))

    async def drive(client: Client) -> None:
        for how, kind in (("json", "application/json"), ("post", "application/x-www-form-urlencoded"), ("content", "")):
            waiting.clear()
            reader, writer = await asyncio.open_connection(client.host, client.port)
            head = f"POST /{how} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: 2\r\n\r\n"
            writer.write(head.encode() + b"4")
            await waiting.wait()
            await asyncio.sleep(0)
            writer.write(b"2")
            received = await reader.readuntil(b"42")
            assert b" 200 " in received or how == "post"
            writer.close()
            await writer.wait_closed()

    app = application(("POST", "/{how}", reads))
    serving(app, drive)

    stages = [[key for key in marks[::3] if key[0] != "@"] for marks, *_ in finished]
    reading, building, sending = "network", "serialize", "network"
    assert stages == [
        [reading, "serialize", building, "handler", sending, sending, "framework"],
        [reading, "serialize", building, "handler", sending, sending, "framework"],
        [reading, building, "handler", sending, sending, "framework"],
    ]


@pytest.mark.parametrize(
    ("method", "path", "route", "status"),
    [
        ("GET", "/items/secret", "/items/{item}", 200),
        ("GET", "/digits/7", "/digits/{item}", 200),
        ("GET", "/shop/items/secret?secret", "/shop/items/{item}", 200),
        ("DELETE", "/items/7", "__unmatched__", 405),
        ("GET", "/wp-login.php", "__unmatched__", 404),
        ("GET", "/livez", "__probes__", 404),
        ("GET", "/raise/HTTPNotFound", "/raise/{name}", 404),
        ("GET", "/raise/HTTPServiceUnavailable", "/raise/{name}", 503),
    ],
)
def test_the_route_is_a_template_never_a_path(
    finished: Finished, method: str, path: str, route: str, status: int
) -> None:
    async def raises(request: web.Request) -> web.Response:
        raise getattr(web, request.match_info["name"])

    app = application(
        ("GET", "/items/{item}", item),
        ("GET", r"/digits/{item:\d+}", item),
        ("GET", "/raise/{name}", raises),
    )
    app.add_subapp("/shop/", application(("GET", "/items/{item}", item)))

    assert request_aiohttp(app, method, path)[0] == status
    error = "HTTPServiceUnavailable" if status == 503 else ""
    assert [record[3:6] for record in finished] == [(route, error, status)]


def test_a_stream_is_one_request_to_its_last_chunk(finished: Finished) -> None:
    received = request_aiohttp(application(("GET", "/stream", streams(*[b"x"] * 3))), "GET", "/stream")

    assert received == (200, "xxx")
    assert finished[0][3:6] == ("/stream", "", 200)
    facts = {key: (value, more) for key, value, more in finished.marks() if key in {"@first_token", "@gap"}}
    assert facts["@first_token"][1] == "first_chunk"
    assert finished[0][1] < facts["@first_token"][0] < finished[0][2]
    assert facts["@gap"][0] > 0


def test_a_response_of_known_length_is_not_a_stream(finished: Finished) -> None:
    parts = streams(b"a", b"b", headers={"Content-Length": "2"})

    assert request_aiohttp(application(("GET", "/", parts)), "GET", "/") == (200, "ab")
    assert finished.facts().keys() == {"@method"}


def test_a_failing_stream_is_an_error_after_a_200_status(finished: Finished, caplog: pytest.LogCaptureFixture) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        await streams(b"x")(request)
        message = "half way"
        raise ValueError(message)

    with caplog.at_level(logging.CRITICAL), pytest.raises(aiohttp.ClientPayloadError):
        request_aiohttp(application(("GET", "/", stream)), "GET", "/")

    assert [record[3:6] for record in finished] == [("/", "ValueError", 200)]


@pytest.mark.parametrize("cancels", [True, False])
def test_a_client_disconnect_finishes_the_request_once(
    finished: Finished, cancels: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = await streams(b"x")(request)
        while True:
            await response.write(b"x")
            await asyncio.sleep(0.001)

    async def go() -> None:
        runner = web.AppRunner(application(("GET", "/", endless)), handler_cancellation=cancels)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        async with asyncio.timeout(60), ClientSession() as session:
            async with session.get(f"http://{host}:{port}/") as response:
                await response.content.readany()
                response.close()
            while not finished:  # noqa: ASYNC110 - it has no event to await
                await asyncio.sleep(0.001)
        await runner.cleanup()

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(go())

    assert [record[3:6] for record in finished] == [
        ("/", "CancelledError" if cancels else "ClientConnectionResetError", 200)
    ]
    assert finished.facts()["@cancelled"] == 1


def test_a_request_that_never_ends_is_closed_in_any_context(finished: Finished) -> None:
    async def turn(_connection: Any, request: Any, _start_time: float, handler: Any) -> Any:
        return await handler(request)

    async def forever(_: Any) -> Any:
        await asyncio.sleep(0)

    connection = SimpleNamespace(_request_handler=forever)
    handle_request = module._handle_request(turn)  # pyright: ignore[reportPrivateUsage] - a connection cannot be abandoned at will
    coroutine = handle_request(connection, make_mocked_request("GET", "/"), 0.0, forever)
    contextvars.copy_context().run(coroutine.send, None)
    coroutine.close()

    assert len(finished) == 1


def test_a_file_is_sent_unchanged(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_bytes(b"content")
    app = web.Application()
    app.router.add_static("/static", tmp_path)

    assert request_aiohttp(app, "GET", "/static/secret.txt") == (200, "content")
    assert [record[3:6] for record in finished] == [("/static", "", 200)]
    assert "network" in finished.stages()
    assert "secret" not in repr(finished)


def test_each_message_of_a_websocket_is_a_request_until_its_last_answer(finished: Finished) -> None:
    seen: list[bool] = []

    async def chat(request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse()
        await response.prepare(request)
        seen.append(records.current.get() is None)
        await response.send_str("welcome")
        async for message in response:
            seen.append(records.current.get() is None)
            if message.data == "bad":
                raise LookupError
            # Another task may send.
            await asyncio.gather(response.send_str("one"), response.send_json({}), response.send_bytes(b"two"))
        seen.append(records.current.get() is None)
        return response

    async def drive(client: Client, *sent: str) -> list[Any]:
        async with client.ws_connect("/rooms/7") as connection:
            received = [await connection.receive_str()]
            for text in sent:
                await connection.send_str(text)
                received += [(await connection.receive()).data for _ in range(3)]
            return received

    route = ("GET", "/rooms/{room}", chat)
    received = serving(application(route), lambda client: drive(client, "hello", "again"))
    assert received == ["welcome", *["one", "{}", b"two"] * 2]
    assert seen == [True, False, False, True]
    serving(application(route), lambda client: drive(client, "bad"))

    assert [record[3:6] for record in finished] == [("/rooms/{room}", error, 0) for error in ("", "", "LookupError")]
    assert ["@first_token" in record[0] for record in finished] == [True, True, False]
    assert all(record[0][::3].count("network") == 3 for record in list(finished)[:2])


def test_invalid_http_is_not_a_request(finished: Finished, caplog: pytest.LogCaptureFixture) -> None:
    async def drive(client: Client) -> bytes:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"BREW\r\n\r\n")
        received = await reader.read()
        writer.close()
        await writer.wait_closed()
        return received

    with caplog.at_level(logging.CRITICAL):
        received = serving(application(("GET", "/", item)), drive)

    assert b" 400 " in received
    assert list(finished) == []


def test_a_body_the_handler_sends_is_not_its_request_body(finished: Finished) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        response = await streams(b"x")(request)
        await asyncio.sleep(0.001)
        await response.write(b"y")
        return response

    async def asks(request: web.Request) -> web.Response:
        async with ClientSession() as session, session.get(request.url.with_path("/slow")) as response:
            return web.Response(body=await response.read())

    assert request_aiohttp(application(("GET", "/slow", slow), ("GET", "/asks", asks)), "GET", "/asks") == (200, "xy")
    (marks,) = (marks for marks, _, _, route, *_ in finished if route == "/asks")
    # Its own two: the end of a `Response`, with that of its base class inside.
    assert marks[::3].count("network") == 2


def test_a_failure_of_ours_in_a_stream_is_reported_once(
    finished: Finished, reported: set[str], make_fail: Callable[[Any, str], None]
) -> None:
    make_fail(module.AiohttpExchange, "hand_over")
    received = request_aiohttp(application(("GET", "/", streams(b"fi", b"ne"))), "GET", "/")

    assert received == (200, "fine")
    assert reported == {"timing a response"}
    assert len(finished) == 1


@web.middleware
async def slow_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    work()
    if "refuse" in request.query:
        raise web.HTTPForbidden
    return await handler(request)


async def worker(_: web.Request) -> web.Response:
    work()
    return web.Response()


async def worker_stream(request: web.Request) -> web.StreamResponse:
    work()
    return await streams(b"x")(request)


def test_a_refusal_of_a_middleware_is_framework(finished: Finished) -> None:
    app = application(("GET", "/", worker))
    app.middlewares.append(slow_middleware)

    assert request_aiohttp(app, "GET", "/?refuse")[0] == 403
    assert "handler" not in own_times(finished)


class _View(web.View):
    async def get(self) -> web.Response:
        return await self.work(self.request)

    async def work(self, request: web.Request, _: int = 0) -> web.Response:
        return await worker(request)


METHOD = _View(make_mocked_request("GET", "/")).work


@pytest.mark.parametrize("handler", [worker, worker_stream, METHOD, functools.partial(METHOD, _=1), _View])
def test_a_middleware_gets_the_handler_itself(finished: Finished, handler: Any) -> None:
    seen: list[Any] = []

    @web.middleware
    async def looks(request: web.Request, handler: Any) -> web.StreamResponse:
        seen.append(handler)
        return await slow_middleware(request, handler)

    app = application(("GET", "/", handler))
    app.middlewares.extend([slow_middleware, looks])

    async def drive(client: Client) -> None:
        for _ in range(2):
            finished.clear()
            async with client.get("/") as response:
                await response.read()

    serving(app, drive)

    assert [each is handler for each in seen] == [True, True]
    own = own_times(finished)
    assert own["framework"] >= 2 * WORK_NS
    assert own["handler"] >= WORK_NS
    assert own["overhead"] == 0


def test_no_handler_is_kept() -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response()

    app = application(("GET", "/", handler))
    app.middlewares.append(slow_middleware)
    request_aiohttp(app, "GET", "/")
    sys.modules["aiohttp.web_app"].__dict__["_cached_build_middleware"].cache_clear()
    reference = weakref.ref(handler)
    del handler, app
    gc.collect()

    assert reference() is None


def test_an_invalid_end_of_a_response_is_an_error_of_aiohttp(finished: Finished) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await streams()(request)
        with pytest.raises(AssertionError):
            await response.write_eof(None)  # type: ignore[arg-type]
        return response

    assert request_aiohttp(application(("GET", "/", handler)), "GET", "/") == (200, "")
    assert len(finished) == 1
