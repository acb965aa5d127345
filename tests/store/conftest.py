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


@pytest.fixture(scope="session", params=ENGINES)
def open_site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenSite:
    """Function that opens a new, empty store of each engine with the given options."""
    return _opener(request.param, request, tmp_path_factory)


@pytest.fixture(scope="session", params=SHARED_ENGINES)
def open_shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenSite:
    """Function that opens a new, empty store of engines that several processes can share with the given options."""
    return _opener(request.param, request, tmp_path_factory)


@pytest.fixture(scope="session", params=OWN_POINTS)
def open_sql(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenSite:
    """Function that opens a new, empty store of engines with points in the database with the given options."""
    return _opener(request.param, request, tmp_path_factory)


@pytest.fixture(scope="session", params=[pytest.param("postgresql", marks=pytest.mark.stacks)])
def open_postgresql(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenSite:
    """Function that opens a new, empty store of PostgreSQL with the given options."""
    return _opener(request.param, request, tmp_path_factory)


@pytest.fixture(scope="session")
def open_sqlite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenSite:
    """Function that opens a new, empty store of SQLite with the given options."""
    return _opener("sqlite", request, tmp_path_factory)


@pytest.fixture(scope="session", params=ENGINES)
def open_target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenSite:
    """Function that opens a new, empty store of each engine, for the target of a copy with the given options."""
    return _opener(request.param, request, tmp_path_factory)


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


def _opener(engine: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenSite:
    opened: list[Site] = request.getfixturevalue("opened_sites")
    database, _, points = engine.partition("+")

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
