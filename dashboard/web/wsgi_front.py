"""ASGI front of the WSGI dashboard: runs pages, requests without sign-in and health probes in separate threads.

A worker thread gets a complete request (`MAX_BODY_BYTES`), and puts the chunks of the response into a queue, so that a slow client never blocks a thread.

    GET /livez              200 while the process responds
    GET /readyz, /healthz   200 while the store can be read, else 503 with the reason
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

from flask import Flask, Response
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send
from werkzeug.test import run_wsgi_app
from werkzeug.wrappers import Request as WsgiRequest

from ...core.errors import StagelensError
from ..source import Source
from .auth import Authenticator
from .signed_endpoints import GIVE_WAY, SIGNED_PATHS

LIVEZ = "/livez"
READYZ = ("/readyz", "/healthz")
PROBE_PATHS = (LIVEZ, *READYZ)
# Maximum body size: addresses and the `seen` state of a callback have at most a few kB.
MAX_BODY_BYTES = 1024 * 1024
_log = logging.getLogger(__name__)
# A browser opens six connections and requests all scripts at the same time.
_THREADS = 8
_QUERY = re.compile(r"/api/v1/(query|query_range|labels|series|label/.*)", re.DOTALL)
# Queries of Grafana have a thread of their own: many large ones at once neither block the pages nor multiply the memory.
_QUERY_THREADS = 1
_PROBE_THREADS, _OPEN_THREADS = 2, 1
# Part of a response for ASGI, or the error of the application.
_Made: TypeAlias = Message | BaseException


class Front:
    """ASGI application that runs a WSGI application in threads."""

    def __init__(self, pages: Any, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._pages = _Threads(pages, _THREADS, "stagelens-page")
        self._queries = _Threads(pages, _QUERY_THREADS, "stagelens-query")
        # Any client can send requests without sign-in at any rate: they share one thread.
        self._open = _Threads(pages, _OPEN_THREADS, "stagelens-open")
        # Liveness has its own threads, so that a slow store does not cause a restart of the process.
        readiness = _Threads(pages, _PROBE_THREADS, "stagelens-ready")
        self._probes = dict.fromkeys(READYZ, readiness) | {LIVEZ: _Threads(pages, _PROBE_THREADS, "stagelens-live")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await Request(scope, receive).body()
        environ = environ_of(scope, body)
        running = asyncio.ensure_future(self._threads_of(scope["path"], environ).run(environ, send))
        leaving = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            running.cancel()
            leaving.cancel()

    def _threads_of(self, path: str, environ: dict[str, Any]) -> _Threads:
        if path in PROBE_PATHS:
            return self._probes[path]
        if path.startswith(SIGNED_PATHS) or not self._authenticator.is_known(WsgiRequest(environ)):
            return self._open
        return self._queries if _QUERY.fullmatch(path) else self._pages


class _Threads:
    """Runs WSGI requests in daemon threads, so that a blocked request does not prevent the process from exiting."""

    def __init__(self, application: Any, most: int, name: str) -> None:
        self._application, self._name = application, name
        self._free = asyncio.Semaphore(most)

    async def run(self, environ: dict[str, Any], send: Send) -> None:
        await self._free.acquire()
        loop, queue, left = asyncio.get_running_loop(), asyncio.Queue[_Made](), threading.Event()
        release_once = threading.Lock()

        def give_way() -> None:
            if release_once.acquire(blocking=False):
                call(self._free.release)

        def work() -> None:
            try:
                with contextlib.closing(self._respond(environ)) as messages:
                    for message in messages:
                        if left.is_set():
                            break
                        call(queue.put_nowait, message)
            except BaseException as error:  # noqa: BLE001 - raised again where the response is awaited
                call(queue.put_nowait, error)
            give_way()

        def call(function: Callable[..., None], *arguments: _Made) -> None:
            # During shutdown the event loop is already closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function, *arguments)

        environ[GIVE_WAY] = give_way
        try:
            threading.Thread(target=work, name=self._name, daemon=True).start()
        except RuntimeError:
            self._free.release()
            raise
        try:
            await _send_all(queue, send)
        finally:
            left.set()

    def _respond(self, environ: dict[str, Any]) -> Generator[Message]:
        # A client of HTTP/1.0 cannot read a response without its length.
        is_old = environ["SERVER_PROTOCOL"] == "HTTP/1.0"
        parts, status, headers = run_wsgi_app(self._application, environ, buffered=is_old)
        if is_old and "content-length" not in headers:
            headers["Content-Length"] = str(sum(map(len, parts)))
        sent = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        yield {"type": "http.response.start", "status": int(status.partition(" ")[0]), "headers": sent}
        try:
            for chunk in parts:
                yield {"type": "http.response.body", "body": chunk, "more_body": True}
        finally:
            getattr(parts, "close", lambda: None)()
        yield {"type": "http.response.body", "body": b"", "more_body": False}


async def _send_all(queue: asyncio.Queue[_Made], send: Send) -> None:
    more = True
    while more:
        message = await queue.get()
        if isinstance(message, BaseException):
            raise message
        await send(message)
        more = message["type"] != "http.response.body" or message["more_body"]


def environ_of(scope: Scope, body: bytes) -> dict[str, Any]:
    """Return the WSGI environ (PEP 3333) of a request."""
    host, port = scope.get("server") or ("", 0)
    client = scope.get("client") or ("", 0)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(scope["raw_path"]).decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        # Without it, the path of a request is known only decoded.
        "REQUEST_URI": scope["raw_path"].decode("latin-1"),
        "CONTENT_LENGTH": str(len(body)),
        "SERVER_NAME": host,
        "SERVER_PORT": str(port),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "REMOTE_ADDR": client[0],
        "REMOTE_PORT": str(client[1]),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").upper()
        # The body is complete, whatever the transfer encoding of the request was.
        if "_" in name or name in ("CONTENT-LENGTH", "TRANSFER-ENCODING"):
            continue
        key = "CONTENT_TYPE" if name == "CONTENT-TYPE" else f"HTTP_{name.replace('-', '_')}"
        text = value.decode("latin-1")
        environ[key] = f"{environ[key]},{text}" if key in environ else text
    return environ


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def add_health_routes(server: Flask, source: Source) -> None:
    def readyz() -> Response:
        try:
            source.revision()
        except StagelensError as error:
            return _status_response(str(error), 503)
        except Exception:  # noqa: BLE001 - the probe gets a response for any error of the store
            _log.exception("the store did not respond: %s", READYZ[0])
            return _status_response("the store does not respond; see the log of the dashboard", 503)
        return _status_response("ok", 200)

    server.add_url_rule(LIVEZ, "livez", lambda: _status_response("ok", 200))
    for path in READYZ:
        server.add_url_rule(path, path.strip("/"), readyz)


def _status_response(text: str, status: int) -> Response:
    return Response(f"{text}\n", status, mimetype="text/plain", headers={"Cache-Control": "no-store"})
