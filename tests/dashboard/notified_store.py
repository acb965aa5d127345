"""Test store with incidents and their notifications."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from stagelens.alerts.delivery import outbox
from stagelens.alerts.delivery.message import BudgetOverrun, Burn, Finding, Trend
from stagelens.alerts.incidents import journal, silences
from stagelens.alerts.incidents.lifecycle import IncidentRecord
from stagelens.alerts.incidents.notification_rules import IncidentUpdate
from stagelens.analysis.comparison import StageGrowth
from stagelens.analysis.profile import FunctionGrowth
from stagelens.store import Store
from stagelens.store.events import Event

NOW = datetime(2026, 11, 20, 12, 0, 3, tzinfo=UTC)
OPEN, MUTED, OVER = "sl-00000000000000000001", "sl-00000000000000000002", "sl-00000000000000000003"
EARLIER = "sl-00000000000000000005"
_AT = NOW.timestamp()
FUNCTIONS = (
    FunctionGrowth("preprocess", "resize (serve.py:41)", 2.1, 166.0, 178.0, is_cause=True),
    FunctionGrowth("preprocess", "decode_png (serve.py:28)", 1.9, 9.4, 178.0),
)
# Of the open incident: its onset, and what the person on call needs.
_OF_OPEN: dict[str, Any] = {
    "between": (_AT - 1100, _AT - 920),
    "runbook": "https://runbooks.example/checkout",
    "overruns": (BudgetOverrun("preprocess", 0.19, 0.05),),
}


def fill(store: Store) -> None:
    """Write an open incident, a muted one, one of another service and an earlier one that are over, events, and a silence."""
    for before, kind, key, text in (
        (1100, "deploy", "2.0.0", "checkout 2.0.0"),
        (89_000, "config", "", "rolled back to 1.9.3"),
    ):
        store.add_event(Event(NOW - timedelta(seconds=before), "checkout", kind, key, text))
    with store.transaction() as connection:
        opened = record(OPEN, "checkout-latency", 31.2, 720)
        opened = replace(opened, finding=replace(opened.finding, functions=FUNCTIONS, **_OF_OPEN))
        journal.write_update(
            connection, IncidentUpdate(opened, "opened", notifies=True), ("slack", "pagerduty"), _AT - 720
        )
        muted = replace(
            record(MUTED, "checkout-first-token", 8.0, 300), muted=f"told with {OPEN}", heard="", story=OPEN
        )
        journal.write_update(connection, IncidentUpdate(muted, "opened", note=muted.muted), (), _AT - 300)
        over = record(OVER, "search-latency", 16.0, 9000, service="search")
        journal.write_update(connection, IncidentUpdate(over, "opened", notifies=True), ("slack",), _AT - 9000)
        ended = replace(over, resolved_at=_AT - 6000, ending="recovered", sequence=2, heard="over")
        journal.write_update(connection, IncidentUpdate(ended, "resolved", notifies=True), ("slack",), _AT - 6000)
        earlier = replace(
            record(EARLIER, "checkout-latency", 15.0, 90_000),
            resolved_at=_AT - 88_000,
            ending="recovered",
            acked_by="ann",
            heard="over",
        )
        journal.write_update(connection, IncidentUpdate(earlier, "opened", note="muted"), (), _AT - 90_000)
        taken = outbox.claim_message(connection, "slack", "tests", _AT, 60.0)
        assert taken is not None
        outbox.mark_sent(connection, taken, _AT - 5990)
        silences.create_silence(
            connection,
            {"service": "batch", "severity": "ticket"},
            starts_at=NOW - timedelta(hours=1),
            ends_at=NOW + timedelta(hours=7),
            author="ann",
            comment="the new disks are slow until they are full",
        )


def record(name: str, slo: str, rate: float, before: float, service: str = "checkout") -> IncidentRecord:
    month = 30 * 86_400.0
    burn = Burn(rate, 14.4, 3600.0, 300.0, 1872.0, 6000.0, 0.94, 48_900.0, month, 78_000.0)
    finding = Finding(
        name=slo,
        service=service,
        promise=f"99 % of requests to {service} succeed within 250 ms, over 30 days",
        kind="latency",
        severity="page",
        since=_AT - before - 300,
        burn=burn,
        growth=(StageGrowth("preprocess", 0.18, 0.92),),
        version="2",
        course=Trend((0.4, 0.5, None, 3.0, rate), 180.0, _AT - before - 840),
    )
    at = _AT - before
    return IncidentRecord(name, f"slo:{slo}", finding, at, at, at, sequence=1, peak=rate, heard="open", story=name)
