"""A load generator: connections that send one export after the other, and measure the time until it is acknowledged."""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from .traffic import Export, Exports

# What a client tries again, and how long it waits at most. [seconds]
_RETRIED = (429, 502, 503, 504)
_MAX_WAIT_SECONDS = 1.0
_TIMEOUT_SECONDS = 300


@dataclass
class Sent:
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list[float])
    retries: int = 0

    def latency_ms(self, quantile: float) -> float:
        ranked = sorted(self.latencies)
        return 1000 * ranked[min(len(ranked) - 1, int(quantile * len(ranked)))]


def send(url: str, exports: Exports, numbers: range, connections: int, headers: dict[str, str]) -> Sent:
    """Send the exports of *numbers*; raise RuntimeError if one is refused for good."""
    sent, left, lock = Sent(), iter(numbers), threading.Lock()
    began = time.perf_counter()
    with ThreadPoolExecutor(connections) as pool:
        workers = [pool.submit(_work, url, exports, left, headers, sent, lock) for _ in range(connections)]
        for worker in workers:
            worker.result()
    sent.seconds = time.perf_counter() - began
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
            if _is_acknowledged(connection, export, headers):
                break
            with lock:
                sent.retries += 1
            time.sleep(min(_MAX_WAIT_SECONDS, 0.05 * 2**attempt))
        with lock:
            sent.latencies.append(time.perf_counter() - began)
    connection.close()


def _is_acknowledged(connection: http.client.HTTPConnection, export: Export, headers: dict[str, str]) -> bool:
    connection.request("POST", export.path, export.body, {**export.headers, **headers})
    response = connection.getresponse()
    body = response.read()
    if response.status in _RETRIED:
        return False
    if response.status != http.HTTPStatus.OK:
        msg = f"{export.path} answered {response.status}: {body[:300]!r}"
        raise RuntimeError(msg)
    return True
