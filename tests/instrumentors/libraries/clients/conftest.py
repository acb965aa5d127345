"""Shared fixtures of the client tests: a real server, and a request."""

from __future__ import annotations

import threading
from collections.abc import Generator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.libraries.client_common import BODY
from stagelens.instrumentors.trace_context import traceparent

PARTS = (b"one ", b"two ", b"three")


class Running:
    def __init__(self, marks: records.Marks) -> None:
        self.marks = marks

    def stages(self) -> list[tuple[str, int, int]]:
        """Return its stages so far, in the order they ended."""
        triples = zip(self.marks[::3], self.marks[1::3], self.marks[2::3], strict=True)
        return [triple for triple in triples if not triple[0].startswith("@")]

    def names(self) -> list[str]:
        """Return their names, without which part of the stage they are."""
        return [name.partition("@")[0] for name, _, _ in self.stages()]

    def calls(self) -> int:
        """Return how many of them are no reads of a body, which depend on how it came."""
        return sum(name != BODY for name, _, _ in self.stages())

    def trace(self) -> str:
        return traceparent(self.marks)


@pytest.fixture
def in_a_request() -> Generator[Running]:
    opened = recorder.begin()
    assert opened is not None
    marks, token = opened
    yield Running(marks)
    recorder.end(token)


class Upstream:
    """Server that records request headers, responds in parts, and disconnects on the first call of `/flaky`.

    `/held` sends its body when `release` is set.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.heads: list[Message] = []
        self.release = threading.Event()
        self.hung_up = False

    def traces(self) -> list[str]:
        return self.heads[-1].get_all("traceparent", [])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: Upstream

    def do_GET(self) -> None:
        self.upstream.heads.append(self.headers)
        if self.path == "/flaky" and not self.upstream.hung_up:
            self.upstream.hung_up = self.close_connection = True
        elif self.path == "/redirect":
            self._respond(302, b"moved", Location="/plain")
        elif self.path == "/parts":
            self._respond_in_parts()
        else:
            self._respond(200, b"answer")

    def _respond(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.flush()
        if self.path == "/held":
            self.upstream.release.wait(30)
        self.wfile.write(body)

    def _respond_in_parts(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in (*PARTS, b""):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name http.server gives it
        ...


class Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None: ...


@pytest.fixture
def upstream() -> Generator[Upstream]:
    class Answers(Handler):
        pass

    server = Server(("127.0.0.1", 0), Answers)
    upstream = Answers.upstream = Upstream(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield upstream
    upstream.release.set()
    server.shutdown()
    server.server_close()
    thread.join()
