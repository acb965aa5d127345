"""A service with twelve replicas, one of which is slow because its GPU is hot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from stagelens.analysis.replicas import ReplicaCounts, ReplicaTable
from stagelens.core.attributes import REPLICA, attribute_key
from stagelens.core.hardware import GPU, GPU_CLOCK, GPU_HOT, Measure, hardware_key, host_of
from stagelens.core.histogram import Histogram
from stagelens.core.names import (
    HARDWARE,
    REPLICA_STAGE_TIME,
    REQUEST_BY_ATTRIBUTE,
    REQUEST_DURATION,
    STAGE_DURATION,
    STAGE_TIME,
)
from stagelens.store import Batch, Point, Series, Store
from stagelens.store.events import StoredLoad
from tests.support.replica_traffic import MINUTE, START, Traffic

SERVICE = "checkout"
PLACES = tuple(f"checkout-7f6b{number:x}:1" for number in range(4, 16))
SLOW, ONSET, MINUTES = PLACES[5], 30, 45
NOW = datetime.fromtimestamp(START + MINUTES * MINUTE, UTC)
_ALL = Series(SERVICE, "2.0.0", model="risk-ranker", route="/v1/order")


def traffic(slow: float = 3.3) -> Traffic:
    """Return the requests of 45 minutes, of which the last 15 are slow at one replica."""
    return Traffic(PLACES, MINUTES, rate=1.5, seconds=0.02, tail=0.01, uneven=0.2, slow={SLOW: (slow, ONSET)})


def store_of(folder: Path, made: Traffic, *, series: Series = _ALL, loads: bool = True, hardware: bool = True) -> Store:
    """Return a store with the requests *made*, of processes that reported their start and their GPUs or not."""
    table = made.table(np.random.default_rng(20261127))
    points = points_of(table, series)
    if hardware:
        points += [point for replica in table.replicas for point in _gpu(series, replica.place, table.starts.tolist())]
    store = Store.open(f"sqlite:///{folder / 'replicas.db'}", clock=NOW.timestamp)
    store.write([Batch("all", points, [], 0, PLACES[0], loads=list(_loads()) if loads else [])])
    store.maintain()
    return store


def points_of(table: ReplicaTable, series: Series) -> list[Point]:
    """Return *table* as points of *series*, counted by replica and as requests."""
    return [point for replica in table.replicas for point in _points(series, table, replica)]


def _points(series: Series, table: ReplicaTable, replica: ReplicaCounts) -> Iterator[Point]:
    key = attribute_key(REPLICA.key, replica.place)
    for step, at in enumerate(table.starts.tolist()):
        filled = dict(zip(table.index.tolist(), replica.requests[step].tolist(), strict=True))
        counted = Histogram(table.scale, {index: n for index, n in filled.items() if n})
        counted.sum = sum(each[step] for each in replica.stages.values()) / 1e6
        yield Point(series, REQUEST_BY_ATTRIBUTE, key, at, counted)
        yield Point(series, REQUEST_DURATION, "forward", at, counted)
        yield Point(series, STAGE_DURATION, "forward", at, counted)
        for stage, spent in replica.stages.items():
            time = Histogram(table.scale, {max(counted.buckets): int(spent[step])})
            yield Point(series, REPLICA_STAGE_TIME, f"{stage};{replica.place}", at, time)
            yield Point(series, STAGE_TIME, stage, at, time)


def _gpu(series: Series, place: str, times: Sequence[int]) -> Iterator[Point]:
    for step, at in enumerate(times):
        hot = place == SLOW and step >= ONSET
        values: tuple[tuple[Measure, float], ...] = (
            (GPU, 0.7),
            (GPU_CLOCK, 1.005e9 if hot else 1.755e9),
            (GPU_HOT, 0.9 if hot else 0.0),
        )
        for measure, value in values:
            observed = Histogram()
            observed.record(value)
            yield Point(series, HARDWARE, hardware_key(measure.key, f"{host_of(place)}/gpu0"), at, observed)


def _loads() -> Iterator[StoredLoad]:
    """Yield the starts: a day ago, and of one replica an hour ago for the second time."""
    for number, place in enumerate(PLACES):
        for again in range(2 if number == 2 else 1):
            ended = (START - 86_400 + 82_800 * again + 60 * number) * 10**9
            instance = f"{place}-{again}"
            yield StoredLoad(SERVICE, "2.0.0", "", instance, place, "start", "", "", ended - 10**10, ended, 10**10)
