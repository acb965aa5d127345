"""Requests of a simulated service, drawn one by one and counted as the collector would count them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stagelens.analysis.regression.statistic import BUCKETS_A_DOUBLING, MinuteHistograms, StageSeconds

from .service import ON_CPU, Conditions, Service

LOW, HIGH = -450, 180  # 58 µs to 49 s
STEP = 10  # minutes
CHUNK = 1_000_000
GARBAGE_SHARE, GARBAGE_SECONDS = 0.004, 0.02
COLD_SECONDS = 0.4
QUEUE_FLOOR_SECONDS = 0.0002
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Change:
    """What gets slower.

    Args:
        stage: Which stage; `queue` loses capacity.
        kind: `scale`: all requests take (1 + size) as long in it. `add`: size times its median more. `tail`: one request
            in twelve takes (1 + 4 size) as long.
        size: How much. [ratio, >= 0]
    """

    stage: str
    kind: Literal["scale", "add", "tail"]
    size: float


def simulate(
    service: Service, conditions: Conditions, start: int, *, seed: int, change: Change | None = None, share: float = 1.0
) -> tuple[MinuteHistograms, StageSeconds]:
    """Return the minutes that *conditions* has, from minute *start* on, and where their time went.

    Args:
        service: Whose.
        conditions: What happens in them.
        start: The first minute.
        seed: Of the requests.
        change: What is slower, in all of them.
        share: Of the traffic that is drawn. [0..1]
    """
    rng = np.random.default_rng((service.seed, 3, start, seed))
    counts = rng.poisson(conditions.rate * 60 * share)
    n_minutes, width = len(counts), HIGH - LOW
    total = np.zeros((n_minutes, width), np.int32)
    own = np.zeros((len(service.stages), n_minutes, width), np.int32)
    steps = -(-n_minutes // STEP)
    spent = np.zeros((len(service.stages), steps, width))
    waiting = _waiting(service, conditions, change)
    first = 0
    while first < n_minutes:
        last = first + max(1, int(np.searchsorted(np.cumsum(counts[first:]), CHUNK)))
        part = slice(first, last)
        minute = np.repeat(np.arange(len(counts[part])), counts[part])
        waits = [wait[part] for wait in waiting]
        taken = _draw(service, conditions.between(first, last), minute, rng, change=change, waits=waits)
        _count(taken, minute, total[part], own[:, part])
        _add_up(taken, (minute + first) // STEP, spent)
        first = last
    used = np.flatnonzero(total.any(axis=0) | own.any(axis=(0, 1)))
    low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
    index = np.arange(LOW + low, LOW + high)
    by_step = np.add.reduceat(total, np.arange(0, n_minutes, STEP))[:, low:high]
    return (
        MinuteHistograms(start, index, total[:, low:high], service.stages, own[:, :, low:high]),
        StageSeconds(start, STEP, index, by_step, service.stages, spent[:, :, low:high]),
    )


def _draw(
    service: Service,
    conditions: Conditions,
    minute: Ints,
    rng: np.random.Generator,
    *,
    change: Change | None,
    waits: list[NDArray[np.float64]],
) -> list[Singles]:
    """Return the seconds each request takes in each stage; requests by minute."""
    n = len(minute)
    size = rng.standard_normal(n, np.float32)
    touched = rng.random(n, np.float32) < conditions.share[minute]
    episode = np.where(touched, conditions.factor[minute], 0).astype(np.float32)
    blip = conditions.blip.astype(np.float32)
    load = np.log(conditions.rate / service.rate)
    taken: list[Singles] = []
    for number, (stage, (median, spread, long_tail, _)) in enumerate(service.shapes.items()):
        moved = (conditions.drift[number] + (service.batching * load if stage == "forward" else 0)).astype(
            np.float32
        ) + blip
        noise = rng.standard_normal(n, np.float32) * np.float32(0.8) + size * np.float32(0.6)
        log = np.float32(math.log(median / 1e3)) + np.float32(spread) * noise + moved[minute]
        if stage in ON_CPU:
            log += episode
        slow = rng.integers(0, max(n, 1), rng.poisson(n * long_tail))
        log[slow] += rng.exponential(0.7, len(slow)).astype(np.float32) + np.float32(0.3)
        seconds = np.exp(log)
        if stage in ("preprocess", "tokenize"):
            collected = rng.integers(0, max(n, 1), rng.poisson(n * GARBAGE_SHARE))
            seconds[collected] += rng.exponential(GARBAGE_SECONDS, len(collected)).astype(np.float32)
        taken.append(_changed(stage, median / 1e3, seconds, rng, change))
    waiting, mean = waits
    waited = rng.random(n, np.float32) < waiting[minute]
    queue = rng.standard_exponential(n, np.float32) * np.where(waited, mean[minute], QUEUE_FLOOR_SECONDS).astype(
        np.float32
    )
    taken.append(queue * np.exp(blip[minute]))
    cold = rng.random(n, np.float32) < conditions.cold[minute]
    taken.append((cold * rng.exponential(COLD_SECONDS, n)).astype(np.float32))
    return taken


def _changed(stage: str, median: float, seconds: Singles, rng: np.random.Generator, change: Change | None) -> Singles:
    if change is None or change.stage != stage:
        return seconds
    if change.kind == "scale":
        return seconds * np.float32(1 + change.size)
    if change.kind == "add":
        return seconds + np.float32(change.size * median)
    hit = rng.random(len(seconds), np.float32) < 1 / 12
    return seconds * np.where(hit, 1 + 4 * change.size, 1).astype(np.float32)


def _waiting(service: Service, conditions: Conditions, change: Change | None) -> list[NDArray[np.float64]]:
    """Return how many requests wait and how long in the mean, minute by minute: an approximation of M/G/c."""
    work = np.zeros(len(conditions.rate))
    at_rest = 0.0
    for number, (stage, (median, spread, _, held)) in enumerate(service.shapes.items()):
        mean = held * median / 1e3 * math.exp(spread**2 / 2)
        at_rest += mean
        grown = 1 + _growth(change) if change is not None and change.stage == stage else 1
        work += mean * grown * np.exp(conditions.drift[number] + conditions.blip)
    lost = 1 + change.size if change is not None and change.stage == "queue" else 1.0
    busy = np.minimum(conditions.rate / service.rate * service.busy * lost * work / at_rest, 0.97)
    waiting = busy ** (math.sqrt(2 * (service.workers + 1)))
    return [waiting, work / service.workers / (1 - busy)]


def _growth(change: Change) -> float:
    """Return how many times more the stage takes in the mean."""
    return change.size / 3 if change.kind == "tail" else change.size


def _count(taken: list[Singles], minute: Ints, total: NDArray[np.int32], own: NDArray[np.int32]) -> None:
    """Count the requests into their minutes: *total* of shape (minutes, k), *own* of shape (stages, minutes, k)."""
    place = minute * total.shape[1]
    total += np.bincount(place + _bucket(np.sum(taken, axis=0)), minlength=total.size).reshape(total.shape)
    for number, seconds in enumerate(taken):
        had = slice(None) if seconds.all() else seconds > 0
        its = place[had] + _bucket(seconds[had])
        own[number] += np.bincount(its, minlength=total.size).reshape(total.shape)


def _add_up(taken: list[Singles], step: Ints, spent: NDArray[np.float64]) -> None:
    """Add the seconds of each stage to *spent*, of shape (stages, steps, k), by end-to-end latency."""
    place = step * spent.shape[2] + _bucket(np.sum(taken, axis=0))
    size = spent.shape[1] * spent.shape[2]
    for number, seconds in enumerate(taken):
        spent[number] += np.bincount(place, seconds, size).reshape(spent.shape[1:])


def _bucket(seconds: Singles) -> Ints:
    index = np.ceil(np.log2(seconds) * np.float32(BUCKETS_A_DOUBLING)).astype(np.int64) - 1
    return np.clip(index, LOW, HIGH - 1) - LOW
