"""gunicorn's gthread worker: a connection's wait for a thread is the queue of its request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask
from gunicorn import glogging
from gunicorn.config import Config
from gunicorn.workers import gthread

from stagelens.instrumentors import records
from stagelens.instrumentors.libraries import gunicorn as gunicorn_module
from stagelens.instrumentors.libraries import wsgi
from stagelens.instrumentors.libraries.flask import FlaskInstrumentor
from stagelens.instrumentors.libraries.gunicorn import GunicornInstrumentor
from tests.instrumentors.libraries.drivers import instrumenting

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = GunicornInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")

HERE = ("127.0.0.1", 80)


@pytest.fixture
def worker() -> Generator[Any]:
    """Initialized worker with one thread and without a poller."""
    cfg, app = Config(), Flask("app")
    app.get("/")(lambda: "fine")
    nobody: Any = None
    worker: Any = gthread.ThreadWorker(1, 0, [], nobody, 30, cfg, glogging.Logger(cfg))
    worker.wsgi = app
    if queue := getattr(worker, "method_queue", None):  # since gunicorn 24
        queue.init()
    with instrumenting(FlaskInstrumentor()), ThreadPoolExecutor(1) as worker.tpool:
        yield worker
    for conn in getattr(worker, "pending_conns", ()):
        conn.close()
    if queue:
        queue.close()
    worker.tmp.close()


def connect(worker: Any, request: bytes) -> socket.socket:
    """Have *worker* accept a connection on which *request* was sent, and return the client's end."""
    ours, theirs = socket.socketpair()
    ours.sendall(request)
    ours.settimeout(30)
    conn = gthread.TConn(worker.cfg, theirs, HERE, HERE)
    if hasattr(worker, "pending_conns"):  # since a later 25
        worker.pending_conns.append(conn)
    worker.enqueue_req(conn)
    return ours


def read_response(client: socket.socket) -> bytes:
    received = b""
    with client:
        while not received.endswith(b"fine"):
            received += client.recv(4096)
    return received


def test_waiting_for_a_thread_is_queue_and_part_of_the_request(finished: Finished, worker: Any) -> None:
    release = threading.Event()
    worker.tpool.submit(release.wait, 30)
    client = connect(worker, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    released = records.clock()
    release.set()

    assert read_response(client).startswith(b"HTTP/1.1 200 OK")
    worker.tpool.shutdown()
    ((_, t0, *_),) = finished
    ((_, started, ended),) = [mark for mark in finished.marks() if mark[0] == "queue"]
    assert t0 == started < ended
    # As long as it waited, up to where the application begins: gunicorn's parsing lies in between.
    assert ended - started <= ended - t0
    assert ended > released
    assert wsgi.waited_ns.get() == 0


def test_an_unmarked_connection_has_no_queue(finished: Finished, worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gunicorn_module, "setattr", lambda *_: None, raising=False)

    assert read_response(connect(worker, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"fine")
    worker.tpool.shutdown()
    assert "queue" not in finished.stages()


def test_an_agent_failure_is_logged_once_and_the_worker_responds(
    finished: Finished, worker: Any, reported: set[str], make_fail: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fail(gunicorn_module, "clock")
    monkeypatch.setattr(gthread.ThreadWorker, "handle", vars(gthread.ThreadWorker)["handle"].__wrapped__)
    for _ in range(2):
        assert read_response(connect(worker, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"fine")
    worker.tpool.shutdown()

    assert len(finished) == 2
    assert reported == {"timing the wait for a thread of gunicorn"}
