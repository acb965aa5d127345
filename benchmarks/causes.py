"""Traffic with one of the causes of `PLANTS`, or with none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from stagelens.analysis.attributes import WHEN, AttributeCounts, highest_percentile
from stagelens.core.attributes import ATTRIBUTE_SCALE, BY_KEY, band_of

Ints, Floats, Bools = NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]
HOUR, STEP, START = 3600, 60, 1_795_000_020
PLANTS = (
    "tenant", "size", "replica", "caller", "batch", "token", "version x size", "time of day", "two at once", "concurrency",
    "route", "cold start",
)  # fmt: skip
NOTHING = "none"


@dataclass(slots=True)
class Traffic:
    """Requests: arrival after *start*, latency, and the value of each attribute by its position in `names`; and the numbers in bands.

    Args:
        at: Arrivals. [seconds]
        latency: Latencies. [seconds]
        seconds: Length. [seconds]
        start: Start. [Unix seconds]
    """

    at: Floats
    latency: Floats
    seconds: int = HOUR
    start: float = START
    codes: dict[str, Ints] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    numbers: dict[str, Ints] = field(default_factory=dict)

    def text(self, key: str, codes: Ints, *names: str) -> None:
        self.codes[key] = codes
        self.names[key] = list(names) or [f"{key}-{number}" for number in range(int(codes.max()) + 1)]

    def number(self, key: str, numbers: Floats) -> None:
        kind = BY_KEY[key].kind
        self.numbers[key] = numbers.astype(np.int64)
        unique, inverse = np.unique(self.numbers[key], return_inverse=True)
        bands = {each: int(band_of(kind, each)) for each in unique.tolist()}
        starts = sorted(set(bands.values()))
        places = {start: place for place, start in enumerate(starts)}
        self.codes[key] = np.array([places[bands[each]] for each in unique.tolist()])[inverse]
        self.names[key] = [str(start) for start in starts]

    def counts(self) -> AttributeCounts:
        bucket = np.ceil(np.log2(self.latency) * 2**ATTRIBUTE_SCALE).astype(np.int64) - 1
        first, steps = int(bucket.min()), self.seconds // STEP
        width = int(bucket.max()) - first + 1
        cell = (self.at // STEP).astype(np.int64) * width + bucket - first
        found: dict[str, Mapping[str, Ints]] = {}
        for key, codes in self.codes.items():
            size = steps * width
            table = np.bincount(codes * size + cell, minlength=len(self.names[key]) * size)
            shaped = table.reshape(-1, steps, width)
            found[key] = {name: each for name, each in zip(self.names[key], shaped, strict=True) if each.any()}
        return AttributeCounts(
            ATTRIBUTE_SCALE, np.arange(first, first + width), int(self.start) + STEP * np.arange(steps), found
        )


def simulate(rng: np.random.Generator, size: int, seconds: int = HOUR, most_replicas: int = 12) -> Traffic:
    tenants = int(rng.integers(4, 21))
    popular = np.arange(1, tenants + 1) ** -rng.uniform(0.6, 1.4)
    tenant = rng.choice(tenants, size, p=popular / popular.sum())
    at = _arrivals(rng, tenant, tenants, seconds)
    order = np.argsort(at)
    at, tenant = at[order], tenant[order]
    traffic = Traffic(at, np.ones(size), seconds)
    traffic.text("tenant", tenant)
    traffic.text("plan", rng.integers(0, 3, tenants)[tenant])
    for key, values in (("caller", 4), ("route", 4), ("model", 3)):
        taste = rng.dirichlet(np.full(values, 0.8), tenants).cumsum(axis=1)
        traffic.text(key, np.minimum((rng.random(size)[:, None] > taste[tenant]).sum(axis=1), values - 1))
    replicas = int(rng.integers(3, most_replicas + 1))
    sticky = rng.random() < 0.25
    replica = rng.integers(0, replicas, tenants)[tenant] if sticky else rng.integers(0, replicas, size)
    traffic.text("replica", replica)
    traffic.text("version", (np.arange(replicas) < max(1, replicas // 4)).astype(np.int64)[replica])
    bytes_ = np.exp(rng.normal(10, 1.2, tenants)[tenant] + rng.normal(0, 1.2, size))
    traffic.number("request_size", bytes_)
    traffic.number("input_tokens", bytes_ / 40 * np.exp(rng.normal(0, 0.5, size)))
    traffic.number("output_tokens", np.exp(rng.normal(5, 1.0, size)))
    busy = np.bincount(at.astype(np.int64), minlength=seconds + 1)[at.astype(np.int64)] / (size / seconds)
    traffic.number("batch_size", np.minimum(1 + rng.geometric(1 / (1 + 2 * np.minimum(busy, 6)), size), 64))
    traffic.text("status", (rng.random(size) < 0.01).astype(np.int64), "ok", "error")
    traffic.text("cold", (rng.random(size) < rng.uniform(0.005, 0.06)).astype(np.int64), "0", "1")
    traffic.latency = _latency(rng, traffic, tenant, replica)
    _set_concurrency(traffic, _in_flight(at, traffic.latency, replica))
    return traffic


def _arrivals(rng: np.random.Generator, tenant: Ints, tenants: int, seconds: int) -> Floats:
    """Return arrival times: a rate that changes slowly and from minute to minute; every third tenant sends in bursts."""
    minutes = np.arange(seconds // STEP)
    rate = 1 + rng.uniform(0, 0.7) * np.sin(rng.uniform(0, 6.3) + minutes / 60 * rng.uniform(2, 7))
    rate *= np.exp(rng.normal(0, 0.2, len(minutes)))
    at = (rng.choice(minutes, len(tenant), p=rate / rate.sum()) + rng.random(len(tenant))) * STEP
    for each in np.flatnonzero(rng.random(tenants) < 1 / 3):
        mine = np.flatnonzero(tenant == each)
        bursts = max(1, len(mine) // int(rng.integers(5, 60)))
        centre, length = rng.uniform(0, seconds, bursts), rng.uniform(1, 20, bursts)
        chosen = rng.integers(0, bursts, len(mine))
        at[mine] = (centre[chosen] + length[chosen] * rng.random(len(mine))) % seconds
    return at


def _latency(rng: np.random.Generator, traffic: Traffic, tenant: Ints, replica: Ints) -> Floats:
    """Return latencies: log-normal with a tail of Pareto, small differences, a slow drift, and pauses."""
    size, at = len(traffic.at), traffic.at
    tenants, replicas = int(tenant.max()) + 1, int(replica.max()) + 1
    latency = rng.uniform(0.02, 0.3) * np.exp(rng.normal(0, rng.uniform(0.3, 0.6), size))
    latency *= np.where(rng.random(size) < 0.02, 1 + rng.pareto(2, size), 1)
    latency *= np.exp(rng.normal(0, 0.03, tenants)[tenant] + rng.normal(0, 0.03, replicas)[replica])
    latency *= 1 + 0.05 * np.sin(rng.uniform(0, 6.3) + at / traffic.seconds * rng.uniform(1, 7))
    for of, number, longest in (
        (-1, rng.poisson(3), 20.0),
        *zip(range(replicas), rng.poisson(4, replicas), repeat(4.0)),
    ):
        for _ in range(number):
            begin, length = rng.uniform(0, traffic.seconds), min(rng.exponential(longest / 2), 2 * longest)
            hit = (at >= begin) & (at < begin + length) & ((replica == of) | (of < 0))
            latency[hit] *= rng.uniform(1.5, 5)
    failed = traffic.codes["status"] == 1
    return np.where(failed & (rng.random(size) < 0.7), latency * 0.3, latency)


def _in_flight(at: Floats, latency: Floats, replica: Ints) -> Ints:
    """Return the number of requests in the replica at each arrival."""
    found = np.zeros(len(at), np.int64)
    for each in np.unique(replica):
        mine = np.flatnonzero(replica == each)
        ends = np.sort(at[mine] + latency[mine])
        found[mine] = np.arange(len(mine)) - np.searchsorted(ends, at[mine], side="right")
    return found


def _set_concurrency(traffic: Traffic, in_flight: Ints) -> None:
    traffic.number("concurrency", in_flight.astype(np.float64) + 1)


@dataclass(frozen=True, slots=True)
class Truth:
    """Planted cause: the requests, and the values of each attribute that names it."""

    requests: Bools
    values: Mapping[str, Bools]


def _value(rng: np.random.Generator, traffic: Traffic, key: str, most: float) -> tuple[str, Bools]:
    """Choose a value that has 2 % of the requests to *most* of them; of the others the nearest."""
    shares = np.bincount(traffic.codes[key], minlength=len(traffic.names[key])) / len(traffic.at)
    fits = np.flatnonzero((shares >= 0.02) & (shares <= most))
    best = int(rng.choice(fits)) if len(fits) else int(np.abs(shares - 0.1).argmin())
    return key, np.arange(len(shares)) == best


def _upwards(rng: np.random.Generator, traffic: Traffic, key: str) -> tuple[str, Bools]:
    """Choose a range from a band up that has 2 to 20 % of the requests."""
    shares = np.bincount(traffic.codes[key], minlength=len(traffic.names[key])) / len(traffic.at)
    above = shares[::-1].cumsum()[::-1]
    fits = np.flatnonzero((above >= 0.02) & (above <= 0.2))
    best = int(rng.choice(fits)) if len(fits) else int(np.abs(above - 0.1).argmin())
    return key, np.arange(len(shares)) >= best


def _choose(rng: np.random.Generator, traffic: Traffic, cause: str) -> list[Truth]:
    def of(chosen: tuple[str, Bools]) -> Bools:
        return chosen[1][traffic.codes[chosen[0]]]

    one = {
        "tenant": lambda: _value(rng, traffic, "tenant", 0.3),
        "size": lambda: _upwards(rng, traffic, "request_size"),
        "replica": lambda: _value(rng, traffic, "replica", 0.35),
        "caller": lambda: _value(rng, traffic, "caller", 0.3),
        "batch": lambda: _upwards(rng, traffic, "batch_size"),
        "token": lambda: _upwards(rng, traffic, str(rng.choice(["input_tokens", "output_tokens"]))),
        "route": lambda: _value(rng, traffic, "route", 0.3),
        "cold start": lambda: ("cold", np.array([False, True])),
    }
    if cause in one:
        chosen = one[cause]()
        return [Truth(of(chosen), dict([chosen]))]
    if cause == "version x size":
        size, version = _upwards(rng, traffic, "request_size"), ("version", np.array([False, True]))
        return [Truth(of(size) & of(version), dict([size, version]))]
    if cause == "two at once":
        return [Truth(of(each), dict([each])) for each in (one["tenant"](), one["replica"]())]
    # A period has three whole minutes at least.
    begin, length = (
        share * traffic.seconds
        for share in (rng.uniform(0, 0.75), max(rng.uniform(0.1, 0.25), 4 * STEP / traffic.seconds))
    )
    inside = (traffic.at >= begin) & (traffic.at < begin + length)
    return [Truth(inside, {WHEN: np.zeros(0, bool)})]


@dataclass(frozen=True, slots=True)
class Plan:
    cause: str
    size: int
    seed: int
    traffic: Traffic
    truths: list[Truth]


def make_plan(  # noqa: PLR0917 - what is planted, and in what
    cause: str, size: int, seed: int, caused: float, seconds: int = HOUR, most_replicas: int = 12
) -> Plan:
    rng = np.random.default_rng([seed, size, (NOTHING, *PLANTS).index(cause)])
    while True:
        traffic = simulate(rng, size, seconds, most_replicas)
        truths = [] if cause == NOTHING else plant(rng, traffic, cause, caused)
        if truths or cause == NOTHING:
            return Plan(cause, size, seed, traffic, truths)


def plant(rng: np.random.Generator, traffic: Traffic, cause: str, caused: float) -> list[Truth]:
    """Make requests slow by *cause*; return nothing if that makes less than *caused* of the slow requests slow."""
    if cause == "concurrency":
        return _saturate(traffic, caused)
    truths = _choose(rng, traffic, cause)
    before, factor = traffic.latency, rng.uniform(2, 5)
    hit = rng.random(len(before)) < rng.uniform(0.3, 1)
    noise = np.exp(rng.normal(0, 0.3, len(before)))
    for _ in range(6):
        after = before.copy()
        for truth in truths:
            after = np.where(truth.requests & hit, before * np.maximum(factor * noise, 1), after)
        slow = _slow(after)
        if all(_is_strong(truth.requests & (before < after), slow, traffic, caused / len(truths)) for truth in truths):
            traffic.latency = after
            _set_concurrency(traffic, _in_flight(traffic.at, after, traffic.codes["replica"]))
            return truths
        factor *= 1.4
    return []


def _slow(latency: Floats) -> Bools:
    return latency >= np.quantile(latency, highest_percentile(len(latency), 0.99))


def _is_strong(slowed: Bools, slow: Bools, traffic: Traffic, caused: float) -> bool:
    """Return whether a cause has *caused* of the slow requests, and no minute a third of those."""
    minutes = np.bincount((traffic.at[slowed & slow] // STEP).astype(np.int64), minlength=1)
    return bool(minutes.sum() >= caused * slow.sum() and 3 * minutes.max() <= minutes.sum())


def _saturate(traffic: Traffic, caused: float) -> list[Truth]:
    """Make requests slow that arrive at a replica with many others, one after another: slow requests add to the number."""
    replica = traffic.codes["replica"]
    limit = max(2.0, float(np.quantile(_in_flight(traffic.at, traffic.latency, replica) + 1, 0.97)))
    limit = 2.0 ** np.round(np.log2(limit))
    ends: list[list[float]] = [[] for _ in range(int(replica.max()) + 1)]
    met = np.zeros(len(replica), np.int64)
    for place, (at, latency, of) in enumerate(
        zip(traffic.at.tolist(), traffic.latency.tolist(), replica.tolist(), strict=True)
    ):
        active = ends[of]
        while active and active[0] <= at:
            heappop(active)
        met[place] = len(active) + 1
        slower = 4.0 if limit <= met[place] < 3 * limit else 1.0
        traffic.latency[place] = latency * slower
        heappush(active, at + latency * slower)
    _set_concurrency(traffic, met - 1)
    starts = np.array([int(each) for each in traffic.names["concurrency"]])
    is_strong = _is_strong(met >= limit, _slow(traffic.latency), traffic, caused)
    return [Truth(met >= limit, {"concurrency": starts >= limit})] if is_strong else []
