"""Load generation: HTTP requests from a few threads, or a command of the user's own."""

from __future__ import annotations

import http.client
import subprocess
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import SplitResult, urlsplit

from ...core.errors import StagelensError
from ..session import Session, pause

TIMEOUT_SECONDS = 60.0
_FAILED = 400
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request, as often as needed.

    Args:
        url: The address.
        method: The method.
        body: The body, None for none.
        headers: The headers.
    """

    url: str
    method: str = "GET"
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection, which opens itself when it is used."""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)

    def ask(self, connection: http.client.HTTPConnection) -> tuple[int, bytes]:
        """Ask once over *connection*; return the status and the body.

        Raises:
            StagelensError: It cannot be written as HTTP.
        """
        try:
            connection.request(self.method, _path(urlsplit(self.url)), body=self.body, headers=dict(self.headers))
        except (ValueError, http.client.InvalidURL) as error:
            msg = f"the request cannot be made: {error}"
            raise StagelensError(msg) from error
        response = connection.getresponse()
        return response.status, response.read()

    def is_answered(self) -> bool:
        """Return whether anybody answers it, whatever the answer."""
        connection = self.connect()
        try:
            self.ask(connection)
        except (OSError, http.client.HTTPException):
            return False
        else:
            return True
        finally:
            connection.close()


def wait_until_ready(service: Session, asking: RequestSpec, patience_seconds: float) -> None:
    """Return when *service* answers *asking*.

    Raises:
        StagelensError: It ends, or does not answer for *patience_seconds*.
    """
    deadline = time.monotonic() + patience_seconds
    while not asking.is_answered():
        if service.is_over or time.monotonic() > deadline:
            msg = f"{service.failure()}\n    {asking.url} is not answered; --patience says how long to wait"
            raise StagelensError(msg)
        pause()


def burst(asking: RequestSpec, requests: int, concurrency: int) -> list[float]:
    """Send *requests*, of which *concurrency* are under way at a time.

    Returns:
        How long each took, in order of length. [seconds]

    Raises:
        StagelensError: One of them failed: what is measured would be something else.
    """
    numbers, taken = count(), threading.Lock()

    def work() -> list[float]:
        latencies: list[float] = []
        connection = asking.connect()
        try:
            while True:
                with taken:
                    if next(numbers) >= requests:
                        return latencies
                begun = time.perf_counter()
                status, body = _asked(asking, connection)
                latencies.append(time.perf_counter() - begun)
                if status >= _FAILED:
                    msg = f"{asking.url} answers HTTP {status}: {body[:_SHOWN_CHARS].decode(errors='replace')}"
                    raise StagelensError(msg)
        finally:
            connection.close()

    with ThreadPoolExecutor(concurrency) as threads:
        return sorted(
            latency for done in [threads.submit(work) for _ in range(concurrency)] for latency in done.result()
        )


def run_load(command: str) -> None:
    """Run the user's own *command* by a shell.

    Raises:
        StagelensError: It has failed.
    """
    done = subprocess.run(command, shell=True, check=False, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)  # noqa: S602 - as it was given
    if done.returncode:
        msg = f"--load has ended with {done.returncode}: {command}"
        raise StagelensError(msg)


def _asked(asking: RequestSpec, connection: http.client.HTTPConnection) -> tuple[int, bytes]:
    try:
        return asking.ask(connection)
    except (OSError, http.client.HTTPException) as error:
        # A server may close a connection that it has kept for long enough; a new one tells whether it is that.
        connection.close()
        try:
            return asking.ask(connection)
        except (OSError, http.client.HTTPException):
            msg = f"{asking.url} is not answered any more ({error or type(error).__name__})"
            raise StagelensError(msg) from error


def _path(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
