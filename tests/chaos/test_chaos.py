"""Nothing lost, nothing twice: a short part of what `make chaos` does at length."""

from __future__ import annotations

import pytest

from tests.chaos.chaos_run import Outcome, Plan, on_postgresql, on_sqlite, run
from tests.chaos.deployment import wait_until
from tests.support.postgresql_server import Server

pytestmark = pytest.mark.stacks


def test_killed_processes_count_every_request_once_in_a_file() -> None:
    with on_sqlite(seed=7) as deployment:
        outcome = run(deployment, Plan(kills=4, longest_seconds=0.3, clients=("agent", "sdk", "raw", "spans")), print)

        assert outcome.differences() == []
        _assert_that_it_was_hard(outcome, kills=4)


def test_killed_processes_count_every_request_once_with_two_collectors(postgresql_server: Server) -> None:
    with on_postgresql(7, postgresql_server) as deployment:
        outcome = run(deployment, Plan(kills=4, longest_seconds=0.3, clients=("agent", "raw", "grpc_spans")), print)

        assert outcome.differences() == []
        _assert_that_it_was_hard(outcome, kills=4)


def _assert_that_it_was_hard(outcome: Outcome, kills: int) -> None:
    assert outcome.met["kill"] == kills
    assert outcome.broken > kills
    assert all(outcome.sent.requests.values())


def test_an_agent_with_a_full_buffer_counts_the_lost_requests() -> None:
    with on_sqlite(seed=8) as deployment:
        # One export of it takes about 2 kB.
        deployment.send("agent", "shop", {"STAGELENS_BUFFER_SIZE": "10kB"})
        wait_until(lambda: "requests are not counted" in deployment.log_of("shop"), "the agent says that it drops them")
        outcome = run(deployment, Plan(kills=0, clients=()), print)

    assert 0 < outcome.stored.dropped < outcome.sent.requests["shop"]
    assert outcome.stored.requests["shop"] + outcome.stored.dropped == outcome.sent.requests["shop"]
