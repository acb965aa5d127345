"""Servers in each of their ways to run: every request is reported once, by the process that served it."""

from __future__ import annotations

import shutil
import signal
import socket
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
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
    "sync": (("--worker-class", "sync"), "flask"),
    "gthread": (("--worker-class", "gthread", "--threads", "4"), "flask"),
    "gevent": (("--worker-class", "gevent"), "flask"),
    "uvicorn": (("--worker-class", "uvicorn.workers.UvicornWorker"), "fastapi"),
    "asgi": (("--worker-class", "asgi"), "fastapi"),
    "aiohttp": (("--worker-class", "aiohttp.GunicornWebWorker"), "aiohttp"),
}
# A worker that does not answer its supervisor for five seconds is killed otherwise, also while it loads.
UVICORN = ("uvicorn", "--port", "{port}", "--timeout-worker-healthcheck", "120", "fastapi_service:app")
HERE = Path(__file__).parent


def check(sink: Sink, bodies: list[dict[str, Any]]) -> None:
    """Check that each process reported its own requests only, and started no thread before its fork."""
    assert sink.requests() == len(bodies)
    assert len(sink.instances()) == len({body["pid"] for body in bodies})
    assert [body for body in bodies if "stagelens" in body.get("at_fork", ())] == []


def assert_clean(ended: tuple[int, str], expected: int = 0) -> None:
    """Check that the server exited as without Stagelens and without errors."""
    status, log = ended

    assert status == expected, log
    assert "Traceback" not in log
    assert "stagelens:" not in log


@pytest.mark.parametrize("preload", [(), ("--preload",)], ids=["", "preload"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_worker_reports_all_requests_once(start: Start, sink: Sink, kind: str, preload: tuple[str, ...]) -> None:
    worker, service = KINDS[kind]
    server = start(*GUNICORN, *worker, *preload, f"{service}_service:app", STAGELENS_EXPORT_INTERVAL=NEVER)
    bodies = server.send_many("/", 30)
    server.wait_for_log("Worker is up", 2)
    seen = sink.requests()

    assert_clean(server.terminate())
    assert seen == 0
    check(sink, bodies)


@pytest.mark.parametrize("kind", ["sync", "gthread"])
def test_a_replaced_worker_reports_before_its_exit(start: Start, sink: Sink, kind: str) -> None:
    replaced = ("--max-requests", "5", "--workers", "1")
    server = start(*GUNICORN, *KINDS[kind][0], *replaced, "flask_service:app", STAGELENS_EXPORT_INTERVAL=NEVER)
    bodies = [server.send_request("/") for _ in range(12)]

    assert_clean(server.terminate())
    assert len({body["pid"] for body in bodies}) >= 2
    check(sink, bodies)


def test_greenlets_run_while_a_report_waits_for_the_collector(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        kind = (*KINDS["gevent"][0], "--workers", "1")
        server = start(*GUNICORN, *kind, "flask_service:app", OTEL_EXPORTER_OTLP_ENDPOINT=address, PYTHONPATH="")
        server.send_request("/")
        silent.settimeout(60)
        waiting, _ = silent.accept()
        with waiting:
            waiting.recv(1)
            bodies = server.send_many("/", 20)

            assert [body["n"] for body in bodies[:1]] == [2]
            assert len(bodies) == 20
            assert_clean(server.terminate())


@pytest.mark.parametrize("kind", ["gthread", "gevent"])
def test_concurrent_requests_do_not_mix(start: Start, sink: Sink, kind: str) -> None:
    server = start(*GUNICORN, *KINDS[kind][0], "--workers", "1", "--threads", "10", "flask_service:app")
    with ThreadPoolExecutor(10) as pool:
        bodies = list(pool.map(server.send_request, ["/together/10"] * 10))

    assert_clean(server.terminate())
    assert all(body["same"] for body in bodies)
    assert len({body["id"] for body in bodies}) == 10
    assert sink.requests(http_route="/together/<int:count>") == 10


def test_a_killed_worker_loses_no_request(start: Start, sink: Sink) -> None:
    worker = ("--worker-class", "uvicorn.workers.UvicornWorker", "--workers", "1", "--timeout", "8")
    server = start(*GUNICORN, *worker, "fastapi_service:app", STAGELENS_EXPORT_INTERVAL=NEVER)
    server.send_many("/", 30)
    with pytest.raises(ConnectionError):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/block/300", timeout=60)
    server.send_request("/")

    status, log = server.terminate()
    assert status == 0
    assert "WORKER TIMEOUT" in log
    assert (sink.requests(inference_status="ok"), sink.requests(inference_status="error")) == (31, 1)
    (failed,) = [
        point
        for name, _, point in sink.points()
        if (name, point["attributes"].get("inference.status")) == ("inference.request.duration", "error")
    ]
    assert failed["attributes"]["http.route"] == "/block/{seconds}"
    assert 8 <= failed["sum"] < 300


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ((*UVICORN, "--lifespan", "on"), -signal.SIGTERM),
        ((*UVICORN, "--lifespan", "off"), -signal.SIGTERM),
        ((*UVICORN, "--lifespan", "off", "--workers", "2"), 0),
        (("aiohttp_service", "{port}"), 0),
        # Without a handler of SIGTERM.
        (("flask", "--app", "flask_service:app", "run", "--port", "{port}"), -signal.SIGTERM),
        (("flask", "--app", "flask_service:app", "run", "--port", "{port}", "--without-threads"), -signal.SIGTERM),
    ],
)
def test_every_process_reports_all_requests_once(
    start: Start, sink: Sink, command: tuple[str, ...], status: int
) -> None:
    server = start(*command, STAGELENS_EXPORT_INTERVAL=NEVER)
    bodies = server.send_many("/", 30)

    assert_clean(server.terminate(), status)
    check(sink, bodies)


def test_a_reloaded_process_reports_before_its_exit(
    start: Start, sink: Sink, tmp_path: Path, until: Callable[..., None]
) -> None:
    service, changed = tmp_path / "fastapi_service.py", tmp_path / "changed"
    for name in (service.name, "gate.py"):
        shutil.copy(HERE / name, tmp_path)
    server = start(*UVICORN, "--reload", cwd=tmp_path, STAGELENS_EXPORT_INTERVAL=NEVER)
    first = server.send_request("/")["pid"]

    def replaced() -> bool:
        if sink.requests() == 1:
            return True
        # Again and again: the reloader may not have looked at the file yet. In one go: it may be read at any time.
        changed.write_text(service.read_text() + "# changed\n")
        changed.replace(service)
        return False

    def settled() -> bool:
        _, found, after = server.log().rpartition("last.py")
        return bool(found) and "Started server process" in after

    until(replaced, "the report of the process that was replaced")
    # The reloader may not have seen all changes yet: after this one there is none.
    (tmp_path / "last.py").touch()
    until(settled, "the process that stays")
    second = server.send_request("/")["pid"]

    assert_clean(server.terminate(), 0)
    assert second != first
    assert sink.requests() == 2
    assert len(sink.instances()) == 2


def test_a_server_of_grpc_reports_before_its_end(start: Start, sink: Sink) -> None:
    server = start("grpc_service", "{port}", STAGELENS_EXPORT_INTERVAL=NEVER)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        predict = channel.unary_unary("/shop.Shop/Predict")
        assert [predict(b"words", wait_for_ready=True, timeout=60) for _ in range(30)] == [b"words"] * 30

    assert server.terminate()[0] == -signal.SIGTERM
    assert sink.requests() == 30
