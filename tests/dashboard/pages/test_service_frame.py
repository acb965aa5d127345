"""Notices on the page of a service: agents with a budget, and invalid server timings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import as_html
from stagelens.store import Batch, Point, Series, Store
from tests.dashboard.rendering import page_at
from tests.dashboard.served_versions import NOW

LAST = int(NOW.timestamp()) // 10 * 10 - 20
LONG_AGO = LAST - 600


def of(value: float, count: int = 100) -> Histogram:
    histogram = Histogram()
    histogram.record(value, count)
    return histogram


def served(service: str, at: int, level: str, cost: float) -> Batch:
    """Write a hundred requests of 10 ms, as recorded by an agent at *level*."""
    series, stage = Series(service, "1"), UNTIMED if level == "requests_only" else "forward"
    spent = Histogram(buckets=dict.fromkeys(of(0.01).buckets, 1000000))
    points = [
        Point(series, REQUEST_DURATION, stage, at, of(0.01)),
        Point(series, STAGE_DURATION, stage, at, of(0.01)),
        Point(series, STAGE_TIME, stage, at, spent),
        Point(series, AGENT_COST, level, at, of(cost)),
        Point(series, AGENT_BACKGROUND, level, at, of(7e-6)),
    ]
    return Batch(f"{service}:{at}", points, [], 0, "one")


def timed(service: str, **suspects: int) -> Batch:
    """Return a hundred requests of 10 ms, and calls with refused server timings by dialect."""
    series = Series(service, "1")
    points = [Point(series, metric, "dependency", LAST, of(0.01)) for metric in (REQUEST_DURATION, STAGE_DURATION)]
    points += [Point(series, SUSPECT_REPORT, dialect, LAST, of(0.01, count)) for dialect, count in suspects.items()]
    return Batch(service, points, [], 0, "one")


@pytest.fixture(scope="module")
def source(open_module_store: Callable[[], Store]) -> Source:
    store = open_module_store()
    store.write([served("well", at, "all", 14e-6) for at in (LONG_AGO, LAST)])
    store.write([served("less", LONG_AGO, "all", 150e-6), served("less", LAST, "requests_only", 20e-6)])
    store.write([served("back", LONG_AGO - back, "no_facts", 20e-6) for back in (0, 60)])
    store.write([served("back", LAST, "all", 14e-6)])
    store.write([served("silent", LONG_AGO, "all", 150e-6)])
    nothing = [Point(Series("silent", "1"), AGENT_COST, "nothing", LAST, of(0.0, 1))]
    store.write([Batch("nothing", nothing, [], 0, "one")])
    store.write([timed("suspect", tgi=12, groq=1)])
    return Source(store, None, NOW.timestamp)


def page_text(source: Source, address: str) -> str:
    return as_html(page_at(source, address).body)


def test_a_service_that_records_everything_shows_only_the_cost(source: Source) -> None:
    page = page_text(source, "/s/well?from=now-15m")

    assert "Agent overhead per request: 14" in page
    assert "(0.14" in page
    assert "plus 7" in page
    assert "reached their overhead budget" not in page


@pytest.mark.parametrize("tab", ["", "/traces", "/capacity", "/advice"])
def test_reduced_recording_is_shown_on_every_page(source: Source, tab: str) -> None:
    page = page_text(source, f"/s/less{tab}?from=now-15m")

    assert "At full detail, the overhead of a request is 157" in page
    assert "of which 7" in page
    assert (
        "Since 11:59: 100 of 200 requests were recorded with less detail: their stages are not recorded and show as Not timed"
        in page
    )


def test_past_reduced_recording_is_shown_with_its_end(source: Source) -> None:
    page = page_text(source, "/s/back?from=now-15m")

    assert "From 11:48 to 11:49: 200 of 300 requests" in page
    assert "tokens, batch sizes, attributes and failed calls are unknown" in page
    assert "reached their overhead budget" not in page_text(source, "/s/back?from=now-5m")


def test_a_window_without_recorded_requests_is_explained(source: Source) -> None:
    page = page_text(source, "/s/silent?from=now-5m")

    assert "No request in this window" in page
    assert "recorded nothing" in page


def test_calls_without_a_split_are_counted_by_dialect(source: Source) -> None:
    page = page_text(source, "/s/suspect?from=now-15m")

    assert "13 calls with invalid server timings (tgi 12 times, groq 1 time)" in page
    assert "invalid server timings" not in page_text(source, "/s/well?from=now-15m")
