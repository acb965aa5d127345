"""The page of regressions by version: services, sizes, stages, and the number of queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stagelens.alerts.evaluation.slo_status import SloStatus
from stagelens.alerts.reader import AlertsReader, Incident
from stagelens.dashboard.pages.page import Context
from stagelens.dashboard.pages.regressions import compare_releases, regressions
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import page_data, text_of
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.routing import context_of, page_of
from stagelens.dashboard.web.shell import side
from stagelens.store import Store
from tests.dashboard.rendering import shown
from tests.dashboard.served_versions import FAST, NOW, SLOW, Served, write

FLEET = (
    *(Served("slower", "1", 30, 15), Served("slower", "2", 15, 0, SLOW)),
    *(Served("faster", "1", 30, 15, SLOW), Served("faster", "2", 15, 0, FAST)),
    *(Served("same", "1", 30, 15), Served("same", "2", 15, 0)),
    *(Served("young", "1", 30, 0.5), Served("young", "2", 0.5, 0, SLOW, rate=1)),
    *(Served("back", "1", 30, 20), Served("back", "2", 20, 10, SLOW), Served("back", "1", 10)),
    Served("single", "1", 30),
)


@pytest.fixture(scope="module")
def store(open_module_store: Callable[[], Store], traffic: ModuleType) -> Store:
    opened = open_module_store()
    write(opened, traffic, *FLEET)
    return opened


@pytest.fixture
def source(store: Store) -> Source:
    return Source(store, None, NOW.timestamp)


def of(source: Source, address: str = "/regressions", now: datetime = NOW) -> Context:
    path, _, search = address.partition("?")
    return context_of(parse(path, search, now), source)


def test_each_release_is_compared_with_the_version_before(source: Source) -> None:
    found = [(each.service, each.comparison.verdict.kind) for each in compare_releases(of(source))]

    assert found == [
        ("slower", "regression"),
        ("back", "regression"),
        ("faster", "improvement"),
        ("same", "same"),
        ("young", "not_enough"),
    ]


def test_the_overview_and_the_side_bar_count_open_regressions(source: Source) -> None:
    assert [each.service for each in regressions(of(source))] == ["slower"]


def test_the_page_starts_with_the_finding(source: Source) -> None:
    text = shown(source, "/regressions")

    assert text.startswith("1 of 5 released services became slower")
    assert text.index("Open slower") < text.index("slower 1 → 2") < text.index("Improved") < text.index("faster 1 → 2")
    assert "No difference, or not evaluated: 3 services" in text
    assert "Queue" in text
    assert "back 1 → 2 Rolled back" in text


def test_a_row_opens_the_comparison_with_the_same_numbers(source: Source) -> None:
    page = page_of(of(source))
    assert page is not None
    row = page_data(page.body).tables[0].rows[0]
    release = regressions(of(source))[0]
    opened = shown(source, release.href)

    assert release.href == "/compare?svc=slower&a=1&b=2&p=99"
    assert row[2].removesuffix(" p99") in opened
    assert row[4].split()[0] in opened


def test_links_preserve_the_window(source: Source) -> None:
    assert "from=now-24h" in regressions(of(source, "/regressions?from=now-24h"))[0].href


def test_old_releases_are_not_evaluated(store: Store) -> None:
    later = NOW + timedelta(days=8)
    source = Source(store, None, later.timestamp)
    recent = compare_releases(of(source, "/regressions", later))
    wide = compare_releases(of(source, "/regressions?from=now-30d", later))

    assert recent == []
    assert len(wide) == 5
    assert "No service was released in the last 7 days" in shown(
        source, "/regressions?from=2026-11-27T00:00&to=2026-11-28T00:00"
    )


def test_an_environment_without_traffic_has_no_releases(source: Source) -> None:
    assert "No environment called nowhere" in shown(source, "/regressions?env=nowhere")


def test_an_empty_store_shows_how_to_start(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'empty.db'}", clock=NOW.timestamp)
    text = shown(Source(store, None, NOW.timestamp), "/regressions")
    store.close()

    assert "pip install ." in text


@dataclass
class Alerts:
    incident: Incident

    def slos(self, now: datetime | None = None) -> list[SloStatus]:  # noqa: ARG002 - as it is asked
        return []

    def incidents(self) -> list[Incident]:
        return [self.incident]

    def problems(self) -> list[str]:
        return []


def test_an_open_incident_is_shown_with_its_release(store: Store) -> None:
    began = NOW - timedelta(minutes=12)
    incident = Incident(
        *("i1", "slo", "slower", "page", "open", began, began, None, "slower burns", "burned", (), "2", "", ())
    )
    text = shown(Source(store, Alerts(incident), NOW.timestamp), "/regressions")

    assert "open for 12 m" in text


def test_an_open_incident_does_not_raise_a_small_change(traffic: ModuleType, tmp_path: Path) -> None:
    began, few = NOW - timedelta(minutes=12), {**FAST, "forward": 11.1}
    slight = (Served("slight", "1", 30, 15), Served("slight", "2", 15, 0, few))
    opened = Store.open(f"sqlite:///{tmp_path / 'fleet.db'}", clock=NOW.timestamp)
    incident = Incident(
        *("i1", "slo", "slight", "page", "open", began, began, None, "slight burns", "burned", (), "2", "", ())
    )
    write(opened, traffic, *slight, Served("slower", "1", 30, 15), Served("slower", "2", 15, 0, SLOW))
    source = Source(opened, Alerts(incident), NOW.timestamp)
    found = regressions(of(source))
    beside = " ".join(text_of(side(of(source), "/", source.state())).split())

    assert [(each.service, each.is_clear, each.incident is not None) for each in found] == [
        ("slower", True, False),
        ("slight", False, True),
    ]
    assert (found[1].comparison.verdict.ratio_low or 0) > 1
    assert "Regressions 1 " in beside
    opened.close()


def test_a_refresh_of_a_large_fleet_needs_few_queries(
    store: Store, traffic: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    later = NOW + timedelta(minutes=2)
    source = Source(store, None, later.timestamp)
    for name in ("latency", "latencies", "compare", "mix", "releases"):
        monkeypatch.setattr(source.read, name, counting(getattr(source.read, name), name, asked))
    first = compare_releases(of(source, now=later))
    before = Counter(asked)
    write(store, traffic, Served("single", "1", -0.5, -0.8))
    again = compare_releases(of(source, now=later))

    assert before["latencies"] == 1
    assert before["latency"] < len(first)
    assert [each.service for each in again] == [each.service for each in first]
    assert asked - before == Counter(releases=1)


def counting(query: Callable[..., Any], name: str, asked: Counter[str]) -> Callable[..., Any]:
    def count(*args: Any) -> Any:
        asked[name] += 1
        return query(*args)

    count.__qualname__ = name
    return count


def test_the_page_of_the_filled_store_names_the_slow_stage(filled: Store, alerts: AlertsReader) -> None:
    found = regressions(of(Source(filled, alerts, NOW.timestamp)))

    assert [each.service for each in found] == ["vision-api"]
    assert found[0].comparison.growth[0].stage == "preprocess"
    assert found[0].since.astimezone(UTC) < NOW
