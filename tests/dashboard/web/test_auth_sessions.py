"""Revoked sessions."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from stagelens.dashboard.web.auth import RevokedSessions
from stagelens.store import Store
from tests.support.postgresql_server import Server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.stacks)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Store]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/stagelens.db"
    else:
        server: Server = request.getfixturevalue("postgresql_server")
        url = server.new_database()
    opened = Store.open(url)
    yield opened
    opened.close()


def test_a_sign_out_holds_in_every_dashboard_of_the_store(store: Store) -> None:
    RevokedSessions(store, lambda: 0.0).add("cookie")
    other = RevokedSessions(store, lambda: 1.0)

    assert "cookie" in other
    assert "another cookie" not in other
