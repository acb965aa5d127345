"""Events: validation, deduplication, queries, retention, copy and migration."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.store import Event, Retention, events
from tests.support.raw_requests import NOON, SHOP, OpenSite, Request, Series, Site

AT = datetime.fromtimestamp(NOON, UTC)
DAY = timedelta(days=1)


def event(text: str = "v2 is out", **changes: Any) -> Event:
    whole: dict[str, Any] = {"at": AT, "service": "shop", "kind": "deploy", "key": "v2", "text": text} | changes
    return Event(**whole)


def events_of_day(one: Site, **wanted: str) -> list[str]:
    return one.store.read.events(AT - DAY, AT + DAY, **wanted)["text"].tolist()


def test_events_of_a_half_open_window_are_returned_newest_first(site: Site) -> None:
    assert list(site.store.read.events(AT - DAY, AT + DAY).columns) == list(events.EVENT_COLUMNS)
    site.store.add_event(event("später", at=AT + timedelta(milliseconds=5), link="/s/shop"))
    site.store.add_event(event("before"))
    found = site.store.read.events(AT - DAY, AT + DAY)

    assert found["text"].tolist() == ["später", "before"]
    assert site.store.read.events(AT, AT + timedelta(milliseconds=5))["text"].tolist() == ["before"]
    assert found.iloc[0].to_dict() == {
        "at": AT + timedelta(milliseconds=5),
        "service": "shop",
        "kind": "deploy",
        "key": "v2",
        "text": "später",
        "link": "/s/shop",
        "environment": "",
    }


def test_a_service_query_includes_global_events(site: Site) -> None:
    for name in ("shop", "bank", ""):
        site.store.add_event(event(f"of {name or 'all'}", service=name, kind="note" if name == "bank" else "deploy"))

    assert sorted(events_of_day(site, service="shop")) == ["of all", "of shop"]
    assert sorted(events_of_day(site)) == ["of all", "of bank", "of shop"]
    assert events_of_day(site, kind="note") == ["of bank"]
    assert events_of_day(site, service="shop", kind="note") == []


def test_the_same_event_within_a_minute_is_stored_once(site: Site) -> None:
    for text, seconds in (("done", 0), ("dismissed", 10), ("done", 20), ("done", 60)):
        site.store.add_event(event(text, at=AT + timedelta(seconds=seconds)))

    assert events_of_day(site) == ["done", "done", "dismissed"]


def test_an_event_increases_the_revision_of_its_service(site: Site) -> None:
    site.write([Request({"forward": 1}, series=each) for each in (SHOP, Series("bank"))])

    def revisions() -> tuple[int, int]:
        return site.store.read.revision("shop"), site.store.read.revision("bank")

    shop, bank = revisions()
    site.store.add_event(event())
    assert revisions() == (site.store.read.revision(), bank)
    assert revisions()[0] > shop
    shop, bank = revisions()
    site.store.add_event(event(service=""))
    assert revisions()[0] > shop
    assert revisions()[1] > bank


def test_events_expire_with_the_coarsest_tier(open_site: OpenSite) -> None:
    one = open_site(retention=Retention(hours=timedelta(days=2)))
    one.store.add_event(event("old", at=AT - timedelta(days=2, seconds=1)))
    one.store.add_event(event("new", at=AT - timedelta(days=2) + timedelta(seconds=1)))
    one.store.maintain()

    assert one.store.read.events(AT - 9 * DAY, AT)["text"].tolist() == ["new"]


def test_events_over_the_limit_delete_the_oldest(sqlite: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENTS", 3)
    for number in range(5):
        sqlite.store.add_event(event(f"{number}", at=AT + timedelta(minutes=number)))
    sqlite.store.maintain()

    assert events_of_day(sqlite) == ["4", "3", "2"]


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"at": datetime(2026, 11, 20, 12, 0)}, "at must be aware"),  # noqa: DTZ001 - the tested error
        ({"kind": "party"}, "write one of deploy, config, advice, note"),
        ({"text": "  "}, "text is empty"),
        ({"text": "x" * 501}, "use at most 500"),
        ({"text": "two\nlines"}, "control character '\\n'"),
        ({"text": "two\u2028lines"}, "control character '\\u2028'"),
        ({"text": "half \ud800"}, "control character '\\ud800'"),
        ({"key": "v\0"}, "key contains the control character"),
        ({"key": "k" * 201}, "key has 201 characters"),
        ({"service": "ü" * 129}, "service is longer than 256 bytes"),
        ({"link": "javascript:alert(1)"}, "write an address that begins with"),
        ({"link": "//evil.example"}, "write an address that begins with"),
        ({"link": "/\\evil.example"}, "write an address that begins with"),
        ({"link": "/" + "x" * 1000}, "link has 1001 characters"),
    ],
)
def test_an_invalid_event_is_refused(changes: dict[str, Any], fix: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fix)):
        event(**changes)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("2026-11-20T11:00", AT - timedelta(hours=1)),
        ("2026-11-20T12:00+01:00", AT - timedelta(hours=1)),
        (int(AT.timestamp() * 1000), AT),
        (None, AT),
        ("", AT),
    ],
)
def test_event_times_have_several_formats(at: Any, expected: datetime) -> None:
    found = events.event_from_json({"text": "x", "at": at}, AT)

    assert found == Event(expected, "", "note", "", "x")


@pytest.mark.parametrize(
    ("body", "fix"),
    [
        (b"text=x", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 10_000, "not valid JSON"),
        (b'{"text": "' + b"x" * 40_000 + b'"}', "the body has 40012 bytes; 32768 is the limit"),
        (b"[]", "is [], not an object"),
        (b"null", "is null, not an object"),
        (b"{}", "text is empty"),
        (b'{"text": 7}', "text is 7; write a text"),
        (b'{"text": "x", "sevice": "shop"}', "there is no field 'sevice'"),
        (b'{"text": "x", "at": "yesterday"}', 'at is "yesterday"; write ISO 8601'),
        (b'{"text": "x", "at": true}', "at is true; write ISO 8601"),
        (b'{"text": "x", "at": NaN}', "at is NaN; write ISO 8601"),
        (b'{"text": "x", "at": 1e400}', "write ISO 8601"),
        (b'{"text": "x", "at": "0001-01-01T00:00+14:00"}', "write ISO 8601"),
        (b'{"text": "x", "at": 1795176000}', "which is 1970-01-21 18:39 UTC"),
        (b'{"text": "x", "at": "2027-01-01"}', "must lie within the last 400 days"),
    ],
)
def test_a_body_that_is_not_an_event_is_explained(body: bytes, fix: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fix)):
        events.event_from_json(body, AT)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=20), st.lists, max_leaves=5))
def test_any_json_value_is_an_event_or_an_error(value: Any) -> None:
    for field in events.EVENT_COLUMNS:
        try:
            found = events.event_from_json({"text": "x"} | {field: value}, AT)
        except ValueError:
            continue
        assert isinstance(found, Event)
