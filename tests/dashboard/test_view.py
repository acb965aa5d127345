"""Every view is an address."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.dashboard.view import address, parse, service_path

NOW = datetime(2026, 11, 20, 12, 0, 7, tzinfo=UTC)
WHOLE = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


def test_the_default_window_is_the_last_six_hours_to_the_last_whole_bucket() -> None:
    """A bucket that still fills would look like a drop."""
    view = parse("/", "", NOW)

    assert (view.start, view.end, view.live) == (WHOLE - timedelta(hours=6), WHOLE, True)


@pytest.mark.parametrize(
    ("search", "start", "end"),
    [
        ("?from=now-15m", WHOLE - timedelta(minutes=15), WHOLE),
        (
            "?from=1795100000000&to=1795103600000",
            datetime.fromtimestamp(1795100000, UTC),
            datetime.fromtimestamp(1795103600, UTC),
        ),
        (
            "?from=2026-11-20T10:00&to=2026-11-20T11:00Z",
            datetime(2026, 11, 20, 10, tzinfo=UTC),
            datetime(2026, 11, 20, 11, tzinfo=UTC),
        ),
    ],
)
def test_a_window_is_relative_or_from_moment_to_moment(search: str, start: datetime, end: datetime) -> None:
    """Presets, dragged windows and typed ones."""
    view = parse("/", search, NOW)

    assert (view.start, view.end) == (start, end)


@given(st.text(max_size=30), st.text(max_size=30))
def test_an_invalid_window_falls_back_to_the_default(start: str, end: str) -> None:
    """A mistyped address still shows a page."""
    view = parse("/", address("/", {"from": start, "to": end}).partition("?")[2], NOW)

    assert timedelta() < view.end - view.start <= timedelta(days=400)


@pytest.mark.parametrize(
    "moment",
    [
        "0001-01-01",
        "0001-01-01T00:00+14:00",
        "9999-12-31",
        "253402300799999",
        "1969-12-31",
        "2200-01-01",
        "now-3000w",
        "x",
    ],
)
def test_a_time_outside_the_date_range_is_ignored(moment: str) -> None:
    """Stores and charts cannot count as far as dates can: such a window is the default one."""
    view = parse("/", address("/", {"from": moment, "to": moment}).partition("?")[2], NOW)

    assert (view.start, view.end) == (WHOLE - timedelta(hours=6), WHOLE)


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ("from=now-1h", True),
        ("", True),
        ("from=now&to=now-1h", False),
        ("from=now-401d", False),
        ("from=now-0s", False),
    ],
)
def test_a_window_reports_whether_it_was_requested(search: str, expected: bool) -> None:
    """A page shows the default window instead; the API returns an error."""
    assert parse("/", search, NOW).is_as_asked is expected


@given(st.text())
def test_characters_no_database_stores_are_replaced(text: str) -> None:
    """NUL and halves of characters, in names and in values."""
    view = parse(f"/s/{text}", "q=" + quote(text, errors="surrogatepass"), NOW)

    assert not any("\0" in each for each in (*view.parts, *view.query.values()))
    assert all(each.encode() for each in (*view.parts, *view.query.values()))


def test_unknown_keys_are_ignored_and_the_order_is_fixed() -> None:
    """Equal views have equal addresses."""
    view = parse("/s/a", "?to=now&utm_source=x&y=share&p=95", NOW)

    assert view.here() == "/s/a?p=95&y=share&to=now"


def test_a_link_preserves_the_window_and_drops_page_parameters() -> None:
    """From a service to its traces the time stays, the axis does not."""
    view = parse("/s/a", "?from=now-1h&y=share&v=2.0", NOW)

    assert view.link("/traces", svc="a") == "/traces?svc=a&from=now-1h"


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_any_service_name_survives_its_address(name: str) -> None:
    """Slashes, spaces, question marks and letters of any script."""
    assert parse(service_path(name), "", NOW).parts == ("s", name)


@pytest.mark.parametrize(
    ("text", "percentile"), [("95", 0.95), ("99.9", 0.999), ("x", 0.99), ("100", 0.99), ("-1", 0.99)]
)
def test_a_pinned_percentile_is_below_one_hundred(text: str, percentile: float) -> None:
    """p100 would describe a single request."""
    assert parse("/s/a", f"?p={text}", NOW).percentile == pytest.approx(percentile)


@pytest.mark.parametrize(
    ("zone", "hour"), [("Europe/Berlin", 13), ("Nowhere/Land", 12), ("../etc/passwd", 12), (None, 12)]
)
def test_times_are_in_the_reader_s_zone_where_it_is_known(zone: str | None, hour: int) -> None:
    """The browser sends its time zone; an invalid one is UTC."""
    view = parse("/", "", NOW, zone)

    assert view.now.astimezone(view.zone).hour == hour
