"""A load generator: some connections that each send one export after the other, and note how long it took until it was taken."""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from .traffic import Export, Exports

# What a client tries again, and how long it waits at most. [seconds]
_RETRIED = (429, 502, 503, 504)
_MAX_WAIT_SECONDS = 1.0
_TIMEOUT_SECONDS = 300


@dataclass
class Sent:
    """What came of a load.

    Args:
        acknowledged: The exports that were taken.
        seconds: From the first one's start to the last one's end.
        latencies: From each one's first attempt to its acknowledgement. [seconds]
        retries: Answers that said to come again.
    """

    acknowledged: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list[float])
    retries: int = 0

    def latency_ms(self, quantile: float) -> float:
        """Return the latency at *quantile*, by nearest rank."""
        ranked = sorted(self.latencies)
        return 1000 * ranked[min(len(ranked) - 1, int(quantile * len(ranked)))]


def send(url: str, exports: Exports, numbers: range, connections: int, headers: dict[str, str]) -> Sent:
    """Send the exports of *numbers* over so many *connections*.

    Raises:
        RuntimeError: An export was refused for good.
    """
    sent, left, lock = Sent(), iter(numbers), threading.Lock()
    failures: list[Exception] = []

    def work() -> None:
        try:
            _work(url, exports, left, headers, sent, lock)
        except Exception as error:  # noqa: BLE001 - told below, by the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(connections)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent.seconds = time.perf_counter() - began
    if failures:
        raise failures[0]
    return sent


def _work(  # noqa: PLR0917 - what the threads share
    url: str, exports: Exports, left: Iterator[int], headers: dict[str, str], sent: Sent, lock: threading.Lock
) -> None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT_SECONDS)
    while True:
        with lock:
            number = next(left, None)
        if number is None:
            break
        export = exports(number)
        began = time.perf_counter()
        for attempt in itertools.count():
            if _taken(connection, export, headers):
                break
            with lock:
                sent.retries += 1
            time.sleep(min(_MAX_WAIT_SECONDS, 0.05 * 2**attempt))
        took = time.perf_counter() - began
        with lock:
            sent.acknowledged += 1
            sent.latencies.append(took)
    connection.close()


def _taken(connection: http.client.HTTPConnection, export: Export, headers: dict[str, str]) -> bool:
    connection.request("POST", export.path, export.body, {**export.headers, **headers})
    response = connection.getresponse()
    body = response.read()
    if response.status in _RETRIED:
        return False
    if response.status != http.HTTPStatus.OK:
        msg = f"{export.path} answered {response.status}: {body[:300]!r}"
        raise RuntimeError(msg)
    return True
