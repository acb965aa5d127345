"""How much of a service's time nobody explains: as the store has it, and what the profiler names in its place."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stagelens.analysis.profile import ProfileBand, functions, main_function
from stagelens.core.stages import UNEXPLAINED
from stagelens.store import Selection, Store

# The goals.
MAX_AT_MEDIAN, MAX_AT_TAIL = 0.10, 0.05
MIN_NAMED = 0.80
TAIL = 0.99
# A store has buckets of ten seconds.
BUCKET_SECONDS = 10
SETTLE_SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class Share:
    """Requests at one percentile.

    Args:
        seconds: Their latency.
        stages: Share of it by stage.
    """

    seconds: float
    stages: Mapping[str, float]

    @property
    def unexplained(self) -> float:
        """Share that is `handler` or unattributed."""
        return sum(self.stages.get(stage, 0.0) for stage in UNEXPLAINED)

    def largest(self, count: int) -> str:
        """Return the largest stages with their shares."""
        found = sorted(self.stages.items(), key=lambda item: -item[1])[:count]
        return ", ".join(f"{stage} {share:.0%}" for stage, share in found if share >= 0.005)


@dataclass(frozen=True, slots=True)
class Named:
    """The function with most of the unexplained time, as the service page shows it.

    Args:
        title: Its name and place.
        share: Share of the unexplained time in it and in what it calls. [0..1]
    """

    title: str
    share: float

    def __str__(self) -> str:
        return f"{self.title} {self.share:.0%}"


@dataclass(frozen=True, slots=True)
class Explained:
    """One service.

    Args:
        requests: Requests that were counted.
        route: Route with the most time, "" for none.
        median: Its requests at the median.
        tail: Its requests at p99.
        named: What the profiler names in its slow requests; None for nothing.
    """

    requests: int
    route: str
    median: Share
    tail: Share
    named: Named | None

    @property
    def good(self) -> bool:
        """Whether the goals are met."""
        by_stages = self.median.unexplained <= MAX_AT_MEDIAN and self.tail.unexplained <= MAX_AT_TAIL
        return by_stages or (self.named is not None and self.named.share >= MIN_NAMED)


def next_bucket() -> datetime:
    """Wait for the start of a bucket of the store, when all that came before has been exported, and return it."""
    ready = time.time() + 2
    begin = math.ceil(ready / BUCKET_SECONDS) * BUCKET_SECONDS
    time.sleep(begin - time.time())
    return datetime.fromtimestamp(begin, UTC)


def explained(store: Store, service: str, since: datetime, sent: int) -> Explained | None:
    """Return how the requests of *service* are explained, once *sent* have come or no more do; None if none came."""
    every = Selection(since, datetime.now(UTC) + timedelta(minutes=10), service=service)
    _await(store, every, sent)
    routes = store.read.dimensions(every).get("route", {})
    selections = [Selection(every.start, every.end, service=service, route=route) for route in routes] or [every]
    busiest = max(selections, key=lambda selection: store.read.latency(selection).sum)
    latency = store.read.latency(busiest)
    if not latency.count:
        return None
    at = store.read.breakdown(busiest, [0.5, TAIL])
    stages = [
        column
        for column in at.columns
        if column not in {"percentile", "n", "value_seconds", "low_seconds", "high_seconds"}
    ]
    median, tail = (
        Share(row["value_seconds"], {stage: row[stage] / row["value_seconds"] for stage in stages})
        for _, row in at.fillna(0.0).iterrows()
    )
    return Explained(latency.count, busiest.route or "", median, tail, _named(store.read.profile(busiest, [TAIL])))


def _await(store: Store, selection: Selection, sent: int) -> None:
    """Wait until *sent* requests have come, or none for some seconds."""
    came, changed = -1, time.monotonic()
    while came < sent and time.monotonic() < changed + SETTLE_SECONDS:
        count = store.read.latency(selection).count
        if count != came:
            came, changed = count, time.monotonic()
        time.sleep(0.2)
    # The profile of the last of them.
    time.sleep(2)


def _named(bands: Sequence[ProfileBand]) -> Named | None:
    """Return the function with most of the unexplained time in the slow requests; None if nothing was sampled there."""
    for band in bands:
        total = sum(band.stages.get(stage, 0.0) for stage in UNEXPLAINED) * 1000
        found = [each for each in functions(band) if each.stage in UNEXPLAINED and not each.is_library]
        if found and total:
            best = main_function(found, total)
            if best is not None:
                return Named(best[0].title, best[1])
            first = max(found, key=lambda each: each.tail_self_ms)
            return Named(first.title, first.tail_self_ms / total)
    return None


COLUMNS = ("service", "requests", "p50 [ms]", "grey", "p99 [ms]", "grey", "goal", "stages at p50 | named at the tail")
_LINE = "{:<18}{:>10}{:>10}{:>7}{:>10}{:>7}  {:<7} {}"


def header() -> str:
    """Return the head of the table."""
    return _LINE.format(*COLUMNS)


def line(name: str, found: Explained | None, sent: int) -> str:
    """Return the line of one service."""
    if found is None:
        return _LINE.format(name, f"0/{sent}", "", "", "", "", "MISSED", "no request was seen")
    return _LINE.format(
        name,
        f"{found.requests}/{sent}",
        f"{found.median.seconds * 1000:.1f}",
        f"{found.median.unexplained:.0%}",
        f"{found.tail.seconds * 1000:.1f}",
        f"{found.tail.unexplained:.0%}",
        "ok" if found.good else "MISSED",
        f"{found.median.largest(4)} | {found.named or 'nothing'}",
    )
