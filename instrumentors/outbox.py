"""What waits for the collector: bounded, and what can be spared goes first."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Batch:
    """One post, the same bytes at every attempt.

    Args:
        name: The value of the batch header.
        url: Where it goes.
        body: Gzipped protobuf.
        requests: How many requests are uncounted if it is never delivered.
    """

    name: str
    url: str
    body: bytes
    requests: int


class Outbox:
    """Batches that wait, oldest first, at most *limit_bytes* of them together with those under way."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._waiting: deque[Batch] = deque()
        self._size_bytes = 0
        self._requests = 0

    def put(self, batch: Batch) -> list[Batch]:
        """Add *batch* and return those that had to go for it, or itself when it is too large by itself.

        Counts outlast what only shows examples of them: traces go first, and the oldest first among their like.
        """
        if len(batch.body) > self._limit_bytes:
            return [batch]
        with self._lock:
            evicted: list[Batch] = []
            self._waiting.append(batch)
            self._size_bytes += len(batch.body)
            self._requests += batch.requests
            while self._size_bytes > self._limit_bytes and self._waiting:
                victim = next((each for each in self._waiting if not each.requests), self._waiting[0])
                self._waiting.remove(victim)
                self._size_bytes -= len(victim.body)
                self._requests -= victim.requests
                evicted.append(victim)
            return evicted

    def take(self) -> Batch | None:
        """Return the oldest batch, which is under way until `done` or `give_back`."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def done(self, batch: Batch) -> None:
        """Forget *batch*."""
        with self._lock:
            self._size_bytes -= len(batch.body)
            self._requests -= batch.requests

    def give_back(self, batch: Batch) -> None:
        """Put *batch* back to the front: it was not delivered."""
        with self._lock:
            self._waiting.appendleft(batch)

    @property
    def empty(self) -> bool:
        """Whether nothing waits or is under way."""
        return self._size_bytes == 0

    @property
    def requests(self) -> int:
        """How many requests are uncounted if nothing of what waits or is under way is ever delivered."""
        with self._lock:
            return self._requests
