"""Heartbeats (dead man's switch) and release announcements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.exc import SQLAlchemyError

from stagelens.alerts.delivery import outbox
from stagelens.alerts.delivery.channels.heartbeat import EVALUATED_LEASE, Heartbeat, HeartbeatPinger
from stagelens.alerts.delivery.channels.pagerduty import PagerDutyChannel, ReleaseAnnouncer, ReleaseNotice
from stagelens.alerts.delivery.message import Message
from stagelens.core.errors import ChannelError
from stagelens.store import Store, lease
from tests.alerts.receiver import Moods, Receiver
from tests.alerts.stored import open_incident
from tests.alerts.traffic import NOW
from tests.alerts.vendors import PagerDutyService
from tests.support.raw_requests import Clock

AT = 1_795_143_840.0
Traffic = Callable[..., None]


class Watcher(Receiver):
    def __init__(self) -> None:
        super().__init__(Moods(failing=0.0))
        self.pings = 0
        self.status = 200

    def take(self, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        del headers, body
        assert path == "/ping/secret-uuid-1"
        self.pings += 1
        return self.status, b"no /ping/secret-uuid-1 here" if self.status != 200 else b"OK"


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    opened = Watcher()
    yield opened
    opened.close()
    assert opened.violations == []


def pulse(store: Store, watcher: Watcher, clock: Clock) -> HeartbeatPinger:
    return HeartbeatPinger(store, Heartbeat("heartbeat", f"{watcher.url}/ping/secret-uuid-1"), clock=clock)


def evaluated(store: Store, at: float) -> None:
    with store.transaction() as connection:
        lease.hold(connection, EVALUATED_LEASE, "me", at, 30.0)


def test_heartbeats_are_sent_once_a_minute_while_evaluations_succeed(store: Store, watcher: Watcher) -> None:
    clock = Clock(AT)
    beating = pulse(store, watcher, clock)
    beating.step()
    pings = [watcher.pings]
    for seconds in (0, 30, 60, 89, 120):
        if seconds <= 60:
            evaluated(store, AT + seconds)
        clock.now = AT + seconds
        beating.step()
        pings.append(watcher.pings)

    assert pings == [0, 1, 1, 2, 2, 2]


def test_heartbeats_stop_while_a_page_cannot_be_delivered(store: Store, watcher: Watcher, message: Message) -> None:
    clock = Clock(AT)
    beating = pulse(store, watcher, clock)
    open_incident(store, message)
    with store.transaction() as connection:
        outbox.record_transition(connection, replace(message, at=AT), ["slack"])
    pings: list[int] = []
    for seconds in (120, 181, 241):
        clock.now = AT + seconds
        evaluated(store, clock.now)
        beating.step()
        pings.append(watcher.pings)
    with store.transaction() as connection:
        claimed = outbox.claim_message(connection, "slack", "me", clock.now, 60.0)
        assert claimed is not None
        outbox.mark_sent(connection, claimed, clock.now)
    beating.step()

    assert pings == [1, 1, 1]
    assert watcher.pings == 2


def test_heartbeats_stop_while_the_database_is_unavailable(store: Store, watcher: Watcher) -> None:
    clock = Clock(AT)
    beating = pulse(store, watcher, clock)
    evaluated(store, AT)
    with store.transaction() as connection:
        connection.exec_driver_sql("ALTER TABLE leases RENAME TO away")
    with pytest.raises(SQLAlchemyError):
        beating.step()
    silent = watcher.pings
    with store.transaction() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO leases")
    beating.step()

    assert (silent, watcher.pings) == (0, 1)


@pytest.mark.parametrize(
    ("status", "succeeds", "seconds", "log"),
    [
        (200, False, (0, 60, 62), "no evaluation succeeded recently"),
        (404, True, (0, 60), "the heartbeat's receiver responded 404: no … here"),
    ],
)
def test_a_missing_heartbeat_is_logged_once(  # noqa: PLR0917 - fixtures
    store: Store,
    watcher: Watcher,
    caplog: pytest.LogCaptureFixture,
    status: int,
    succeeds: bool,
    seconds: tuple[int, ...],
    log: str,
) -> None:
    clock = Clock(AT)
    watcher.status = status
    beating = pulse(store, watcher, clock)
    logged: list[int] = []
    for after in seconds:
        clock.now = AT + after
        if succeeds:
            evaluated(store, clock.now)
        beating.step()
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


@pytest.mark.usefixtures("released")
def test_old_versions_are_not_announced(store: Store) -> None:
    channel = ReleaseChannel()
    herald(store, channel, (NOW + timedelta(hours=1)).timestamp()).step()
    ReleaseAnnouncer(store, channel, lambda: (frozenset({"other"}), ""), clock=NOW.timestamp).step()

    assert channel.heard == []


def test_pagerduty_gets_a_change_event() -> None:
    service = PagerDutyService(Moods(failing=0.0))
    PagerDutyChannel("pagerduty", "K" * 32, service.url).announce(
        ReleaseNotice("shop", "2", "1", AT, "https://dash.example/compare")
    )
    service.close()

    assert service.violations == []
    assert service.changes[0]["payload"]["summary"] == "shop: version 2 started serving (before: 1)"
