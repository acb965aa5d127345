"""Tail sampling: selects the requests that are retained as traces, once their latency and outcome are known.

For each series and export interval: forced requests, failed ones, the slowest, cold ones (something was loaded during them),
and a uniform sample for comparison. The slowest requests are always retained, regardless of the order of arrival, and so are
the others up to their limits. `SamplingLimits` bounds the memory.
"""

from __future__ import annotations

import heapq
import itertools
import random
from typing import Generic, Literal, TypeVar

from ..config import SamplingLimits

T = TypeVar("T")

RetentionReason = Literal["forced", "error", "slow", "cold", "uniform"]


class Slowest(Generic[T]):
    """The items with the *size* largest values; of equal values the earlier ones."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[int, int, T]] = []
        # Counts down, so that the later of two equal values is the smaller one.
        self._order = itertools.count(0, -1)

    def offer(self, value: int, item: T) -> None:
        """Retain *item* if *value* is among the largest so far."""
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, (value, next(self._order), item))
        elif self._heap and value > self._heap[0][0]:
            heapq.heapreplace(self._heap, (value, next(self._order), item))

    def items(self) -> list[T]:
        """Return the retained items, largest first."""
        return [item for _, _, item in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


class Reservoir(Generic[T]):
    """A uniform sample of *size* of the items offered.

    Source: Vitter, "Random sampling with a reservoir" (1985), algorithm R.
    """

    def __init__(self, size: int, rng: random.Random) -> None:
        self._size = size
        self._rng = rng
        self._seen = 0
        self._items: list[T] = []

    def offer(self, item: T) -> None:
        """Retain *item* with the same probability as every other offered item."""
        self._seen += 1
        if len(self._items) < self._size:
            self._items.append(item)
        elif self._size:
            slot = int(self._rng.random() * self._seen)
            if slot < self._size:
                self._items[slot] = item

    def items(self) -> list[T]:
        """Return the retained items."""
        return list(self._items)


class Sampler(Generic[T]):
    """Sampler of the requests of one series and export interval."""

    def __init__(self, limits: SamplingLimits, rng: random.Random) -> None:
        self._forced: Reservoir[T] = Reservoir(limits.forced, rng)
        self._errors: Reservoir[T] = Reservoir(limits.errors, rng)
        self._slow: Slowest[T] = Slowest(limits.slow)
        self._cold: Reservoir[T] = Reservoir(limits.cold, rng)
        self._uniform: Reservoir[T] = Reservoir(limits.uniform, rng)

    def offer(self, item: T, duration: int, *, failed: bool = False, cold: bool = False, forced: bool = False) -> None:
        """Offer a finished request to the sampler.

        Args:
            item: The finished request.
            duration: Its duration. [nanoseconds]
            failed: Whether it ended with an error.
            cold: Whether something was loaded or warmed up during the request.
            forced: Whether its trace was forced by a header.
        """
        self._slow.offer(duration, item)
        if failed:
            self._errors.offer(item)
        if cold:
            self._cold.offer(item)
        if forced:
            self._forced.offer(item)
        self._uniform.offer(item)

    def retained(self) -> list[tuple[T, RetentionReason]]:
        """Return each retained request once, with its first reason in the order forced, error, slow, cold, uniform."""
        chosen: list[tuple[RetentionReason, list[T]]] = [
            ("forced", self._forced.items()),
            ("error", self._errors.items()),
            ("slow", self._slow.items()),
            ("cold", self._cold.items()),
            ("uniform", self._uniform.items()),
        ]
        retained: dict[int, tuple[T, RetentionReason]] = {}
        for because, items in chosen:
            for item in items:
                retained.setdefault(id(item), (item, because))
        return list(retained.values())
