"""The health check of the image, asked as an engine for containers asks it."""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.stacks

ROOT = Path(__file__).parents[2]
# With the time it takes on a busy machine.
CHECK = "import healthcheck; healthcheck._TIMEOUT_SECONDS = 60; raise SystemExit(healthcheck.main())"


@contextmanager
def answering(status: int) -> Generator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"because")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield str(server.server_port)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("collector", "dashboard", "code", "output"),
    [
        (200, None, 0, ""),
        (None, 200, 0, ""),
        (200, 503, 1, "because"),
        (None, None, 1, "no component of Stagelens responds in this container"),
    ],
)
def test_container_health_covers_all_its_processes(
    collector: int | None, dashboard: int | None, code: int, output: str
) -> None:
    with answering(collector or 200) as one, answering(dashboard or 200) as other, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = str(closed.getsockname()[1])
        ports = {
            "STAGELENS_COLLECTOR_PORT": one if collector else nobody,
            "STAGELENS_DASHBOARD_PORT": other if dashboard else nobody,
            "STAGELENS_ALERTS_METRICS_PORT": nobody,
        }
        command = [sys.executable, "-c", CHECK]
        found = subprocess.run(
            command, cwd=ROOT / "docker", env=os.environ | ports, capture_output=True, text=True, check=False
        )

    assert (found.returncode, found.stdout.strip()) == (code, output)
