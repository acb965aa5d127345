"""Exactly-once notifications under failures: a short run of what `make chaos` does at length."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from stagelens.store import Store
from tests.alerts.watch import Watch
from tests.chaos.incidents import Receivers, run
from tests.support.postgresql_server import Server

pytestmark = pytest.mark.stacks


@pytest.fixture
def store(postgresql_server: Server) -> Generator[Store]:
    opened = Store.open(postgresql_server.new_database())
    yield opened
    opened.close()


@pytest.fixture
def receivers() -> Generator[Receivers]:
    made = Receivers(seed=6)
    yield made
    for each in made.all:
        each.close()


def test_notifications_arrive_exactly_once_while_processes_die_or_are_suspended(
    store: Store, receivers: Receivers, tmp_path: Path
) -> None:
    watch = Watch(store, tmp_path / "slo.yaml", receivers.channels)
    try:
        outcome = run(watch, receivers, incidents=1, seed=6)
    finally:
        watch.processes.close()

    assert outcome.differences() == []
    assert {"killed", "suspended"} <= outcome.met.keys()
    assert outcome.failed[0] > 0
