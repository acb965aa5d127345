"""gunicorn with each kind of worker: every request is reported once, by the worker that served it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ...conftest import Sink
    from .conftest import Server

pytestmark = pytest.mark.stacks

Start = Callable[..., "Server"]

# A worker is not killed because the machine is busy.
PATIENT = ("--timeout", "120", "--graceful-timeout", "90")
GUNICORN = (
    "gunicorn",
    "--config",
    "gunicorn_config.py",
    "--bind",
    "{address}",
    "--workers",
    "2",
    *PATIENT,
    "--keep-alive",
    "0",
)
# Exports stand on the multiples of the interval since 1970.
NEVER = "36500d"
KINDS = {
    "sync": ("--worker-class", "sync"),
    "gthread": ("--worker-class", "gthread", "--threads", "4"),
    "gevent": ("--worker-class", "gevent"),
}


def check(sink: Sink, bodies: list[dict[str, Any]]) -> None:
    """Check that each process reported its own requests only, and started no thread before its fork."""
    assert sink.requests() == len(bodies)
    assert len(sink.instances()) == len({body["pid"] for body in bodies})
    assert [body for body in bodies if "stagelens" in body.get("at_fork", ())] == []


def assert_clean(ended: tuple[int, str]) -> None:
    status, log = ended

    assert status == 0, log
    assert "Traceback" not in log
    assert "stagelens:" not in log


@pytest.mark.parametrize("preload", [(), ("--preload",)], ids=["", "preload"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_worker_reports_all_requests_once(start: Start, sink: Sink, kind: str, preload: tuple[str, ...]) -> None:
    server = start(*GUNICORN, *KINDS[kind], *preload, "flask_service:app", STAGELENS_EXPORT_INTERVAL=NEVER)
    bodies = server.send_many("/", 30)
    server.wait_for_log("Worker is up", 2)
    seen = sink.requests()

    assert_clean(server.stop())
    assert seen == 0
    check(sink, bodies)


@pytest.mark.parametrize("kind", ["sync", "gthread"])
def test_a_replaced_worker_reports_before_its_exit(start: Start, sink: Sink, kind: str) -> None:
    replaced = ("--max-requests", "5", "--workers", "1")
    server = start(*GUNICORN, *KINDS[kind], *replaced, "flask_service:app", STAGELENS_EXPORT_INTERVAL=NEVER)
    bodies = [server.send_request("/") for _ in range(12)]

    assert_clean(server.stop())
    assert len({body["pid"] for body in bodies}) >= 2
    check(sink, bodies)


def test_greenlets_run_while_a_report_waits_for_the_collector(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        kind = (*KINDS["gevent"], "--workers", "1")
        server = start(*GUNICORN, *kind, "flask_service:app", OTEL_EXPORTER_OTLP_ENDPOINT=address, PYTHONPATH="")
        server.send_request("/")
        silent.settimeout(60)
        waiting, _ = silent.accept()
        with waiting:
            waiting.recv(1)
            bodies = server.send_many("/", 20)

            assert [body["n"] for body in bodies[:1]] == [2]
            assert len(bodies) == 20
            assert_clean(server.stop())


@pytest.mark.parametrize("kind", ["gthread", "gevent"])
def test_concurrent_requests_do_not_mix(start: Start, sink: Sink, kind: str) -> None:
    server = start(*GUNICORN, *KINDS[kind], "--workers", "1", "--threads", "10", "flask_service:app")
    with ThreadPoolExecutor(10) as pool:
        bodies = list(pool.map(server.send_request, ["/together/10"] * 10))

    assert_clean(server.stop())
    assert all(body["same"] for body in bodies)
    assert len({body["id"] for body in bodies}) == 10
    assert sink.requests(http_route="/together/<int:count>") == 10


@pytest.mark.parametrize("preload", [(), ("--preload",)], ids=["", "preload"])
@pytest.mark.parametrize("kind", ["uvicorn.workers.UvicornWorker", "asgi"])
def test_asgi_inside_gunicorn_reports(start: Start, sink: Sink, kind: str, preload: tuple[str, ...]) -> None:
    server = start(*GUNICORN, "--worker-class", kind, *preload, "fastapi_service:app", STAGELENS_EXPORT_INTERVAL=NEVER)
    bodies = server.send_many("/", 30)
    server.wait_for_log("Worker is up", 2)

    assert_clean(server.stop())
    check(sink, bodies)


def test_a_killed_worker_loses_no_request(start: Start, sink: Sink) -> None:
    worker = ("--worker-class", "uvicorn.workers.UvicornWorker", "--workers", "1", "--timeout", "8")
    server = start(*GUNICORN, *worker, "fastapi_service:app", STAGELENS_EXPORT_INTERVAL=NEVER)
    server.send_many("/", 30)
    with pytest.raises(AssertionError, match="WORKER TIMEOUT"):
        server.send_request("/block/300")
    server.send_request("/")

    assert server.stop()[0] == 0
    assert (sink.requests(inference_status="ok"), sink.requests(inference_status="error")) == (31, 1)
    (failed,) = [
        point
        for name, _, point in sink.points()
        if (name, point["attributes"].get("inference.status")) == ("inference.request.duration", "error")
    ]
    assert failed["attributes"]["http.route"] == "/block/{seconds}"
    assert 8 <= failed["sum"] < 300


def test_aiohttp_inside_gunicorn_reports(start: Start, sink: Sink) -> None:
    worker = ("--worker-class", "aiohttp.GunicornWebWorker")
    server = start(*GUNICORN, *worker, "aiohttp_service:app", STAGELENS_EXPORT_INTERVAL=NEVER)
    bodies = server.send_many("/", 20)
    server.wait_for_log("Worker is up", 2)

    assert_clean(server.stop())
    check(sink, bodies)


def test_standalone_aiohttp_reports_before_its_exit(start: Start, sink: Sink) -> None:
    server = start("aiohttp_service", "{port}", STAGELENS_EXPORT_INTERVAL=NEVER)
    bodies = server.send_many("/", 20)

    assert_clean(server.stop())
    check(sink, bodies)
