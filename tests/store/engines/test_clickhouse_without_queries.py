"""Reads and writes that need no query to ClickHouse; `test_clickhouse.py` tests the others."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import Connection

from stagelens.core.names import METRICS
from stagelens.store.engines import database
from stagelens.store.engines.clickhouse import ClickHousePoints, ClickHouseServer
from stagelens.store.engines.clickhouse_sql import TableLocation
from stagelens.store.schema import Segment
from stagelens.store.storage import PointQuery, PreparedWrite
from tests.support.raw_requests import NOON, Request, Site


class IdleServer:
    place = TableLocation("stagelens", None)

    def check(self) -> None: ...


@pytest.fixture
def site(tmp_path: Path) -> Generator[Site]:
    site = Site(f"sqlite:///{tmp_path}/stagelens.db", {})
    site.write([Request({"forward": 1_000_000})])
    yield site
    site.close()


@pytest.fixture
def points() -> ClickHousePoints:
    return ClickHousePoints(cast(ClickHouseServer, IdleServer()))


def test_an_empty_write_inserts_nothing(site: Site, points: ClickHousePoints) -> None:
    finished: list[Connection] = []

    assert not points.apply(site.store.engine, lambda _: None)
    assert points.apply(site.store.engine, lambda _: PreparedWrite(1, [], finished.append))
    assert len(finished) == 1


def test_an_unknown_service_needs_no_query(site: Site, points: ClickHousePoints) -> None:
    segment = Segment(10, NOON - 900, NOON)
    unknown = PointQuery(site.around(service="unknown"), sorted(METRICS))
    with database.reading(site.store.engine) as connection:
        assert list(points.read(connection, unknown, [segment], None)) == []
        assert points.seen(connection, unknown, [segment]) == []
        assert points.number(connection, unknown, [segment]) == 0
        with pytest.raises(AttributeError, match="rows"):
            points.number(connection, PointQuery(site.around(service="shop"), sorted(METRICS)), [segment])
