"""A program of PyInstaller that calls `stagelens.instrument()` is timed: our hook bundles what is loaded by name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.ports import free_port

if TYPE_CHECKING:
    from ...conftest import Sink

# Minutes, most of which PyInstaller needs.
pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[4]
SERVERS = ROOT / ".venv" / "servers"
SERVICE = """
import stagelens
stagelens.instrument()
import sys
from flask import Flask
app = Flask("bundled")
app.get("/items/<int:item>")(lambda item: {"item": item})
app.run(port=int(sys.argv[1]))
"""


@pytest.mark.timeout(1200)
def test_a_program_of_pyinstaller_counts_its_requests(
    tmp_path: Path, sink: Sink, until: Callable[[Callable[[], object], str], None]
) -> None:
    if not SERVERS.exists() and not os.environ.get("CI"):
        pytest.skip("no PyInstaller; `make servers` installs it, and `make soak` does")
    source, installed, port = tmp_path / "source", tmp_path / "installed", free_port()
    # pip writes into the folder.
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "artifacts", "build", "tests", "*.egg-info"))
    pip = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(installed), str(source)]
    subprocess.run([sys.executable, "-m", *pip], check=True, capture_output=True)
    (tmp_path / "service.py").write_text(SERVICE)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(installed), str(SERVERS)))}
    build = [sys.executable, "-m", "PyInstaller", "--log-level=ERROR", "service.py"]
    subprocess.run(build, cwd=tmp_path, env=env, check=True)

    service = subprocess.Popen([tmp_path / "dist" / "service" / "service", str(port)], env=sink.environment())
    try:
        until(lambda: _responds(port), "the service")
        until(lambda: sink.requests(http_route="/items/<int:item>") >= 1, "the request")
    finally:
        service.terminate()
        service.wait(60)


def _responds(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/items/7", timeout=60) as response:
            return json.loads(response.read()) == {"item": 7}
    except urllib.error.URLError:
        time.sleep(0.05)
        return False
