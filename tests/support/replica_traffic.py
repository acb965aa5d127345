"""Simulated requests of replicas: heavy tails, uneven load, bursts that hit all, and pauses of single replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stagelens.analysis.replicas import ReplicaCounts, ReplicaTable
from stagelens.core.attributes import ATTRIBUTE_SCALE

START = 1_700_000_040
MINUTE = 60


@dataclass(frozen=True)
class Traffic:
    """Requests of some minutes.

    Args:
        places: Host and process of each replica.
        minutes: Number of steps.
        rate: Mean requests of a replica. [requests/s]
        seconds: Median latency.
        sigma: Standard deviation of the logarithm of the latency.
        tail: Share of requests with a tail of a power law.
        bursts: Mean number of bursts that slow all replicas.
        pauses: Probability that a replica pauses in a minute, which slows some of its requests.
        spread: Standard deviation of the logarithm of the replicas' own speed.
        uneven: Standard deviation of the logarithm of the replicas' load.
        slow: Factor on the latency by place, and the minute from which it applies.
    """

    places: Sequence[str]
    minutes: int = 10
    rate: float = 1.0
    seconds: float = 0.1
    sigma: float = 0.4
    tail: float = 0.02
    bursts: float = 0.0
    pauses: float = 0.0
    spread: float = 0.03
    uneven: float = 0.0
    slow: Mapping[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])

    def table(self, rng: np.random.Generator) -> ReplicaTable:
        """Return the counts; all of the time is in the stage `forward`, but 10 ms in `queue`."""
        common = np.zeros(self.minutes)
        for _ in range(rng.poisson(self.bursts)):
            start = int(rng.integers(self.minutes))
            common[start : start + int(rng.integers(1, 4))] += rng.uniform(0.3, 2.0)
        made = {place: self._latencies(place, common, rng) for place in self.places}
        buckets = {place: [_buckets(each) for each in minutes] for place, minutes in made.items()}
        index = np.unique(np.concatenate([each for minutes in buckets.values() for each in minutes]))
        replicas: list[ReplicaCounts] = []
        for place, minutes in buckets.items():
            counts = [np.bincount(np.searchsorted(index, each), minlength=len(index)) for each in minutes]
            spent = np.array([each.sum() * 1e6 for each in made[place]]).astype(np.int64)
            queued = np.array([len(each) * 10_000 for each in minutes])
            replicas.append(ReplicaCounts(place, np.stack(counts), {"forward": spent - queued, "queue": queued}))
        return ReplicaTable(ATTRIBUTE_SCALE, index, START + MINUTE * np.arange(self.minutes), replicas)

    def _latencies(self, place: str, common: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        load, speed = rng.lognormal(0, self.uneven), rng.normal(0, self.spread)
        factor, since = self.slow.get(place, (1.0, 0))
        minutes: list[np.ndarray] = []
        for minute in range(self.minutes):
            n = max(int(rng.poisson(MINUTE * self.rate * load)), 1)
            logs = np.log(self.seconds) + speed + common[minute] * rng.normal(1.0, 0.1)
            logs = logs + rng.normal(0, 0.05) + rng.normal(0, self.sigma, n)
            logs += (rng.random(n) < self.tail) * np.minimum(rng.pareto(1.5, n), 6.0)
            if rng.random() < self.pauses:
                logs += (rng.random(n) < rng.uniform(0.05, 0.5)) * rng.uniform(0.5, 2.5)
            logs += np.log(factor) * (minute >= since)
            minutes.append(0.01 + np.exp(logs))
        return minutes


def _buckets(latencies: np.ndarray) -> np.ndarray:
    return (np.ceil(np.log2(latencies) * 2**ATTRIBUTE_SCALE) - 1).astype(np.int64)


def pods(number: int) -> list[str]:
    return [f"checkout-{number:03x}:1" for number in range(number)]
