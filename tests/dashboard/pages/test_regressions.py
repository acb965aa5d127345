"""The page of regressions by version: services, sizes, stages, and the number of queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest

from stagelens.alerts.evaluation.slo_status import SloStatus
from stagelens.alerts.reader import Incident
from stagelens.dashboard.pages.page import Context
from stagelens.dashboard.pages.regressions import compare_releases, regressions
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import text_of
from stagelens.dashboard.web.shell import side
from stagelens.store import Store
from tests.dashboard.rendering import check_views, context_at, data_at, shown, source_of
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
    return source_of(store)


def of(source: Source, address: str = "/regressions", now: datetime = NOW) -> Context:
    return context_at(source, address, now)


def test_each_release_is_compared_with_the_version_before(source: Source) -> None:
    verdicts = [(release.service, release.comparison.verdict.kind) for release in compare_releases(of(source))]

    check_views("regressions", source)
    assert verdicts == [
        ("slower", "regression"),
        ("back", "regression"),
        ("faster", "improvement"),
        ("same", "same"),
        ("young", "not_enough"),
    ]
    # The others are improvements, were rolled back, or have too few requests.
    assert [regression.service for regression in regressions(of(source))] == ["slower"]


def test_a_row_opens_the_comparison_with_the_same_numbers(source: Source) -> None:
    row = data_at(source, "/regressions").tables[0].rows[0]
    opened = shown(source, regressions(of(source))[0].href)

    assert row[2].removesuffix(" p99") in opened
    assert row[4].split()[0] in opened


def test_old_releases_are_not_evaluated(store: Store) -> None:
    later = NOW + timedelta(days=8)
    source = source_of(store, now=later)
    window = "from=2026-11-27T00:00&to=2026-11-28T00:00"

    assert compare_releases(of(source, "/regressions", later)) == []
    assert len(compare_releases(of(source, "/regressions?from=now-30d", later))) == 5
    assert "No service was released in the last 7 days" in shown(source, f"/regressions?{window}", later)


@dataclass
class Alerts:
    incident: Incident

    def slos(self, now: datetime | None = None) -> list[SloStatus]:  # noqa: ARG002 - as it is asked
        return []

    def incidents(self) -> list[Incident]:
        return [self.incident]

    def problems(self) -> list[str]:
        return []


def incident(service: str) -> Incident:
    began = NOW - timedelta(minutes=12)
    texts = (None, f"{service} burns", "burned", (), "2", "", ())
    return Incident("i1", "slo", service, "page", "open", began, began, *texts)


def test_an_open_incident_is_shown_with_its_release(store: Store) -> None:
    text = shown(Source(store, Alerts(incident("slower")), NOW.timestamp), "/regressions")

    assert "open for 12 m" in text


def test_an_open_incident_does_not_raise_a_small_change(
    traffic: ModuleType, open_module_store: Callable[[], Store]
) -> None:
    opened, few = open_module_store(), {**FAST, "forward": 11.1}
    slight = (Served("slight", "1", 30, 15), Served("slight", "2", 15, 0, few))
    write(opened, traffic, *slight, Served("slower", "1", 30, 15), Served("slower", "2", 15, 0, SLOW))
    source = Source(opened, Alerts(incident("slight")), NOW.timestamp)
    found = regressions(of(source))

    assert [(each.service, each.is_clear, each.incident is not None) for each in found] == [
        ("slower", True, False),
        ("slight", False, True),
    ]
    assert (found[1].comparison.verdict.ratio_low or 0) > 1
    assert "Regressions 1 " in " ".join(text_of(side(of(source), "/", source.state())).split())


def test_a_refresh_of_a_large_fleet_needs_few_queries(
    store: Store, traffic: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    later = NOW + timedelta(minutes=2)
    source = source_of(store, now=later)
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


def test_the_page_of_the_filled_store_names_the_slow_stage(filled: Store) -> None:
    (found,) = regressions(of(source_of(filled)))

    assert found.service == "vision-api"
    assert found.comparison.growth[0].stage == "preprocess"
    assert found.since.astimezone(UTC) < NOW
