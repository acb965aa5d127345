"""Real model servers, which `make` installs beside the packages for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port

HERE = Path(__file__).parent


@contextmanager
def running(part: str, *arguments: str, ready: str = "/", **env: str) -> Generator[str]:
    installed = HERE.parents[2] / ".venv" / part
    if not installed.exists() and not os.environ.get("CI"):
        pytest.skip(f"no {part}; `make {part}` installs it, and `make test-stacks` does")
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    path = os.pathsep.join((str(installed), str(HERE)))
    command = [sys.executable, *arguments, port]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path, **env}) as server:
        try:
            while server.poll() is None and not is_up(url + ready):
                threading.Event().wait(0.1)

            assert server.poll() is None

            yield url
        finally:
            server.terminate()


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return response.status == 200
    except urllib.error.HTTPError as error:
        # An HTTP error is a response from a running server.
        error.close()
        return False
    except OSError:
        return False


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)
