"""The client of aiohttp: bodies, headers of every type, websockets, and a server in the same process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from stagelens.instrumentors.libraries import client_common
from stagelens.instrumentors.libraries.aiohttp_client import AiohttpClientInstrumentor

if TYPE_CHECKING:
    from conftest import Running, Upstream

INSTRUMENTOR = AiohttpClientInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")

THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "read",
    [
        lambda response: response.read(),
        lambda response: response.text(),
        lambda response: response.content.readany(),
        lambda response: response.content.readexactly(6),
        lambda response: response.content.readline(),
        lambda response: anext(response.content.iter_chunked(6)),
        lambda response: response.content.readchunk(),
    ],
)
def test_the_wait_for_a_body_is_a_separate_interval(
    in_a_request: Running, upstream: Upstream, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_common, "MAX_GAP_NS", 10**15)

    async def go() -> None:
        async with aiohttp.ClientSession() as session, session.get(f"{upstream.address}/held") as response:
            assert len(in_a_request.stages()) == 1
            assert not [name for name in vars(response) if "stagelens" in name]
            future = asyncio.ensure_future(read(response))
            await asyncio.sleep(0)
            upstream.release.set()
            assert await future

    asyncio.run(go())

    call, body = in_a_request.stages()
    assert call[2] <= body[1] < body[2]


def test_a_traceparent_of_the_session_is_preserved_and_invalid_headers_raise_the_aiohttp_error(
    in_a_request: Running, upstream: Upstream
) -> None:
    async def go() -> None:
        async with aiohttp.ClientSession(headers={"Traceparent": THEIRS}) as session:
            async with session.get(f"{upstream.address}/plain", headers={"X-Own": "1"}):
                pass
            with pytest.raises(TypeError):
                await session.get(f"{upstream.address}/plain", headers=1)  # type: ignore[arg-type]

    asyncio.run(go())

    assert upstream.traces() == [THEIRS]
    assert upstream.heads[-1]["X-Own"] == "1"
    assert in_a_request.calls() == 2


def test_request_bodies_of_a_server_are_not_dependencies(in_a_request: Running) -> None:
    arrived = asyncio.Event()
    seen: list[list[str]] = []

    async def handler(request: web.Request) -> web.Response:
        arrived.set()
        before = in_a_request.names()
        body = await request.read()
        seen.append([*before, "body", *in_a_request.names()])
        return web.Response(body=body)

    async def body() -> Any:
        yield b"first"
        await arrived.wait()
        yield b"last"

    async def go() -> bytes:
        app = web.Application()
        app.router.add_post("/", handler)
        async with (
            TestServer(app) as server,
            aiohttp.ClientSession() as session,
            session.post(server.make_url("/"), data=body()) as response,
        ):
            return await response.read()

    assert asyncio.run(go()) == b"firstlast"
    # The handler runs in the context of the server's task, which was made inside this request.
    assert seen == [["body"]]
    assert "dependency" in in_a_request.names()


def test_opening_a_websocket_is_a_dependency(in_a_request: Running) -> None:
    traces: list[list[str]] = []

    async def handler(request: web.Request) -> web.WebSocketResponse:
        traces.append(request.headers.getall("traceparent", []))
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("hello")
        await socket.close()
        return socket

    async def go() -> str:
        app = web.Application()
        app.router.add_get("/", handler)
        async with (
            TestServer(app) as server,
            aiohttp.ClientSession() as session,
            session.ws_connect(server.make_url("/")) as socket,
        ):
            return await socket.receive_str()

    assert asyncio.run(go()) == "hello"
    assert in_a_request.names() == ["dependency"]
    assert traces == [[in_a_request.trace()]]
