"""Periods that the detector is evaluated in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagelens.analysis.attributes import AttributeCounts
from stagelens.analysis.regression.statistic import BUCKETS_A_DOUBLING, MinuteHistograms, StageSeconds
from stagelens.analysis.replicas import ReplicaCounts, ReplicaTable

from .simulate import MINUTE, Traffic

Ints = NDArray[np.int64]
DAY = 1440
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
class Period:
    """Consecutive parts of simulated traffic; times in minutes."""

    parts: Sequence[Traffic]

    def replicas(self, start: int, end: int) -> ReplicaTable:
        return _between([part.replicas for part in self.parts], start, end)

    def others(self, start: int, end: int) -> tuple[ReplicaTable, ...]:
        return tuple(_between(tables, start, end) for tables in zip(*(part.others for part in self.parts), strict=True))

    def inputs(self, start: int, end: int) -> AttributeCounts:
        counts = [part.inputs for part in self.parts]
        rows = _rows([count.starts for count in counts], start, end)
        joined = {
            name: {value: _joined([count.requests[name][value] for count in counts], rows) for value in values}
            for name, values in counts[0].requests.items()
        }
        return replace(counts[0], starts=_joined([count.starts for count in counts], rows), requests=joined)


def _between(tables: Sequence[ReplicaTable], start: int, end: int) -> ReplicaTable:
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
    return replace(tables[0], starts=starts, replicas=[replica for replica in replicas if replica.requests.any()])


def _rows(starts: Sequence[Ints], start: int, end: int) -> list[slice]:
    """Return the steps of each part in the minutes [start, end); a part ends where the next one starts."""
    ends = [*(int(each[0]) for each in starts[1:]), end * MINUTE]
    return [
        slice(*np.searchsorted(each, (start * MINUTE, min(last, end * MINUTE))).tolist())
        for each, last in zip(starts, ends, strict=True)
    ]


def _joined(parts: Sequence[NDArray[Any]], rows: Sequence[slice]) -> Ints:
    return np.concatenate([part[each] for part, each in zip(parts, rows, strict=True)]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Episode:
    """Period in which the service changes, or in which something harmless happens.

    *at* is its start in minutes, *release* says whether a release begins there, *size* is the true growth of p95 or p99, whichever is
    larger, and 0 if nothing must alert. *period* is the traffic of the days before it without the change, and its own.
    """

    at: int
    minutes: MinuteHistograms
    spent: StageSeconds
    release: bool
    size: float
    stage: str
    kind: str
    what: str
    period: Period = field(repr=False)


@dataclass(frozen=True, slots=True)
class Canary:
    """Two versions that serve at the same time; the fields as those of `Episode`."""

    at: int
    old: tuple[MinuteHistograms, StageSeconds]
    new: tuple[MinuteHistograms, StageSeconds]
    size: float
    stage: str
    kind: str


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
    """Return the change at which p95 or p99, which *tail* returns, grows by *size*; None if there is none up to `LARGEST`."""
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
