"""Batches that wait for delivery."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExportBatch:
    """One export request with *requests* requests; its *body* is gzipped, and the same at every attempt."""

    name: str
    url: str
    body: bytes
    requests: int


class Outbox:
    """Bounded queue of batches that wait for delivery, oldest first; *limit_bytes* includes batches in flight."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._waiting: deque[ExportBatch] = deque()
        self._size_bytes = 0
        self._requests = 0

    def put(self, batch: ExportBatch) -> list[ExportBatch]:
        """Return the evicted batches: traces before metrics, and old ones before new ones; *batch* itself if it alone is too large."""
        if len(batch.body) > self._limit_bytes:
            return [batch]
        with self._lock:
            evicted: list[ExportBatch] = []
            self._waiting.append(batch)
            self._size_bytes += len(batch.body)
            self._requests += batch.requests
            while self._size_bytes > self._limit_bytes and self._waiting:
                victim = next((waiting for waiting in self._waiting if not waiting.requests), self._waiting[0])
                self._waiting.remove(victim)
                self._size_bytes -= len(victim.body)
                self._requests -= victim.requests
                evicted.append(victim)
            return evicted

    def take(self) -> ExportBatch | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def done(self, batch: ExportBatch) -> None:
        with self._lock:
            self._size_bytes -= len(batch.body)
            self._requests -= batch.requests

    def give_back(self, batch: ExportBatch) -> None:
        with self._lock:
            self._waiting.appendleft(batch)

    @property
    def empty(self) -> bool:
        return self._size_bytes == 0

    @property
    def requests(self) -> int:
        with self._lock:
            return self._requests
