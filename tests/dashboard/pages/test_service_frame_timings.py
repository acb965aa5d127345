"""Notices about invalid server timings on the page of a service: number of calls by dialect."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION, STAGE_DURATION, SUSPECT_REPORT
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import as_html
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.routing import context_of, page_of
from stagelens.store import Batch, Point, Series, Store

NOW = datetime(2026, 11, 20, 12, 0, 3, tzinfo=UTC)
LAST = int(NOW.timestamp()) // 10 * 10 - 20


def served(service: str, **suspects: int) -> Batch:
    """Return a hundred requests of 10 ms, and calls with refused server timings by dialect."""
    series = Series(service, "1")

    def of(count: int) -> Histogram:
        histogram = Histogram()
        histogram.record(0.01, count)
        return histogram

    points = [Point(series, metric, "dependency", LAST, of(100)) for metric in (REQUEST_DURATION, STAGE_DURATION)]
    points += [Point(series, SUSPECT_REPORT, dialect, LAST, of(count)) for dialect, count in suspects.items()]
    return Batch(service, points, [], 0, "one")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    """One service that calls servers with invalid timings, and one with valid ones."""
    store = Store.open(f"sqlite:///{tmp_path_factory.mktemp('note') / 'note.db'}", clock=NOW.timestamp)
    store.write([served("told", tgi=12, groq=1), served("well")])
    yield Source(store, None, NOW.timestamp)
    store.close()


def page_text(source: Source, address: str) -> str:
    """Return a page."""
    path, _, search = address.partition("?")
    page = page_of(context_of(parse(path, search, NOW), source))
    assert page is not None
    return as_html(page.body)


def test_calls_without_a_split_are_counted_by_dialect(source: Source) -> None:
    page = page_text(source, "/s/told?from=now-15m")

    assert "13 calls with invalid server timings (tgi 12 times, groq 1 time)" in page


def test_valid_timings_show_no_notice(source: Source) -> None:
    assert "are invalid" not in page_text(source, "/s/well?from=now-15m")
