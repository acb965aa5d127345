"""What happens to a simulated service, and what is known to be true of it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from stagelens.analysis.regression.statistic import BUCKETS_A_DOUBLING, MinuteHistograms, StageSeconds

from .service import (
    DAY,
    Conditions,
    Service,
    drift_of_a_replica,
    make_conditions,
    make_service,
    with_blip,
    with_cold_start,
)
from .simulate import Change, simulate

REFERENCE_DAYS, EVALUATED_DAYS = 7, 7
DAYS = REFERENCE_DAYS + EVALUATED_DAYS
SIZES = (0.10, 0.15, 0.20, 0.30, 0.50, 1.00)
# How long a regression is watched, and over what its true size holds. [minutes]
WATCHED, TRUE_FOR = 300, 120
BEFORE = 300
BLIPS, RELEASES = 5, 2
CANARY_SHARES = (0.05, 0.10, 0.25, 0.50)
CANARY_WATCHED = 180
# Requests that the true size is read from, and changes nobody would ship.
TRUTH_REQUESTS, LARGEST = 200_000, 8.0
KINDS = ("scale", "add", "tail")


@dataclass(frozen=True, slots=True)
class Episode:
    """One stretch of time in which something happens, or nothing that matters.

    Args:
        at: When it begins. [minutes]
        minutes: The requests from then on.
        spent: Where their time went.
        release: Whether a release comes with it.
        size: The true growth of p95 or p99, whichever is larger; 0 if nothing must be said. [ratio]
        stage: Who is to blame, empty if nobody.
        what: In words.
    """

    at: int
    minutes: MinuteHistograms
    spent: StageSeconds
    release: bool
    size: float
    stage: str
    what: str


@dataclass(frozen=True, slots=True)
class Canary:
    """Two versions that serve at the same time; the fields as those of `Episode`."""

    at: int
    old: tuple[MinuteHistograms, StageSeconds]
    new: tuple[MinuteHistograms, StageSeconds]
    size: float
    stage: str


class World:
    """One simulated series over two weeks: the first to learn from, the second to be judged.

    Args:
        seed: All of its chance.
    """

    def __init__(self, seed: int) -> None:
        self.service: Service = make_service(seed)
        self.conditions: Conditions = make_conditions(self.service, DAYS * DAY)
        self.day = functools.cache(self._day)

    def _day(self, number: int) -> tuple[MinuteHistograms, StageSeconds]:
        """Return one day without any change."""
        start = number * DAY
        minutes, spent = simulate(self.service, self.conditions.between(start, start + DAY), start, seed=0)
        small = replace(minutes, total=minutes.total.astype(np.uint16), own=minutes.own.astype(np.uint16))
        return small, spent

    def regressions(self, count: int) -> Iterator[Episode]:
        """Yield stretches in which one stage gets slower, at random times of the second week; all sizes in turn."""
        rng = np.random.default_rng((self.service.seed, 10))
        for number in range(count):
            size = SIZES[(number + self.service.seed) % len(SIZES)]
            at = _moment(rng)
            change = self._change(rng, at, size, queue=True)
            minutes, spent = simulate(
                self.service, self.conditions.between(at, at + WATCHED), at, seed=100 + number, change=change
            )
            what = f"{change.kind} {change.stage} {change.size:+.2f}"
            yield Episode(at, minutes, spent, bool(rng.random() < 0.5), size, change.stage, what)

    def harmless(self) -> Iterator[Episode]:
        """Yield stretches that must not alert: blips of 3 to 10 minutes, and releases that only start cold."""
        rng = np.random.default_rng((self.service.seed, 11))
        for number in range(BLIPS):
            at, length, times = _moment(rng), int(rng.integers(3, 11)), float(rng.uniform(1.5, 6))
            conditions = with_blip(self.conditions, at, length, times)
            yield self._harmless(conditions, at, 200 + number, f"{length} min at {times:.1f}x", release=False)
        for number in range(RELEASES):
            at, length, share = _moment(rng), int(rng.integers(2, 6)), float(rng.uniform(0.05, 0.3))
            conditions = with_cold_start(self.conditions, at, length, share)
            yield self._harmless(
                conditions, at, 300 + number, f"release, {length} min with {share:.0%} cold", release=True
            )

    def canaries(self, count: int) -> Iterator[Canary]:
        """Yield pairs of versions; every fourth canary is as good as the old version."""
        rng = np.random.default_rng((self.service.seed, 12))
        for number in range(count):
            at = _moment(rng)
            harmless = number % 4 == 3
            size = 0.0 if harmless else SIZES[(number + self.service.seed) % len(SIZES)]
            change = None if harmless else self._change(rng, at, size, queue=False)
            share = float(rng.choice(CANARY_SHARES))
            conditions = self.conditions.between(at, at + CANARY_WATCHED)
            old = simulate(self.service, conditions, at, seed=400 + number, share=1 - share)
            own = self._of_a_replica(conditions, rng)
            new = simulate(self.service, own, at, seed=500 + number, change=change, share=share)
            yield Canary(at, old, new, size, change.stage if change else "")

    def _harmless(self, conditions: Conditions, at: int, seed: int, what: str, *, release: bool) -> Episode:
        minutes, spent = simulate(self.service, conditions.between(at, at + WATCHED), at, seed=seed)
        return Episode(at, minutes, spent, release, 0.0, "", what)

    def _of_a_replica(self, conditions: Conditions, rng: np.random.Generator) -> Conditions:
        """Return *conditions* as the few replicas of a canary see it: cold at first, with neighbours of their own."""
        cold = conditions.cold.copy()
        cold[:3] = 0.2
        share = (conditions.share > 0) * float(rng.random() < 1 / self.service.replicas)
        return replace(conditions, cold=cold, share=share, drift=conditions.drift + drift_of_a_replica(rng, len(share)))

    def _change(self, rng: np.random.Generator, at: int, size: float, *, queue: bool) -> Change:
        """Return a change of some stage that makes p95 or p99 truly grow by *size* in the hours after *at*."""
        stages = [*(stage for stage in self.service.shapes if stage != "overhead"), *(["queue"] if queue else [])]
        conditions = self.conditions.between(at, at + TRUE_FOR)
        while True:
            stage = stages[int(rng.integers(len(stages)))]
            kind = "scale" if stage == "queue" else KINDS[int(rng.integers(len(KINDS)))]
            change = _search(self.service, conditions, Change(stage, kind, 0.0), size)
            if change is not None:
                return change


def _search(service: Service, conditions: Conditions, change: Change, size: float) -> Change | None:
    before = _tail(service, conditions, None)
    low, high = 0.0, 0.25
    while _growth(before, _tail(service, conditions, replace(change, size=high))) < size:
        low, high = high, high * 2
        if low > LARGEST:
            return None
    for _ in range(6):
        middle = (low + high) / 2
        enough = _growth(before, _tail(service, conditions, replace(change, size=middle))) >= size
        low, high = (low, middle) if enough else (middle, high)
    return replace(change, size=(low + high) / 2)


def _growth(before: tuple[float, float], after: tuple[float, float]) -> float:
    """Return the ratio by which p95 or p99 grew, whichever is more."""
    return max(b / a - 1 for a, b in zip(before, after, strict=True))


def _tail(service: Service, conditions: Conditions, change: Change | None) -> tuple[float, float]:
    """Return the true p95 and p99 in seconds, read from very many requests."""
    share = TRUTH_REQUESTS / float((conditions.rate * 60).sum())
    minutes, _ = simulate(service, conditions, 0, seed=1, change=change, share=share)
    return quantile(minutes, 0.95), quantile(minutes, 0.99)


def quantile(minutes: MinuteHistograms, q: float) -> float:
    """Return a quantile of all requests in seconds, interpolated within its bucket."""
    sums = minutes.total.sum(axis=0, dtype=np.int64).cumsum()
    rank = q * sums[-1]
    place = int(np.searchsorted(sums, rank))
    below = sums[place - 1] if place else 0
    return 2 ** ((minutes.index[place] + (rank - below) / (sums[place] - below)) / BUCKETS_A_DOUBLING)


def _moment(rng: np.random.Generator) -> int:
    return int(rng.integers(REFERENCE_DAYS * DAY + BEFORE, DAYS * DAY - WATCHED))
