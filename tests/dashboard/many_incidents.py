"""Test store with more incidents than a list of fifty: ten pages that are older than forty tickets, and two groups of twenty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stagelens.alerts.incidents import journal
from stagelens.alerts.incidents.lifecycle import IncidentRecord
from stagelens.alerts.incidents.notification_rules import IncidentUpdate, grouped_reason
from stagelens.store import Store
from tests.dashboard.notified_store import NOW, record

PAGES, TICKETS, GROUP = 10, 40, 20
_AT = NOW.timestamp()
_HOUR = 3600.0


def fill(store: Store) -> None:
    """Write the incidents, the oldest first."""
    made = sorted([*_pages(), *_tickets(), *_others()], key=lambda each: each.opened_at)
    with store.transaction() as connection:
        for each in made:
            opened = IncidentUpdate(each, "opened", notifies=not each.muted, note=each.muted)
            journal.write_update(connection, opened, ("slack",), each.opened_at)


def _pages() -> Iterator[IncidentRecord]:
    """Yield ten pages, detected two hours ago, of which one is acknowledged and one recovers."""
    for number in range(PAGES):
        made = record(
            f"sl-page{number:02}", f"checkout-{number:02}-latency", 31.2, 2 * _HOUR + number, f"checkout-{number:02}"
        )
        more = {0: {"acked_by": "ann", "acked_at": _AT - _HOUR}, 1: {"quiet_since": _AT - 60}}.get(number, {})
        yield replace(made, **more)


def _tickets() -> Iterator[IncidentRecord]:
    """Yield forty tickets, newer than the pages: two groups of twenty, each with one that is notified."""
    for number in range(TICKETS):
        lead = f"sl-ticket{number // GROUP * GROUP:02}"
        made = record(
            f"sl-ticket{number:02}", f"search-{number:02}-latency", 1.4, _HOUR + number, f"search-{number:02}"
        )
        finding = replace(made.finding, severity="ticket")
        mute = "" if made.id == lead else grouped_reason(lead, "search")
        yield replace(made, finding=finding, story=lead, muted=mute, heard="" if mute else "open")


def _others() -> Iterator[IncidentRecord]:
    """Yield a page that ended in the last six hours, and one that ended days ago."""
    for name, before, ended in (("sl-ended", 5 * _HOUR, 4 * _HOUR), ("sl-old", 90 * _HOUR, 89 * _HOUR)):
        made = record(name, f"{name}-latency", 20.0, before, "batch")
        yield replace(made, resolved_at=_AT - ended, ending="recovered", heard="over")
