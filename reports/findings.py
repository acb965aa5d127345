"""What a run's store says of it, in the numbers of the dashboard: the same questions, the same rules of how many are enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ..core.confidence import has_enough_samples, interval
from ..core.histogram import Estimate
from ..dashboard.figures.percentile import PERCENTILES
from ..dashboard.format import percentile
from ..dashboard.pages.measures import smoothed, stages_at
from ..dashboard.view import trace_name
from ..store import KeptTrace, Reader, Selection

QUANTILES = (0.5, 0.95, 0.99)
# The tail is the furthest of these that so many requests can tell.
_TAILS = (0.99, 0.95, 0.9)
_MOST_ROUTES = 8
_BUCKET = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Line:
    """Requests in a few numbers.

    Args:
        name: Whose they are.
        requests: How many. [count]
        errors: How many of them failed. [count]
        quantiles: The latency at `QUANTILES`, with what the true one lies between at 95 %; None where too few stand above. [seconds]
    """

    name: str
    requests: int
    errors: int
    quantiles: Sequence[Estimate | None]


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the time of some requests goes.

    Args:
        quantile: At which percentile; None for the mean of all. [0..1]
        stages: Stage to seconds; they add up to the latency there.
    """

    quantile: float | None
    stages: Mapping[str, float]

    @property
    def name(self) -> str:
        """The name of the percentile."""
        return "mean" if self.quantile is None else percentile(self.quantile)

    @property
    def seconds(self) -> float:
        """The latency there."""
        return sum(self.stages.values())


@dataclass(frozen=True, slots=True)
class Service:
    """What is known of one service.

    Args:
        whole: All its requests.
        routes: Those of each route, where it has several, most first.
        more_routes: How many routes it has besides.
        typical: Where the time goes in the median, or on average where there are too few.
        tail: Where it goes at the highest percentile that so many can tell; None where that is the median at best.
        slowest: The slowest request that was kept.
    """

    whole: Line
    routes: Sequence[Line]
    more_routes: int
    typical: Parts
    tail: Parts | None
    slowest: KeptTrace | None


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of a run.

    Args:
        services: Those that had requests, most first.
        dropped: Requests that could not be counted.
    """

    services: Sequence[Service]
    dropped: int


def extent(read: Reader) -> tuple[datetime, datetime] | None:
    """Return from when to when there are requests, in whole buckets; None without any."""
    seen = read.releases()
    return None if seen.empty else (seen["first_seen"].min(), seen["last_seen"].max() + _BUCKET)


def findings(read: Reader) -> Findings:
    """Return what *read* says of all it has."""
    window, dropped = extent(read), read.state().dropped
    if window is None:
        return Findings([], dropped)
    found = read.services(*window).sort_values("requests", ascending=False)
    return Findings([_service(read, Selection(*window, service=name)) for name in found["service"]], dropped)


def _service(read: Reader, about: Selection) -> Service:
    whole = _line(read, about.service or "", about)
    routes = list(read.dimensions(about)["route"])
    shown = routes[:_MOST_ROUTES] if len(routes) > 1 else []
    typical, tail = _parts(read, about, whole.requests)
    kept = read.exemplars(about, limit=1)
    return Service(
        whole,
        [_line(read, route, replace(about, route=route)) for route in shown],
        len(routes) - len(shown) if shown else 0,
        typical,
        tail,
        read.trace(trace_name(*kept.iloc[0][["trace_id", "span_id"]])) if len(kept) else None,
    )


def _line(read: Reader, name: str, about: Selection) -> Line:
    latency = read.latency(about)
    n = latency.count
    errors = read.latency(replace(about, status="error")).count
    return Line(
        name, n, errors, [interval(latency, each) if has_enough_samples(n, each) else None for each in QUANTILES]
    )


def _parts(read: Reader, about: Selection, requests: int) -> tuple[Parts, Parts | None]:
    if not has_enough_samples(requests, 0.5):
        mean = read.breakdown_over_time(about, None, about.end - about.start)
        return Parts(None, stages_at(mean.drop(columns="at"), 0)), None
    frame = smoothed(read.breakdown(about, PERCENTILES))
    tail = next((each for each in _TAILS if has_enough_samples(requests, each)), None)
    parts = [Parts(each, stages_at(frame, PERCENTILES.index(each))) for each in (0.5, tail) if each is not None]
    return parts[0], parts[1] if tail else None
