"""Applications of no framework, and services of servers with a protocol of their own; each request calls a model twice."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from magika import Magika

_model = Magika()
ANSWER = b'{"ok": true}'


def work() -> None:
    for _ in range(2):
        _model.identify_bytes(b"import os\n" * 9)


def answer(message: Any) -> Any:
    """Return the answer to a message of a websocket."""
    work()
    if message == "fail":
        raise ValueError(message)
    return message


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """Respond to requests, and to messages of a websocket."""
    if scope["type"] == "lifespan":
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": answer(message["text"])})
    else:
        work()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ANSWER})


def wsgi(_: Any, start_response: Any) -> Iterable[bytes]:
    work()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(ANSWER)))])
    return [ANSWER]


def serve_http(port: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            work()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ANSWER)

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def serve_wsgiref(port: int) -> None:
    from wsgiref.simple_server import make_server  # noqa: PLC0415 - each service imports its own server only

    make_server("127.0.0.1", port, wsgi).serve_forever()


def serve_werkzeug(port: int) -> None:
    from werkzeug.serving import run_simple  # noqa: PLC0415 - as above

    run_simple("127.0.0.1", port, wsgi, threaded=True)


def serve_cheroot(port: int) -> None:
    from cheroot.wsgi import Server  # noqa: PLC0415 - as above  # pyright: ignore[reportMissingImports]

    Server(("127.0.0.1", port), wsgi).start()


def serve_tornado(port: int) -> None:
    """Serve by a handler for requests and one for websockets."""
    from tornado import web, websocket  # noqa: PLC0415 - as above

    class Item(web.RequestHandler):
        async def get(self, _: str) -> None:
            await asyncio.to_thread(work)
            self.write({"ok": True})

    class Socket(websocket.WebSocketHandler):
        async def on_message(self, message: str | bytes) -> None:
            await self.write_message(answer(message))

    async def main() -> None:
        web.Application([(r"/items/([0-9]+)", Item), (r"/ws", Socket)]).listen(port, "127.0.0.1")
        await asyncio.Event().wait()

    asyncio.run(main())


def serve_tornado_wsgi(port: int) -> None:
    """Serve a WSGI application by Tornado, behind a handler."""
    from tornado import web  # noqa: PLC0415 - as above
    from tornado.wsgi import WSGIContainer  # noqa: PLC0415 - as above

    async def main() -> None:
        fallback = {"fallback": WSGIContainer(wsgi)}
        web.Application([(r".*", web.FallbackHandler, fallback)]).listen(port, "127.0.0.1")
        await asyncio.Event().wait()

    asyncio.run(main())


def serve_sanic(port: int) -> None:
    from sanic import Sanic, response  # noqa: PLC0415 - as above  # pyright: ignore[reportMissingImports]

    app = Sanic("bare")

    @app.get("/items/<item:int>")  # pyright: ignore[reportUntypedFunctionDecorator]
    async def item(_: Any, item: int) -> Any:
        work()
        return response.json({"ok": item})

    @app.websocket("/ws")  # pyright: ignore[reportUntypedFunctionDecorator]
    async def socket(_: Any, socket: Any) -> None:
        async for message in socket:
            await socket.send(answer(message))

    app.run("127.0.0.1", port, single_process=True)


def serve_litestar(port: int) -> None:
    import uvicorn  # noqa: PLC0415 - as above
    from litestar import Litestar, get  # noqa: PLC0415 - as above  # pyright: ignore[reportMissingImports]

    @get("/items/{item:int}", sync_to_thread=False)  # pyright: ignore[reportUntypedFunctionDecorator]
    def item(item: int) -> dict[str, int]:
        work()
        return {"ok": item}

    uvicorn.run(Litestar([item]), port=port)


def serve_streams(port: int) -> None:
    """Serve by streams of asyncio, which no instrumentor knows."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        work()
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps({"ok": True}).encode())
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(respond, "127.0.0.1", port) as server:
            await server.serve_forever()

    asyncio.run(main())


if __name__ == "__main__":
    globals()[f"serve_{sys.argv[1]}"](int(sys.argv[2]))
