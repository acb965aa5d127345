"""Every server counts the requests of an application that no instrumentor knows, and no model call as another request."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.support.long_flush_path import LONG_FLUSH

if TYPE_CHECKING:
    from ...conftest import Sink
    from .conftest import Server

pytestmark = pytest.mark.stacks

SERVERS = Path(__file__).parents[4] / ".venv" / "servers"
REQUESTS = 5
ASGI = {
    "daphne": "daphne bare_service:asgi -p {port}",
    "granian": "granian --interface asgi bare_service:asgi --port {port}",
    "gunicorn": "gunicorn -k asgi bare_service:asgi -b {address}",
    "hypercorn": "hypercorn bare_service:asgi -b {address}",
    "uvicorn": "uvicorn bare_service:asgi --port {port}",
    "uvicorn-h11": "uvicorn bare_service:asgi --port {port} --http h11 --ws wsproto",
}
OTHERS = {
    "granian-wsgi": "granian --interface wsgi bare_service:wsgi --port {port}",
    "gunicorn-gevent": "gunicorn -k gevent bare_service:wsgi -b {address}",
    "gunicorn-gthread": "gunicorn -k gthread bare_service:wsgi -b {address}",
    "gunicorn-sync": "gunicorn bare_service:wsgi -b {address}",
    "hypercorn-wsgi": "hypercorn wsgi:bare_service:wsgi -b {address}",
    "uvicorn-wsgi": "uvicorn bare_service:wsgi --interface wsgi --port {port}",
    "waitress": "waitress --listen={address} bare_service:wsgi",
    **{
        f"{name}": f"bare_service {name} {{port}}"
        for name in ("cheroot", "http", "tornado_wsgi", "werkzeug", "wsgiref")
    },
}
NAMED = {"litestar": "/items/{item}", "sanic": "/items/<item:int>", "tornado": "/items/([0-9]+)"}
SOCKETS = {*ASGI, "sanic", "tornado"}


@pytest.mark.parametrize("name", [*ASGI, *OTHERS, *NAMED])
def test_each_request_is_one_request(
    name: str, sink: Sink, start: Callable[..., Server], until: Callable[[Callable[[], object], str], None]
) -> None:
    if not SERVERS.exists() and not os.environ.get("CI"):
        pytest.skip("no servers; `make servers` installs them, and `make test-stacks` does")
    command = (ASGI | OTHERS).get(name, f"bare_service {name} {{port}}").split()
    server = start(*command, PYTHONPATH=os.pathsep.join((LONG_FLUSH, str(SERVERS))))
    for item in range(REQUESTS):
        assert server.send_request(f"/items/{item}")["ok"] is not None
    if name in SOCKETS:
        with connect(f"ws://127.0.0.1:{server.port}/ws") as websocket:
            for _ in range(REQUESTS):
                websocket.send("hello")
                assert websocket.recv() == "hello"
            websocket.send("fail")
            with pytest.raises(ConnectionClosed):
                websocket.recv()
        until(lambda: sink.requests(http_route="/ws", inference_status="ok") == REQUESTS, "the messages")
        until(lambda: sink.requests(http_route="/ws", inference_status="error") == 1, "the message that fails")
    until(lambda: sink.requests(http_route=NAMED.get(name, "/items/{}")) >= REQUESTS, "the requests")

    assert sink.requests() == REQUESTS + (REQUESTS + 1) * (name in SOCKETS), server.log()
    assert "handler" in sink.stages()


def test_a_server_that_is_not_known_is_reported(sink: Sink, start: Callable[..., Server]) -> None:
    server = start("bare_service", "streams", "{port}")
    for item in range(REQUESTS):
        server.send_request(f"/items/{item}")
    server.wait_for_log("none of its requests is seen", 1)

    assert f"this process serves port {server.port}" in server.log()
    assert 'with stagelens.request("predict"):' in server.log()
    assert sink.requests() == 0


def test_a_port_of_metrics_is_no_service(sink: Sink, start: Callable[..., Any]) -> None:
    code = "import prometheus_client, bare_service\nprometheus_client.start_http_server(0)\nbare_service.work()"
    job = start("timeit", "-n", "1", "-r", "1", code)
    job.process.wait(60)

    # The first one is the check that Magika makes of its model.
    assert sink.requests() >= 2, job.log()
