"""Requests of the drawn model."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from stagelens.analysis.regression.statistic import MinuteHistograms, StageSeconds

from ..counting import CHUNK, HIGH, LOW, STEP, Change, Ints, Singles, add_up, count, trimmed
from .service import ON_CPU, Conditions, Service

GARBAGE_SHARE, GARBAGE_SECONDS = 0.004, 0.02
COLD_SECONDS = 0.4
QUEUE_FLOOR_SECONDS = 0.0002


def simulate(
    service: Service, conditions: Conditions, start: int, *, seed: int, change: Change | None = None, share: float = 1.0
) -> tuple[MinuteHistograms, StageSeconds]:
    """Return the requests of the minutes of *conditions*, and their time in each stage.

    Args:
        service: The service.
        conditions: What happens in these minutes.
        start: First minute.
        seed: Seed of the requests.
        change: Change of all requests.
        share: Share of the traffic that is drawn. [ratio]
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
        count(taken, minute, total[part], own[:, part])
        add_up(taken, (minute + first) // STEP, spent)
        first = last
    return trimmed(start, total, own, spent, service.stages)


def _draw(
    service: Service,
    conditions: Conditions,
    minute: Ints,
    rng: np.random.Generator,
    *,
    change: Change | None,
    waits: list[NDArray[np.float64]],
) -> list[Singles]:
    """Return the time of each request in each stage; requests are ordered by minute."""
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
    """Return the share of requests that wait and their mean waiting time by minute: an approximation of M/G/c."""
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
    """Return the growth of the mean time in the changed stage."""
    return change.size / 3 if change.kind == "tail" else change.size
