"""Simulated services with a daily load pattern on a real store, and an evaluator that runs every minute."""

from __future__ import annotations

import math
import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from stagelens.alerts.delivery.channels import ChannelEntry
from stagelens.alerts.delivery.message import Message
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.incidents.notification_rules import IncidentUpdate
from stagelens.alerts.objectives.slo_file import Definitions
from stagelens.alerts.regression.watcher import RegressionRule
from stagelens.alerts.schema import outbox, transitions
from stagelens.core.attributes import ATTRIBUTE_SCALE, REPLICA, attribute_key, replica_stage_key
from stagelens.core.histogram import Histogram
from stagelens.core.names import (
    PROFILE_TIME,
    REPLICA_STAGE_TIME,
    REQUEST_BY_ATTRIBUTE,
    REQUEST_DURATION,
    STAGE_DURATION,
    STAGE_TIME,
)
from stagelens.store import Batch, Point, Series, Store
from tests.alerts.traffic import NOW, Clock

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
STAGES = {"forward": (0.020, 0.2), "preprocess": (0.008, 0.4), "queue": (0.001, 1.0)}
LOW, WIDTH = -420, 320
WATCHED = Definitions((), (ChannelEntry("slack", "slack", None, "SLACK_WEBHOOK_URL"),), "http://127.0.0.1:8600")


class Slow(NamedTuple):
    stage: str
    factor: float
    up_to: float = 1.0


Slower = tuple[Slow, ...]
SLOW: Slower = (Slow("preprocess", 1.6),)


@cache
def shape(slower: Slower) -> tuple[NDArray[np.float64], ...]:
    rng = np.random.default_rng(3)
    taken = np.array([median * rng.lognormal(0, spread, 40_000) for median, spread in STAGES.values()])
    whole = taken.sum(axis=0)
    for stage, factor, up_to in slower:
        taken[list(STAGES).index(stage)] *= np.where(whole <= np.quantile(whole, up_to), factor, 1.0)
    place = placed(taken.sum(axis=0))
    number = np.bincount(place, minlength=WIDTH)
    seconds = np.array([np.bincount(place, stage, WIDTH) / np.maximum(number, 1) for stage in taken])
    own = np.array([np.bincount(placed(stage), minlength=WIDTH) / stage.size for stage in taken])
    return number / number.sum(), own, seconds


def placed(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.clip(np.ceil(np.log2(seconds) * 32).astype(int) - 1 - LOW, 0, WIDTH - 1)


def histogram(amounts: NDArray[np.int64], total: float = 0.0) -> Histogram:
    places = np.flatnonzero(amounts)
    buckets = dict(zip((places + LOW).tolist(), amounts[places].tolist(), strict=True))
    return Histogram(buckets=buckets, sum=total)


@dataclass
class Service:
    """Writes the requests of a service with a daily load pattern, one point per minute.

    With *profiled*, each request is sampled: a slowdown of `preprocess` is in its function `resize`, the rest in `decode`.
    With *host*, requests are also counted by replica: one on that host.
    """

    name: str = "shop"
    rate: float = 600
    version: str = "1"
    route: str = "/fast"
    model: str = ""
    environment: str = ""
    profiled: bool = False
    host: str = ""
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def points(self, at: datetime, slower: Slower = (), *, version: str = "") -> Iterator[Point]:
        series = Series(self.name, version or self.version, self.environment, self.model, "", self.route, "", "ok")
        when = int(at.timestamp())
        n = self.rng.poisson(self.rate * (1 + 0.3 * np.sin(2 * np.pi * (when // 60) / 1440)))
        whole, own, seconds = shape(slower)
        total = self.rng.multinomial(n, whole)
        yield Point(series, REQUEST_DURATION, "forward", when, histogram(total))
        if self.host:
            counted = Histogram(ATTRIBUTE_SCALE, {0: int(total.sum())})
            yield Point(series, REQUEST_BY_ATTRIBUTE, attribute_key(REPLICA.key, f"{self.host}:1"), when, counted)
        for number, stage in enumerate(STAGES):
            yield Point(series, STAGE_DURATION, stage, when, histogram(self.rng.multinomial(n, own[number])))
            spent = np.rint(1e6 * seconds[number] * total).astype(int)
            yield Point(series, STAGE_TIME, stage, when, histogram(spent))
            if self.host:
                key = replica_stage_key(stage, f"{self.host}:1")
                time = Histogram(ATTRIBUTE_SCALE, {0: int(spent.sum())})
                yield Point(series, REPLICA_STAGE_TIME, key, when, time)
            if self.profiled and stage == "preprocess":
                added = spent - np.rint(spent / math.prod(each.factor for each in slower)).astype(int)
                yield Point(series, PROFILE_TIME, "preprocess;serve:decode@serve.py:28", when, histogram(spent - added))
                yield Point(series, PROFILE_TIME, "preprocess;serve:resize@serve.py:41", when, histogram(added))


def write(store: Store, points: list[Point]) -> None:
    name = f"{points[0].series}:{points[0].at}:{len(points)}"
    store.write([Batch(name, points, [], 0, "test")])


def recorded(path: Path, services: Sequence[tuple[Service, Slower]]) -> None:
    store = Store.open(f"sqlite:///{path}", clock=NOW.timestamp)
    for hour in range(48):
        start = NOW - 2 * DAY + hour * timedelta(hours=1)
        for service, slower in services:
            write(store, [point for minute in range(60) for point in service.points(start + minute * MINUTE, slower)])
    store.close()


@dataclass
class Simulation:
    store: Store
    evaluator: Evaluator
    clock: Clock
    service: Service = field(default_factory=Service)
    beside: list[tuple[Service, Slower]] = field(default_factory=list[tuple[Service, Slower]])
    turns: list[tuple[datetime, IncidentUpdate]] = field(default_factory=list[tuple[datetime, IncidentUpdate]])

    def write(self, minutes: int, slower: Slower = (), **more: Slower) -> None:
        points: list[Point] = []
        for _ in range(minutes):
            points += self.service.points(self.at, slower)
            for version, other in more.items():
                points += self.service.points(self.at, other, version=version)
            for service, other in self.beside:
                points += service.points(self.at, other)
            self.clock.at += MINUTE
        write(self.store, points)

    def run(self, minutes: int, slower: Slower = (), **more: Slower) -> None:
        for _ in range(minutes):
            self.write(1, slower, **more)
            self.evaluate()

    def evaluate(self, times: int = 1) -> None:
        for _ in range(times):
            happened = self.evaluator.tick(WATCHED, self.at + MINUTE / 2)
            self.turns += [(self.at, turn) for turn in happened]

    def restart(self) -> None:
        self.evaluator = evaluator(self.store)
        self.evaluate(12)

    @property
    def at(self) -> datetime:
        return self.clock.at

    @property
    def events(self) -> list[str]:
        return [turn.event for _, turn in self.turns]


def evaluator(store: Store) -> Evaluator:
    return Evaluator(store, "me", lease_seconds=30, rules=[RegressionRule(store)])


@contextmanager
def watched(history: Path, path: Path, looks: int = 2) -> Generator[Simulation]:
    shutil.copy(history, path)
    clock = Clock()
    store = Store.open(f"sqlite:///{path}", clock=clock)
    found = Simulation(store, evaluator(store), clock)
    found.evaluate(looks)
    yield found
    store.close()


def messages(store: Store) -> list[Message]:
    joined = (outbox.c.incident == transitions.c.incident) & (outbox.c.sequence == transitions.c.sequence)
    with store.engine.connect() as connection:
        rows = connection.execute(select(transitions.c.message).join(outbox, joined).order_by(outbox.c.id)).all()
    return [Message.from_json(row.message) for row in rows]
