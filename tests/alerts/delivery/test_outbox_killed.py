"""Two `stagelens alerts` processes over one store, killed at critical moments, with a real receiver."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select

from stagelens.alerts.schema import outbox
from stagelens.store import Store
from tests.alerts.deadlines import wait_until
from tests.alerts.receiver import Moods
from tests.alerts.traffic import SLOW, Traffic
from tests.alerts.vendors import SignedHook
from tests.alerts.watch import Watch, events, lease_of, process_of

pytestmark = pytest.mark.stacks

MINUTE = timedelta(minutes=1)
TIMEOUT_SECONDS = 60.0


def has_delivered(watch: Watch, hook: SignedHook, messages: int) -> bool:
    return len(hook.accepted) == messages and watch.is_settled()


@pytest.fixture
def hook() -> Generator[SignedHook]:
    # The messages of the second incident are accepted without a response and sent again.
    made = SignedHook(Moods(failing=0.0, hold=frozenset({3, 5}), after=True))
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


def kill_while_evaluating(watch: Watch, hook: SignedHook, turn: Callable[[], None]) -> None:
    del hook
    with judging(watch) as process:
        turn()
        watch.kill(process)
    watch.forget(process)


def kill_while_sending(watch: Watch, hook: SignedHook, turn: Callable[[], None]) -> None:
    turn()
    hook.held.get(timeout=TIMEOUT_SECONDS)
    with watch.store.engine.connect() as connection:
        sending = select(outbox.c.leased_by).where(outbox.c.state == "sending")
        process = process_of(connection.scalars(sending).one())
    watch.kill(process)
    watch.forget(process)


# A kill before each write: `test_evaluator_life.py`.
MOMENTS = (kill_while_evaluating, kill_while_sending)


def test_killed_processes_send_every_message_once(watch: Watch, hook: SignedHook, traffic: Traffic) -> None:
    for _ in range(2):
        watch.start()
    for number, killed in enumerate(MOMENTS):
        service = f"shop-{number}"
        traffic(datetime.now(UTC) - 10 * MINUTE, 10 * MINUTE, {50: SLOW}, service=service)
        for messages, services in ((2 * number + 1, ("quiet", service)), (2 * number + 2, ())):
            killed(watch, hook, partial(watch.write_slos, *services))
            watch.start()
            wait_until(partial(has_delivered, watch, hook, messages))
    found = watch.incidents()[::-1]

    assert [events(incident) for incident in found] == [["opened", "resolved"]] * len(MOMENTS)
    assert hook.accepted == [f"{incident.id}:{number}" for incident in found for number in (1, 2)]
    assert (hook.requests, hook.violations) == (2 * len(MOMENTS) + hook.killed, [])
