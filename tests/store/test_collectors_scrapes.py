"""Scraped targets in the store, on every engine: one holder, and readings committed with their counts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from stagelens.core import names
from stagelens.core.histogram import Distribution, Interval
from stagelens.store import Batch, Point, Selection, Series
from stagelens.store.collectors import TargetLostError
from tests.support.raw_requests import NOON, Site

URL = "http://engine/metrics"
NOW = float(NOON)


def batch(name: str, count: int) -> Batch:
    made = Distribution()
    made.add(0.5, 1.0, count - 1)
    made.add(10.0, float("inf"), 1)
    made.set_sum(0.75 * count)
    points = [
        Point(Series("chat", model="m"), metric, names.BY_ENGINE, NOON, histogram)
        for metric, histogram in zip(names.ENGINE_REQUEST, (made.lows, made.highs), strict=True)
    ]
    return Batch(name, points)


def test_a_target_is_leased_by_one_collector_and_counted_once(site: Site) -> None:
    store = site.store
    first = store.take_target(URL, "a", NOW, 30)
    store.write_reading(URL, "a", NOW + 30, b"one", batch("1", 100))
    waiting = store.take_target(URL, "b", NOW + 29, 30)
    taken = store.take_target(URL, "b", NOW + 31, 30)
    with pytest.raises(TargetLostError):
        store.write_reading(URL, "a", NOW + 60, b"two", batch("2", 50))
    store.write_reading(URL, "b", NOW + 60, b"three", batch("3", 10))
    store.release_targets("b")
    back = store.take_target(URL, "a", NOW + 32, 30)
    window = Selection(datetime.fromtimestamp(NOON - 3600, UTC), datetime.fromtimestamp(NOON + 3600, UTC))
    before = store.read.engines(window)[0].requests
    # The error bounds are the same after rollup.
    site.clock.now = NOON + 3 * 3600
    store.maintain()
    after = store.read.engines(window)[0].requests

    assert (first, waiting, taken, back) == (b"", None, b"one", b"three")
    assert before.count == after.count == 110
    assert before.mean == after.mean == 0.75
    assert before.quantile(0.5) == after.quantile(0.5) == Interval(2 ** (-33 / 32), 1.0)
    assert after.quantile(1.0) == Interval(before.lows.quantile(1.0).low, float("inf"))  # pyright: ignore[reportOptionalMemberAccess] - it has values
