"""Incidents of an older version in the database."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sqlalchemy import select

from stagelens.alerts.delivery.message import Finding, Message
from stagelens.alerts.incidents import journal, lifecycle
from stagelens.alerts.incidents.lifecycle import IncidentRecord
from stagelens.alerts.incidents.notification_rules import IncidentUpdate
from stagelens.alerts.schema import incidents, transitions
from stagelens.store import Store
from stagelens.store.engines import database

# Fields of the finding in revision 0004 that changed later.
FLAT = {
    "slo": "magika-latency",
    "burn": 31.2,
    "threshold_burn": 14.4,
    "long_seconds": 3600.0,
    "short_seconds": 300.0,
    "bad": 1872.0,
    "total": 6000.0,
    "budget_left": 0.94,
    "bad_left": 48_900.0,
    "window_seconds": 30 * 86_400.0,
    "exhausted_in_seconds": 21.7 * 3600,
}
NEW = ("name", "burn", "shift", "exemplars", "overruns", "course", "where", "absence")


def as_it_was(finding: Finding) -> dict[str, Any]:
    """Return the finding as stored by revision 0004."""
    fields = json.loads(json.dumps(finding.to_json()))
    return {**{key: value for key, value in fields.items() if key not in NEW}, **FLAT}


def test_an_incident_of_an_older_version_is_unchanged(store: Store, message: Message, finding: Finding) -> None:
    name, finding = message.incident, replace(finding, exemplars=(), course=None)
    incident = IncidentRecord(name, "slo:x", finding, 1.0, 1.0, 1.0, sequence=1, peak=31.2, heard="open", story=name)
    with store.transaction() as connection:
        journal.write_update(connection, IncidentUpdate(incident, "opened", notifies=True), (), message.at)
    expected = journal.build_message(incident, "opened", message.at)
    database.migrate(store.engine, "0004")
    with store.engine.connect() as connection:
        flat = connection.execute(select(incidents.c.finding)).scalar_one()
        flat_message = connection.execute(select(transitions.c.message)).scalar_one()
    database.migrate(store.engine)
    with store.engine.connect() as connection:
        stored = lifecycle.find_last_incident(connection, "slo:x")
        stored_message = Message.from_json(connection.execute(select(transitions.c.message)).scalar_one())

    assert flat == as_it_was(finding) == flat_message["finding"]
    assert (stored, stored_message) == (incident, expected)
