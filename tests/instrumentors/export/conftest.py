"""Collector for deliveries: a real HTTP server whose responses the test sets."""

from __future__ import annotations

import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stagelens.core import names
from stagelens.instrumentors.export.exporter import Exporter
from tests.support.certificate_authority import Authorities
from tests.support.otlp_bodies import read_metrics


@dataclass(frozen=True)
class Post:
    """One request as it came in."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def name(self) -> str:
        """The batch it carries."""
        return self.headers["x-stagelens-batch"]

    def resource(self) -> dict[str, str]:
        """The resource attributes."""
        (resource,) = read_metrics(self.body)["resourceMetrics"]
        attributes = resource["resource"]["attributes"]
        return {item["key"]: item["value"].get("stringValue") or item["value"]["intValue"] for item in attributes}

    def points(self, metric: str) -> list[dict[str, Any]]:
        """The data points of *metric*."""
        (resource,) = read_metrics(self.body)["resourceMetrics"]
        return [
            point
            for item in resource["scopeMetrics"][0]["metrics"]
            if item["name"] == metric
            for point in (item.get("exponentialHistogram") or item["sum"])["dataPoints"]
        ]


@dataclass
class Sink:
    """Server that sends the next of *answers*, each raw bytes or (status, headers, body); 200 if there is none.

    Args:
        url: Where it listens.
    """

    url: str = ""
    posts: list[Post] = field(default_factory=list[Post])
    answers: deque[bytes | tuple[int, dict[str, str], bytes]] = field(default_factory=deque)
    # Held: posts are received but not answered.
    answering: threading.Event = field(default_factory=threading.Event)

    def metrics(self) -> list[Post]:
        """Return the posts of metrics, without those of attributes."""
        posts = [post for post in self.posts if post.path == "/v1/metrics"]
        return [post for post in posts if not post.points(names.REQUEST_BY_ATTRIBUTE)]

    def attributes(self) -> list[Post]:
        """Return the posts of attributes."""
        posts = [post for post in self.posts if post.path == "/v1/metrics"]
        return [post for post in posts if post.points(names.REQUEST_BY_ATTRIBUTE)]

    def requests(self) -> int:
        """Return how many requests were counted, each batch once."""
        named = {post.name: post for post in self.metrics()}
        points = [point for post in named.values() for point in post.points("inference.request.duration")]
        return sum(int(point["count"]) for point in points)

    def dropped(self) -> dict[str, int]:
        """Return the number of requests reported as dropped, by reason."""
        named = {post.name: post for post in self.metrics()}
        points = [point for post in named.values() for point in post.points("stagelens.requests.dropped")]
        return {point["attributes"][0]["value"]["stringValue"]: int(point["asInt"]) for point in points}


@pytest.fixture
def sink() -> Generator[Sink]:
    """A server on a port of its own."""
    sink = Sink()
    sink.answering.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            sink.posts.append(Post(self.path, {key.lower(): value for key, value in self.headers.items()}, body))
            response = sink.answers.popleft() if sink.answers else (200, {}, b"")
            sink.answering.wait(60)
            if isinstance(response, bytes):
                self.wfile.write(response)
                return
            status, headers, text = response
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client that has gone is nothing to report."""

    server = Server(("127.0.0.1", 0), Handler)
    sink.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield sink
    sink.answering.set()
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class Guarded:
    """Server that requires certificates of `clients`, and the common names of its clients."""

    url: str
    seen: list[str] = field(default_factory=list[str])


@pytest.fixture
def guarded(authority: Authorities) -> Generator[Guarded]:
    """Server that requires a client certificate."""
    own = authority("servers").sign("collector")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority("clients").file)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            connection: Any = self.connection
            served.seen.append(dict(pair for (pair,) in connection.getpeercert()["subject"])["commonName"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        def get_request(self) -> tuple[Any, Any]:
            connection, address = super().get_request()
            return context.wrap_socket(connection, server_side=True), address

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that was refused is nothing to report."""

    server = Server(("127.0.0.1", 0), Handler)
    served = Guarded(f"https://localhost:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def parked(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Have exporters' threads stop with their test: one that goes on would post, and log, in the middle of another."""
    started: dict[int, dict[str, Any]] = {}
    start = Exporter._start  # pyright: ignore[reportPrivateUsage] - what it starts is not to be had otherwise

    def noted(self: Exporter) -> None:
        started[id(self)] = vars(self)
        start(self)

    monkeypatch.setattr(Exporter, "_start", noted)
    yield
    for exporter in started.values():
        if exporter["_thread"].is_alive():
            park(exporter)


def park(exporter: dict[str, Any]) -> None:
    """Have the thread of *exporter* wait for ever, once the attempt that it may be at is over."""
    stands = threading.Event()

    def stand() -> None:
        stands.set()
        threading.Event().wait()

    exporter["_send_waiting"] = stand
    # A failed attempt takes the call back.
    while not stands.wait(0.05):
        exporter["_wake"].set()


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Wait until a condition holds, at most a minute."""

    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it did not happen within a minute"

            time.sleep(0.005)

    return until
