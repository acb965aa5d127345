"""Requests whose client has gone count as cancelled by it: neither as served nor as failures of the service."""

from __future__ import annotations

from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ...conftest import Sink
    from .conftest import Server

pytestmark = pytest.mark.stacks

GUNICORN = ("gunicorn", "--bind", "{address}", "--worker-class")
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
