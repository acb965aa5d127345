"""End-to-end delivery: real HTTP and SMTP, receivers that enforce the vendors' rules and fail a third of the time, and kill -9.

The receivers fail by status, closed connection, invalid body and `Retry-After`. Some requests are held while the sender is
killed: before the receiver accepted, or (if the vendor detects a repeat) after it accepted and before its response.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from stagelens.alerts.delivery import outbox
from stagelens.alerts.delivery.message import Message, Transition
from stagelens.alerts.reader import Delivery
from stagelens.store import Store
from tests.alerts.alert_processes import AlertProcesses
from tests.alerts.deadlines import wait_until
from tests.alerts.mail_server import MailServer
from tests.alerts.receiver import Moods, Receiver
from tests.alerts.slack_workspace import SlackWorkspace
from tests.alerts.stored import open_incident, stored_incidents
from tests.alerts.vendors import PagerDutyService, SignedHook, SlackHook

CHANNELS = ("slack", "slack_bot", "pagerduty", "webhook", "email")
# Half of all requests, and a hundred kills: `benchmarks/delivery.py`. [ratio]
FAILING = 0.35


class Sender:
    def __init__(self, processes: AlertProcesses, database: str, kind: str, receiver: Receiver | MailServer) -> None:
        self._processes = processes
        self._order = (database, {kind: receiver.url})
        self._receiver = receiver
        self._process = processes.start(*self._order)

    def obey(self) -> None:
        if isinstance(self._receiver, Receiver) and not self._receiver.held.empty():
            self._receiver.held.get()
            self._processes.kill(self._process)
            self._process = self._processes.start(*self._order)


@contextmanager
def running(store: Store, receivers: Mapping[str, Receiver | MailServer]) -> Generator[None]:
    processes = AlertProcesses()
    senders = [
        Sender(processes, store.engine.url.render_as_string(hide_password=False), *item) for item in receivers.items()
    ]
    done = threading.Event()

    def reap() -> None:
        while not done.wait(0.01):
            for sender in senders:
                sender.obey()

    reaper = threading.Thread(target=reap)
    reaper.start()
    try:
        yield
    finally:
        done.set()
        reaper.join()
        processes.close()
        for receiver in receivers.values():
            receiver.close()


def put(store: Store, message: Message, channels: Sequence[str] = CHANNELS) -> None:
    with store.transaction() as connection:
        outbox.record_transition(connection, message, channels)


def deliveries(store: Store) -> list[Delivery]:
    return [delivery for incident in stored_incidents(store, 1000) for delivery in incident.deliveries]


def later(message: Message, transition: Transition) -> Message:
    return replace(message, sequence=message.sequence + 1, transition=transition, ending="recovered")


@pytest.mark.stacks
def test_every_incident_arrives_once(store: Store, message: Message) -> None:
    slack = SlackHook(Moods(1, FAILING, frozenset({3, 9})))
    workspace = SlackWorkspace(Moods(4, FAILING, frozenset({4, 16}), after=True))
    pagerduty = PagerDutyService(Moods(2, FAILING, frozenset({4, 10}), after=True))
    webhook = SignedHook(Moods(3, FAILING, frozenset({5, 11}), after=True))
    mail = MailServer(Moods(5, FAILING, after=True))
    message = replace(message, at=time.time(), opened_at=time.time())
    opened = [open_incident(store, replace(message, incident=f"sl-{number:02}")) for number in range(5)]
    receivers: dict[str, Receiver | MailServer] = dict(
        zip(CHANNELS, (slack, workspace, pagerduty, webhook, mail), strict=True)
    )
    with running(store, receivers):
        for one in opened:
            put(store, one)
        wait_until(lambda: all(row.state == "sent" for row in deliveries(store)))
        for one in opened:
            put(store, later(one, "resolved"))
        wait_until(lambda: all(row.state == "sent" for row in deliveries(store)))

    names = [one.incident for one in opened]
    keys = sorted(f"{name}:{number}" for name in names for number in (1, 2))
    assert [receiver.violations for receiver in receivers.values()] == [[]] * len(receivers)
    assert sorted(slack.accepted) == sorted(webhook.accepted) == keys
    assert all(slack.accepted.index(f"{name}:1") < slack.accepted.index(f"{name}:2") for name in names)
    assert sorted(key_of(each) for each in workspace.messages) == keys
    assert sorted(key_of(parent) for parent in workspace.parents) == keys[::2]
    assert all(parent["said"][-1]["text"].startswith("🟢") for parent in workspace.parents)
    assert (pagerduty.created, pagerduty.resolved) == (Counter(names), Counter(names))
    assert sorted(mail.ids) == sorted(f"<{key.replace(':', '.')}@example.com>" for key in keys)
    assert [receiver.killed for receiver in (slack, workspace, pagerduty, webhook)] == [2, 2, 2, 2]
    assert all(receiver.refused >= 3 for receiver in receivers.values())


def key_of(message: dict[str, Any]) -> str:
    return message["said"][0]["metadata"]["event_payload"]["key"]
