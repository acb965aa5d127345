"""A clock that jumps, of the whole host or of one process: no incident starts, ends or is lost because of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from stagelens.alerts.delivery import outbox
from stagelens.alerts.delivery.channels import ChannelEntry
from stagelens.alerts.delivery.channels.alertmanager import alert_payload
from stagelens.alerts.delivery.channels.heartbeat import EVALUATED_LEASE, HeartbeatPinger
from stagelens.alerts.delivery.message import Message
from stagelens.alerts.delivery.outbox import DeliveryWorker
from stagelens.alerts.evaluation.evaluator import ClockError, Evaluator
from stagelens.alerts.incidents.lifecycle import find_open_incidents
from stagelens.alerts.objectives.slo import Slo
from stagelens.alerts.objectives.slo_file import Definitions
from stagelens.alerts.schema import EVALUATION_LEASE
from stagelens.core.errors import ChannelError
from stagelens.store import Store, lease
from tests.alerts.stored import FakeChannel, open_incident, stored_incidents
from tests.alerts.traffic import NOW, Clock, Traffic

HOUR, MINUTE, TICK = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=10)
DAY, YEAR = timedelta(days=1), timedelta(days=365)
FAST, SLOW = {"forward": 0.030}, {"forward": 0.430}
JUMPS = pytest.mark.parametrize("jump", [HOUR, DAY, 10 * YEAR, -HOUR, -DAY], ids=str)
SERVICES = ("bad", "recovered", "recovering", "rare")
DEFINITIONS = Definitions(
    (
        *(Slo(name, name, 0.99, timedelta(days=30), timedelta(milliseconds=250)) for name in SERVICES),
        Slo("fresh", "recovered", 0.99, timedelta(days=30), 5 * MINUTE, watched="freshness", reset=NOW - HOUR),
    ),
    (ChannelEntry("slack", "slack", None, ""),),
)


@dataclass
class Host:
    traffic: Traffic
    now: datetime
    seconds: float = 0.0
    evaluator: Evaluator = field(init=False)

    def __post_init__(self) -> None:
        self.restart("first")

    def restart(self, holder: str) -> None:
        self.evaluator = Evaluator(self.traffic.store, holder, lease_seconds=30, stopwatch=lambda: self.seconds)

    def run(self, length: timedelta, step: timedelta = TICK, **mixes: Mapping[str, float]) -> None:
        for _ in range(length // step):
            for service, stages in mixes.items():
                self.traffic(self.now, step, {50: stages}, service=service)
            self.now += step
            self.seconds += step.total_seconds()
            self.traffic.clock.at = self.now
            self.traffic.store.maintain()
            with suppress(ClockError):
                self.evaluator.tick(DEFINITIONS, self.now)

    @property
    def is_recovering(self) -> bool:
        with self.traffic.store.engine.connect() as connection:
            return any(incident.quiet_since is not None for incident in find_open_incidents(connection))

    @property
    def events(self) -> list[tuple[str, list[str]]]:
        found = stored_incidents(self.traffic.store)
        return sorted((each.name, [row.event for row in each.transitions]) for each in found)


def open_host(path: Path, at: datetime) -> Host:
    clock = Clock(at)
    return Host(Traffic(Store.open(f"sqlite:///{path}", clock=clock), clock), at)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, datetime]:
    path = tmp_path_factory.mktemp("history") / "stagelens.db"
    one = open_host(path, NOW)
    for service in SERVICES:
        one.traffic(NOW - 24 * HOUR, HOUR, {50: FAST}, service=service)
        one.traffic(NOW - HOUR, HOUR, {50: FAST}, service=service)
    one.run(6 * MINUTE, 2 * MINUTE, bad=FAST, recovered=SLOW, recovering=FAST, rare=FAST)
    one.run(40 * MINUTE, 5 * MINUTE, bad=FAST, recovered=FAST, recovering=FAST, rare=FAST)
    one.run(6 * MINUTE, 2 * MINUTE, bad=FAST, recovered=FAST, recovering=SLOW, rare=FAST)
    one.run(20 * MINUTE, 5 * MINUTE, bad=FAST, recovered=FAST, recovering=FAST, rare=FAST)
    while not one.is_recovering:
        one.run(MINUTE, MINUTE, bad=SLOW, recovered=FAST, recovering=FAST, rare=FAST)
    one.traffic.store.close()
    return path, one.now


@pytest.fixture
def host(history: tuple[Path, datetime], tmp_path: Path) -> Generator[Host]:
    one = open_host(Path(shutil.copy(history[0], tmp_path)), history[1])
    yield one
    one.traffic.store.close()


@JUMPS
@pytest.mark.parametrize("killed", [False, True], ids=["running", "killed"])
def test_incidents_neither_start_nor_end_because_the_clock_of_the_host_jumps(
    host: Host, jump: timedelta, killed: bool
) -> None:
    before = host.events
    assert [name for name, _ in before] == ["bad", "recovered", "recovering"]
    assert ["resolved" in events for _, events in before] == [False, True, False]
    host.now += jump
    if killed:
        host.restart("second")
    host.run(MINUTE, bad=SLOW, recovered=FAST, recovering=FAST)
    host.run(MINUTE / 2, bad=SLOW, recovered=FAST, recovering=FAST, rare=FAST)

    assert host.events == before


@JUMPS
def test_one_process_acts_whatever_its_clock_and_another_takes_over(store: Store, jump: timedelta) -> None:
    seconds = 0.0
    first, second = (
        Evaluator(store, name, lease_seconds=30, stopwatch=lambda: seconds) for name in ("first", "second")
    )
    holders = list[str]()

    def turn(*processes: tuple[Evaluator, timedelta]) -> None:
        nonlocal seconds
        seconds += 10
        for one, ahead in processes:
            with suppress(ClockError):
                one.tick(Definitions(), NOW + timedelta(seconds=seconds) + ahead)
        with store.engine.connect() as connection:
            holders.append(lease.holder_of(connection, EVALUATION_LEASE, 0.0) or "")

    for _ in range(60):
        turn((first, timedelta(0)), (second, jump))
    together = set(holders[5:])
    other = second if together == {"first"} else first
    for _ in range(370):
        turn((other, jump if other is second else timedelta(0)))

    assert len(together) == 1
    assert holders[-1] not in together


@JUMPS
@pytest.mark.parametrize("back", [False, True], ids=["stays", "back"])
def test_a_message_is_sent_whenever_the_clock_jumps(
    store: Store, message: Message, jump: timedelta, back: bool
) -> None:
    at = message.at
    open_incident(store, message)
    with store.transaction() as connection:
        outbox.record_transition(connection, message, ["slack"])
    channel = FakeChannel(trouble=ChannelError("503", permanent=False, retry_after_seconds=60.0))
    senders = [DeliveryWorker(store, channel, name, clock=lambda: at, rng=random.Random(1)) for name in ("a", "b")]
    senders[0].step()
    at += jump.total_seconds()
    senders[0].step()
    with store.transaction() as connection:
        # Killed between the claim and the end of the attempt.
        outbox.claim_message(connection, "slack", "killed", at + 3600.0, 60.0)
    at -= jump.total_seconds() if back else 0.0
    channel.trouble = None
    for _ in range(70):
        at += 60.0
        for sender in senders:
            sender.step()

    assert channel.sent == [message.key]


def test_a_heartbeat_continues_after_the_clock_is_set_back(store: Store) -> None:
    at, sent = 1e9, list[float]()

    class Receiver:
        name = "heart"

        def ping(self) -> None:
            sent.append(at)

    pinger = HeartbeatPinger(store, Receiver(), clock=lambda: at)
    for after in (0.0, 10 * YEAR.total_seconds(), -10 * YEAR.total_seconds()):
        at += after
        with store.transaction() as connection:
            lease.hold(connection, EVALUATED_LEASE, "me", at, 30.0)
        pinger.step()

    assert len(sent) == 3


@pytest.mark.parametrize("behind", [0.0, 3600.0])
def test_an_alert_never_ends_before_its_start(message: Message, behind: float) -> None:
    for each in (message, replace(message, transition="resolved", at=message.at - behind)):
        payload = alert_payload(each, message.at - behind)
        assert payload["startsAt"] <= payload["endsAt"]
