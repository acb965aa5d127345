"""Audit log: order, window, length of texts, retention, copy and migration."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from stagelens.store import audit
from stagelens.store.audit import AuditEntry
from stagelens.store.backup import copy_store
from tests.support.raw_requests import NOON, Site

AT = datetime.fromtimestamp(NOON, UTC)
DAY = timedelta(days=1)


def entry(person: str = "ada", at: datetime = AT) -> AuditEntry:
    return AuditEntry(at, person, "slack", "acknowledge", "sl-1", "shop", "prod")


def people(one: Site, start: datetime = AT - DAY, end: datetime = AT + DAY) -> list[str]:
    return [each.person for each in one.store.read.audit(start, end, 10)]


def test_entries_are_returned_unchanged_and_newest_first(site: Callable[..., Site]) -> None:
    one = site()
    refused = AuditEntry(AT, "bob", "api", "silence", outcome="refused", reason="a viewer")
    for each in (entry(), refused, entry("eve", AT + DAY)):
        one.store.add_audit_entry(each)

    assert one.store.read.audit(AT, AT + DAY, 10) == [refused, entry()]
    assert people(one, AT, AT + 2 * DAY) == ["eve", "bob", "ada"]
    assert one.store.read.audit(AT, AT + 2 * DAY, 1) == [entry("eve", AT + DAY)]


def test_a_long_or_unstorable_text_is_cut(site: Callable[..., Site]) -> None:
    one = site()
    one.store.add_audit_entry(entry("\0" + "é" * 1000))

    assert people(one) == ["\ufffd" + "é" * (audit.MAX_CHARS - 1)]


def test_an_entry_within_a_transaction_is_part_of_it(site: Callable[..., Site]) -> None:
    one = site()
    with suppress(ZeroDivisionError), one.store.transaction():
        one.store.add_audit_entry(entry("ada"))
        _ = 1 / 0
    with one.store.transaction() as outer, one.store.transaction() as inner:
        one.store.add_audit_entry(entry("bob"))
    one.store.add_audit_entry(entry("eve"))

    assert inner is outer
    assert people(one) == ["eve", "bob"]


def test_entries_are_deleted_after_their_retention(site: Callable[..., Site]) -> None:
    one = site()
    one.store.add_audit_entry(entry("old", AT - audit.KEPT - timedelta(seconds=1)))
    one.store.add_audit_entry(entry("new", AT - audit.KEPT + timedelta(seconds=1)))
    one.store.maintain()

    assert people(one, AT - 2 * audit.KEPT) == ["new"]


def test_a_copy_has_the_audit_log(site: Callable[..., Site], target_site: Callable[..., Site]) -> None:
    one, other = site(), target_site()
    one.store.add_audit_entry(entry())
    copy_store(one.store, other.store, lambda _done, _all: None)
    other.store.add_audit_entry(entry("bob", AT + timedelta(seconds=1)))

    assert people(other) == ["bob", "ada"]
