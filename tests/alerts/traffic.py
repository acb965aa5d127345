"""Request histograms in a store, in the format of an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from stagelens.alerts.objectives.slo import Slo
from stagelens.core.histogram import Histogram
from stagelens.core.names import PROFILE_TIME, REQUEST_DURATION, STAGE_DURATION, STAGE_TIME
from stagelens.store import Batch, Point, Series, Store

_BUCKET = timedelta(seconds=10)
NOW = datetime(2026, 11, 20, 3, 4, tzinfo=UTC)
FAST = {"forward": 0.020, "preprocess": 0.010, "queue": 0.002, "overhead": 0.001}
SLOW = {"forward": 0.020, "preprocess": 0.390, "queue": 0.022, "overhead": 0.001}
LATENCY = Slo("magika-latency", "magika-demo", 0.99, timedelta(days=30), timedelta(milliseconds=250))
# Returns the seconds of a request by stage and stack, from its seconds by stage.
Code = Callable[[Mapping[str, float]], Mapping[str, float]]


@dataclass
class Clock:
    at: datetime = NOW

    def __call__(self) -> float:
        return self.at.timestamp()


@dataclass
class Traffic:
    store: Store
    clock: Clock
    batches: int = field(default=0)

    def __call__(
        self,
        start: datetime,
        length: timedelta,
        mixes: Mapping[int, Mapping[str, float]],
        *,
        service: str = "magika-demo",
        version: str = "1",
        errors: int = 0,
        code: Code = lambda _stages: {},
    ) -> None:
        at, points = start, list[Point]()
        while at < start + length:
            for count, stages in mixes.items():
                points += request_points(
                    Series(service, version, "", "", "", "", "", "ok"), at, count, stages, code(stages)
                )
            if errors:
                points += request_points(
                    Series(service, version, "", "", "", "", "", "error"), at, errors, {"forward": 0.01}
                )
            at += _BUCKET
        self.batches += 1
        self.clock.at = max(self.clock.at, at)
        self.store.write([Batch(f"batch:{self.batches}", points, [], 0, "test")])


def request_points(
    series: Series, at: datetime, count: int, stages: Mapping[str, float], stacks: Mapping[str, float] | None = None
) -> list[Point]:
    total, when = sum(stages.values()), int(at.timestamp())
    dominant = max(stages, key=lambda stage: stages[stage])
    points = [Point(series, REQUEST_DURATION, dominant, when, _histogram(total, count))]
    for stage, seconds in stages.items():
        points.append(Point(series, STAGE_DURATION, stage, when, _histogram(seconds, count)))
        points.append(Point(series, STAGE_TIME, stage, when, _histogram(total, round(seconds * 1e6) * count)))
    for key, seconds in (stacks or {}).items():
        points.append(Point(series, PROFILE_TIME, key, when, _histogram(total, round(seconds * 1e6) * count)))
    return points


def _histogram(value: float, count: int) -> Histogram:
    histogram = Histogram()
    histogram.record(value, count)
    return histogram
