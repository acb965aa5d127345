"""`stagelens alerts`, two processes over one store, and whoever works killed at its worst moments, with a real receiver."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import select, update

from stagelens.alerts.evaluate import LEASE
from stagelens.alerts.objectives.slo_file import LiveFile
from stagelens.alerts.reader import AlertsReader, Incident
from stagelens.alerts.schema import leases, outbox
from stagelens.collector.store import Store
from tests.alerts.alert_processes import AlertProcesses
from tests.alerts.database_triggers import begin_endless, end_endless, is_stuck, note_turns, turns
from tests.alerts.receiver import Moods
from tests.alerts.vendors import SignedHook

pytestmark = pytest.mark.stacks

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
FAST, SLOW = {"forward": 0.020}, {"forward": 0.020, "preprocess": 0.390}
PATIENCE_SECONDS = 60.0

# The fixture of conftest.py; its class cannot be imported from there.
Traffic = Callable[..., None]


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "not within the deadline"
        time.sleep(0.002)


class Lease(NamedTuple):
    """Who has the right to evaluate, until when, and when it was last done; in Unix seconds, 0 for never."""

    holder: str = ""
    until: float = 0.0
    done_at: float = 0.0


def lease_of(store: Store) -> Lease:
    with store.engine.connect() as connection:
        found = connection.execute(select(leases).where(leases.c.name == LEASE)).first()
    return Lease() if found is None else Lease(found.holder, found.until, found.done_at or 0.0)


def evaluated_after(store: Store, at: float) -> bool:
    return lease_of(store).done_at > at


@dataclass
class Watch:
    """Processes of `stagelens alerts` over one store, and the receiver they tell.

    Args:
        store: The store.
        slo_yaml: Their SLO file.
        hook: The receiver.
        processes: Where they are born.
    """

    store: Store
    slo_yaml: Path
    hook: SignedHook
    processes: AlertProcesses = field(default_factory=AlertProcesses)

    def promise(self, *services: str) -> None:
        """Write an SLO for each of *services* into their file, in one go, and some that make evaluations last."""
        quiet = [f"quiet-{number}" for number in range(10)]
        slos = "".join(
            f"  - {{name: {name}, service: {name}, objective: 0.99, threshold: 250ms, window: 30d}}\n"
            for name in (*quiet, *services)
        )
        channel = f'channels:\n  - {{kind: webhook, url: "{self.hook.url}/alerts", secret: s3cret}}\n'
        draft = self.slo_yaml.with_suffix(".new")
        draft.write_text(f"slos:\n{slos}{channel}", encoding="utf-8")
        draft.replace(self.slo_yaml)

    def start(self) -> int:
        """Start one more."""
        return self.processes.watch(
            {
                "STAGELENS_DATABASE": self.store.engine.url.render_as_string(hide_password=False),
                "STAGELENS_SLO_FILE": str(self.slo_yaml),
                "STAGELENS_ALERT_INTERVAL": "1s",
            }
        )

    def kill(self, holder: str) -> None:
        """Kill the process that calls itself *holder*."""
        self.processes.kill(process_of(holder))

    def forget(self, holder: str) -> None:
        """Let the time go by that what *holder* has is kept from others."""
        with self.store.transaction() as connection:
            connection.execute(update(leases).where(leases.c.holder == holder).values(until=1.0))
            connection.execute(update(outbox).where(outbox.c.leased_by == holder).values(leased_until=1.0))

    def has_told(self, messages: int) -> bool:
        """Say whether the receiver has taken so many messages, and nothing is to be sent any more."""
        with self.store.engine.connect() as connection:
            unsettled = connection.execute(
                select(outbox.c.id).where(outbox.c.state.in_(("waiting", "sending")))
            ).first()
        return len(self.hook.accepted) == messages and unsettled is None

    def incidents(self) -> list[Incident]:
        """Return all there ever were, the newest first."""
        return AlertsReader(self.store, LiveFile(None, {})).incidents()


def process_of(holder: str) -> int:
    return int(holder.partition("-")[0])


@pytest.fixture
def watch(store: Store, slo_yaml: Path) -> Generator[Watch]:
    """A store with a quiet service, and nobody who watches it yet."""
    # The messages of the fourth trouble are taken without an answer, and come again.
    hook = SignedHook(Moods(failing=0.0, hold=frozenset({7, 9}), after=True))
    made = Watch(store, slo_yaml, hook)
    made.promise()
    yield made
    made.processes.close()
    hook.close()


@contextmanager
def judging(watch: Watch) -> Generator[str]:
    """The right to evaluate was taken, and nothing written yet: whoever has it waits for the lock, which is ours."""
    end = time.monotonic() + PATIENCE_SECONDS
    before = lease_of(watch.store)
    while time.monotonic() < end:
        found = lease_of(watch.store)
        if found.until > before.until and found.done_at == before.done_at:
            with watch.store.transaction():
                # Else it was faster than we are.
                if lease_of(watch.store).done_at == found.done_at:
                    yield found.holder
                    return
        before = found
    pytest.fail("nobody was seen while it evaluates")


def killed_while_it_judges(watch: Watch, turn: Callable[[], None]) -> None:
    """Kill whoever evaluates between two of its transactions, as a turn comes."""
    with judging(watch) as holder:
        turn()
        watch.kill(holder)
    watch.forget(holder)


def killed_while_it_writes(watch: Watch, turn: Callable[[], None], *, when: str, table: str) -> None:
    """Kill whoever evaluates in the middle of the transaction that writes what it decided."""
    begin_endless(watch.store, when, table)
    turn()
    wait_until(partial(is_stuck, watch.store))
    holder = lease_of(watch.store).holder
    watch.kill(holder)
    end_endless(watch.store)
    watch.forget(holder)


def killed_while_it_tells(watch: Watch, turn: Callable[[], None]) -> None:
    """Kill whoever sends when the receiver has taken the message, and before it has said so."""
    turn()
    watch.hook.held.get(timeout=PATIENCE_SECONDS)
    with watch.store.engine.connect() as connection:
        holder = connection.execute(select(outbox.c.leased_by).where(outbox.c.state == "sending")).scalar_one()
    watch.kill(holder)
    watch.forget(holder)


MOMENTS = (
    killed_while_it_judges,
    partial(killed_while_it_writes, when="BEFORE", table="incident_transitions"),
    partial(killed_while_it_writes, when="AFTER", table="outbox"),
    killed_while_it_tells,
)


def events(incident: Incident) -> list[str]:
    return [each.event for each in incident.transitions]


def test_whoever_is_killed_all_is_told_once(watch: Watch, traffic: Traffic) -> None:
    """Four troubles begin and end, each time the process that works is killed: another goes on, when the right is free."""
    note_turns(watch.store)
    for _ in range(2):
        watch.start()
    for number, killed in enumerate(MOMENTS):
        service = f"shop-{number}"
        traffic(datetime.now(UTC) - 10 * MINUTE, 10 * MINUTE, {50: SLOW}, service=service)
        for messages, services in ((2 * number + 1, ("quiet", service)), (2 * number + 2, ())):
            killed(watch, partial(watch.promise, *services))
            watch.start()
            wait_until(partial(watch.has_told, messages))
    found, taken = watch.incidents()[::-1], turns(watch.store)

    assert [events(incident) for incident in found] == [["opened", "resolved"]] * len(MOMENTS)
    assert watch.hook.accepted == [f"{incident.id}:{number}" for incident in found for number in (1, 2)]
    assert (watch.hook.requests, watch.hook.violations) == (2 * len(MOMENTS) + watch.hook.killed, [])
    # Nobody ever took the right to evaluate while another had it.
    assert len(taken) >= 2 * (len(MOMENTS) - 1)
    assert [(lasted, at) for lasted, at in taken if at < lasted] == []


def test_who_comes_back_pages_nobody_for_the_past(watch: Watch, traffic: Traffic) -> None:
    """Away for six hours: what came and went is in the history, what still burns is told, once."""
    alone = watch.start()
    wait_until(partial(evaluated_after, watch.store, 0.0))
    watch.processes.kill(alone)
    now = datetime.now(UTC)
    before = (now - 6 * HOUR).timestamp()
    with watch.store.transaction() as connection:
        connection.execute(update(leases).values(until=before, done_at=before))
    traffic(now - 5.5 * HOUR, HOUR / 2, {50: FAST}, service="past")
    traffic(now - 5 * HOUR, HOUR / 2, {20: FAST, 30: SLOW}, service="past")
    traffic(now - 4.5 * HOUR, HOUR, {50: FAST}, service="past")
    traffic(now - HOUR / 2, HOUR / 2, {50: FAST}, service="past")
    traffic(now - HOUR / 2, HOUR / 2, {20: FAST, 30: SLOW}, service="still")
    watch.promise("past", "still")
    pair = [watch.start() for _ in range(2)]
    wait_until(partial(watch.has_told, 1))
    wait_until(partial(evaluated_after, watch.store, datetime.now(UTC).timestamp()))
    for process in pair:
        watch.processes.kill(process)
    found = {incident.name: incident for incident in watch.incidents()}

    assert {name: (each.state, events(each), len(each.deliveries)) for name, each in found.items()} == {
        "past": ("resolved", ["opened", "resolved"], 0),
        "still": ("open", ["opened"], 1),
    }
    assert found["past"].muted.startswith("found afterwards: nothing was evaluated from")
    assert watch.hook.accepted == [f"{found['still'].id}:1"]
