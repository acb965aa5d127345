"""The WSGI front: idle connections, large bodies, and probes under load."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from http.client import HTTPConnection, HTTPResponse
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import flask
import pytest

from stagelens.collector.server import bodies, connections
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web import assets
from stagelens.dashboard.web.app import Dashboard
from stagelens.dashboard.web.auth import COOKIE
from stagelens.dashboard.web.users import Users, add_user
from stagelens.store import Store

TOKEN = "correct horse battery staple, again"  # noqa: S105 - the secret of this test
HEAD = b"POST /signin HTTP/1.1\r\nHost: 127.0.0.1\r\n"
AUTHORIZED = f" HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
Start = Callable[..., Dashboard]


@pytest.fixture
def start(filled: Store) -> Iterator[Start]:
    started: list[Dashboard] = []

    def start_one(**settings: object) -> Dashboard:
        started.append(Dashboard(DashboardConfig(port=0, **settings), filled))  # type: ignore[arg-type] - as the test has them
        started[-1].start()
        return started[-1]

    yield start_one
    for each in started:
        each.stop()


def connected(dashboard: Dashboard) -> socket.socket:
    return socket.create_connection(dashboard.address, timeout=60)


def fetch(dashboard: Dashboard, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    with contextlib.closing(HTTPConnection(*dashboard.address, timeout=60)) as connection:
        connection.request("GET", path, headers=headers or {})
        read_to_end = connection.getresponse()
        return read_to_end.status, read_to_end.read()


def read_to_end(connection: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):  # it has not read all of ours
        while more := connection.recv(65_536):
            received += more
    return received


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
        HEAD + b"Content-Length: 900000\r\n\r\nx",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
        (b"GET " + assets.url("plotly.min.js").encode() + AUTHORIZED + b"\r\n") * 16,
    ],
    ids=["idle", "head", "body", "chunked body", "unread responses"],
)
@pytest.mark.parametrize("addresses", [1, 5])
def test_waiting_connections_do_not_block_readers(
    start: Start, monkeypatch: pytest.MonkeyPatch, sent: bytes, addresses: int
) -> None:
    monkeypatch.setattr(bodies, "MAX_RECEIVE_SECONDS", 600.0)
    monkeypatch.setattr(connections, "MAX_UNREAD_SECONDS", 600.0)
    dashboard = start(token=TOKEN)
    with contextlib.ExitStack() as waiting:
        for number in range(260 if addresses == 1 else 350):
            connection = waiting.enter_context(socket.socket())
            # The client reads nothing, so that a response does not fit into its buffer.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.bind((f"127.0.0.{1 + number % addresses}", 0))
            connection.connect(dashboard.address)
            with contextlib.suppress(OSError):
                connection.sendall(sent)
        pages = {fetch(dashboard, "/", {"Authorization": f"Bearer {TOKEN}"})[0] for _ in range(10)}
        probe = fetch(dashboard, "/livez")

    assert pages == {200}
    assert probe == (200, b"ok\n")


@pytest.mark.parametrize("length", [b"Content-Length: 2000000\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_a_body_that_is_too_large_reaches_no_page(start: Start, length: bytes) -> None:
    dashboard = start(token=TOKEN)
    seen: list[str] = []
    dashboard.server.before_request(lambda: seen.append("a page was asked"))
    chunk = b"%x\r\n" % 2_000_000 + b"x" * 2_000_000 + b"\r\n0\r\n\r\n" if b"chunked" in length else b"x" * 2_000_000
    with connected(dashboard) as connection:
        connection.sendall(HEAD + length + b"\r\n" + chunk)
        received = read_to_end(connection)

    assert received.startswith(b"HTTP/1.1 413 ")
    assert seen == []


def test_a_trickling_body_times_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_RECEIVE_SECONDS", 0.2)
    dashboard = start(token=TOKEN)
    with connected(dashboard) as connection:
        connection.sendall(HEAD + b"Content-Length: 99\r\n\r\nname=")
        received = read_to_end(connection)

    assert received.startswith(b"HTTP/1.1 408 ")


def sign_in(dashboard: Dashboard, body: bytes) -> HTTPResponse:
    with contextlib.closing(HTTPConnection(*dashboard.address, timeout=60)) as connection:
        connection.request("POST", "/signin", body, {"Content-Type": "application/x-www-form-urlencoded"})
        return connection.getresponse()


@contextlib.contextmanager
def occupied(
    dashboard: Dashboard, path: str, *, threads: int, requests: int, headers: dict[str, str] | None = None
) -> Generator[list[str]]:
    working, go_on, served = threading.Semaphore(0), threading.Event(), list[str]()

    def work() -> None:
        served.append(flask.request.path)
        if flask.request.path == path:
            working.release()
            go_on.wait(120)

    # Before authentication.
    dashboard.server.before_request_funcs[None].insert(0, work)
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    with contextlib.ExitStack() as stack:
        stack.callback(go_on.set)
        for _ in range(requests):
            connection = stack.enter_context(connected(dashboard))
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n".encode())
        for _ in range(threads):
            assert working.acquire(timeout=60)
        yield served
        go_on.set()


def test_probes_respond_while_all_threads_are_busy(start: Start) -> None:
    dashboard = start()
    with occupied(dashboard, "/slow", threads=8, requests=20):
        probes = [fetch(dashboard, path)[0] for path in ("/livez", "/readyz")]

    assert probes == [200, 200]


@pytest.mark.parametrize(
    ("settings", "headers"),
    [
        ({"token": TOKEN}, {}),
        ({"token": TOKEN}, {"Cookie": f"{COOKIE}=YWRh.99999999999.0011223344556677.{'0' * 64}"}),
        ({"token": TOKEN}, {"Authorization": f"Bearer {TOKEN[:-1]}"}),
        ({"token": TOKEN}, {"Authorization": "Basic YWRhOmFkYQ=="}),
        ({"proxy_header": "X-User", "trusted_proxies": (ip_network("10.0.0.0/8"),), "token": TOKEN}, {"X-User": "ada"}),
    ],
)
def test_requests_without_sign_in_take_no_thread_from_readers(
    start: Start, settings: dict[str, Any], headers: dict[str, str]
) -> None:
    dashboard = start(**settings)
    cookie = sign_in(dashboard, f"secret={TOKEN}".encode()).headers["Set-Cookie"].partition(";")[0]
    with occupied(dashboard, "/slow", threads=1, requests=40, headers=headers):
        pages = [fetch(dashboard, "/", each)[0] for each in ({"Cookie": cookie}, {"Authorization": f"Bearer {TOKEN}"})]

    assert pages == [200, 200]


def test_password_checks_hold_no_thread(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_user(tmp_path / "users.txt", "ada", "tr0ub4dor and 3")
    dashboard, go_on, started = start(users=tmp_path / "users.txt"), threading.Event(), threading.Semaphore(0)

    def check(*_: object) -> bool:
        started.release()
        return go_on.wait(60)

    monkeypatch.setattr(Users, "accept", check)
    with ThreadPoolExecutor(40) as pool:
        attempts = [pool.submit(sign_in, dashboard, b"name=ada&secret=x") for _ in range(40)]
        assert started.acquire(timeout=60)
        form = fetch(dashboard, "/signin")[0]
        refused = next(attempt.result().status for attempt in as_completed(attempts))
        go_on.set()
        statuses = {attempt.result().status for attempt in attempts}

    assert (form, refused, statuses) == (200, 429, {303, 429})


def test_a_form_with_many_fields_is_not_parsed(start: Start) -> None:
    assert sign_in(start(token=TOKEN), b"a=&" * 300_000).status == 413


def test_a_header_with_an_underscore_is_ignored(start: Start) -> None:
    dashboard = start(proxy_header="X-Forwarded-User", trusted_proxies=(ip_network("127.0.0.1/32"),))

    assert fetch(dashboard, "/", {"X-Forwarded-User": "ada"})[0] == 200
    assert fetch(dashboard, "/", {"X_Forwarded_User": "ada"})[0] == 401


def test_bytes_that_are_not_text_get_a_response(start: Start) -> None:
    dashboard = start()
    for path in (b"/?a=\xff\xfe", b"/%ff%00", b"/s/%E2%82", b"//", b"/?from=%zz"):
        with connected(dashboard) as connection:
            connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert int(read_to_end(connection).split(b" ")[1]) < 500, path


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_request_whose_client_has_left_is_dropped(start: Start) -> None:
    dashboard = start()
    server: Any = dashboard
    with occupied(dashboard, "/slow", threads=8, requests=8) as served:
        accepted = server._http_server.server_state.connections
        with contextlib.ExitStack() as leaving:
            for _ in range(30):
                connection = leaving.enter_context(connected(dashboard))
                connection.sendall(b"GET /left HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            wait_until(lambda: len(accepted) == 38)
        wait_until(lambda: len(accepted) == 8)
    # Served after all requests that waited before it.
    fetch(dashboard, "/last")

    assert "/last" in served
    assert "/left" not in served


def test_liveness_does_not_wait_for_readiness(start: Start) -> None:
    dashboard = start()
    with occupied(dashboard, "/readyz", threads=2, requests=2):
        alive = fetch(dashboard, "/livez")

    assert alive == (200, b"ok\n")
