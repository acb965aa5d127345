"""Simulated series: the interface of both traffic models, and the periods that a detector is evaluated in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stagelens.analysis.attributes import AttributeCounts
from stagelens.analysis.regression.statistic import BUCKETS_A_DOUBLING, MinuteHistograms, StageSeconds
from stagelens.analysis.replicas import ReplicaCounts, ReplicaTable

Ints = NDArray[np.int64]
DAY, MINUTE = 1440, 60
REFERENCE_DAYS, EVALUATED_DAYS = 7, 7
DAYS = REFERENCE_DAYS + EVALUATED_DAYS
RATES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
SIZES = (0.10, 0.15, 0.20, 0.30, 0.50, 1.00)
# Time in which a regression must be found, and over which its true size holds. [minutes]
WATCHED, TRUE_FOR = 300, 120
# Time before an episode that the detector reads. [minutes]
BEFORE = 300
CANARY_SHARES = (0.05, 0.10, 0.25, 0.50)
CANARY_WATCHED = 180
# Requests from which the true size is calculated, and limit of the search for a change.
TRUTH_REQUESTS, LARGEST = 200_000, 8.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counted requests of a period; what a model does not simulate is None or empty.

    Args:
        minutes: Requests by minute, latency and time in each stage.
        spent: Time in each stage.
        replicas: Requests by replica, in steps of one minute.
        others: The same of each service on the same hosts.
        inputs: Requests by size of the request and of its batch, in steps of one minute.
        routes: Requests by route; empty for a single route.
    """

    minutes: MinuteHistograms
    spent: StageSeconds
    replicas: ReplicaTable | None = None
    others: tuple[ReplicaTable, ...] = ()
    inputs: AttributeCounts | None = None
    routes: Mapping[str, MinuteHistograms] = field(default_factory=dict[str, MinuteHistograms])


@dataclass(frozen=True, slots=True)
class Episode:
    """Period in which the service changes, or in which something harmless happens.

    Args:
        at: Its start. [minutes]
        minutes: Requests from then on.
        spent: Time in each stage.
        release: Whether a release begins at its start.
        size: True growth of p95 or p99, whichever is larger; 0 if nothing must alert. [ratio]
        stage: Stage that changed; empty for none.
        kind: Kind of the change or of the harmless event.
        what: Description.
        routes: Requests by route; empty for a single route.
        parts: Traffic of the days before it without the change, and its own.
    """

    at: int
    minutes: MinuteHistograms
    spent: StageSeconds
    release: bool
    size: float
    stage: str
    kind: str
    what: str
    routes: Mapping[str, MinuteHistograms] = field(default_factory=dict[str, MinuteHistograms], repr=False)
    parts: tuple[Traffic, ...] = field(default=(), repr=False)

    def replicas(self, start: int, end: int) -> ReplicaTable | None:
        """Return the requests by replica of the minutes [start, end), from `BEFORE` its start on; None if not simulated."""
        return replicas_between(self.parts, start, end)

    def others(self, start: int, end: int) -> tuple[ReplicaTable, ...]:
        """Return the requests by replica of each service on the same hosts."""
        return others_between(self.parts, start, end)

    def inputs(self, start: int, end: int) -> AttributeCounts | None:
        """Return the requests by input size."""
        return inputs_between(self.parts, start, end)


@dataclass(frozen=True, slots=True)
class Canary:
    """Two versions that serve at the same time; the fields as those of `Episode`.

    Args:
        old_replicas, new_replicas: Requests by replica of each version.
        others: Requests by replica of each service on the same hosts.
    """

    at: int
    old: tuple[MinuteHistograms, StageSeconds]
    new: tuple[MinuteHistograms, StageSeconds]
    size: float
    stage: str
    kind: str
    old_replicas: ReplicaTable | None = field(default=None, repr=False)
    new_replicas: ReplicaTable | None = field(default=None, repr=False)
    others: tuple[ReplicaTable, ...] = field(default=(), repr=False)


class World(ABC):
    """One simulated series of two weeks: the baseline is learned from the first, the second is evaluated.

    Args:
        seed: Seed of all of it.
        rate: Mean rate. [requests/s]
    """

    model: ClassVar[str]

    def __init__(self, seed: int, rate: float) -> None:
        self.seed, self.rate = seed, rate
        self._simulated: dict[int, Traffic] = {}

    @abstractmethod
    def _traffic(self, day: int) -> Traffic:
        """Simulate one day."""

    @abstractmethod
    def event(self, start: int, end: int) -> str:
        """Return the kind of the last noisy neighbour, crowd … in the minutes [start, end) without changes; empty for none."""

    def releases(self) -> frozenset[int]:
        """Return the starts of releases that change nothing; none in a model without them."""
        return frozenset()

    @abstractmethod
    def regressions(self, count: int) -> Iterator[Episode]:
        """Yield episodes in which a stage is slower or capacity is lost, at random times of the second week."""

    @abstractmethod
    def harmless(self) -> Iterator[Episode]:
        """Yield episodes that must not alert."""

    @abstractmethod
    def canaries(self, count: int) -> Iterator[Canary]:
        """Yield pairs of versions; every second canary is as fast as the old version."""

    def series(self, regressions: int, canaries: int) -> Series:
        """Return what is evaluated."""
        return Series(self, self.regressions(regressions), self.harmless(), self.canaries(canaries))

    def traffic(self, day: int) -> Traffic:
        """Return the traffic of one day in which the service does not change."""
        if day not in self._simulated:
            self._simulated[day] = self._traffic(day)
        return self._simulated[day]

    def day(self, number: int) -> tuple[MinuteHistograms, StageSeconds]:
        """Return the latency and the time in each stage of one day without changes."""
        found = self.traffic(number)
        return found.minutes, found.spent

    def replicas(self, start: int, end: int) -> ReplicaTable | None:
        """Return the requests by replica of the minutes [start, end) without changes; None if not simulated."""
        return replicas_between(self._days(start, end), start, end)

    def others(self, start: int, end: int) -> tuple[ReplicaTable, ...]:
        """Return the requests by replica of each service on the same hosts."""
        return others_between(self._days(start, end), start, end)

    def inputs(self, start: int, end: int) -> AttributeCounts | None:
        """Return the requests by input size."""
        return inputs_between(self._days(start, end), start, end)

    def _days(self, start: int, end: int) -> list[Traffic]:
        return [self.traffic(day) for day in range(start // DAY, -(-end // DAY))]


@dataclass(frozen=True, slots=True)
class Series:
    """Everything that a detector is evaluated on in one world; episodes may be simulated as they are read."""

    world: World
    regressions: Iterable[Episode]
    harmless: Iterable[Episode]
    canaries: Iterable[Canary]

    def simulated(self) -> Series:
        """Return it as a value that can be stored."""
        for day in range(DAYS):
            self.world.traffic(day)
        return Series(self.world, list(self.regressions), list(self.harmless), list(self.canaries))


def replicas_between(parts: Sequence[Traffic], start: int, end: int) -> ReplicaTable | None:
    """Return the requests by replica of the minutes [start, end) of consecutive *parts*; None if not simulated."""
    tables = [part.replicas for part in parts if part.replicas is not None]
    return _between(tables, start, end) if tables else None


def others_between(parts: Sequence[Traffic], start: int, end: int) -> tuple[ReplicaTable, ...]:
    """Return the requests by replica of each service on the same hosts."""
    return tuple(_between(tables, start, end) for tables in zip(*(part.others for part in parts), strict=True))


def inputs_between(parts: Sequence[Traffic], start: int, end: int) -> AttributeCounts | None:
    """Return the requests by input size."""
    counts = [part.inputs for part in parts if part.inputs is not None]
    if not counts:
        return None
    rows = _rows([each.starts for each in counts], start, end)
    joined = {
        name: {value: _joined([each.requests[name][value] for each in counts], rows) for value in values}
        for name, values in counts[0].requests.items()
    }
    return replace(counts[0], starts=_joined([each.starts for each in counts], rows), requests=joined)


def _between(tables: Sequence[ReplicaTable], start: int, end: int) -> ReplicaTable:
    """Return the steps in the minutes [start, end) of *tables* with the same buckets and replicas."""
    rows = _rows([table.starts for table in tables], start, end)
    replicas = [
        ReplicaCounts(
            parts[0].place,
            _joined([part.requests for part in parts], rows),
            {name: _joined([part.stages[name] for part in parts], rows) for name in parts[0].stages},
        )
        for parts in zip(*(table.replicas for table in tables), strict=True)
    ]
    starts = _joined([table.starts for table in tables], rows)
    return replace(tables[0], starts=starts, replicas=[each for each in replicas if each.requests.any()])


def _rows(starts: Sequence[Ints], start: int, end: int) -> list[slice]:
    """Return the steps of each part in the minutes [start, end); a part ends where the next one starts."""
    ends = [*(int(each[0]) for each in starts[1:]), end * MINUTE]
    return [
        slice(*np.searchsorted(each, (start * MINUTE, min(last, end * MINUTE))).tolist())
        for each, last in zip(starts, ends, strict=True)
    ]


def _joined(parts: Sequence[NDArray[Any]], rows: Sequence[slice]) -> Ints:
    return np.concatenate([part[each] for part, each in zip(parts, rows, strict=True)]).astype(np.int64)


def rate_of(seed: int) -> float:
    """Return the requests per second of the series of *seed*; eight consecutive seeds have all rates."""
    return RATES[seed % len(RATES)]


def size_of(number: int, seed: int) -> float:
    """Return the true growth of a regression: each size once in `len(SIZES)` consecutive ones."""
    return SIZES[(number + seed) % len(SIZES)]


def moment(rng: np.random.Generator) -> int:
    """Return a random minute of the second week at which an episode may begin."""
    return int(rng.integers(REFERENCE_DAYS * DAY + BEFORE, DAYS * DAY - WATCHED))


def search(tail: Callable[[float], tuple[float, float]], size: float) -> float | None:
    """Return the change at which p95 or p99 grows by *size*; None if there is none up to `LARGEST`.

    Args:
        tail: p95 and p99 by change.
        size: Growth of one of them. [ratio]
    """
    before = tail(0.0)

    def growth(change: float) -> float:
        return max(b / a - 1 for a, b in zip(before, tail(change), strict=True))

    low, high = 0.0, 0.25
    while growth(high) < size:
        low, high = high, high * 2
        if low > LARGEST:
            return None
    for _ in range(6):
        middle = (low + high) / 2
        low, high = (low, middle) if growth(middle) >= size else (middle, high)
    return (low + high) / 2


def tail_of(minutes: MinuteHistograms) -> tuple[float, float]:
    """Return p95 and p99 of all requests in seconds, interpolated within their buckets."""
    sums = minutes.total.sum(axis=0, dtype=np.int64).cumsum()
    return _quantile(sums, minutes, 0.95), _quantile(sums, minutes, 0.99)


def _quantile(sums: np.ndarray, minutes: MinuteHistograms, q: float) -> float:
    rank = q * sums[-1]
    place = int(np.searchsorted(sums, rank))
    below = sums[place - 1] if place else 0
    return 2 ** ((minutes.index[place] + (rank - below) / (sums[place] - below)) / BUCKETS_A_DOUBLING)
