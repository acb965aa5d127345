"""What the search for regressions reads: requests step by step, as counts by bucket of the histogram."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.histogram import SCALE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
BUCKETS_A_DOUBLING = 2**SCALE


@dataclass(frozen=True, slots=True)
class Minutes:
    """The requests of one series (a service, route, model, version …) in consecutive minutes.

    Args:
        start: The first minute, counted from the epoch.
        index: Buckets at the scale of `core.histogram`, ascending; shape (k,).
        total: Requests by end-to-end latency; shape (minutes, k).
        stages: The stages' keys.
        own: Requests by their own time in each stage; shape (stages, minutes, k).
    """

    start: int
    index: Ints
    total: NDArray[Any]
    stages: tuple[str, ...]
    own: NDArray[Any]

    def __len__(self) -> int:
        return len(self.total)

    @property
    def end(self) -> int:
        """The first minute after them."""
        return self.start + len(self)


@dataclass(frozen=True, slots=True)
class Spent:
    """Where the time of one series went, by end-to-end latency.

    Args:
        start: The first step's first minute, counted from the epoch.
        step: How long a step is. [minutes]
        index: Buckets, ascending; shape (k,).
        total: Requests; shape (steps, k).
        stages: The stages' keys.
        seconds: Spent in each stage by the requests of the bucket; shape (stages, steps, k).
    """

    start: int
    step: int
    index: Ints
    total: NDArray[Any]
    stages: tuple[str, ...]
    seconds: NDArray[Any]

    def between(self, start: int, end: int) -> Spent:
        """Return the steps that lie in [start, end), in minutes since the epoch."""
        low = min(max(-((self.start - start) // self.step), 0), len(self.total))
        high = max(min((end - self.start) // self.step, len(self.total)), low)
        part = slice(low, high)
        first = self.start + low * self.step
        return Spent(first, self.step, self.index, self.total[part], self.stages, self.seconds[:, part])


def middles(index: Ints) -> Floats:
    """Return the middle of each bucket of *index* in seconds, like `core.histogram.bucket_middle`."""
    return (np.exp2(index / BUCKETS_A_DOUBLING) + np.exp2((index + 1) / BUCKETS_A_DOUBLING)) / 2
