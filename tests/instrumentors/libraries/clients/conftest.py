"""Shared fixtures of the client tests: a real server, and a request."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from email.message import Message

import pytest

from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.libraries.aiohttp_client import AiohttpClientInstrumentor
from stagelens.instrumentors.libraries.client_common import BODY
from stagelens.instrumentors.libraries.httpx import HttpxInstrumentor
from stagelens.instrumentors.libraries.urllib3 import RequestsInstrumentor, Urllib3Instrumentor
from stagelens.instrumentors.trace_context import traceparent
from tests.instrumentors.libraries.drivers import instrumenting
from tests.support.http_server import Recorded, Request, Response, http_server

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

    def __init__(self, server: Recorded) -> None:
        self._server, self.address = server, server.url
        self.release = threading.Event()

    @property
    def heads(self) -> list[Message]:
        return [request.head for request in self._server.requests]

    def traces(self) -> list[str]:
        return self.heads[-1].get_all("traceparent", [])

    def held(self) -> Iterator[bytes]:
        self.release.wait(30)
        yield b"answer"


@pytest.fixture
def upstream() -> Generator[Upstream]:
    def respond(request: Request) -> Response:
        match request.path:
            case "/flaky" if len(upstream.heads) == 1:
                return b""
            case "/redirect":
                return 302, {"Location": "/plain"}, b"moved"
            case "/parts":
                return 200, {}, PARTS
            case "/held":
                return 200, {"Content-Length": "6"}, upstream.held()
            case _:
                return 200, {}, b"answer"

    with http_server(respond) as server:
        upstream = Upstream(server)
        yield upstream
        upstream.release.set()


@pytest.fixture
def clients() -> Generator[None]:
    with instrumenting(HttpxInstrumentor(), RequestsInstrumentor(), Urllib3Instrumentor(), AiohttpClientInstrumentor()):
        yield
