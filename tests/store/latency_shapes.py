"""Latency distributions of real services, and exact statistics of their samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, log
from random import Random

from tests.support.raw_requests import NS, Request, Series

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Shape:
    """Distribution of latencies."""

    name: str
    draw: Callable[[Random], float]  # Returns one random latency. [seconds]

    def samples(self, n: int, seed: int = 1) -> list[int]:
        random = Random(seed)
        return [round(self.draw(random) * NS) for _ in range(n)]


def lognormal(random: Random, median: float, sigma: float) -> float:
    return random.lognormvariate(log(median), sigma)


SHAPES = (
    Shape("lognormal", lambda random: lognormal(random, 0.040, 0.5)),
    # A cache with four hits per miss.
    Shape("bimodal", lambda random: lognormal(random, 0.012 if random.random() < 0.8 else 0.180, 0.15)),
    # Four requests in a thousand wait for a model to load, and take a hundred times as long.
    Shape("cold starts", lambda random: lognormal(random, 0.030, 0.3) * (100 if random.random() < 0.004 else 1)),
    Shape("constant", lambda _: 0.037),
    Shape("heavy tail", lambda random: 0.008 * random.paretovariate(1.5)),
)
BY_NAME = {shape.name: shape for shape in SHAPES}


def exact(samples_ns: Sequence[int], quantile: float) -> float:
    """Return the smallest sample that at least the share *quantile* of all does not exceed (nearest rank), in seconds."""
    rank = max(1, ceil(Fraction(str(quantile)) * len(samples_ns)))
    return sorted(samples_ns)[rank - 1] / NS


def spread(samples_ns: Sequence[int], start: int, seconds: int, series: Sequence[Series]) -> list[Request]:
    return [
        Request({"forward": ns}, start + place * seconds // len(samples_ns), series[place % len(series)])
        for place, ns in enumerate(samples_ns)
    ]
