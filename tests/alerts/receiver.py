"""Receiver for tests that fails: real HTTP, the vendor's rules, and all kinds of failed requests."""

from __future__ import annotations

import queue
import random
import socket
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from tests.support.http_server import Request, Response, http_server

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
        self._closed = threading.Event()
        self._server = ExitStack()
        self.url = self._server.enter_context(http_server(self._respond)).url

    def close(self) -> None:
        self._closed.set()
        self._server.close()

    def take(self, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        raise NotImplementedError

    def check(self, path: str, headers: Any, body: bytes) -> None: ...

    def _respond(self, request: Request) -> Response:
        if len(request.body) < int(request.head["Content-Length"] or 0):
            # The sender died while sending.
            return b""
        with self._lock:
            self.requests += 1
            lost = self.requests in self._moods.lost
            hold = lost or self.requests in self._moods.hold
            fails = hold or self._random.random() < self._moods.failing
            how = self._random.random()
            status, content = 0, b""
            try:
                self.check(request.path, request.head, request.body)
                if not fails or (self._moods.after and not lost and (hold or how < 0.3)):
                    status, content = self.take(request.path, request.head, request.body)
            except (AssertionError, KeyError, ValueError) as error:
                self.violations.append(repr(error))
                status, content, fails = 400, b"invalid_payload", False
        if hold:
            self.killed += 1
            self.held.put(self)
            self._closed.wait(HOLD_SECONDS)
            return b""
        self.refused += fails
        return self._failure(how) if fails else (status, {}, content)

    def _failure(self, how: float) -> Response:
        if how < 0.3:
            self._closed.wait(HOLD_SECONDS if self._moods.silent and how < 0.05 else 0)
            return b""
        if how < 0.36:
            return 429, {"Retry-After": "1"}, b"rate_limited"
        if how < 0.5 and self.garbage:
            return 200, {}, b"<html>\xff\xfe log in</html>"
        return (500, 502, 503, 408, 425)[int(how * 1000) % 5], {}, b"<html>not now</html>"


def await_close(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(1024):
            continue
