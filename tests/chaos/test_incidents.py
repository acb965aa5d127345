"""Nobody notified twice, nobody forgotten: a short part of what `make chaos` does at length."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from stagelens.collector.store import Store
from tests.alerts.watch import Watch
from tests.chaos.incidents import Receivers, run
from tests.support.postgresql_server import Server

pytestmark = pytest.mark.stacks


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Store]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/alerts.db"
    else:
        server: Server = request.getfixturevalue("postgresql_server")
        url = server.new_database()
    opened = Store.open(url)
    yield opened
    opened.close()


@pytest.fixture
def receivers() -> Generator[Receivers]:
    made = Receivers(seed=7)
    yield made
    for each in made.all:
        each.close()


def test_whoever_is_killed_or_suspended_everybody_is_notified_once(
    store: Store, receivers: Receivers, tmp_path: Path
) -> None:
    """Three incidents begin and end while processes come and go and half of all requests fail."""
    watch = Watch(store, tmp_path / "slo.yaml", receivers.channels)
    try:
        outcome = run(watch, receivers, incidents=3, seed=7)
    finally:
        watch.processes.close()

    assert outcome.differences() == []
    assert {"killed", "suspended"} <= outcome.met.keys()
    assert outcome.failed[0] > 0
