"""Every view is an address."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.dashboard.view import address, attributes_text, parse, service_path
from stagelens.store.schema import storable

NOW = datetime(2026, 11, 20, 12, 0, 7, tzinfo=UTC)
WHOLE = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("search", "start", "end"),
    [
        ("", WHOLE - timedelta(hours=6), WHOLE),
        ("?from=now-15m", WHOLE - timedelta(minutes=15), WHOLE),
        ("?from=1795100000000&to=1795103600000", moment("2026-11-19T14:53:20"), moment("2026-11-19T15:53:20")),
        ("?from=2026-11-20T10:00&to=2026-11-20T11:00Z", moment("2026-11-20T10:00"), moment("2026-11-20T11:00")),
    ],
)
def test_a_window_is_relative_or_from_moment_to_moment(search: str, start: datetime, end: datetime) -> None:
    view = parse("/", search, NOW)

    assert (view.start, view.end, view.live) == (start, end, end == WHOLE)


@given(st.text(max_size=30), st.text(max_size=30))
def test_an_invalid_window_falls_back_to_the_default(start: str, end: str) -> None:
    view = parse("/", address("/", {"from": start, "to": end}).partition("?")[2], NOW)

    assert timedelta() < view.end - view.start <= timedelta(days=400)


def test_a_window_outside_the_date_range_is_ignored_and_reported() -> None:
    far = ("0001-01-01", "0001-01-01T00:00+14:00", "9999-12-31", "253402300799999", "1969-12-31", "2200-01-01")
    for each in (*far, "now-3000w", "x"):
        view = parse("/", address("/", {"from": each, "to": each}).partition("?")[2], NOW)
        assert (view.start, view.end) == (WHOLE - timedelta(hours=6), WHOLE), each

    assert [parse("/", each, NOW).is_as_asked for each in ("from=now-1h", "")] == [True, True]
    for each in ("from=now&to=now-1h", "from=now-401d", "from=now-0s"):
        assert not parse("/", each, NOW).is_as_asked, each


@given(st.text())
def test_characters_no_database_stores_are_replaced(text: str) -> None:
    view = parse(f"/s/{text}", "q=" + quote(text, errors="surrogatepass"), NOW)

    assert not any("\0" in each for each in (*view.parts, *view.query.values()))
    assert all(each.encode() for each in (*view.parts, *view.query.values()))


def test_unknown_keys_are_ignored_and_links_preserve_the_window() -> None:
    assert parse("/s/a", "?to=now&utm_source=x&y=share&p=95", NOW).here() == "/s/a?p=95&y=share&to=now"
    assert parse("/s/a", "?from=now-1h&y=share&v=2.0", NOW).link("/traces", svc="a") == "/traces?svc=a&from=now-1h"


def test_another_list_starts_at_its_first_page() -> None:
    view = parse("/traces", "?n=3&dom=queue", NOW)

    assert (view.here(dom="load"), view.here(n="4")) == ("/traces?dom=load", "/traces?dom=queue&n=4")
    assert (view.here(), view.page_of(9), view.page_of(2)) == ("/traces?dom=queue&n=3", 3, 2)
    for number, shown in (("0", 1), ("-1", 1), ("x", 1), ("²", 1), ("9" * 30, 1), ("9" * 9, 5)):
        assert parse("/", f"?n={number}", NOW).page_of(5) == shown


@given(st.lists(st.tuples(st.text(min_size=1), st.text())))
def test_any_attributes_survive_their_address(pairs: list[tuple[str, str]]) -> None:
    stripped = [(storable(key.strip()), storable(value.strip())) for key, value in pairs]
    expected = tuple(pair for pair in stripped if pair[0])[:8]
    query = parse("/traces", "", NOW).here(at=attributes_text(pairs)).partition("?")[2]

    assert parse("/traces", query, NOW).attributes == expected


def test_typed_attributes_need_no_escapes() -> None:
    assert parse("/traces", "?at=tenant: acme , tier,:x,,cpu:50%25", NOW).attributes == (
        ("tenant", "acme"),
        ("tier", ""),
        ("cpu", "50%"),
    )


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_any_service_name_survives_its_address(name: str) -> None:
    assert parse(service_path(name), "", NOW).parts == ("s", name)


def test_a_pinned_percentile_is_below_one_hundred() -> None:
    pins = {"95": 0.95, "99.9": 0.999, "x": 0.99, "100": 0.99, "-1": 0.99, "0.99": 0.99, "0": 0}

    assert {text: parse("/s/a", f"?p={text}", NOW).percentile for text in pins} == pytest.approx(pins)


def test_times_are_in_the_reader_s_zone_where_it_is_known() -> None:
    for zone, hour in (("Europe/Berlin", 13), ("Nowhere/Land", 12), ("../etc/passwd", 12), (None, 12)):
        view = parse("/", "", NOW, zone)
        assert view.now.astimezone(view.zone).hour == hour


def test_a_window_names_its_clocks_where_they_change() -> None:
    view = parse("/", "?from=2026-10-25T00:30Z&to=2026-10-25T01:10Z", NOW, "Europe/Berlin")

    assert view.window_label == "25 Oct 02:30 CEST to 02:10 CET"
    assert view.zone_name == "Europe/Berlin (UTC+02:00, then +01:00)"
    assert parse("/", "?tz=utc", NOW, "Europe/Berlin").zone_name == "UTC"
