"""Incidents in a store: one that is open, and those that the dashboard reads."""

from __future__ import annotations

from stagelens.alerts.delivery.message import Message
from stagelens.alerts.incidents.lifecycle import IncidentRecord, save_incident
from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader, Incident
from stagelens.store import Store


def open_incident(store: Store, message: Message) -> Message:
    """Store the open incident that *message* is about, without the message."""
    at, finding = message.at, message.finding
    record = IncidentRecord(message.incident, f"slo:{message.incident}", finding, at, at, at, sequence=message.sequence)
    with store.transaction() as connection:
        save_incident(connection, record)
    return message


def stored_incidents(store: Store, limit: int | None = None) -> list[Incident]:
    return AlertsReader(store, LiveSloFile(None, {})).incidents(limit)
