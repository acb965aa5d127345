"""Raw requests, aggregated as by an agent, and stores for them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from stagelens.analysis.breakdown import RankWindow
from stagelens.core.attributes import ATTRIBUTE_SCALE, REPLICA, attribute_key, replica_stage_key
from stagelens.core.histogram import SCALE, Histogram, bucket_index
from stagelens.core.names import REPLICA_STAGE_TIME, REQUEST_BY_ATTRIBUTE, REQUEST_DURATION, STAGE_DURATION, STAGE_TIME
from stagelens.store import Batch, Point, RetainedTrace, Selection, Series, Store

# 2026-11-20 12:00:00 UTC: the start of an hour.
NOON = 1_795_176_000
NS = 1_000_000_000


SHOP = Series("shop", "1")


class Clock:
    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Request:
    stages_ns: dict[str, int]
    at: int = NOON - 600
    series: Series = SHOP

    @property
    def seconds(self) -> float:
        return sum(self.stages_ns.values()) / NS

    @property
    def dominant(self) -> str:
        return max(self.stages_ns, key=lambda stage: self.stages_ns[stage])


@dataclass
class PointAggregator:
    """Makes points of requests, as an agent does: three histograms for each series and 10 s."""

    scale: int = SCALE
    histograms: defaultdict[tuple[Series, str, str, int], Histogram] = field(init=False)

    def __post_init__(self) -> None:
        self.histograms = defaultdict(lambda: Histogram(self.scale))

    def points(self, requests: Iterable[Request]) -> list[Point]:
        for request in requests:
            at = request.at - request.at % 10
            self.histograms[request.series, REQUEST_DURATION, request.dominant, at].record(request.seconds)
            for stage, spent in request.stages_ns.items():
                self.histograms[request.series, STAGE_DURATION, stage, at].record(spent / NS)
                time = self.histograms[request.series, STAGE_TIME, stage, at]
                time.record(request.seconds, spent // 1000)
                time.sum = 0.0
        return [Point(*key, histogram) for key, histogram in self.histograms.items()]


def attribute_points(requests: Iterable[Request]) -> list[Point]:
    """Return points of two tenants and of two replicas, as agents send them with *requests*."""
    points: list[Point] = []
    for number, request in enumerate(requests):
        latency = Histogram(ATTRIBUTE_SCALE)
        latency.record(request.seconds)
        place = f"web-{number % 2}:7"
        points += [
            Point(
                request.series, REQUEST_BY_ATTRIBUTE, attribute_key("tenant", str(number // 2 % 2)), request.at, latency
            ),
            Point(request.series, REQUEST_BY_ATTRIBUTE, attribute_key(REPLICA.key, place), request.at, latency),
        ]
        for stage, spent in request.stages_ns.items():
            time = Histogram(ATTRIBUTE_SCALE, dict.fromkeys(latency.buckets, spent // 1000))
            if time.count:
                points.append(
                    Point(request.series, REPLICA_STAGE_TIME, replica_stage_key(stage, place), request.at, time)
                )
    return points


def retained(request: Request, number: int, because: str = "slow") -> RetainedTrace:
    """Return *request* as retained with the trace and the span *number*."""
    spent = sum(request.stages_ns.values())
    spans = [{"name": "é", "stage": request.dominant, "start_ns": 0, "duration_ns": spent}]
    return RetainedTrace(
        f"{number:032x}",
        f"{number:016x}",
        request.series,
        request.at * NS,
        spent,
        because,
        request.dominant,
        request.stages_ns,
        spans,
    )


_batch_numbers = itertools.count()


@dataclass
class Site:
    url: str
    options: dict[str, Any]
    clock: Clock = field(default_factory=Clock)
    _others: list[Site] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        self.store = Store.open(self.url, clock=self.clock, **self.options)

    def reopen(self) -> None:
        self.store.close()
        self.__post_init__()

    def another(self, clock: Clock | None = None) -> Site:
        self._others.append(Site(self.url, self.options, clock or self.clock))
        return self._others[-1]

    def close(self) -> None:
        while self._others:
            self._others.pop().close()
        self.store.close()

    def write(self, requests: Sequence[Request], *, scale: int = SCALE) -> None:
        batch = Batch(f"batch-{next(_batch_numbers)}", PointAggregator(scale).points(requests))

        assert self.store.write([batch]) == [True]

    def around(self, **dimensions: str) -> Selection:
        return self.between(int(self.clock.now) - 86_400, int(self.clock.now) + 60, **dimensions)

    def between(self, start: int, end: int, **dimensions: str) -> Selection:
        return Selection(datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC), **dimensions)


OpenSite = Callable[..., Site]


def window_shares(
    spent: Sequence[Mapping[str, float]], seconds: Sequence[float], quantile: float, scale: int = SCALE
) -> tuple[int, dict[str, float]]:
    """Return the requests around a percentile, and the mean of their *spent* nanoseconds by key, relative to their latencies."""
    buckets: dict[int, list[int]] = defaultdict(list)
    for place, each in enumerate(seconds):
        buckets[bucket_index(each, scale)].append(place)
    groups = [buckets[index] for index in sorted(buckets)]
    window = RankWindow.of([quantile], [len(seconds)], [0])
    shares: dict[str, float] = defaultdict(float)
    weights = window.weights(np.array([len(group) for group in groups]))[0].tolist()
    for weight, group in zip(weights, groups, strict=True):
        for place in group:
            for key, value in spent[place].items():
                shares[key] += weight * value / sum(seconds[each] * NS for each in group)
    return sum(len(group) for weight, group in zip(weights, groups, strict=True) if weight), dict(shares)
