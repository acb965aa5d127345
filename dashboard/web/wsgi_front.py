"""ASGI front of the WSGI dashboard: limits request bodies, runs pages and health probes in separate threads, and compresses responses.

A worker thread gets a complete request and returns a complete response, so that a slow client never blocks a thread.

Responses are compressed with gzip. Static files are few (Dash, Plotly, our own) and their URLs contain a version:
their compressed bytes stay in memory, under two megabytes, and browsers may cache them forever.

    GET /livez              200 while the process responds
    GET /readyz, /healthz   200 while the store can be read, else 503 with the reason
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import io
import logging
import sys
import threading
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

from flask import Flask, Response, request
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from werkzeug.test import run_wsgi_app

from ...core.errors import StagelensError
from ..source import Source

LIVEZ = "/livez"
READYZ = ("/readyz", "/healthz")
PROBE_PATHS = (LIVEZ, *READYZ)
# Maximum body size: addresses and the `seen` state of a callback have at most a few kB.
MAX_BODY_BYTES = 1024 * 1024
_log = logging.getLogger(__name__)
# A browser opens six connections and requests all scripts at the same time.
_THREADS = 8
_PROBE_THREADS = 2
# Response: status, headers, body.
_Response: TypeAlias = tuple[int, list[tuple[bytes, bytes]], bytes]
# Time limit for receiving a request body; pages send a few hundred bytes. [seconds]
MAX_BODY_SECONDS = 10.0
# An oversized body is read and discarded up to this multiple of the limit, so that the client can read the 413 response.
_DISCARD_FACTOR = 4


class Front:
    """ASGI application that runs a WSGI application in threads.

    Args:
        pages: WSGI application of the dashboard.
    """

    def __init__(self, pages: Any) -> None:
        self._pages = _Threads(pages, _THREADS, "stagelens-page")
        # Liveness has its own threads, so that a slow store does not cause a restart of the process.
        self._readiness = _Threads(pages, _PROBE_THREADS, "stagelens-ready")
        self._liveness = _Threads(pages, _PROBE_THREADS, "stagelens-live")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Receive one request, run it in a thread, and send the response."""
        if scope["type"] != "http":
            return
        is_probe = scope["path"] in PROBE_PATHS
        try:
            body = b"" if is_probe else await _read_body(Request(scope, receive))
        except ClientDisconnect:
            return
        except (TooLargeError, TimeoutError) as error:
            await _error_response(error)(scope, receive, send)
            return
        running = asyncio.ensure_future(self._threads_of(scope["path"]).run(environ_of(scope, body)))
        leaving = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                return
            status, headers, content = running.result()
        finally:
            running.cancel()
            leaving.cancel()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _threads_of(self, path: str) -> _Threads:
        if path not in PROBE_PATHS:
            return self._pages
        return self._liveness if path == LIVEZ else self._readiness


class _Threads:
    """Runs WSGI requests in daemon threads, so that a blocked request does not prevent the process from exiting.

    A request whose client disconnects while it waits for a thread is dropped with its body.

    Args:
        application: WSGI application.
        most: Maximum number of concurrent threads. [count]
        name: Name of the threads, for debugging.
    """

    def __init__(self, application: Any, most: int, name: str) -> None:
        self._application, self._name = application, name
        self._free = asyncio.Semaphore(most)

    async def run(self, environ: dict[str, Any]) -> _Response:
        """Return the response of the application to the request *environ*."""
        await self._free.acquire()
        loop, response = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def finish(outcome: _Response | BaseException) -> None:
            self._free.release()
            if response.cancelled():
                return
            if isinstance(outcome, BaseException):
                response.set_exception(outcome)
            else:
                response.set_result(outcome)

        def work() -> None:
            try:
                outcome = self._respond(environ)
            except BaseException as error:  # noqa: BLE001 - raised again where the response is awaited
                outcome = error
            # During shutdown the event loop is already closed.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(finish, outcome)

        try:
            threading.Thread(target=work, name=self._name, daemon=True).start()
        except RuntimeError:
            self._free.release()
            raise
        return await response

    def _respond(self, environ: dict[str, Any]) -> _Response:
        parts, status, headers = run_wsgi_app(self._application, environ, buffered=True)
        sent = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return int(status.partition(" ")[0]), sent, b"".join(parts)


def environ_of(scope: Scope, body: bytes) -> dict[str, Any]:
    """Return the WSGI environ (PEP 3333) of a request.

    Headers with an underscore are dropped: in the environ they have the same name as headers with hyphens, which a proxy may have
    set or removed.
    """
    host, port = scope.get("server") or ("", 0)
    client = scope.get("client") or ("", 0)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(scope["raw_path"]).decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
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
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read_body(request: Request) -> bytes:
    """Return the body of *request*.

    Raises:
        TooLargeError: The body is larger than the limit.
        TimeoutError: The body was not complete within `MAX_BODY_SECONDS`.
        ClientDisconnect: The client disconnected.
    """
    chunks, size = list[bytes](), 0
    async with asyncio.timeout(MAX_BODY_SECONDS):
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_BODY_BYTES * _DISCARD_FACTOR:
                break
            if size <= MAX_BODY_BYTES:
                chunks.append(chunk)
            else:
                chunks.clear()
    if size > MAX_BODY_BYTES:
        raise TooLargeError
    return b"".join(chunks)


def _error_response(error: Exception) -> PlainTextResponse:
    headers = {"Connection": "close"}
    if isinstance(error, TooLargeError):
        text = f"the request body is larger than {MAX_BODY_BYTES} bytes\n"
        return PlainTextResponse(text, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, headers)
    text = f"the request body was not complete within {MAX_BODY_SECONDS:g} s\n"
    return PlainTextResponse(text, HTTPStatus.REQUEST_TIMEOUT, headers)


_FAST, _SMALL = 5, 9
# Below this size compression saves less than its header costs.
_MIN_BYTES = 700
_TEXT = ("text/", "application/json", "application/javascript", "image/svg+xml")


def compress_responses(server: Flask, static_prefixes: tuple[str, ...]) -> None:
    """Compress the responses of *server*; responses under *static_prefixes* are compressed once and cached."""
    compressed: dict[bytes, bytes] = {}
    lock = threading.Lock()

    def packed(body: bytes) -> bytes:
        # Not cached by URL: unauthenticated clients can invent any number of URLs of one file.
        key = hashlib.blake2b(body).digest()
        with lock:
            if key not in compressed:
                compressed[key] = gzip.compress(body, _SMALL, mtime=0)
            return compressed[key]

    def after(response: Response) -> Response:
        static = request.path.startswith(static_prefixes) and response.status_code == 200  # noqa: PLR2004 - OK
        if static and "m" in request.args:
            response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        if not _wanted(response):
            return response
        response.direct_passthrough = False
        body = response.get_data()
        if len(body) >= _MIN_BYTES:
            response.set_data(packed(body) if static else gzip.compress(body, _FAST, mtime=0))
            response.headers["Content-Encoding"] = "gzip"
        response.headers.add("Vary", "Accept-Encoding")
        return response

    server.after_request(after)


def _wanted(response: Response) -> bool:
    return (
        200 <= response.status_code < 300  # noqa: PLR2004 - successful responses with a body
        and response.status_code != 204  # noqa: PLR2004 - no content
        and "Content-Encoding" not in response.headers
        and (response.mimetype or "").startswith(_TEXT)
        and "gzip" in request.accept_encodings
    )


def add_health_routes(server: Flask, source: Source) -> None:
    """Add the health endpoints `PROBE_PATHS` to *server*."""

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


class TooLargeError(Exception):
    """Request body larger than `MAX_BODY_BYTES`."""
