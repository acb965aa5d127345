"""The page of events: everything that happened in the window, by kind and service, with a link to what shows it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from stagelens.dashboard.pages.events import TimelineEvent, timeline_events
from stagelens.dashboard.source import Source
from stagelens.store import Event, Store
from tests.dashboard.burning_slos import SLO
from tests.dashboard.rendering import check_views, context_at, page_at, source_of
from tests.dashboard.served_versions import NOW


@pytest.fixture(scope="module")
def source(burning_folder: Path, burning_store: Store) -> Source:
    return source_of(burning_store, burning_folder, SLO)


def found(source: Source, search: str = "from=now-2h") -> list[TimelineEvent]:
    return timeline_events(context_at(source, f"/events?{search}"))


def test_events_are_listed_by_day_kind_and_service_with_links(source: Source) -> None:
    check_views("events", source)


def test_each_event_links_to_a_page_about_its_time(source: Source) -> None:
    for event in found(source, "from=now-7d"):
        view = context_at(source, event.href).view
        page_at(source, event.href)
        assert event.kind not in {"deploy", "note"} or view.start < event.at < view.end


def test_an_event_of_the_last_seconds_is_listed(store: Store) -> None:
    source = source_of(store)
    store.add_event(Event(NOW, "", "note", "", "just now"))
    store.add_event(Event(NOW + timedelta(minutes=1), "", "note", "", "later"))
    ends = NOW.replace(second=NOW.second // 10 * 10).timestamp() * 1000

    assert [each.title for each in found(source)] == ["just now"]
    assert [found(source, f"from=now-2h&to={ends:.0f}"), found(source, "from=now-3h&to=now-1h")] == [[], []]
