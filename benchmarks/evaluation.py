"""What evaluating takes of a core: the search for slower tails for each series, and burn rates for each objective.

    python benchmarks/evaluation.py [--services N] [--routes N] [--hours H] [--minutes N] [--objectives N] [--database URL]

A store is filled with services whose routes each serve 600 requests a minute, a service and its routes being the series
that are watched: by the minute, and the last of them in steps of ten seconds, as agents send them. What is normal is learnt
from all of it, one series an evaluation as it is in production; then minute by minute is judged, as time goes by.

CPU time is that of this process, SQLite's included, which is in it; the median of all evaluations. Shares of a core are for
an evaluation every minute (tails are judged by the minute) and every 10 s (burn rates are). The goal: 1,000 series take at
most 1 % of a core.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median

import numpy as np
from costs.table import Table

from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.objectives.slo import Slo
from stagelens.alerts.objectives.slo_file import Definitions
from stagelens.alerts.regression.watcher import RegressionRule
from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION, STAGE_DURATION, STAGE_TIME
from stagelens.store import Batch, Point, Series, Store

START = datetime(2026, 11, 1, tzinfo=UTC)
MINUTE, TICK = timedelta(minutes=1), timedelta(seconds=10)
STAGES = {"forward": (0.020, 0.2), "preprocess": (0.008, 0.4), "queue": (0.001, 1.0)}
PER_MINUTE, STEPS = 600, 6
# How many different minutes there are; drawing each would take longer than all else.
DRAWN = 64
MINUTE_SECONDS, TICK_SECONDS, THOUSAND = 60, 10, 1000


@dataclass
class Clock:
    """The time of the store and of the alerts."""

    at: datetime = START

    def __call__(self) -> float:
        """Say the time in Unix seconds."""
        return self.at.timestamp()


@dataclass
class World:
    """Services that go on as they did.

    Args:
        store: Where their requests are.
        clock: Moved on by what they write.
        services: How many.
        routes: How many each of them has.
    """

    store: Store
    clock: Clock
    services: int
    routes: int
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def __post_init__(self) -> None:
        """Draw requests."""
        self.minutes = [list(_drawn(self.random, PER_MINUTE)) for _ in range(DRAWN)]
        self.steps = [list(_drawn(self.random, PER_MINUTE // STEPS)) for _ in range(DRAWN)]

    @property
    def series(self) -> list[Series]:
        """Each route of each service."""
        return [
            Series(f"service-{service}", "1", "", "", "", f"/route/{route}", "", "ok")
            for service in range(self.services)
            for route in range(self.routes)
        ]

    def write(self, pool: list[list[tuple[str, str, Histogram]]], length: timedelta) -> None:
        """Let *length* go by, with requests of *pool* in it."""
        at = int(self.clock())
        points = [
            Point(series, metric, stage, at, histogram)
            for series in self.series
            for metric, stage, histogram in pool[self.random.integers(DRAWN)]
        ]
        self.clock.at += length
        self.store.write([Batch(f"batch:{at}:{length}", points, [], 0, "benchmark")])

    def minute(self) -> None:
        """Let a minute go by as agents tell it."""
        for _ in range(STEPS):
            self.write(self.steps, TICK)


def _drawn(random: np.random.Generator, number: int) -> Iterator[tuple[str, str, Histogram]]:
    """Yield what *number* requests are counted as."""
    taken = np.array([median_ * random.lognormal(0, spread, number) for median_, spread in STAGES.values()])
    yield REQUEST_DURATION, "forward", _histogram(taken.sum(axis=0), np.ones(number))
    for stage, seconds in zip(STAGES, taken, strict=True):
        yield STAGE_DURATION, stage, _histogram(seconds, np.ones(number))
        yield STAGE_TIME, stage, _histogram(taken.sum(axis=0), 1e6 * seconds)


def _histogram(seconds: np.ndarray, weights: np.ndarray) -> Histogram:
    made = Histogram()
    for value, weight in zip(seconds.tolist(), weights.tolist(), strict=True):
        made.record(value, round(weight))
    return made


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=4, help="how many (default: %(default)s)")
    parser.add_argument("--routes", type=int, default=20, help="of each service (default: %(default)s)")
    parser.add_argument(
        "--hours", type=int, default=25, help="that are learnt from, at least 25 (default: %(default)s)"
    )
    parser.add_argument("--minutes", type=int, default=30, help="that are judged (default: %(default)s)")
    parser.add_argument("--objectives", type=int, default=20, help="that are evaluated (default: %(default)s)")
    parser.add_argument("--database", default="", help="an empty one (default: a new SQLite file)")
    return parser.parse_args()


def cpu(work: Callable[[], object]) -> float:
    """Return the seconds of processor time *work* takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def tails(world: World, minutes: int) -> tuple[float, float]:
    """Return the seconds of processor time to learn what is normal for one series, and to judge one minute of all."""
    evaluator = Evaluator(world.store, "tails", lease_seconds=60, rules=[RegressionRule(world.store)])
    watched = Definitions()
    number = world.services * (world.routes + 1)
    # The first evaluation looks who there is.
    evaluator.tick(watched, world.clock.at)
    learning = [cpu(lambda: evaluator.tick(watched, world.clock.at)) for _ in range(number)]
    judging: list[float] = []
    for _ in range(minutes):
        world.minute()
        judging.append(cpu(lambda: evaluator.tick(watched, world.clock.at)))
    return median(learning), median(judging)


def burn_rates(world: World, objectives: int) -> float:
    """Return the seconds of processor time one evaluation of *objectives* takes."""
    month, limit = timedelta(days=30), timedelta(milliseconds=250)
    slos = tuple(
        Slo(f"slo-{number}", f"service-{number % world.services}", 0.99, month, limit) for number in range(objectives)
    )
    evaluator = Evaluator(world.store, "tails", lease_seconds=60)
    taken: list[float] = []
    for _ in range(STEPS):
        world.write(world.steps, TICK)
        taken.append(cpu(lambda: evaluator.tick(Definitions(slos), world.clock.at)))
    return median(taken)


def main() -> None:
    """Fill a store, measure and print."""
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        store = Store.open(options.database or f"sqlite:///{folder}/stagelens.db", clock=clock)
        world = World(store, clock, options.services, options.routes)
        for _ in range(options.hours):
            for _ in range(60):
                world.write(world.minutes, MINUTE)
            store.maintain()
        learning, judging = tails(world, options.minutes)
        burning = burn_rates(world, options.objectives)
        store.close()
    number = options.services * (options.routes + 1)
    table = Table(f"Processor time, {number} series, {options.objectives} objectives", "ms", "% of a core")
    share = THOUSAND / number * judging / MINUTE_SECONDS
    table.row("tails: 1,000 series, by the minute", f"{1e6 * judging / number:.0f}", f"{100 * share:.2f}")
    daily = THOUSAND * learning / 86_400
    table.row("tails: 1,000 series, learnt once a day", f"{1e6 * learning:.0f}", f"{100 * daily:.2f}")
    one = burning / options.objectives
    table.row("burn rates: one objective, every 10 s", f"{1e3 * one:.1f}", f"{100 * one / TICK_SECONDS:.3f}")
    table.print()


if __name__ == "__main__":
    main()
