"""Connections: where the product listens, large heads, slow senders, slow readers, and too many connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from stagelens.collector.server import bodies as request_bodies
from stagelens.collector.server import connections
from stagelens.collector.server.connection_limits import ConnectionLimits
from stagelens.collector.server.http_server import open_listener
from tests.structure import ROOT, files_of

HEAD = b"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LARGE = connections.MAX_HEAD_BYTES


PROBE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
UNFINISHED = HEAD + b"Content-Length: 900000\r\n\r\n{"


def connected(served: Any, address: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(served.collector.address, timeout=60, source_address=(address, 0))


def request(body: Any) -> bytes:
    sent = json.dumps(body).encode()
    return HEAD + f"Content-Length: {len(sent)}\r\n\r\n".encode() + sent


@pytest.fixture
def limits(served: Any) -> ConnectionLimits:
    return served.collector._server.limits


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long deadline of bodies, so that no connection is closed for a slow one."""
    monkeypatch.setattr(request_bodies, "MAX_RECEIVE_SECONDS", 600.0)


def read_to_end(connection: socket.socket) -> bytes:
    received = b""
    try:
        while more := connection.recv(65_536):
            received += more
    except ConnectionResetError:  # The server did not read all data.
        pass
    return received


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"X-Long: " + b"x" * LARGE + b"\r\n\r\n",
        HEAD + b"X: \r\n" * (LARGE // 32) + b"\r\n",
        HEAD + b"X-Endless: " + b"x" * LARGE * 10,
        HEAD + b"x" * LARGE * 10,
        b"POST /" + b"x" * LARGE * 10,
        b"POST /" + b"x" * LARGE + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        CHUNKED + b"0\r\n" + b"X: y\r\n" * (LARGE // 32),
        CHUNKED + b"0\r\nX-Endless: " + b"x" * LARGE * 10,
        CHUNKED + b"2;" + b"x" * LARGE * 10,
    ],
    ids=["long", "many", "endless", "endless name", "address", "whole address", "trailers", "trailer", "extension"],
)
def test_a_head_that_is_too_large_is_refused(served: Any, bodies: Any, sent: bytes) -> None:
    with connected(served) as connection:
        for start in range(0, len(sent), 10_000):
            try:
                connection.sendall(sent[start : start + 10_000])
            except OSError:  # The server may close before the end of the request.
                break
        received = read_to_end(connection)

    assert received.startswith(b"HTTP/1.1 431 ")
    assert f"larger than {LARGE} bytes; send fewer or shorter headers".encode() in received
    assert served.post("/v1/metrics", bodies.metrics(bodies.point())).status_code == 200


def test_the_head_limit_applies_to_each_head(served: Any, bodies: Any) -> None:
    body = json.dumps(bodies.metrics(*[bodies.point()] * 100)).encode()
    statuses = {served.post("/v1/metrics", body, x_long="x" * (LARGE // 2)).status_code for _ in range(5)}

    assert len(body) > LARGE
    assert statuses == {200}


@pytest.mark.parametrize("sent", [b"", b"POST /v1/met", HEAD + b"X-Slow: "])
def test_a_missing_head_times_out(served: Any, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connections, "MAX_HEAD_SECONDS", 0.2)
    with connected(served) as connection:
        connection.sendall(sent)

        assert read_to_end(connection).startswith(b"HTTP/1.1 408 ")


def test_a_trickling_head_times_out(served: Any, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]) -> None:
    monkeypatch.setattr(connections, "MAX_HEAD_SECONDS", 0.3)
    for first, letter in (
        (b"POST /v1/metrics HTTP/1.1\r\nX: ", b"x"),
        (PROBE, b"\r\n"),
    ):
        with connected(served) as connection:
            connection.sendall(first)

            def ended(connection: socket.socket = connection, letter: bytes = letter) -> bool:
                try:
                    connection.sendall(letter)
                except OSError:
                    return True
                return False

            until(ended)


def test_a_trickling_body_times_out(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "MAX_RECEIVE_SECONDS", 0.2)
    with connected(served) as connection:
        connection.sendall(HEAD + b"Content-Length: 99\r\n\r\n{")
        received = read_to_end(connection)

    assert received.startswith(b"HTTP/1.1 408 ")
    assert served.metric("stagelens_collector_receiving_bytes") == 0


@pytest.mark.parametrize("limit", ["most", "most_of_one"])
def test_connections_over_the_limit_get_a_retry_delay(
    serve_slow: Any, slow: Any, bodies: Any, until: Callable[..., None], limit: str
) -> None:
    served = serve_slow()
    limits = served.collector._server.limits
    setattr(limits, limit, 2)
    slow.open.clear()
    whole = request(bodies.metrics(bodies.point()))
    with connected(served) as first, connected(served) as second:
        for each in (first, second):
            each.sendall(whole)
        until(lambda: len(limits._owners) == 2 and not limits._waiting)
        with connected(served) as third:
            third.sendall(PROBE)
            probed = b""
            while not probed.endswith(b"ok\n"):
                probed += third.recv(1000)
            third.sendall(whole)
            refused = read_to_end(third)
        with connected(served, "127.0.0.2") as other:
            other.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            received = other.recv(100)[:12]
        slow.open.set()
        finished = [each.recv(100)[:12] for each in (first, second)]
    limits.most = limits.surplus = 0
    with connected(served) as beyond:
        closed = read_to_end(beyond)

    assert probed.startswith(b"HTTP/1.1 200 ")
    for response in (refused, closed):
        assert response.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 5\r\n" in response.lower()
    assert finished == [b"HTTP/1.1 200", b"HTTP/1.1 200"]
    assert received == (b"HTTP/1.1 200" if limit == "most_of_one" else b"HTTP/1.1 503")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HEAD,
        UNFINISHED,
        UNFINISHED + b" " * 80_000,
        CHUNKED + b"1\r\n{\r\n",
        HEAD + b"Expect: 100-continue\r\nContent-Length: 900000\r\n\r\n",
        PROBE + UNFINISHED,
        UNFINISHED.replace(b"/v1/metrics", b"/nowhere"),
    ],
    ids=["idle", "head", "body", "larger body", "chunked", "expect", "pipelined", "refused early"],
)
@pytest.mark.parametrize(("limit", "addresses"), [("most", 3), ("most_of_one", 1)])
@pytest.mark.usefixtures("patient")
def test_unfinished_requests_do_not_block_senders(  # noqa: PLR0917 - what is sent, and over what
    served: Any,
    limits: ConnectionLimits,
    bodies: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
    limit: str,
    addresses: int,
) -> None:
    monkeypatch.setattr(connections, "MAX_HEAD_SECONDS", 600.0)
    setattr(limits, limit, 6)
    limits.surplus = 0
    with contextlib.ExitStack() as stack:
        unfinished: list[socket.socket] = []
        for number in range(30):
            unfinished.append(stack.enter_context(connected(served, f"127.0.0.{2 + number % addresses}")))
            with contextlib.suppress(OSError):
                unfinished[-1].sendall(sent)
        with connected(served, "127.0.0.2") as sender:
            sender.sendall(request(bodies.metrics(bodies.point())))
            received = sender.recv(100)
        replaced = read_to_end(unfinished[0])

    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 503 " in replaced
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert served.metric('stagelens_collector_requests_total{code="500",signal="metrics"}') == 0


@pytest.mark.parametrize(("address", "sends_first"), [("127.0.0.1", True), ("127.0.0.2", False)])
@pytest.mark.usefixtures("patient")
def test_others_replace_neither_a_faster_sender_nor_one_of_an_address_with_fewer_connections(
    served: Any, limits: ConnectionLimits, bodies: Any, address: str, sends_first: bool
) -> None:
    limits.most, limits.surplus = 3, 0
    whole = request(bodies.metrics(*[bodies.point()] * 1000))
    with contextlib.ExitStack() as stack, connected(served) as sender:
        sent = len(whole) - 1 if sends_first else 0
        sender.sendall(whole[:sent])
        unfinished = [stack.enter_context(connected(served, address)) for _ in range(20)]
        for each in unfinished:
            with contextlib.suppress(OSError):
                each.sendall(UNFINISHED)
        replaced = [read_to_end(each) for each in unfinished[:18]]
        sender.sendall(whole[sent:])
        received = sender.recv(100)

    assert received.startswith(b"HTTP/1.1 200 ")
    assert len(replaced) == 18


@pytest.mark.usefixtures("patient")
def test_half_received_bodies_do_not_block_senders(serve: Any, bodies: Any, until: Callable[..., None]) -> None:
    served = serve(max_body_bytes=250_000, queue_bytes=1_000_000)
    with contextlib.ExitStack() as stack:
        halves = [stack.enter_context(connected(served, "127.0.0.2")) for _ in range(6)]
        for halve in halves:
            halve.sendall(HEAD + b"Content-Length: 250000\r\n\r\n" + b" " * 200_000)
        ended = read_to_end(halves[0])
        statuses = [served.post("/v1/metrics", bodies.metrics(bodies.point())).status_code for _ in range(5)]
        large = served.post("/v1/metrics", json.dumps(bodies.metrics(bodies.point())).encode().ljust(250_000))

    assert ended.startswith(b"HTTP/1.1 503 ")
    assert (set(statuses), large.status_code) == ({200}, 200)
    until(lambda: served.metric("stagelens_collector_receiving_bytes") == 0)


def test_a_client_that_does_not_read_is_disconnected(
    served: Any, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    monkeypatch.setattr(connections, "MAX_UNREAD_SECONDS", 0.2)
    accepted = served.collector._server.server_state.connections
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(served.collector.address)
        connection.settimeout(60)
        try:
            for _ in range(2000):
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        except OSError:
            pass
        until(lambda: not accepted)

    assert served.client.get("/livez").status_code == 200


def test_no_response_is_written_to_a_disconnected_client(
    serve_slow: Any, slow: Any, bodies: Any, until: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    served = serve_slow()
    server = served.collector._server.server_state
    slow.open.clear()
    with connected(served) as connection:
        # The first request waits for its commit, the second one for the first.
        connection.sendall(request(bodies.metrics(bodies.point())) * 2)

        assert slow.entered.acquire(timeout=60)

    until(lambda: not server.connections)
    slow.open.set()
    until(lambda: not server.tasks)

    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert served.counted() == 1


FIRST, LAST = HEAD + b"Content-Length: 5\r\n\r\n", HEAD + b"\r\n"
CHUNKS = b"4;name=x\r\n{\r\n\r\r\n00\r\nX-Trailer: 1\r\n\r\n"


class ReceivedPieces(asyncio.Protocol):
    def __init__(self) -> None:
        self.pieces = list[bytes]()

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_request_is_parsed_after_the_response_to_the_one_before(step: int) -> None:
    parser, transport = ReceivedPieces(), Mock(spec=asyncio.Transport)
    transport.is_closing.return_value, transport.get_write_buffer_size.return_value = False, 0
    transport.get_extra_info.side_effect = lambda name: ("127.0.0.1", 1) if name == "peername" else None
    limits: Any = ConnectionLimits("test")

    async def receive() -> list[tuple[bytes, bool]]:
        connection = connections.Connection(connections.LimitedConnections(limits), parser, None)
        connection.connection_made(transport)
        sent = b"\r\n" + FIRST + b"\r\n\r\n!" + CHUNKED + CHUNKS + LAST
        for start in range(0, len(sent), step):
            connection.data_received(sent[start : start + step])
        parsed: list[tuple[bytes, bool]] = []
        for headers in ([(b"content-length", b"5")], [(b"transfer-encoding", b"chunked")], []):
            head = b"".join(parser.pieces)
            connection.start_request({"headers": headers})
            parsed.append((head, not limits._waiting))
            connection.end_request()
        connection.connection_lost(None)
        return [*parsed, (b"".join(parser.pieces), not limits._owners)]

    assert asyncio.run(receive()) == [
        (FIRST, True),
        (FIRST + b"\r\n\r\n!" + CHUNKED, True),
        (FIRST + b"\r\n\r\n!" + CHUNKED + CHUNKS + LAST, True),
        (FIRST + b"\r\n\r\n!" + CHUNKED + CHUNKS + LAST, True),
    ]


def test_pipelined_requests_get_their_responses_in_order(served: Any) -> None:
    body = FIRST + b"{}  \n"
    requests = [PROBE, body, CHUNKED + CHUNKS, body.replace(b"metrics", b"nowhere"), body]
    with connected(served) as connection:
        connection.sendall(b"".join(requests) + PROBE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        received = read_to_end(connection)

    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200", b"200", b"400", b"404", b"200", b"200"]


class Timers:
    """Event loop whose timers run when the test advances them."""

    def __init__(self) -> None:
        self.now, self.waiting = 0.0, list[Callable[[], None]]()

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            self.now += seconds
            call(*arguments)

        self.waiting.append(run)


@pytest.mark.parametrize(
    ("unread", "checks"), [((900, 600, 300, 0), 3), ((900, 900), 1), ((0,), 1), (tuple(range(1000, 0, -1)), 13)]
)
def test_a_slowly_reading_client_stays_connected(unread: tuple[int, ...], checks: int) -> None:
    connection: Any = connections.Connection.__new__(connections.Connection)
    left, transport = list(unread), Mock(spec=asyncio.Transport)
    transport.get_write_buffer_size.side_effect = lambda: left.pop(0) if len(left) > 1 else left[0]
    connection._transport, connection._loop, connection._unread_timer = transport, Timers(), None
    connection._abort_later()
    done = 0
    while connection._loop.waiting:
        connection._loop.waiting.pop()()
        done += 1

    transport.abort.assert_called_once_with()
    assert done == checks


def test_a_name_with_both_addresses_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with open_listener("localhost", 0, "collector", "choose another port") as listening:
        address = listening.getsockname()

    assert address[0] == "127.0.0.1"


LISTENS = re.compile(
    r"create_server\(|start_server\(|HTTPServer\(\(|uvicorn\.(run|Server|Config)\(|add_(in)?secure_port\("
)


def test_nothing_else_listens() -> None:
    listening = {path for path in files_of("product") if LISTENS.search(path.read_text(encoding="utf-8"))}
    found = {str(path.relative_to(ROOT)) for path in listening}

    assert found == {"collector/server/http_server.py", "collector/server/grpc_server.py", "instrumentors/session.py"}
