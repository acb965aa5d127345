"""Receiver for tests that fails: real HTTP, the vendor's rules, and all kinds of failed requests."""

from __future__ import annotations

import queue
import random
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOLD_SECONDS = 60.0


@dataclass(frozen=True)
class Moods:
    """Failures of a receiver.

    Args:
        seed: Seed of the random failures.
        failing: Share of failing requests. [ratio]
        hold: Numbers of the requests without a response, so that their sender can be killed in the meantime.
        lost: Numbers of the requests that are held and not accepted.
        after: Whether the receiver may accept a message and then fail, which requires that it detects repeats.
        silent: Whether the receiver may also send no response until the sender's timeout.
    """

    seed: int = 1
    failing: float = 0.5
    hold: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    after: bool = False
    silent: bool = False


class Receiver:
    # Whether the sender can distinguish a 200 with an HTML page from a success.
    garbage = True

    def __init__(self, moods: Moods) -> None:
        self.violations: list[str] = []
        self.held: queue.Queue[Receiver] = queue.Queue()
        self.requests = self.killed = self.refused = 0
        self._moods = moods
        self._random = random.Random(moods.seed)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        raise NotImplementedError

    def check(self, path: str, headers: Any, body: bytes) -> None: ...

    def _respond(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length", 0))
        body = handler.rfile.read(length)
        if len(body) < length:
            # The sender died while sending.
            handler.close_connection = True
            return
        with self._lock:
            self.requests += 1
            lost = self.requests in self._moods.lost
            hold = lost or self.requests in self._moods.hold
            fails = hold or self._random.random() < self._moods.failing
            how = self._random.random()
            status, content = 0, b""
            try:
                self.check(handler.path, handler.headers, body)
                if not fails or (self._moods.after and not lost and (hold or how < 0.3)):
                    status, content = self.take(handler.path, handler.headers, body)
            except (AssertionError, KeyError, ValueError) as error:
                self.violations.append(repr(error))
                status, content, fails = 400, b"invalid_payload", False
        if hold:
            self._hold(handler)
        elif fails:
            self.refused += 1
            self._fail(handler, how)
        else:
            reply(handler, status, content)

    def _fail(self, handler: BaseHTTPRequestHandler, how: float) -> None:
        if how < 0.3 and self._moods.silent and how < 0.05:
            handler.connection.settimeout(HOLD_SECONDS)
            _until_closed(handler)
        elif how < 0.3:
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
        elif how < 0.36:
            reply(handler, 429, b"rate_limited", {"Retry-After": "1"})
        elif how < 0.5 and self.garbage:
            reply(handler, 200, b"<html>\xff\xfe log in</html>")
        else:
            reply(handler, (500, 502, 503, 408, 425)[int(how * 1000) % 5], b"<html>not now</html>")

    def _hold(self, handler: BaseHTTPRequestHandler) -> None:
        self.killed += 1
        self.held.put(self)
        handler.connection.settimeout(HOLD_SECONDS)
        _until_closed(handler)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._respond(self)

            def do_GET(self) -> None:
                receiver._respond(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it is called by
                """Log nothing."""

        return Handler


def reply(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    handler.send_response(status)
    for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
        handler.send_header(key, value)
    handler.end_headers()
    handler.wfile.write(body)


def _until_closed(handler: BaseHTTPRequestHandler) -> None:
    await_close(handler.connection)
    handler.close_connection = True


def await_close(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(1024):
            continue
