"""Notices on the page of a service: agents with a budget, and invalid server timings."""

from __future__ import annotations

from collections.abc import Callable

from stagelens.core.histogram import Histogram
from stagelens.core.names import (
    AGENT_BACKGROUND,
    AGENT_COST,
    REQUEST_DURATION,
    STAGE_DURATION,
    STAGE_TIME,
    SUSPECT_REPORT,
)
from stagelens.core.stages import UNTIMED
from stagelens.store import Batch, Point, Series, Store
from tests.dashboard.rendering import check_views, observed, source_of
from tests.dashboard.served_versions import NOW

LAST = int(NOW.timestamp()) // 10 * 10 - 20
LONG_AGO = LAST - 600


def served(service: str, at: int, level: str, cost: float) -> Batch:
    """Write a hundred requests of 10 ms, as recorded by an agent at *level*."""
    series, stage, latency = (
        Series(service, "1"),
        UNTIMED if level == "requests_only" else "forward",
        observed(0.01, 100),
    )
    points = [
        Point(series, REQUEST_DURATION, stage, at, latency),
        Point(series, STAGE_DURATION, stage, at, latency),
        Point(series, STAGE_TIME, stage, at, Histogram(buckets=dict.fromkeys(latency.buckets, 1000000))),
        Point(series, AGENT_COST, level, at, observed(cost, 100)),
        Point(series, AGENT_BACKGROUND, level, at, observed(7e-6, 100)),
    ]
    return Batch(f"{service}:{at}", points, [], 0, "one")


def timed(service: str, **suspects: int) -> Batch:
    """Return a hundred requests of 10 ms, and calls with refused server timings by dialect."""
    series, latency = Series(service, "1"), observed(0.01, 100)
    points = [Point(series, metric, "dependency", LAST, latency) for metric in (REQUEST_DURATION, STAGE_DURATION)]
    points += [Point(series, SUSPECT_REPORT, dialect, LAST, observed(0.01, n)) for dialect, n in suspects.items()]
    return Batch(service, points, [], 0, "one")


def test_pages_say_how_much_agents_record(open_module_store: Callable[[], Store]) -> None:
    store = open_module_store()
    store.write([served("well", at, "all", 14e-6) for at in (LONG_AGO, LAST)])
    store.write([served("less", LONG_AGO, "all", 150e-6), served("less", LAST, "requests_only", 20e-6)])
    store.write([served("back", LONG_AGO - back, "no_facts", 20e-6) for back in (0, 60)])
    store.write([served("back", LAST, "all", 14e-6), served("silent", LONG_AGO, "all", 150e-6)])
    nothing = [Point(Series("silent", "1"), AGENT_COST, "nothing", LAST, observed(0.0))]
    store.write([Batch("nothing", nothing, [], 0, "one"), timed("suspect", tgi=12, groq=1)])
    check_views("service_frame", source_of(store))
