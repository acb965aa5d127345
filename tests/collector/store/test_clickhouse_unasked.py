"""What needs no query to ClickHouse makes none; the server itself is in `test_clickhouse.py`."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import Connection

from stagelens.collector.store.engines import database
from stagelens.collector.store.engines.clickhouse import ClickHousePoints
from stagelens.collector.store.engines.clickhouse_connection import Server
from stagelens.collector.store.engines.clickhouse_ddl import Place
from stagelens.collector.store.points import Change, Question
from stagelens.collector.store.tiers import Segment
from stagelens.core.names import METRICS
from tests.support.raw_requests import NOON, Request, Site


class IdleServer:
    """A ClickHouse that lives, and has no other method: a query or an insert raises AttributeError."""

    place = Place("stagelens", None)

    def check(self) -> None:
        """Live."""


@pytest.fixture
def site(tmp_path: Path) -> Generator[Site]:
    """A store in SQLite with one request of the service "shop"."""
    site = Site(f"sqlite:///{tmp_path}/stagelens.db", {})
    site.write([Request({"forward": 1_000_000})])
    yield site
    site.close()


@pytest.fixture
def points() -> ClickHousePoints:
    """Points in a server that must not be asked."""
    return ClickHousePoints(cast(Server, IdleServer()))


def test_a_write_that_has_nothing_to_write_inserts_nothing(site: Site, points: ClickHousePoints) -> None:
    """Neither one that was found unnecessary nor one without rows, which is still finished."""
    finished: list[Connection] = []

    assert not points.apply(site.store.engine, lambda _: None)
    assert points.apply(site.store.engine, lambda _: Change(1, [], finished.append))
    assert len(finished) == 1


def test_a_service_that_was_never_seen_is_not_asked_for(site: Site, points: ClickHousePoints) -> None:
    """The database knows all services; one that was seen is asked for."""
    segment = Segment(10, NOON - 900, NOON)
    never = Question(site.around(service="never"), sorted(METRICS))
    with database.reading(site.store.engine) as connection:
        assert list(points.read(connection, never, segment, None)) == []
        assert points.seen(connection, never, segment) == []
        assert points.number(connection, never, segment) == 0
        with pytest.raises(AttributeError, match="rows"):
            points.number(connection, Question(site.around(service="shop"), sorted(METRICS)), segment)
