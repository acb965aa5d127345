"""A store of 300 services, each a little slower than the one before."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from stagelens.core.names import REQUEST_DURATION
from stagelens.store import Batch, Point, Series, Store
from tests.dashboard.rendering import observed

NOW = datetime(2026, 11, 20, 12, 0, 3, tzinfo=UTC)
MANY = 300
_REQUESTS = 1000


def crowd_at(path: Path) -> Store:
    """Write them and return the store, which the caller closes."""
    store = Store.open(f"sqlite:///{path}", clock=NOW.timestamp)
    at = int(NOW.timestamp()) // 10 * 10 - 120
    points: list[Point] = []
    for index in range(MANY):
        series, stage = Series(f"service-{index:03d}", "1", model="m"), "decode" if index % 3 else "forward"
        points.append(Point(series, REQUEST_DURATION, stage, at, observed(0.01 * 1.02**index, _REQUESTS)))
    store.write([Batch("crowd", points)])
    return store
