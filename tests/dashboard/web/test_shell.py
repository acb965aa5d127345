"""The frame of the pages: notices about the limits of the store."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import THIN
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.routing import context_of
from stagelens.dashboard.web.shell import side, stale_banner
from stagelens.store import Batch, Point, Retention, Series, SeriesCaps, Store
from tests.dashboard.served_versions import NOW


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    retention, caps = Retention(budget_bytes=10 * 1024**3), SeriesCaps(route=2)
    opened = open_store("small.db", retention=retention, series_caps=caps, clock=NOW.timestamp)
    histogram = Histogram()
    histogram.record(0.1)
    at = int(NOW.timestamp()) - 300
    points = [
        Point(Series(service, "1", route=f"/{route}"), REQUEST_DURATION, "forward", at, histogram)
        for service in ("shop", "desk")
        for route in range(4)
    ]
    opened.write([Batch("b", points)])
    return opened


def words(node: Any) -> str:
    if isinstance(node, list | tuple):
        return " ".join(words(each) for each in node)
    content = node if isinstance(node, str) else "" if node is None else words(getattr(node, "children", None))
    return content.replace(THIN, " ")


def foot(store: Store, address: str) -> str:
    source = Source(store, None, NOW.timestamp)
    return words(side(context_of(parse(address, "", NOW), source), address, source.state()))


def test_detail_removed_by_the_storage_budget_is_shown(store: Store) -> None:
    kept_from = int((NOW - timedelta(hours=3)).timestamp()) // 3600 * 3600
    with store.transaction() as connection:
        connection.execute(text("UPDATE rollups SET kept_from = :at WHERE tier = 10"), {"at": kept_from})

    found = re.search(
        r"10 s buckets before 20 Nov 09:00 were deleted; the store now has (\d+) KiB, its budget is 10 GiB",
        foot(store, "/"),
    )
    assert found is not None
    assert int(found[1]) == round(store.read.state().size_bytes / 1024)


def test_values_over_their_cap_are_shown_on_the_affected_pages(store: Store) -> None:
    shop, desk = (f"{name} has more than 2 routes: new ones count as Other" for name in ("shop", "desk"))

    assert shop in foot(store, "/")
    assert desk in foot(store, "/")
    assert shop in foot(store, "/s/shop")
    assert desk not in foot(store, "/s/shop")


def test_a_store_within_its_limits_has_no_notice(open_store: Callable[..., Store]) -> None:
    sidebar = foot(open_store("new.db", clock=NOW.timestamp), "/")

    assert "budget" not in sidebar
    assert "has more than" not in sidebar


@pytest.mark.parametrize(
    ("search", "after", "expected"),
    [
        ("", timedelta(seconds=20), ""),
        ("", timedelta(minutes=3), "No data for 3 m."),
        ("?from=1795100000000&to=1795103600000", timedelta(minutes=3), ""),
    ],
)
def test_stopped_data_is_shown_with_its_age(store: Store, search: str, after: timedelta, expected: str) -> None:
    source = Source(store, None, (NOW + after).timestamp)
    shown = stale_banner(context_of(parse("/", search, NOW + after), source), source.state())

    assert words(shown).partition("  ")[0][: len(expected)] == expected
    assert (shown is None) == (not expected)
