"""Tail sampling: selects the requests that are retained as traces, once their latency and outcome are known.

All but the slowest are chosen by the second half of the trace id, which is random also in ids that begin with a time: the services of
a trace choose the same requests. Export intervals end at the same time in all services.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, Literal, TypeVar

from ..config import SamplingLimits

T = TypeVar("T")

RetentionReason = Literal["forced", "error", "slow", "cold", "uniform"]


class Largest(Generic[T]):
    """The items with the *size* largest values; of equal values the earlier ones."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[int, int, T]] = []
        # Counts down, so that the later of two equal values is the smaller one.
        self._order = itertools.count(0, -1)

    def offer(self, value: int, item: T) -> None:
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, (value, next(self._order), item))
        elif self._heap and value > self._heap[0][0]:
            heapq.heapreplace(self._heap, (value, next(self._order), item))

    def items(self) -> list[T]:
        return [item for _, _, item in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


class Sampler(Generic[T]):
    def __init__(self, limits: SamplingLimits) -> None:
        # In the order in which a reason is chosen.
        self._chosen: dict[RetentionReason, Largest[T]] = {
            "forced": Largest(limits.forced),
            "error": Largest(limits.errors),
            "slow": Largest(limits.slow),
            "cold": Largest(limits.cold),
            "uniform": Largest(limits.uniform),
        }

    def offer(
        self, item: T, duration: int, draw: int, *, failed: bool = False, cold: bool = False, forced: bool = False
    ) -> None:
        chosen = self._chosen
        chosen["slow"].offer(duration, item)
        if failed:
            chosen["error"].offer(draw, item)
        if cold:
            chosen["cold"].offer(draw, item)
        if forced:
            chosen["forced"].offer(draw, item)
        chosen["uniform"].offer(draw, item)

    def retained(self) -> list[tuple[T, RetentionReason]]:
        """Return each retained request once, with its first reason in the order forced, error, slow, cold, uniform."""
        retained: dict[int, tuple[T, RetentionReason]] = {}
        for because, largest in self._chosen.items():
            for item in largest.items():
                retained.setdefault(id(item), (item, because))
        return list(retained.values())
