"""Requests whose client has gone count as cancelled; those of a killed worker count as failed where a supervisor lives on."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.long_flush_path import LONG_FLUSH

from .test_any_application import SERVERS

if TYPE_CHECKING:
    from ...conftest import Sink
    from .conftest import Server

pytestmark = pytest.mark.stacks

GUNICORN = ("gunicorn", "--bind", "{address}", "--worker-class")
WORKERS = ("gunicorn", "--bind", "{address}", "--workers", "2", "--worker-class")
UVICORN = ("uvicorn", "--port", "{port}", "fastapi_service:app")


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ((*GUNICORN, "sync", "flask_service:app"), "/wait"),
        ((*GUNICORN, "gthread", "--threads", "2", "flask_service:app"), "/wait"),
        ((*GUNICORN, "gevent", "flask_service:app"), "/wait"),
        ((*GUNICORN, "asgi", "fastapi_service:app"), "/wait"),
        ((*GUNICORN, "asgi", "fastapi_service:app"), "/block"),
        ((*GUNICORN, "uvicorn.workers.UvicornWorker", "fastapi_service:app"), "/wait"),
        ((*GUNICORN, "uvicorn.workers.UvicornWorker", "fastapi_service:app"), "/block"),
        ((*GUNICORN, "aiohttp.GunicornWebWorker", "aiohttp_service:app"), "/wait"),
        (("django_service", "{address}"), "/wait"),
        (("flask", "--app", "flask_service", "run", "--port", "{port}"), "/wait"),
        (UVICORN, "/wait"),
        # The server has not noticed when the handler ends.
        (UVICORN, "/block"),
        (("aiohttp_service", "{port}"), "/wait"),
    ],
    ids=lambda value: "-".join(value[4:5] or value[:1]) if isinstance(value, tuple) else value,
)
def test_a_request_whose_client_has_gone_is_cancelled(  # noqa: PLR0917 - fixtures
    start: Callable[..., Server],
    sink: Sink,
    tmp_path: Path,
    until: Callable[..., None],
    command: tuple[str, ...],
    path: str,
) -> None:
    server = start(*command, GATE=str(tmp_path))
    server.send_request("/")

    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", path)
    until((tmp_path / "entered").exists, "the request")
    connection.close()
    (tmp_path / "open").touch()

    until(lambda: sink.requests(http_route=path), "the record")
    server.stop()
    assert sink.requests(http_route=path, inference_status="cancelled") == sink.requests(http_route=path) == 1
    assert sink.requests(http_route="/", inference_status="ok") == 1


@pytest.mark.parametrize(
    "command",
    [
        ("uvicorn", "--port", "{port}", "--workers", "2", "fastapi_service:app"),
        ("hypercorn", "--bind", "{address}", "--workers", "2", "fastapi_service:app"),
        ("granian", "--interface", "asgi", "--port", "{port}", "--workers", "2", "fastapi_service:app"),
        ("sanic", "sanic_service:app", "--port", "{port}", "--workers", "2"),
        ("litserve_service", "{port}"),
        (*WORKERS, "sync", "flask_service:app"),
        (*WORKERS, "gthread", "flask_service:app"),
        (*WORKERS, "uvicorn.workers.UvicornWorker", "fastapi_service:app"),
    ],
    ids=lambda command: "-".join(command[:1] + command[6:7]),
)
def test_the_open_requests_of_a_killed_worker_count_as_failed(
    start: Callable[..., Server], sink: Sink, tmp_path: Path, until: Callable[..., None], command: tuple[str, ...]
) -> None:
    if not SERVERS.exists() and not os.environ.get("CI"):
        pytest.skip("no servers; `make servers` installs them, and `make test-stacks` does")
    server = start(
        *command,
        GATE=str(tmp_path),
        PYTHONPATH=os.pathsep.join((LONG_FLUSH, str(SERVERS), str(SERVERS.with_name("litserve")))),
    )
    entered = tmp_path / "entered"
    server.send_request("/")
    with contextlib.closing(HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request("GET", "/wait")
        until(lambda: entered.exists() and entered.read_text(), "the request")
        # It is written for the supervisor after each export.
        until(lambda: [name for name, *_ in sink.points()].count("inference.request.open.time") > 1, "the open request")
        os.kill(int(entered.read_text()), signal.SIGKILL)
        until(lambda: sink.requests(inference_status="error"), "the failed request")

    assert sink.requests(http_route="/wait", inference_status="error") == sink.requests(http_route="/wait") == 1
