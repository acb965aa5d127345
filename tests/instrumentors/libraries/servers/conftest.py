"""Real servers, started by `stagelens run` as a user starts them, and stopped as an orchestrator stops them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.ports import free_port

if TYPE_CHECKING:
    from ...conftest import Sink

HERE = Path(__file__).parent


class Server:
    """A server of its own process group.

    Args:
        command: What to run, the address in it written as "{address}" and the port as "{port}".
        environment: Its variables.
        cwd: Where its application is.
    """

    def __init__(self, command: list[str], environment: dict[str, str], cwd: Path) -> None:
        self.port = free_port()
        address = f"127.0.0.1:{self.port}"
        words = [word.format(address=address, port=self.port) for word in command]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stagelens", "run", "--", sys.executable, "-m", *words],
            cwd=cwd,
            env=environment,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def send_request(self, path: str) -> dict[str, Any]:
        """Send one request on a connection of its own, once the server accepts it."""
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as response:
                    return json.loads(response.read())
            except (urllib.error.URLError, ConnectionError) as error:
                refused = isinstance(getattr(error, "reason", error), ConnectionRefusedError)
                if not refused or time.monotonic() > deadline or self.process.poll() is not None:
                    raise AssertionError(self.log()) from error
            time.sleep(0.05)

    def send_many(self, path: str, count: int, at_once: int = 4) -> list[dict[str, Any]]:
        """Send so many, several at once, the first one alone."""
        first = self.send_request(path)
        with ThreadPoolExecutor(at_once) as pool:
            return [first, *pool.map(self.send_request, [path] * (count - 1))]

    def wait_for_log(self, words: str, times: int) -> None:
        """Return once the server has printed *words* so often."""
        deadline = time.monotonic() + 60
        while self.log().count(words) < times:
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def log(self) -> str:
        # The server writes where this file stands: it must not be moved meanwhile.
        file = self._log.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode()

    def stop(self) -> tuple[int, str]:
        """Ask the server to end, and return its exit status and what it has printed."""
        self.process.terminate()
        return self.process.wait(120), self.log()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


@pytest.fixture
def start(sink: Sink) -> Generator[Callable[..., Server]]:
    with contextlib.ExitStack() as stack:

        def start(*command: str, cwd: Path = HERE, **variables: str) -> Server:
            server = Server(list(command), sink.environment(**variables), cwd)
            stack.callback(server.kill)
            return server

        yield start
