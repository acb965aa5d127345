"""Incidents in a store, messages like the fixture of that name, and a channel for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stagelens.alerts.delivery.channel import Refresh
from stagelens.alerts.delivery.message import Finding, LatencyRegression, Message
from stagelens.alerts.incidents import journal
from stagelens.alerts.incidents.lifecycle import IncidentRecord, save_incident
from stagelens.alerts.incidents.notification_rules import IncidentUpdate
from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader, Incident
from stagelens.core.errors import ChannelError
from stagelens.store import Store

REGRESSION = LatencyRegression(0.99, 0.252, 0.312, 1.18, 1.31, 48_210, 1800.0, 9.3)
# Fields of a finding that is a latency regression.
SLOWER: dict[str, Any] = {"kind": "tail", "burn": None, "shift": REGRESSION}


def about(message: Message, **changes: Any) -> Message:
    """Return *message* with *changes* of its finding."""
    return replace(message, finding=replace(message.finding, **changes))


def open_incident(store: Store, message: Message) -> Message:
    """Store the open incident that *message* is about, without the message."""
    at, finding = message.at, message.finding
    record = IncidentRecord(message.incident, f"slo:{message.incident}", finding, at, at, at, sequence=message.sequence)
    with store.transaction() as connection:
        save_incident(connection, record)
    return message


def notify_opening(
    store: Store, name: str, finding: Finding, cause: str, channels: Sequence[str] = ("slack",), *, muted: str = ""
) -> None:
    """Store the open incident *name* at its onset, with its message, unless it is *muted*."""
    at, heard = finding.since, "" if muted else "open"
    record = IncidentRecord(
        name, cause, finding, at, at, at, sequence=1, peak=finding.size, heard=heard, story=name, muted=muted
    )
    with store.transaction() as connection:
        journal.write_update(connection, IncidentUpdate(record, "opened", notifies=not muted, note=muted), channels, at)


def stored_incidents(store: Store, limit: int | None = None) -> list[Incident]:
    return AlertsReader(store, LiveSloFile(None, {})).incidents(limit)


@dataclass
class FakeChannel:
    """Channel that accepts all messages, or while it has *trouble* none."""

    name: str = "slack"
    trouble: ChannelError | None = None
    sent: list[str] = field(default_factory=list[str])
    gap_seconds: float = 0.0
    refresh: Refresh | None = None

    def send(self, message: Message) -> str:
        if self.trouble:
            raise self.trouble
        self.sent.append(message.key)
        return ""
