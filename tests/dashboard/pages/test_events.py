"""The page of events: everything that happened in the window, by kind and service, with a link to what shows it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.pages.events import KINDS, TimelineEvent, timeline_events
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import page_data
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.routing import context_of, page_of
from stagelens.store import Event, Store
from tests.dashboard.burning_slos import ENV, NOW
from tests.dashboard.rendering import shown


@pytest.fixture(scope="module")
def source(burning_folder: Path, burning_store: Store) -> Source:
    alerts = AlertsReader(burning_store, LiveSloFile(burning_folder / "slo.yaml", ENV))
    return Source(burning_store, alerts, NOW.timestamp)


def found(source: Source, search: str = "from=now-2h") -> list[TimelineEvent]:
    return timeline_events(context_of(parse("/events", search, NOW), source))


def test_all_kinds_of_events_are_listed_newest_first(source: Source) -> None:
    every = found(source)

    assert [each.at for each in every] == sorted((each.at for each in every), reverse=True)
    assert {each.kind for each in every} == {"release", "incident", "deploy", "config", "advice"}
    assert [each.title for each in every if each.kind == "release"] == ["2 first seen"]


def test_each_event_links_to_its_view(source: Source) -> None:
    by_kind = {each.kind: each for each in found(source) if each.service == "hot"}
    incident, deploy = (urlsplit(by_kind[kind].href) for kind in ("incident", "deploy"))
    moments = parse_qs(deploy.query)

    assert by_kind["release"].href == "/compare?svc=hot&a=1&b=2&from=now-2h"
    assert incident.path == "/slo/hot-latency"
    assert int(parse_qs(incident.query)["from"][0]) < by_kind["incident"].at.timestamp() * 1000
    assert deploy.path == "/s/hot"
    assert int(moments["from"][0]) < by_kind["deploy"].at.timestamp() * 1000
    assert by_kind["deploy"].source == "https://ci.example/7"
    assert by_kind["advice"].href == "/s/hot/advice"
    for each in found(source):
        path, _, search = each.href.partition("?")
        page = page_of(context_of(parse(path, search, NOW), source))
        assert page is not None


def test_an_event_link_centres_its_window_on_the_event(source: Source) -> None:
    deploy = next(each for each in found(source) if each.kind == "deploy")
    path, _, search = deploy.href.partition("?")
    view = context_of(parse(path, search, NOW), source).view
    old = next(each for each in found(source, "from=now-7d") if each.kind == "note")
    path, _, search = old.href.partition("?")
    before = context_of(parse(path, search, NOW + timedelta(days=9)), source).view

    assert view.end == NOW.replace(second=0)
    assert view.end - view.start == timedelta(hours=2)
    assert abs(before.start + (before.end - before.start) / 2 - old.at) < timedelta(days=2.5)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_kind_filter_shows_only_its_events(source: Source, kind: str) -> None:
    data = page_data(page_of(context_of(parse("/events", f"kind={kind}&from=now-7d", NOW), source)).body)  # type: ignore[union-attr]
    rows = [row for table in data.tables for row in table.rows]
    expected = [each for each in found(source, "from=now-7d") if each.kind == kind]

    assert len(rows) == len(expected)
    assert [row[0] for row in rows] == [f"{each.at:%H:%M}" for each in expected]


def test_an_event_of_the_last_seconds_is_listed(store: Store) -> None:
    source = Source(store, None, NOW.timestamp)
    store.add_event(Event(NOW, "", "note", "", "just now"))
    store.add_event(Event(NOW + timedelta(minutes=1), "", "note", "", "planned"))
    ends = NOW.replace(second=NOW.second // 10 * 10).timestamp() * 1000

    assert [each.title for each in found(source)] == ["just now"]
    assert [found(source, f"from=now-2h&to={ends:.0f}"), found(source, "from=now-3h&to=now-1h")] == [[], []]


def test_a_service_page_lists_its_events_and_global_ones(source: Source) -> None:
    every = found(source, "svc=hot&from=now-2h")

    assert {each.service for each in every} == {"hot", ""}
    assert "All services" in shown(source, "/events?svc=hot&from=now-2h")


def test_days_are_headings(source: Source) -> None:
    text = shown(source, "/events?from=now-7d")

    assert text.index("Friday, 20 November 2026") < text.index("Thursday, 19 November 2026")


def test_event_texts_are_escaped(source: Source) -> None:
    assert "two replicas <b>more</b>" in shown(source, "/events?from=now-2h")


@pytest.mark.parametrize("search", ["kind=party", "svc=nobody", "from=now-3h&to=now-2h", "kind=%00&svc=%3Cb%3E"])
def test_an_empty_event_list_explains_what_appears_there(source: Source, search: str) -> None:
    text = shown(source, f"/events?{search}")

    assert "Events" in text
    assert ("No event in this window" in text) == ("to=" in search)


def test_an_empty_store_has_a_page(store: Store) -> None:
    source = Source(store, None, NOW.timestamp)
    text = shown(source, "/events")
    store.add_event(Event(datetime.fromtimestamp(NOW.timestamp() - 60, NOW.tzinfo), "", "note", "", "first light"))

    assert "No event in this window" in text
    assert [each.title for each in found(source)] == ["first light"]
