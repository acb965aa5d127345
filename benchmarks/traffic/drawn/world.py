"""Traffic model that draws the time in each stage from log-normal distributions with correlated noise; waiting is a formula."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..counting import Change
from ..episodes import (
    CANARY_SHARES,
    CANARY_WATCHED,
    DAY,
    DAYS,
    TRUE_FOR,
    TRUTH_REQUESTS,
    WATCHED,
    Canary,
    Episode,
    Traffic,
    World,
    moment,
    rate_of,
    search,
    size_of,
    tail_of,
)
from .service import (
    Conditions,
    drift_of_a_replica,
    make_conditions,
    make_service,
    with_blip,
    with_cold_start,
)
from .simulate import simulate

BLIPS, RELEASES = 5, 2
KINDS = ("scale", "add", "tail")


class DrawnWorld(World):
    """Series of the drawn model.

    Args:
        seed: Seed of all of it.
    """

    model = "drawn"

    def __init__(self, seed: int) -> None:
        super().__init__(seed, rate_of(seed))
        self.service = make_service(seed)
        self.conditions = make_conditions(self.service, DAYS * DAY)

    def _traffic(self, day: int) -> Traffic:
        start = day * DAY
        found = self.simulate(self.conditions.between(start, start + DAY), start, 0)
        minutes = found.minutes
        small = replace(minutes, total=minutes.total.astype(np.uint16), own=minutes.own.astype(np.uint16))
        return replace(found, minutes=small)

    def simulate(
        self, conditions: Conditions, at: int, seed: int, change: Change | None = None, share: float = 1.0
    ) -> Traffic:
        """Return the requests of the minutes of *conditions*; arguments as in `simulate.simulate`."""
        return Traffic(*simulate(self.service, conditions, at, seed=seed, change=change, share=share))

    def event(self, start: int, end: int) -> str:
        """Return "neighbour" if there was a noisy neighbour."""
        return "neighbour" if self.conditions.neighbours[start:end].any() else ""

    def regressions(self, count: int) -> Iterator[Episode]:
        """Yield episodes in which one stage is slower."""
        rng = np.random.default_rng((self.seed, 10))
        for number in range(count):
            size, at = size_of(number, self.seed), moment(rng)
            change = self._change(rng, at, size, queue=True)
            conditions = self.conditions.between(at, at + WATCHED)
            found, release = self.simulate(conditions, at, 100 + number, change), bool(rng.random() < 0.5)
            yield self._episode(found, at, release, size, change)

    def harmless(self) -> Iterator[Episode]:
        """Yield spikes of 3 to 10 minutes, and releases that only start cold."""
        rng = np.random.default_rng((self.seed, 11))
        for number in range(BLIPS):
            at, length, times = moment(rng), int(rng.integers(3, 11)), float(rng.uniform(1.5, 6))
            conditions = with_blip(self.conditions, at, length, times)
            yield self._harmless(conditions, at, 200 + number, "blip", f"{length} min at {times:.1f}x")
        for number in range(RELEASES):
            at, length, share = moment(rng), int(rng.integers(2, 6)), float(rng.uniform(0.05, 0.3))
            conditions = with_cold_start(self.conditions, at, length, share)
            yield self._harmless(conditions, at, 300 + number, "deploy", f"{length} min with {share:.0%} cold")

    def canaries(self, count: int) -> Iterator[Canary]:
        """Yield pairs of versions."""
        rng = np.random.default_rng((self.seed, 12))
        for number in range(count):
            at = moment(rng)
            size = 0.0 if number % 2 else size_of(number // 2, self.seed)
            change = self._change(rng, at, size, queue=False) if size else None
            share = float(rng.choice(CANARY_SHARES))
            conditions = self.conditions.between(at, at + CANARY_WATCHED)
            old = self.simulate(conditions, at, 400 + number, share=1 - share)
            own = self._of_a_replica(conditions, rng)
            new = self.simulate(own, at, 500 + number, change, share)
            stage, kind = (change.stage, _kind(change)) if change else ("", "")
            yield Canary(at, (old.minutes, old.spent), (new.minutes, new.spent), size, stage, kind)

    def _harmless(self, conditions: Conditions, at: int, seed: int, kind: str, what: str) -> Episode:
        found = self.simulate(conditions.between(at, at + WATCHED), at, seed)
        return Episode(at, found.minutes, found.spent, kind == "deploy", 0.0, "", kind, what, found.routes)

    def _episode(self, found: Traffic, at: int, release: bool, size: float, change: Change) -> Episode:
        what = f"{change.kind} {change.stage} {change.size:+.2f}"
        return Episode(at, found.minutes, found.spent, release, size, change.stage, _kind(change), what, found.routes)

    def _of_a_replica(self, conditions: Conditions, rng: np.random.Generator) -> Conditions:
        """Return *conditions* of the replicas of a canary: cold at first, with their own neighbours."""
        cold = conditions.cold.copy()
        cold[:3] = 0.2
        share = (conditions.share > 0) * float(rng.random() < 1 / self.service.replicas)
        return replace(conditions, cold=cold, share=share, drift=conditions.drift + drift_of_a_replica(rng, len(share)))

    def _change(self, rng: np.random.Generator, at: int, size: float, *, queue: bool) -> Change:
        """Return a change of a random stage by which p95 or p99 grows by *size* in the hours after *at*."""
        stages = [*(stage for stage in self.service.shapes if stage != "overhead"), *(["queue"] if queue else [])]
        conditions = self.conditions.between(at, at + TRUE_FOR)
        share = TRUTH_REQUESTS / float((conditions.rate * 60).sum())
        while True:
            stage = stages[int(rng.integers(len(stages)))]
            kind = "scale" if stage == "queue" else KINDS[int(rng.integers(len(KINDS)))]

            def tail(change: float, stage: str = stage, kind: str = kind) -> tuple[float, float]:
                one = Change(stage, kind, change)
                return tail_of(self.simulate(conditions, 0, 1, one, share).minutes)

            found = search(tail, size)
            if found is not None:
                return Change(stage, kind, found)


def _kind(change: Change) -> str:
    return "capacity" if change.stage == "queue" else change.kind
