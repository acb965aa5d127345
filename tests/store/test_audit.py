"""Audit log: order, window, length of texts, retention, copy and migration."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

from stagelens.store import audit
from stagelens.store.audit import AuditEntry
from tests.support.raw_requests import NOON, Site

AT = datetime.fromtimestamp(NOON, UTC)
DAY = timedelta(days=1)


def entry(person: str = "ada", at: datetime = AT) -> AuditEntry:
    return AuditEntry(at, person, "slack", "acknowledge", "sl-1", "shop", "prod")


def people(one: Site, start: datetime = AT - DAY, end: datetime = AT + DAY) -> list[str]:
    return [each.person for each in one.store.read.audit(start, end, 10)]


def test_entries_are_returned_unchanged_and_newest_first(site: Site) -> None:
    refused = AuditEntry(AT, "bob", "api", "silence", outcome="refused", reason="a viewer")
    for each in (entry(), refused, entry("eve", AT + DAY)):
        site.store.add_audit_entry(each)

    assert site.store.read.audit(AT, AT + DAY, 10) == [refused, entry()]
    assert people(site, AT, AT + 2 * DAY) == ["eve", "bob", "ada"]
    assert site.store.read.audit(AT, AT + 2 * DAY, 1) == [entry("eve", AT + DAY)]


def test_a_long_or_unstorable_text_is_cut(site: Site) -> None:
    site.store.add_audit_entry(entry("\0" + "é" * 1000))

    assert people(site) == ["\ufffd" + "é" * (audit.MAX_CHARS - 1)]


def test_an_entry_within_a_transaction_is_part_of_it(site: Site) -> None:
    with suppress(ZeroDivisionError), site.store.transaction():
        site.store.add_audit_entry(entry("ada"))
        _ = 1 / 0
    with site.store.transaction() as outer, site.store.transaction() as inner:
        site.store.add_audit_entry(entry("bob"))
    site.store.add_audit_entry(entry("eve"))

    assert inner is outer
    assert people(site) == ["eve", "bob"]


def test_entries_are_deleted_after_their_retention(site: Site) -> None:
    site.store.add_audit_entry(entry("old", AT - audit.AUDIT_RETENTION - timedelta(seconds=1)))
    site.store.add_audit_entry(entry("new", AT - audit.AUDIT_RETENTION + timedelta(seconds=1)))
    site.store.maintain()

    assert people(site, AT - 2 * audit.AUDIT_RETENTION) == ["new"]
