"""Traffic model that simulates each request: it arrives at a replica, waits for a worker, and spends its time in the stages.

Replicas have workers with a FIFO queue each. A balancer assigns requests in turn or at random. Times in stages depend on the size
of the request and of its batch, with gamma noise; waiting times follow from the workers' completions (Lindley's recursion).
Replicas of several services share hosts, and their CPU stages share the hosts' noisy neighbours.

Source: D. V. Lindley, The theory of queues with a single server, Math. Proc. Cambridge Phil. Soc. 48 (1952), 277-289.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stagelens.analysis.replicas import ReplicaTable

from .episodes import (
    BEFORE,
    CANARY_SHARES,
    CANARY_WATCHED,
    DAY,
    DAYS,
    TRUE_FOR,
    TRUTH_REQUESTS,
    WATCHED,
    Canary,
    Episode,
    Period,
    moment,
    rate_of,
    search,
    size_of,
    tail_of,
)
from .service import (
    EVENTS,
    MAX_UTILISATION,
    NEVER,
    Conditions,
    Floats,
    Rng,
    Service,
    dependency,
    deploy,
    make_conditions,
    make_hosts,
    make_service,
    start_crowd,
    utilisation,
)
from .simulate import MINUTE, Change, Traffic, simulate

KINDS = ("scale", "add", "tail", "capacity")


class World:
    """One simulated series of two weeks: the baseline is learned from the first, the second is evaluated."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rate = seed, rate_of(seed)
        rng = np.random.default_rng((seed, 1))
        replicas = int(rng.choice([1, 2, 4, 8]))
        hosts = min(replicas, int(rng.choice([1, 2, 4])))
        self.service = make_service((seed,), self.rate, replicas, hosts)
        host, slow = make_hosts(rng, hosts, DAYS * DAY)
        self.conditions = make_conditions(self.service, host, slow)
        self.other_services = [
            make_service((seed, number), float(rng.choice([1, 2, 5, 10])), hosts, hosts)
            for number in range(1, 2 + int(rng.integers(2)))
        ]
        self.other_conditions = [make_conditions(each, host, slow) for each in self.other_services]

        self._days: dict[int, Traffic] = {}

    def traffic(self, day: int) -> Traffic:
        """Return the traffic of one day in which the service does not change."""
        if day not in self._days:
            self._days[day] = self._traffic(day)
        return self._days[day]

    def period(self, start: int, end: int) -> Period:
        """Return the days with the minutes [start, end) without changes."""
        return Period([self.traffic(day) for day in range(start // DAY, -(-end // DAY))])

    def _traffic(self, day: int) -> Traffic:
        minutes = slice(day * DAY, (day + 1) * DAY)
        own = simulate(self.service, self.conditions.at(minutes), minutes.start, 0)[0]
        return own.traffic(self._others(self.conditions.host[:, minutes], minutes.start))

    def event(self, start: int, end: int) -> str:
        found = self.conditions.event[start:end]
        return EVENTS[int(found[np.flatnonzero(found)[-1]])] if found.any() else ""

    def releases(self) -> frozenset[int]:
        is_deploy = self.conditions.event == EVENTS.index("deploy")
        return frozenset((np.flatnonzero(is_deploy[1:] & ~is_deploy[:-1]) + 1).tolist())

    def regressions(self, count: int) -> Iterator[Episode]:
        """Yield episodes in which a stage is slower or capacity is lost, half of them with a rolling deployment."""
        rng = np.random.default_rng((self.seed, 10))
        for number in range(count):
            size, at = size_of(number, self.seed), moment(rng)
            change, release = self._change(rng, at, size, KINDS), bool(rng.random() < 0.5)
            conditions = self._from(at)
            conditions.new[:] = True
            if release:
                conditions.new[:] = False
                deploy(self.service, conditions, 0, at, rng)
            what = f"{change.kind} {change.stage} {change.size:+.2f}"
            yield self._episode(
                conditions,
                at,
                seed=100 + number,
                kind=change.kind,
                what=what,
                size=size,
                change=change,
                release=release,
            )

    def harmless(self) -> Iterator[Episode]:
        """Yield episodes that must not alert, of each kind."""
        rng = np.random.default_rng((self.seed, 11))
        events = ("blip",) * 3 + ("dependency",) * 2 + ("deploy",) * 2 + ("crowd",) * 2 + ("neighbour",) * 3 + ("mix",)
        for number, kind in enumerate(events):
            at = moment(rng)
            conditions = self._from(at)
            length = int(rng.integers(5, 46) if kind in ("crowd", "neighbour") else rng.integers(3, 11))
            times = float(rng.uniform(1.5, 4))
            if kind == "blip":
                times = self._bounded(conditions, 1.5 * times)
                conditions.stage[:, :length] *= times
            elif kind == "dependency":
                stage, times = dependency(self.service), self._bounded(conditions, times)
                conditions.stage[stage, :length] *= times
            elif kind == "deploy":
                deploy(self.service, conditions, 0, at, rng)
            elif kind == "crowd":
                start_crowd(self.service, conditions, (0, length), times, at)
            elif kind == "neighbour":
                times = float(rng.uniform(1.05, 1.35))
                conditions.host[int(rng.choice(self.service.hosts)), :length] *= times
            else:
                length, times = int(rng.integers(60, WATCHED)), float(rng.uniform(1.3, 2.5))
                conditions.large[:length] *= times
            what = f"{kind}, {length} min at {times:.2f}x"
            yield self._episode(conditions, at, seed=200 + number, kind=kind, what=what)

    def canaries(self, count: int) -> Iterator[Canary]:
        rng = np.random.default_rng((self.seed, 12))
        for number in range(count):
            at, share = moment(rng), float(rng.choice(CANARY_SHARES))
            size = 0.0 if number % 2 else size_of(number // 2, self.seed)
            change = self._change(rng, at, size, KINDS[:3]) if size else None
            service, conditions = self._with_canary(at, share, rng)
            old, new = simulate(service, conditions, at, 400 + number, change)
            a, b = old.traffic(()), new.traffic(())
            stage, kind = (change.stage, change.kind) if change else ("", "")
            yield Canary(at, (a.minutes, a.spent), (b.minutes, b.spent), size, stage, kind)

    def _from(self, at: int) -> Conditions:
        return self.conditions.at(slice(at, at + WATCHED))

    def _bounded(self, conditions: Conditions, times: float) -> float:
        """Return *times*, limited so that the workers are not overloaded for hours afterwards."""
        return max(1.3, min(times, MAX_UTILISATION / float(utilisation(self.service, conditions.rate[:10]).max())))

    def _with_canary(self, at: int, share: float, rng: Rng) -> tuple[Service, Conditions]:
        """Return the service in which *share* of the replicas, at least one, is replaced by a new version at *at*."""
        base = self.service.base
        more = max(1, round(base * share))
        hosts = rng.integers(0, int(self.service.hosts.max()) + 1, more)
        service = replace(
            self.service,
            hosts=np.append(self.service.hosts, hosts),
            speed=np.append(self.service.speed, rng.lognormal(0, 0.02, more)),
            canaries=more,
        )
        usual = self.conditions.at(slice(at, at + CANARY_WATCHED))
        # A single replica goes on beside the new one.
        usual.live[max(base - more, 1) : base] = False

        def extended(values: NDArray[np.generic], value: object) -> NDArray[np.generic]:
            return np.concatenate((values, np.full((more, CANARY_WATCHED), value, values.dtype)))

        return service, replace(
            usual,
            live=extended(usual.live, value=True),
            started=extended(usual.started, at),
            new=extended(usual.new, value=True),
        )

    def _episode(
        self,
        conditions: Conditions,
        at: int,
        *,
        seed: int,
        kind: str,
        what: str,
        size: float = 0.0,
        change: Change | None = None,
        release: bool = False,
    ) -> Episode:
        own = simulate(self.service, conditions, at, seed, change)[0].traffic(self._others(conditions.host, at))
        stage = change.stage if change else ""
        release = release or kind == "deploy"
        period = Period([*self.period(at - BEFORE, at).parts, own])
        return Episode(at, own.minutes, own.spent, release, size, stage, kind, what, period)

    def _others(self, host: Floats, start: int) -> tuple[ReplicaTable, ...]:
        """Return the requests by replica of the services on the same hosts, which have the speed *host*."""
        part = slice(start, start + host.shape[1])
        return tuple(
            simulate(each, replace(conditions.at(part), host=host), start, 0)[0].replicas()
            for each, conditions in zip(self.other_services, self.other_conditions, strict=True)
        )

    def _change(self, rng: Rng, at: int, size: float, kinds: Sequence[str]) -> Change:
        stages = [stage for stage in self.service.shapes if stage != "overhead"]
        minutes = np.arange(at, at + TRUE_FOR, max(1, int(self.rate * MINUTE * TRUE_FOR / TRUTH_REQUESTS)))
        needed = TRUTH_REQUESTS / float(self.conditions.rate[minutes].mean() * MINUTE)
        conditions = self.conditions.at(np.resize(minutes, math.ceil(needed)))
        conditions.new[:], conditions.started[:] = True, NEVER
        while True:
            kind = str(rng.choice(kinds))
            for stage in ["queue"] if kind == "capacity" else rng.permutation(stages).tolist():

                def tail(change: float, stage: str = stage, kind: str = kind) -> tuple[float, float]:
                    found = simulate(self.service, conditions, 0, 1, Change(stage, kind, change), only_total=True)
                    return tail_of(found[0].traffic(()).minutes)

                found = search(tail, size)
                if found is not None:
                    return Change(stage, kind, found)
