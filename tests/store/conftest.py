"""Stores for tests: a test with the fixture `site` or `open_site` runs on each engine."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from tests.store.clickhouse_server import clickhouse_server, new_database
from tests.support.postgresql_server import Server
from tests.support.raw_requests import OpenSite, Site

# Engine of the database, and of the points if they are elsewhere. Servers are for the second tier.
OWN_POINTS = ("sqlite", pytest.param("postgresql", marks=pytest.mark.stacks))
ENGINES = (*OWN_POINTS, pytest.param("sqlite+clickhouse", marks=pytest.mark.stacks))
# Several collectors that share points in ClickHouse share a PostgreSQL database.
SHARED_ENGINES = (*OWN_POINTS, pytest.param("postgresql+clickhouse", marks=pytest.mark.stacks))


@pytest.fixture(scope="session")
def opened_sites() -> list[Site]:
    return []


@pytest.fixture(autouse=True)
def _closed(opened_sites: list[Site]) -> Generator[None]:
    """Close the stores after each test, because a server has a limited number of connections."""
    yield
    while opened_sites:
        opened_sites.pop().close()


@pytest.fixture(scope="session")
def new_clickhouse() -> Generator[Callable[[], str]]:
    """Function that returns URLs of new ClickHouse databases without a time to live, because tests set the clock."""
    with clickhouse_server() as form:
        yield lambda: form.format(new_database()) + "&ttl=off"


def opener(*engines: object) -> Any:
    """Return a fixture with a function that opens a new, empty store of each of *engines* with the given options."""

    @pytest.fixture(scope="session", params=engines)
    def open_one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenSite:
        opened: list[Site] = request.getfixturevalue("opened_sites")
        database, _, points = request.param.partition("+")

        def make(**options: Any) -> Site:
            if database == "postgresql":
                server: Server = request.getfixturevalue("postgresql_server")
                url = server.new_store()
            else:
                url = f"sqlite:///{tmp_path_factory.mktemp('site')}/stagelens.db"
            if points:
                new_points: Callable[[], str] = request.getfixturevalue("new_clickhouse")
                options["points_url"] = new_points()
            opened.append(Site(url, options))
            return opened[-1]

        return make

    return open_one


open_site = opener(*ENGINES)
# For the target of a copy.
open_target = opener(*ENGINES)
# Engines that several processes can share.
open_shared = opener(*SHARED_ENGINES)
# Engines with points in the database.
open_sql = opener(*OWN_POINTS)
open_postgresql = opener(OWN_POINTS[1])
open_sqlite = opener("sqlite")


@pytest.fixture
def site(open_site: OpenSite) -> Site:
    return open_site()


@pytest.fixture
def shared(open_shared: OpenSite) -> Site:
    return open_shared()


@pytest.fixture
def sql(open_sql: OpenSite) -> Site:
    return open_sql()


@pytest.fixture
def postgresql(open_postgresql: OpenSite) -> Site:
    return open_postgresql()


@pytest.fixture
def sqlite(open_sqlite: OpenSite) -> Site:
    return open_sqlite()
