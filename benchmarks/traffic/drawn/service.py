"""Services of the drawn model: their stages and rate, and what changes by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..episodes import DAY, RATES, rate_of

Floats = NDArray[np.float64]

# Median milliseconds, spread of log, share of requests with a long tail, how much of a worker's time it takes.
Shape = tuple[float, float, float, float]
PROFILES: tuple[dict[str, Shape], ...] = (
    {
        "preprocess": (8.0, 0.35, 0.01, 1.0),
        "forward": (24.0, 0.18, 0.004, 1.0),
        "postprocess": (3.0, 0.40, 0.01, 1.0),
        "serialize": (1.5, 0.45, 0.005, 1.0),
        "overhead": (0.6, 0.40, 0.002, 0.0),
    },
    {
        "tokenize": (1.5, 0.50, 0.005, 1.0),
        "dependency": (22.0, 0.45, 0.02, 0.2),
        "forward": (18.0, 0.30, 0.005, 1.0),
        "postprocess": (2.0, 0.40, 0.01, 1.0),
        "overhead": (0.8, 0.50, 0.002, 0.0),
    },
    {
        "preprocess": (5.0, 0.40, 0.01, 1.0),
        "h2d": (1.8, 0.25, 0.01, 1.0),
        "forward": (12.0, 0.15, 0.003, 1.0),
        "d2h": (0.9, 0.30, 0.01, 1.0),
        "network": (6.0, 0.60, 0.02, 0.0),
        "overhead": (0.4, 0.40, 0.002, 0.0),
    },
)
# Stages that run on the machine's processor: noisy neighbours and collections of garbage slow these.
ON_CPU = ("preprocess", "tokenize", "postprocess", "serialize", "forward", "overhead")
# How busy the workers are when the day is busiest. [ratio]
BUSIEST = (0.2, 0.65)


@dataclass(frozen=True, slots=True)
class Service:
    """One service.

    Args:
        seed: Seed of all of it.
        rate: Mean rate. [requests/s]
        shapes: Its stages, without `queue` and `load`.
        workers: Number of requests that run at the same time.
        replicas: Number of processes that share the traffic.
        busy: Utilisation of the workers at the mean load. [ratio]
        swing: Amplitude of the time of day. [ratio]
        batching: Growth of the forward pass with the load. [power]
    """

    seed: int
    rate: float
    shapes: dict[str, Shape]
    workers: int
    replicas: int
    busy: float
    swing: float
    batching: float

    @property
    def stages(self) -> tuple[str, ...]:
        """All stages."""
        return (*self.shapes, "queue", "load")


@dataclass(frozen=True, slots=True)
class Conditions:
    """What changes from minute to minute.

    Args:
        rate: Arrivals; shape (m,). [requests/s]
        drift: Logarithm of the factor on each stage; shape (stages, m).
        share: Share of requests that a noisy neighbour slows; shape (m,). [ratio]
        factor: Logarithm of its factor on CPU stages; shape (m,).
        cold: Share of requests at a cold replica; shape (m,). [ratio]
        blip: Logarithm of the factor of a spike on all stages; shape (m,).
        neighbours: Whether there is a noisy neighbour; shape (m,).
    """

    rate: Floats
    drift: Floats
    share: Floats
    factor: Floats
    cold: Floats
    blip: Floats
    neighbours: NDArray[np.bool_]

    def between(self, start: int, end: int) -> Conditions:
        """Return the minutes [start, end)."""
        part = slice(start, end)
        return Conditions(
            self.rate[part],
            self.drift[:, part],
            self.share[part],
            self.factor[part],
            self.cold[part],
            self.blip[part],
            self.neighbours[part],
        )


def make_service(seed: int) -> Service:
    """Return a random service."""
    rng = np.random.default_rng((seed, 1))
    swing = rng.uniform(0.2, 0.6)
    return Service(
        seed=seed,
        rate=rate_of(seed),
        shapes=PROFILES[(seed // len(RATES) + seed) % len(PROFILES)],
        workers=int(rng.choice([2, 4, 8, 16])),
        replicas=int(rng.choice([1, 2, 4, 8])),
        busy=rng.uniform(*BUSIEST) / (1 + swing),
        swing=swing,
        batching=rng.uniform(0.0, 0.10),
    )


def make_conditions(service: Service, minutes: int) -> Conditions:
    """Return what happens to *service* in *minutes* minutes from midnight on."""
    rng = np.random.default_rng((service.seed, 2))
    drift = np.stack([_drift(rng, minutes) for _ in service.shapes]) + _drift(rng, minutes) * 0.7
    share, factor = np.zeros(minutes), np.zeros(minutes)
    neighbours = np.zeros(minutes, bool)
    for start in _moments(rng, minutes, rng.uniform(0.15, 1.0)):
        end = start + int(min(5 + rng.lognormal(math.log(12), 0.7), 60))
        share[start:end] = 1 / service.replicas
        factor[start:end] = math.log(1 + rng.uniform(0.05, 0.35))
        neighbours[start:end] = True
    cold = np.zeros(minutes)
    for start in _moments(rng, minutes, rng.uniform(1, 4)):
        cold[start : start + int(rng.integers(2, 5))] = rng.uniform(0.01, 0.06)
    return Conditions(_rate(service, rng, minutes), drift, share, factor, cold, np.zeros(minutes), neighbours)


def with_blip(conditions: Conditions, start: int, length: int, times: float) -> Conditions:
    """Return *conditions* with all stages *times* as slow for *length* minutes."""
    blip = conditions.blip.copy()
    blip[start : start + length] = math.log(times)
    return replace(conditions, blip=blip)


def with_cold_start(conditions: Conditions, start: int, length: int, share: float) -> Conditions:
    """Return *conditions* with the cold replicas of a release."""
    cold = conditions.cold.copy()
    cold[start : start + length] = share
    return replace(conditions, cold=cold)


def _rate(service: Service, rng: np.random.Generator, minutes: int) -> Floats:
    at = np.arange(minutes)
    phase = rng.uniform(0, 2 * np.pi)
    day = 1 + service.swing * np.sin(2 * np.pi * at / DAY + phase) + 0.15 * np.sin(4 * np.pi * at / DAY + phase / 2)
    weekend = np.where(at // DAY % 7 >= 5, rng.uniform(0.6, 1.0), 1.0)
    return service.rate * day * weekend * np.exp(_walk(rng, minutes, 90, 0.08) + rng.normal(0, 0.05, minutes))


def _drift(rng: np.random.Generator, minutes: int) -> Floats:
    """Return slow, medium and fast noise of one stage, as logarithm of its factor."""
    size = rng.uniform(0.5, 1.3)
    slow, middle = _walk(rng, minutes, 600, 0.020 * size), _walk(rng, minutes, 45, 0.018 * size)
    return slow + middle + rng.normal(0, 0.02 * size, minutes)


def _walk(rng: np.random.Generator, minutes: int, memory: float, spread: float) -> Floats:
    """Return an Ornstein-Uhlenbeck process with a correlation time of *memory* minutes."""
    keep = math.exp(-1 / memory)
    steps = rng.normal(0, spread * math.sqrt(1 - keep * keep), minutes)
    steps[0] = rng.normal(0, spread)
    values = np.empty(minutes)
    level = 0.0
    for minute, step in enumerate(steps.tolist()):
        level = keep * level + step
        values[minute] = level
    return values


def _moments(rng: np.random.Generator, minutes: int, per_day: float) -> list[int]:
    count = rng.poisson(per_day * minutes / DAY)
    return sorted(rng.integers(0, minutes, count).tolist())


def drift_of_a_replica(rng: np.random.Generator, minutes: int) -> Floats:
    """Return the noise of one replica, as logarithm of the factor of all its stages; shape (minutes,)."""
    return _walk(rng, minutes, 60, 0.015) + rng.normal(0, 0.015, minutes)
