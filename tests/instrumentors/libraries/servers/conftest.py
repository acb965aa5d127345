"""Real servers, started by `stagelens run` as a user starts them, and stopped as an orchestrator stops them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.instrumentors.conftest import Service, Sink

HERE = Path(__file__).parent


class Server(Service):
    """A server that is run as a module; in *command* stand `{address}` and `{port}`."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], cwd: Path) -> None:
        words = (word.replace("{address}", "127.0.0.1:{port}") for word in command)
        super().__init__("-m", *words, env=environment, cwd=cwd)

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

    def terminate(self) -> tuple[int, str]:
        """Ask the server to end, and return its exit status and what it has printed."""
        self.process.terminate()
        return self.process.wait(120), self.log()


@pytest.fixture
def start(sink: Sink) -> Generator[Callable[..., Server]]:
    with contextlib.ExitStack() as stack:

        def start(*command: str, cwd: Path = HERE, **variables: str) -> Server:
            server = Server(command, sink.environment(**variables), cwd)
            stack.callback(server.stop)
            return server

        yield start
