"""Two `stagelens alerts` processes over one store, killed at critical moments, with a real receiver."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select, update

from stagelens.alerts.schema import outbox
from stagelens.store import Store
from stagelens.store.schema import leases
from tests.alerts.database_triggers import begin_endless, end_endless, is_stuck, note_turns, turns
from tests.alerts.receiver import Moods
from tests.alerts.traffic import Traffic
from tests.alerts.vendors import SignedHook
from tests.alerts.watch import Watch, events, lease_of, process_of

pytestmark = pytest.mark.stacks

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
FAST, SLOW = {"forward": 0.020}, {"forward": 0.020, "preprocess": 0.390}
TIMEOUT_SECONDS = 60.0


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < end, "not within the deadline"
        time.sleep(0.002)


def evaluated_after(store: Store, at: float) -> bool:
    return lease_of(store).done_at > at


def has_delivered(watch: Watch, hook: SignedHook, messages: int) -> bool:
    return len(hook.accepted) == messages and watch.is_settled()


@pytest.fixture
def hook() -> Generator[SignedHook]:
    # The messages of the fourth incident are accepted without a response and sent again.
    made = SignedHook(Moods(failing=0.0, hold=frozenset({7, 9}), after=True))
    yield made
    made.close()


@pytest.fixture
def watch(store: Store, slo_yaml: Path, hook: SignedHook) -> Generator[Watch]:
    made = Watch(store, slo_yaml, f'  - {{kind: webhook, url: "{hook.url}/alerts", secret: s3cret}}\n')
    made.write_slos()
    yield made
    made.processes.close()


@contextmanager
def judging(watch: Watch) -> Generator[int]:
    end = time.monotonic() + TIMEOUT_SECONDS
    before = lease_of(watch.store)
    while time.monotonic() < end:
        found = lease_of(watch.store)
        if found.until > before.until and found.done_at == before.done_at:
            with watch.store.transaction():
                # The process may have been faster than the test.
                if lease_of(watch.store).done_at == found.done_at:
                    yield process_of(found.holder)
                    return
        before = found
    pytest.fail("nobody was seen while it evaluates")


def sending_process(watch: Watch, hook: SignedHook) -> int:
    hook.held.get(timeout=TIMEOUT_SECONDS)
    with watch.store.engine.connect() as connection:
        return process_of(connection.scalars(select(outbox.c.leased_by).where(outbox.c.state == "sending")).one())


def kill_while_evaluating(watch: Watch, hook: SignedHook, turn: Callable[[], None]) -> None:
    del hook
    with judging(watch) as process:
        turn()
        watch.kill(process)
    watch.forget(process)


def killed_while_it_writes(watch: Watch, hook: SignedHook, turn: Callable[[], None], *, when: str, table: str) -> None:
    del hook
    begin_endless(watch.store, when, table)
    turn()
    wait_until(partial(is_stuck, watch.store))
    process = process_of(lease_of(watch.store).holder)
    watch.kill(process)
    end_endless(watch.store)
    watch.forget(process)


def kill_while_sending(watch: Watch, hook: SignedHook, turn: Callable[[], None]) -> None:
    turn()
    process = sending_process(watch, hook)
    watch.kill(process)
    watch.forget(process)


MOMENTS = (
    kill_while_evaluating,
    partial(killed_while_it_writes, when="BEFORE", table="incident_transitions"),
    partial(killed_while_it_writes, when="AFTER", table="outbox"),
    kill_while_sending,
)


def test_killed_processes_send_every_message_once(watch: Watch, hook: SignedHook, traffic: Traffic) -> None:
    note_turns(watch.store)
    for _ in range(2):
        watch.start()
    for number, killed in enumerate(MOMENTS):
        service = f"shop-{number}"
        traffic(datetime.now(UTC) - 10 * MINUTE, 10 * MINUTE, {50: SLOW}, service=service)
        for messages, services in ((2 * number + 1, ("quiet", service)), (2 * number + 2, ())):
            killed(watch, hook, partial(watch.write_slos, *services))
            watch.start()
            wait_until(partial(has_delivered, watch, hook, messages))
    found, taken = watch.incidents()[::-1], turns(watch.store)

    assert [events(incident) for incident in found] == [["opened", "resolved"]] * len(MOMENTS)
    assert hook.accepted == [f"{incident.id}:{number}" for incident in found for number in (1, 2)]
    assert (hook.requests, hook.violations) == (2 * len(MOMENTS) + hook.killed, [])
    # No process acquired the evaluation lease while another one held it.
    assert len(taken) >= 2 * (len(MOMENTS) - 1)
    assert [(lasted, at) for lasted, at in taken if at < lasted] == []


def test_ended_incidents_of_a_gap_are_not_notified(watch: Watch, hook: SignedHook, traffic: Traffic) -> None:
    alone = watch.start()
    wait_until(partial(evaluated_after, watch.store, 0.0))
    watch.kill(alone)
    now = datetime.now(UTC)
    before = (now - 6 * HOUR).timestamp()
    with watch.store.transaction() as connection:
        connection.execute(update(leases).values(until=before, done_at=before))
    traffic(now - 5.5 * HOUR, HOUR / 2, {50: FAST}, service="past")
    traffic(now - 5 * HOUR, HOUR / 2, {20: FAST, 30: SLOW}, service="past")
    traffic(now - 4.5 * HOUR, HOUR, {50: FAST}, service="past")
    traffic(now - HOUR / 2, HOUR / 2, {50: FAST}, service="past")
    traffic(now - HOUR / 2, HOUR / 2, {20: FAST, 30: SLOW}, service="still")
    watch.write_slos("past", "still")
    pair = [watch.start() for _ in range(2)]
    wait_until(partial(has_delivered, watch, hook, 1))
    wait_until(partial(evaluated_after, watch.store, datetime.now(UTC).timestamp()))
    for process in pair:
        watch.kill(process)
    found = {incident.name: incident for incident in watch.incidents()}

    assert {name: (each.state, events(each), len(each.deliveries)) for name, each in found.items()} == {
        "past": ("resolved", ["opened", "resolved"], 0),
        "still": ("open", ["opened"], 1),
    }
    assert found["past"].muted.startswith("detected late: no evaluation ran from")
    assert hook.accepted == [f"{found['still'].id}:1"]
