"""Services of the queueing model: their stages, replicas and hosts, and the events that happen to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rng = np.random.Generator
DAY = 1440


@dataclass(frozen=True, slots=True)
class Shape:
    """Time in one stage.

    Args:
        ms: Mean of a request of mean size. [milliseconds]
        noise: Shape of its gamma distribution: the mean squared divided by the variance.
        size: Power by which it grows with the size of the request.
        batch: Power by which it grows with the size of the batch.
        cpu: Whether it runs on the CPU.
        held: Whether it occupies a worker.
        hits: Share of requests that a cache answers in a tenth of the time.
        retries: Share of requests that need four times as long.
    """

    ms: float
    noise: float
    size: float = 0.0
    batch: float = 0.0
    cpu: bool = True
    held: bool = True
    hits: float = 0.0
    retries: float = 0.0


PROFILES: tuple[Mapping[str, Shape], ...] = (
    {
        "preprocess": Shape(9, 12, size=0.6, batch=0.8),
        "h2d": Shape(1.5, 20, size=0.5, batch=0.5, cpu=False),
        "forward": Shape(26, 80, batch=0.5, cpu=False),
        "postprocess": Shape(4, 8, batch=0.4),
        "overhead": Shape(0.5, 4, held=False),
    },
    {
        "tokenize": Shape(2, 6, size=0.8),
        "dependency": Shape(20, 3, cpu=False, hits=0.5, retries=0.01),
        "forward": Shape(22, 40, size=0.4, batch=0.4),
        "serialize": Shape(2, 6, batch=0.5),
        "overhead": Shape(0.8, 3, held=False),
    },
    {
        "preprocess": Shape(5, 8, size=0.4),
        "forward": Shape(40, 15, size=0.3, cpu=False),
        "postprocess": Shape(3, 5),
        "network": Shape(7, 2, cpu=False, held=False, retries=0.005),
        "overhead": Shape(0.4, 4, held=False),
    },
)
# Inputs: relative size and usual share of small, medium and large requests, and of batches.
INPUTS, INPUT_SHARES = (1.0, 2.5, 6.0), (0.75, 0.2, 0.05)
BATCHES, BATCH_SHARES = (1.0, 2.0, 4.0, 8.0), (0.7, 0.15, 0.1, 0.05)
# Utilisation of the workers at the busiest time of day, and the most that an event brings. [ratio]
BUSIEST, MAX_UTILISATION = (0.2, 0.65), 0.95
MAX_WORKERS = 64
# Time from the start of a crowd to more replicas, and a start long before all simulated minutes. [minutes]
SCALE_UP, NEVER = 4, -100_000
EVENTS = ("", "deploy", "dependency", "mix", "neighbour", "crowd")


@dataclass(frozen=True, slots=True)
class Service:
    """One service.

    Args:
        key: Seed of its random numbers.
        rate: Mean rate. [requests/s]
        shapes: Its stages, without `queue` and `load`.
        hosts: Host of each replica.
        speed: Factor on CPU stages of each replica.
        base: Number of replicas that usually run; those beyond are started in crowds.
        workers: Workers of each replica.
        is_random: Whether requests are assigned at random rather than in turn.
        swing: Amplitude of the time of day. [ratio]
        collected: Share of requests in which garbage is collected, and mean pause. [ratio, seconds]
        cold: Mean time to load in the first request of each worker. [seconds]
        held: Mean time that a request occupies a worker. [seconds]
        canaries: Number of last replicas, which run the new version of a canary.
    """

    key: tuple[int, ...]
    rate: float
    shapes: Mapping[str, Shape]
    hosts: Ints
    speed: Floats
    base: int
    workers: int
    is_random: bool
    swing: float
    collected: tuple[float, float]
    cold: float
    held: float
    canaries: int = 0

    @property
    def stages(self) -> tuple[str, ...]:
        return (*self.shapes, "queue", "load")


@dataclass(frozen=True, slots=True)
class Conditions:
    """What changes from minute to minute; the last axis of each array is the minute.

    Args:
        rate: Arrivals; shape (m,). [requests/s]
        host: Factor on CPU stages by host; shape (hosts, m).
        stage: Factor on the stages; shape (stages, m).
        large: Factor on the share of larger requests and batches; shape (m,).
        live: Whether a replica serves; shape (replicas, m).
        started: Last start of a replica; shape (replicas, m). [minutes]
        new: Whether a replica runs the new version; shape (replicas, m).
        event: Position in `EVENTS` of what happens; shape (m,).
    """

    rate: Floats
    host: Floats
    stage: Floats
    large: Floats
    live: Bools
    started: Ints
    new: Bools
    event: Ints

    def at(self, minutes: Ints | slice) -> Conditions:
        return Conditions(*(getattr(self, field.name)[..., minutes].copy() for field in fields(self)))


def make_service(key: tuple[int, ...], rate: float, replicas: int, hosts: int) -> Service:
    rng = np.random.default_rng((*key, 101))
    profile = PROFILES[int(rng.integers(len(PROFILES)))]
    swing = rng.uniform(0.2, 0.6)
    busy = rng.uniform(*BUSIEST) / (1 + 1.3 * swing)
    wanted = min(math.exp(rng.uniform(math.log(0.02), math.log(0.4))), MAX_WORKERS * busy / rate)
    workers = math.ceil(max(replicas, round(rate * wanted / busy)) / replicas)
    varied = {name: replace(shape, ms=shape.ms * rng.lognormal(0, 0.3)) for name, shape in profile.items()}
    held = sum(_mean_ms(shape) for shape in varied.values() if shape.held)
    factor = 1000 * wanted / held
    spare = math.ceil(replicas / 2) if rng.random() < 0.5 else 0
    return Service(
        key=key,
        rate=rate,
        shapes={name: replace(shape, ms=shape.ms * factor) for name, shape in varied.items()},
        hosts=np.arange(replicas + spare) % hosts,
        speed=rng.lognormal(0, 0.02, replicas + spare),
        base=replicas,
        workers=workers,
        is_random=bool(rng.random() < 0.3),
        swing=swing,
        collected=(1 / rng.uniform(100, 2000), rng.uniform(0.3, 1.5) * wanted),
        cold=rng.uniform(0.3, 2.0),
        held=wanted,
    )


def _mean_ms(shape: Shape) -> float:
    return shape.ms * (1 - 0.9 * shape.hits) * (1 + 3 * shape.retries)


def utilisation(service: Service, rate: Floats) -> Floats:
    return rate * service.held / (service.base * service.workers)


def dependency(service: Service) -> int:
    """Return the position of the stage that calls another service, or of the forward pass."""
    names = list(service.shapes)
    return next((names.index(name) for name in ("dependency", "network") if name in names), names.index("forward"))


def make_hosts(rng: Rng, hosts: int, minutes: int) -> tuple[Floats, Bools]:
    """Return the factor on CPU stages by host, with noisy neighbours and drift, and where these neighbours are."""
    host = np.stack([1 + _smooth_noise(rng, minutes, 180, 0.01) for _ in range(hosts)])
    slow = np.zeros(host.shape, bool)
    for start in _moments(rng, minutes, rng.uniform(0.15, 1.0)):
        where = int(rng.integers(hosts)), slice(start, start + int(rng.integers(5, 46)))
        host[where] *= rng.uniform(1.05, 1.35)
        slow[where] = True
    return host, slow


def make_conditions(service: Service, host: Floats, slow: Bools) -> Conditions:
    rng = np.random.default_rng((*service.key, 102))
    minutes, replicas = host.shape[1], len(service.hosts)
    at = np.arange(minutes)
    phase = 2 * np.pi * at / DAY + rng.uniform(0, 2 * np.pi)
    day = 1 + service.swing * (np.sin(phase) + 0.3 * np.sin(2 * phase + 1))
    weekend = np.where(at // DAY % 7 >= 5, rng.uniform(0.5, 1.0), 1.0)
    noise = (1 + _smooth_noise(rng, minutes, 120, 0.06)) * rng.gamma(150, 1 / 150, minutes)
    stage = np.stack(
        [1 + _smooth_noise(rng, minutes, 240, 0.012) + _smooth_noise(rng, minutes, 20, 0.01) for _ in service.shapes]
    )
    large = np.exp(0.15 * np.sin(phase + rng.uniform(0, 6)) + _smooth_noise(rng, minutes, 90, 0.08))
    live = np.repeat(np.arange(replicas)[:, None] < service.base, minutes, axis=1)
    found = Conditions(
        np.maximum(service.rate * day * weekend * noise, 0.02 * service.rate),
        host.copy(),
        stage,
        large,
        live,
        np.full((replicas, minutes), NEVER),
        np.zeros((replicas, minutes), bool),
        np.zeros(minutes, np.int64),
    )
    own = np.unique(service.hosts[: service.base])
    for start in _moments(rng, minutes, rng.uniform(0.2, 1.0)):
        _restart(service, found, start, int(rng.integers(service.base)))
    for start in _moments(rng, minutes, rng.uniform(0.1, 0.5)):
        end = deploy(service, found, start, 0, rng)
        found.new[:] = False
        _mark(found, start, end, "deploy")
    for start in _moments(rng, minutes, rng.uniform(0.1, 0.5)):
        end = start + int(rng.integers(3, 11))
        worst = MAX_UTILISATION / float(utilisation(service, found.rate[start:end]).max())
        stage[dependency(service), start:end] *= max(1.3, min(rng.uniform(1.3, 4), worst))
        _mark(found, start, end, "dependency")
    for start in _moments(rng, minutes, rng.uniform(0.02, 0.1)):
        end = start + int(rng.integers(60, 300))
        large[start:end] *= rng.uniform(1.3, 2.5)
        _mark(found, start, end, "mix")
    found.event[slow[own].any(axis=0)] = EVENTS.index("neighbour")
    for start in _moments(rng, minutes, rng.uniform(0.05, 0.3)):
        end = start + int(rng.integers(5, 46))
        start_crowd(service, found, (start, end), rng.uniform(1.5, 4), 0)
        _mark(found, start, end, "crowd")
    return found


def _mark(conditions: Conditions, start: int, end: int, event: str) -> None:
    conditions.event[start:end] = EVENTS.index(event)


def _restart(service: Service, conditions: Conditions, start: int, replica: int) -> None:
    """Restart a replica, which serves again after a minute; a single replica has no gap."""
    gap = 1 if service.base > 1 else 0
    conditions.live[replica, start : start + gap] = False
    _start(conditions, replica, start + gap, start + gap)


def _start(conditions: Conditions, replica: int | slice, position: int, minute: int) -> None:
    started = conditions.started[replica, position:]
    np.maximum(started, minute, out=started)


def deploy(service: Service, conditions: Conditions, start: int, offset: int, rng: Rng) -> int:
    """Replace the replicas one by one by new processes of a new version; return the end."""
    pause = int(rng.integers(1, 4))
    for replica in range(service.base):
        begun = start + replica * pause
        _start(conditions, replica, begun, offset + begun)
        conditions.new[replica, begun:] = True
    conditions.new[service.base :, start:] = True
    return start + service.base * pause


def start_crowd(service: Service, conditions: Conditions, when: tuple[int, int], times: float, offset: int) -> None:
    """Multiply the load, at most to the limit of the workers; a service with spare replicas starts them after minutes."""
    start, end = when
    most = MAX_UTILISATION / utilisation(service, conditions.rate[start:end])
    conditions.rate[start:end] *= np.clip(times, 1.0, np.maximum(most, 1.0))
    begun = start + SCALE_UP
    conditions.live[service.base :, begun : end + SCALE_UP] = True
    _start(conditions, slice(service.base, None), begun, offset + begun)


def _smooth_noise(rng: Rng, minutes: int, width: int, spread: float) -> Floats:
    """Return a moving average of heavy-tailed noise (Student's t with 5 degrees of freedom)."""
    noise = rng.standard_t(5, minutes + width - 1) / math.sqrt(5 / 3)
    return spread * np.convolve(noise, np.ones(width), "valid") / math.sqrt(width)


def _moments(rng: Rng, minutes: int, per_day: float) -> list[int]:
    return sorted(rng.integers(0, minutes - 60, rng.poisson(per_day * minutes / DAY)).tolist())
