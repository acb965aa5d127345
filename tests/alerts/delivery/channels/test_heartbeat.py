"""Heartbeats (dead man's switch) and release announcements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from sqlalchemy.exc import SQLAlchemyError

from stagelens.alerts.delivery import outbox
from stagelens.alerts.delivery.channels.heartbeat import EVALUATED_LEASE, Heartbeat, HeartbeatPinger
from stagelens.alerts.delivery.channels.pagerduty import PagerDutyChannel, ReleaseAnnouncer, ReleaseNotice
from stagelens.alerts.delivery.message import Message
from stagelens.core.errors import ChannelError
from stagelens.store import Store, lease
from tests.alerts.receiver import Moods
from tests.alerts.stored import open_incident
from tests.alerts.traffic import NOW, Clock
from tests.alerts.vendors import PagerDutyService
from tests.support.http_server import Request, Response, http_server

Traffic = Callable[..., None]


@dataclass
class Watcher:
    url: str = ""
    status: int = 200
    pings: int = 0

    def respond(self, request: Request) -> Response:
        assert request.path == "/ping/secret-uuid-1"
        self.pings += 1
        return self.status, {}, b"no /ping/secret-uuid-1 here" if self.status != 200 else b"OK"


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    watcher = Watcher()
    with http_server(watcher.respond) as server:
        watcher.url = server.url
        yield watcher


@dataclass
class Pulse:
    """The pinger of a heartbeat, and the evaluations that it looks at."""

    store: Store
    clock: Clock
    watcher: Watcher

    def __post_init__(self) -> None:
        self._pinger = HeartbeatPinger(
            self.store, Heartbeat("heartbeat", f"{self.watcher.url}/ping/secret-uuid-1"), clock=self.clock
        )

    def beat(self, seconds: float = 0.0, *, evaluated: bool = True) -> int:
        """Return the number of all pings after the step at *seconds*."""
        self.clock.at = NOW + timedelta(seconds=seconds)
        if evaluated:
            with self.store.transaction() as connection:
                lease.hold(connection, EVALUATED_LEASE, "me", self.clock(), 30.0)
        self._pinger.step()
        return self.watcher.pings


@pytest.fixture
def pulse(store: Store, clock: Clock, watcher: Watcher) -> Pulse:
    return Pulse(store, clock, watcher)


def test_heartbeats_are_sent_once_a_minute_while_evaluations_succeed(pulse: Pulse) -> None:
    before = pulse.beat(evaluated=False)

    assert [before, *(pulse.beat(seconds, evaluated=seconds <= 60) for seconds in (0, 30, 60, 89, 120))] == [
        *(0, 1, 1, 2, 2, 2)
    ]


def test_heartbeats_stop_while_a_page_cannot_be_delivered(pulse: Pulse, message: Message) -> None:
    open_incident(pulse.store, message)
    with pulse.store.transaction() as connection:
        outbox.record_transition(connection, message, ["slack"])
    pings = [pulse.beat(seconds) for seconds in (120, 181, 241)]
    with pulse.store.transaction() as connection:
        claimed = outbox.claim_message(connection, "slack", "me", pulse.clock(), 60.0)
        assert claimed is not None
        outbox.mark_sent(connection, claimed, pulse.clock())

    assert pings == [1, 1, 1]
    assert pulse.beat(241) == 2


def test_heartbeats_stop_while_the_database_is_unavailable(pulse: Pulse) -> None:
    with pulse.store.transaction() as connection:
        lease.hold(connection, EVALUATED_LEASE, "me", pulse.clock(), 30.0)
        connection.exec_driver_sql("ALTER TABLE leases RENAME TO away")
    with pytest.raises(SQLAlchemyError):
        pulse.beat(evaluated=False)
    silent = pulse.watcher.pings
    with pulse.store.transaction() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO leases")

    assert (silent, pulse.beat(evaluated=False)) == (0, 1)


@pytest.mark.parametrize(
    ("status", "succeeds", "seconds", "log"),
    [
        (200, False, (0, 60, 62), "no evaluation succeeded recently"),
        (404, True, (0, 60), "the heartbeat's receiver responded 404: no … here"),
    ],
)
def test_a_missing_heartbeat_is_logged_once(  # noqa: PLR0917 - fixtures
    pulse: Pulse, caplog: pytest.LogCaptureFixture, status: int, succeeds: bool, seconds: tuple[int, ...], log: str
) -> None:
    pulse.watcher.status = status
    logged: list[int] = []
    for after in seconds:
        pulse.beat(after, evaluated=succeeds)
        logged.append(len(caplog.records))

    assert caplog.messages == [f"alerts: no heartbeat to heartbeat: {log}"]
    assert logged[0] == succeeds


@dataclass
class ReleaseChannel:
    name: str = "pagerduty"
    heard: list[ReleaseNotice] = field(default_factory=list[ReleaseNotice])
    trouble: list[ChannelError] = field(default_factory=list[ChannelError])

    def announce(self, release: ReleaseNotice) -> None:
        if self.trouble:
            raise self.trouble.pop()
        self.heard.append(release)


@pytest.fixture
def released(traffic: Traffic) -> datetime:
    for start, version in ((timedelta(hours=2), "1"), (timedelta(minutes=30), "2")):
        traffic(NOW - start, timedelta(seconds=30), {5: {"forward": 0.02}}, service="shop", version=version)
    return NOW - timedelta(minutes=30)


def herald(store: Store, channel: ReleaseChannel, at: float) -> ReleaseAnnouncer:
    return ReleaseAnnouncer(store, channel, lambda: (frozenset({"shop"}), "https://dash.example/"), clock=lambda: at)


def test_a_release_is_sent_once(store: Store, released: datetime) -> None:
    channel = ReleaseChannel()
    for seconds in (0, 60, 3000):
        for _ in range(2):
            herald(store, channel, NOW.timestamp() + seconds).step()

    other = ReleaseChannel("other")
    herald(store, other, (NOW + timedelta(hours=1)).timestamp()).step()
    ReleaseAnnouncer(store, other, lambda: (frozenset({"elsewhere"}), ""), clock=NOW.timestamp).step()

    assert other.heard == []
    assert channel.heard == [
        ReleaseNotice("shop", "2", "1", released.timestamp(), "https://dash.example/compare?svc=shop&a=1&b=2")
    ]


@pytest.mark.usefixtures("released")
def test_a_refused_release_is_retried(store: Store) -> None:
    channel = ReleaseChannel(trouble=[ChannelError("no", permanent=False)])
    for seconds in (0, 30, 61):
        herald(store, channel, NOW.timestamp() + seconds).step()
    stubborn = ReleaseChannel(name="other", trouble=[ChannelError("never", permanent=True)])
    for seconds in (0, 61, 600):
        herald(store, stubborn, NOW.timestamp() + seconds).step()

    assert [len(channel.heard), len(stubborn.heard)] == [1, 0]


def test_pagerduty_gets_a_change_event() -> None:
    service = PagerDutyService(Moods(failing=0.0))
    PagerDutyChannel("pagerduty", "K" * 32, service.url).announce(
        ReleaseNotice("shop", "2", "1", NOW.timestamp(), "https://dash.example/compare")
    )
    service.close()

    assert service.violations == []
    assert service.changes[0]["payload"]["summary"] == "shop: version 2 started serving (before: 1)"
