"""The health check of the image, asked as an engine for containers asks it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.http_server import http_server
from tests.support.ports import free_port

pytestmark = pytest.mark.stacks

ROOT = Path(__file__).parents[2]
# With the time it takes on a busy machine.
CHECK = "import healthcheck; healthcheck._TIMEOUT_SECONDS = 60; raise SystemExit(healthcheck.main())"


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
    with http_server() as up, http_server(lambda _: (503, {}, b"because")) as failing:
        ports = {200: up.url.rpartition(":")[2], 503: failing.url.rpartition(":")[2], None: str(free_port())}
        given = {
            "STAGELENS_COLLECTOR_PORT": ports[collector],
            "STAGELENS_DASHBOARD_PORT": ports[dashboard],
            "STAGELENS_ALERTS_METRICS_PORT": ports[None],
        }
        command = [sys.executable, "-c", CHECK]
        completed = subprocess.run(
            command, cwd=ROOT / "docker", env=os.environ | given, capture_output=True, text=True, check=False
        )

    assert (completed.returncode, completed.stdout.strip()) == (code, output)
