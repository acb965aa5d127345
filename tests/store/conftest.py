"""Stores for tests: every test with the fixture `site` runs on each engine."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from tests.store.clickhouse_server import clickhouse_server, new_database
from tests.support.postgresql_server import Server
from tests.support.raw_requests import Site

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
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[..., Site]]:
    yield from _sites(request.param, request, tmp_path_factory)


@pytest.fixture(scope="session", params=SHARED_ENGINES)
def shared_site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Callable[..., Site]]:
    yield from _sites(request.param, request, tmp_path_factory)


@pytest.fixture(scope="session", params=OWN_POINTS)
def database_points_site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Callable[..., Site]]:
    yield from _sites(request.param, request, tmp_path_factory)


@pytest.fixture(scope="session", params=[pytest.param("postgresql", marks=pytest.mark.stacks)])
def postgresql_site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Callable[..., Site]]:
    yield from _sites("postgresql", request, tmp_path_factory)


@pytest.fixture(scope="session")
def sqlite_site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Callable[..., Site]]:
    yield from _sites("sqlite", request, tmp_path_factory)


@pytest.fixture(scope="session", params=ENGINES)
def target_site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Callable[..., Site]]:
    yield from _sites(request.param, request, tmp_path_factory)


def _sites(
    engine: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Callable[..., Site]]:
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

    yield make
