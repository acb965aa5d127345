"""Applications as their servers call them: of an unknown framework, of a known one, and the messages of websockets."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, MutableMapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from stagelens.instrumentors import recorder
from stagelens.instrumentors.libraries import server_common, servers
from stagelens.instrumentors.libraries.asgi import Served, forwarding
from stagelens.instrumentors.libraries.server_common import MAX_TEMPLATES, OTHER_PATH, UNMATCHED, route_of
from stagelens.instrumentors.libraries.servers import ServerInstrumentor
from stagelens.instrumentors.libraries.starlette import StarletteInstrumentor
from stagelens.instrumentors.libraries.web_frameworks import HttpServerInstrumentor
from stagelens.instrumentors.libraries.wsgi import served
from tests.instrumentors.libraries.drivers import instrumenting

if TYPE_CHECKING:
    from conftest import Finished

Message = MutableMapping[str, Any]
INSTRUMENTOR = ServerInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")


def call(app: Any, *messages: Message, **scope: Any) -> list[Message]:
    """Call *app* as a server does, and return what it sends."""
    waiting, sent = iter(messages), list[Message]()

    async def receive() -> Message:
        return next(waiting)

    async def send(message: Message) -> None:
        sent.append(message)

    async def serve() -> None:
        await Served(app)({"type": "http", "method": "GET", "path": "/", "headers": [], **scope}, receive, send)

    asyncio.run(serve())
    return sent


def routes(finished: Finished) -> list[tuple[str, str, int]]:
    return [(route, error, status) for _, _, _, route, error, status, _ in finished]


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Respond with the status that the path ends with."""
    await receive()
    status = int(scope["path"].rpartition("/")[2])
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def test_an_application_of_no_framework_is_counted_and_all_of_it_is_handler(finished: Finished) -> None:
    for status in (200, 500, 404):
        call(bare, {"type": "http.request"}, path=f"/items/{status}", root_path="/api")

    assert routes(finished) == [("/api/items/{}", "", 200), ("/api/items/{}", "", 500), (UNMATCHED, "", 404)]
    assert {key for key in finished[0][0][::3] if not key.startswith("@")} == {"network", "handler"}


def test_a_known_framework_in_a_server_is_one_request_with_its_route(finished: Finished) -> None:
    async def item(_: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    with instrumenting(StarletteInstrumentor()):
        call(Starlette(routes=[Route("/items/{item}", item)]), {"type": "http.request"}, path="/items/7")

    assert routes(finished) == [("/items/{item}", "", 200)]
    assert finished.stages()[-1] == "framework"


@pytest.mark.parametrize(("agent", "expected"), [("kube-probe/1.31", True), ("python-httpx/0.28", False)])
def test_only_the_user_agent_of_a_known_prober_is_recorded(agent: str, expected: bool, finished: Finished) -> None:
    call(bare, {"type": "http.request"}, path="/items/200", headers=[(b"user-agent", agent.encode())])
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/items/3", "HTTP_USER_AGENT": agent}
    list(served(lambda _, start: start("200 OK", []) or [b"a"])(environ, lambda *_: None))

    assert [agent in marks for marks, *_ in finished] == [expected, expected]


class _Middleware:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, *request: Any) -> None:
        await self.app(*request)


class _PrivateMiddleware(_Middleware):
    def __init__(self, app: Any) -> None:
        self._app = app


def test_the_requests_of_a_proxy_count_where_it_forwards_them() -> None:
    async def original(*_: Any) -> None: ...

    class Proxy:
        __call__ = forwarding(original)

    proxy: Any = Proxy()
    own, around_itself = _Middleware(bare), _Middleware(bare)
    around_itself.app = around_itself

    for app in (
        proxy,
        _PrivateMiddleware(proxy),
        _Middleware(_PrivateMiddleware(proxy)),
        ProxyHeadersMiddleware(proxy),
    ):
        assert servers.served_asgi(app) is app
    for app in (bare, own, around_itself, _PrivateMiddleware(own)):
        assert isinstance(servers.served_asgi(app), Served)


def test_each_message_of_a_websocket_is_a_request_until_its_last_answer(finished: Finished) -> None:
    async def chat(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            for _ in range(3):
                await send({"type": "websocket.send", "text": message["text"]})
            if message["text"] == "bad":
                raise LookupError

    hello = [{"type": "websocket.receive", "text": text} for text in ("hello", "again", "bad")]
    with pytest.raises(LookupError):
        call(chat, {"type": "websocket.connect"}, *hello, type="websocket", path="/rooms/7", path_params={"room": 7})
    call(chat, {"type": "websocket.connect"}, {"type": "websocket.disconnect"}, type="websocket", path="/rooms/7")

    assert routes(finished) == [("/rooms/{room}", error, 0) for error in ("", "", "LookupError")]
    assert all("@first_token" in marks for marks, *_ in finished)
    assert recorder.current.get() is None


def test_the_end_of_a_response_is_no_disconnect_before_it(finished: Finished) -> None:
    async def stream(_: Any, receive: Any, send: Any) -> None:
        disconnected = asyncio.create_task(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})
        await disconnected

    async def main() -> None:
        ended = asyncio.Event()

        async def receive() -> Message:
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                ended.set()
                for _ in range(3):
                    await asyncio.sleep(0)

        await Served(stream)({"type": "http", "method": "GET", "path": "/", "headers": []}, receive, send)

    asyncio.run(main())

    assert "@cancelled" not in finished.facts()


@pytest.mark.parametrize("reads", [True, False])
def test_python_s_own_server_trusts_no_client(reads: bool, monkeypatch: pytest.MonkeyPatch, finished: Finished) -> None:
    monkeypatch.setattr(server_common, "_HALF_CLOSE_MS", 10**6 if reads else -1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read()
            time.sleep(0.002)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name http.server gives it
            ...

    with (
        instrumenting(HttpServerInstrumentor()),
        HTTPServer(("127.0.0.1", 0), Handler) as server,
        socket.create_connection(("127.0.0.1", server.server_port)) as client,
    ):
        client.sendall(b"GET / HTTP/1.0\r\nX-Request-Start: t=%d\r\nUser-Agent: kube-probe/1\r\n\r\n" % time.time())
        client.shutdown(socket.SHUT_WR)
        server.handle_request()

    ((marks, started, *_),) = finished
    assert started == marks[1]
    assert "kube-probe/1" in marks
    assert ("@cancelled" in finished.facts()) is not reads


@pytest.mark.parametrize("kind", ["list", "generator", "raises"])
def test_a_wsgi_application_of_no_framework_is_counted(kind: str, finished: Finished) -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        if kind == "raises":
            raise LookupError
        start_response("200 OK", [])
        return iter_body() if kind == "generator" else [environ["PATH_INFO"].encode()]

    def iter_body() -> Iterator[bytes]:
        yield b"a"

    environ = {"REQUEST_METHOD": "GET", "SCRIPT_NAME": "", "PATH_INFO": "/items/3"}
    try:
        list(served(app)(environ, lambda *_: None))
    except LookupError:
        assert kind == "raises"

    assert [(route, error) for route, error, _ in routes(finished)] == [
        ("/items/{}", "LookupError" if kind == "raises" else "")
    ]
    assert served(app).__qualname__ == app.__qualname__
    assert "stagelens.exchange" not in environ


def test_wsgiref_serves_the_application_itself(finished: Finished) -> None:
    def app(_: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"ok"]

    class Quiet(WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name http.server gives it
            ...

    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        assert server.get_app() is app
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/a/1?b=2").read() == b"ok"
        thread.join()

    assert routes(finished) == [("/a/{}", "", 200)]


@pytest.mark.parametrize(
    ("path", "template"),
    [
        ("/v1/models/gpt-4/chat", "/v1/models/gpt-4/chat"),
        ("/users/123/f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "/users/{}/{}"),
        ("/f/" + "a" * 40 + "/ü/x@y.z/", "/f/{}/{}/{}/"),
        ("/a" * 12, "/a" * 8 + "/…"),
    ],
)
def test_the_template_of_a_path_has_no_values(path: str, template: str) -> None:
    assert route_of([0] * 6, path, 200) == template


def test_paths_without_end_share_one_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_common, "_templates", set())
    letters = itertools.islice(itertools.product("abcde", repeat=4), MAX_TEMPLATES + 5)
    found = [route_of([0] * 6, "/" + "".join(path), 200) for path in letters]

    assert len(set(found)) == MAX_TEMPLATES + 1
    assert found[-1] == OTHER_PATH
