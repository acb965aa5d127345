"""The stage to blame is that of the requests that broke the objective, wherever it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import pytest
from dash import html

from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.objectives.slo_file import LiveSloFile, read_slo_file
from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.pages.measures import urgent_first
from stagelens.dashboard.source import Source
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.routing import context_of, page_of
from stagelens.store import Store
from tests.dashboard.pages.test_overview import all_of
from tests.dashboard.served_versions import NOW, Served, shown, write

SLO = """slos:
  - {name: shop-latency, service: shop, objective: 0.999, threshold: 300ms, window: 30d}
  - {name: line-queue, service: line, objective: 0.99, threshold: 50ms, window: 30d, stage: queue}
"""
# Of the last half hour one request in 50 waits for a cold start; what the others spend in a dependency is the whole p99.
FLEET = (
    Served("shop", "1", 70, 0, {"dependency": 30, "forward": 5, "overhead": 1}, rate=100),
    Served("shop", "1", 30, 0, {"load": 900, "forward": 5, "overhead": 1}, rate=2),
    *(Served("line", "1", 70, 30), Served("line", "1", 30, 0, {"forward": 10, "queue": 90, "overhead": 1})),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, traffic: ModuleType) -> Iterator[Source]:
    """Two services with burning objectives and incidents."""
    folder = tmp_path_factory.mktemp("bad")
    file = folder / "slo.yaml"
    file.write_text(SLO, encoding="utf-8")
    store = Store.open(f"sqlite:///{folder / 'bad.db'}", clock=NOW.timestamp)
    write(store, traffic, *FLEET)
    Evaluator(store, "tests", lease_seconds=600).tick(replace(read_slo_file(file, {}), dashboard_url=""), NOW)
    yield Source(store, AlertsReader(store, LiveSloFile(file, {})), NOW.timestamp)
    store.close()


def test_card_page_incident_and_link_name_the_stage_of_the_bad_requests(source: Source) -> None:
    """Another stage dominates p99, which is within the objective."""
    context = context_of(parse("/", "", NOW), source)
    (row,) = (each for each in urgent_first(context) if each.service == "shop")
    (incident,) = (each for each in source.incidents() if each.name == "shop-latency")
    overview, page = shown(source, "/"), shown(source, "/slo/shop-latency?from=now-1h")
    whole = shown(source, f"/incidents/{incident.id}")

    assert max(row.now.tail_stages, key=lambda stage: row.now.tail_stages[stage]) == "dependency"
    assert incident.stages[0].stage == "load"
    assert "in cold start" in incident.headline
    assert "Bad requests since 11:" in overview
    assert "more in Cold start" in overview
    assert "Bad requests in the last 1 h spend" in page
    assert "more in Cold start" in page
    assert "Dependency is" not in overview
    assert "Show the requests" in whole


def test_the_requests_of_an_incident_violated_its_objective(source: Source) -> None:
    """The link selects retained requests beyond the threshold, or those that spent their time in the stage."""
    for name, why in (("shop-latency", "min=300ms"), ("line-queue", "dom=queue")):
        (incident,) = (each for each in source.incidents() if each.name == name)
        context = context_of(parse(f"/incidents/{incident.id}", "", NOW), source)
        page = page_of(context)
        assert page is not None
        (href,) = (each.href for each in all_of(page.body, html.A) if each.children == "Show the requests")

        assert href.startswith(f"/s/{incident.service}/traces?{why}&from=")


def test_a_stage_objective_names_its_stage(source: Source) -> None:
    """In the incident, on the card, on its page and in the list."""
    (incident,) = (each for each in source.incidents() if each.name == "line-queue")
    page = shown(source, "/slo/line-queue?from=now-1h")

    assert "line: queue SLO burning" in incident.headline
    assert "of requests spend too long in queue" in incident.headline
    assert "The objective limits the stage Queue" in shown(source, "/")
    assert "Each bad request of this objective spent too long in Queue" in page
    assert "Queue under 50 ms" in page
