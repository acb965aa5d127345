"""A store of 300 services, each a little slower than the one before."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION
from stagelens.store import Batch, Point, Series, Store

NOW = datetime(2026, 11, 20, 12, 0, 3, tzinfo=UTC)
MANY = 300
_REQUESTS = 1000


def crowd_at(path: Path) -> Store:
    """Write them and return the store, which the caller closes."""
    store = Store.open(f"sqlite:///{path}", clock=NOW.timestamp)
    at = int(NOW.timestamp()) // 10 * 10 - 120
    points: list[Point] = []
    for each in range(MANY):
        histogram = Histogram()
        for _ in range(_REQUESTS):
            histogram.record(0.01 * 1.02**each)
        stage = "decode" if each % 3 else "forward"
        points.append(Point(Series(f"service-{each:03d}", "1", model="m"), REQUEST_DURATION, stage, at, histogram))
    store.write([Batch("crowd", points)])
    return store
