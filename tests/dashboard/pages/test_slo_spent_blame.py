"""The stage to blame is that of the requests that broke the objective, wherever it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from types import ModuleType

import pytest
from dash import html

from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.objectives.slo_file import LiveSloFile, read_slo_file
from stagelens.alerts.reader import AlertsReader, Incident
from stagelens.dashboard.pages.measures import urgent_first
from stagelens.dashboard.source import Source
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.routing import context_of, page_of
from stagelens.store import Batch, RetainedTrace, Series, Store
from tests.dashboard.pages.test_overview import all_of
from tests.dashboard.rendering import shown
from tests.dashboard.served_versions import NOW, Served, write

SLO = """slos:
  - {name: shop-latency, service: shop, objective: 0.999, threshold: 300ms, window: 30d}
  - {name: line-queue, service: line, objective: 0.99, threshold: 50ms, window: 30d, stage: queue}
  - {name: pay-latency, service: pay, objective: 0.99, threshold: 300ms, window: 30d}
  - {name: gone-latency, service: gone, objective: 0.99, threshold: 300ms, window: 30d}
"""
# Of the last half hour one request in 50 waits for a cold start; what the others spend in a dependency is the whole p99.
FLEET = (
    Served("shop", "1", 70, 0, {"dependency": 30, "forward": 5, "overhead": 1}, rate=100),
    Served("shop", "1", 30, 0, {"load": 900, "forward": 5, "overhead": 1}, rate=2),
    *(Served("line", "1", 70, 30), Served("line", "1", 30, 0, {"forward": 10, "queue": 90, "overhead": 1})),
    # Half of the requests fail, after a wait that no good request has.
    *(Served("pay", "1", 70, rate=1), Served("pay", "1", 30, 0, {"queue": 20}, rate=1, status="error")),
    # All traffic stops during a burn.
    *(Served("gone", "1", 70, 30, rate=1), Served("gone", "1", 30, 8, {"queue": 900}, rate=1)),
)
# A healthy request, retained because it was the slowest of its export.
HEALTHY = RetainedTrace(
    "a" * 32,
    "b" * 16,
    Series("shop", "1", "demo", "m", "1", "/", "cuda:0", "ok"),
    int((NOW - timedelta(minutes=5)).timestamp() * 1e9),
    106_000_000,
    "slow",
    "dependency",
    {"dependency": 106_000_000},
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, traffic: ModuleType) -> Iterator[Source]:
    folder = tmp_path_factory.mktemp("bad")
    file = folder / "slo.yaml"
    file.write_text(SLO, encoding="utf-8")
    store = Store.open(f"sqlite:///{folder / 'bad.db'}", clock=NOW.timestamp)
    write(store, traffic, *FLEET)
    store.write([Batch("kept", [], [HEALTHY])])
    evaluator = Evaluator(store, "tests", lease_seconds=600)
    for minutes in (9, 0):
        evaluator.tick(replace(read_slo_file(file, {}), dashboard_url=""), NOW - timedelta(minutes=minutes))
    yield Source(store, AlertsReader(store, LiveSloFile(file, {})), NOW.timestamp)
    store.close()


def test_card_page_incident_and_link_name_the_stage_of_the_bad_requests(source: Source) -> None:
    context = context_of(parse("/", "", NOW), source)
    (row,) = (each for each in urgent_first(context) if each.service == "shop")
    (incident,) = (each for each in source.incidents() if each.name == "shop-latency")
    overview, page = shown(source, "/"), shown(source, "/slo/shop-latency?from=now-1h")
    whole = shown(source, f"/incidents/{incident.id}")

    assert max(row.now.tail_stages, key=lambda stage: row.now.tail_stages[stage]) == "dependency"
    assert incident.stages[0].stage == "load"
    assert "in cold start" in incident.headline
    assert "Slow requests since 11:" in overview
    assert "more in Cold start" in overview
    assert "Slow requests in the last 1 h spend" in page
    assert "more in Cold start" in page
    assert "Dependency is" not in overview
    assert "Show the requests" in whole


def test_the_requests_of_an_incident_violated_its_objective(source: Source) -> None:
    for name, why in (("shop-latency", "min=300ms"), ("line-queue", "dom=queue")):
        (incident,) = (each for each in source.incidents() if each.name == name)
        context = context_of(parse(f"/incidents/{incident.id}", "", NOW), source)
        page = page_of(context)
        assert page is not None
        (href,) = (each.href for each in all_of(page.body, html.A) if each.children == "Show the requests")

        assert href.startswith(f"/s/{incident.service}/traces?{why}&from=")


def test_a_stage_objective_names_its_stage(source: Source) -> None:
    (incident,) = (each for each in source.incidents() if each.name == "line-queue")
    page = shown(source, "/slo/line-queue?from=now-1h")

    assert "line: queue SLO burning" in incident.headline
    assert "of requests spend too long in queue" in incident.headline
    assert "The objective limits the stage Queue" in shown(source, "/")
    assert "Each bad request of this objective spent too long in Queue" in page
    assert "Queue under 50 ms" in page


def incident_of(source: Source, name: str) -> Incident:
    return next(each for each in source.incidents() if each.name == name)


def test_failures_are_named_instead_of_a_stage_everywhere(source: Source) -> None:
    incident = incident_of(source, "pay-latency")
    texts = [
        shown(source, each) for each in ("/", "/events", f"/incidents/{incident.id}", "/slo/pay-latency?from=now-1h")
    ]

    assert (incident.cause_kind, incident.blamed, incident.stages) == ("failures", None, ())
    assert incident.headline.endswith(
        "50 % of requests fail (1,800 of 3,600 since the onset): route / (100 % of failures)"
    )
    assert all("route / (100 % of failures)" in each for each in texts)
    assert "Route / (100 % of failures)." in shown(source, f"/s/{incident.service}")
    assert "queue" not in incident.headline
    assert "in queue" not in texts[2]


def test_an_incident_shows_no_healthy_request(source: Source) -> None:
    page = shown(source, f"/incidents/{incident_of(source, 'shop-latency').id}")

    assert "No retained request broke the objective of 300 ms: 3," in page
    assert "did, and none was sampled" in page
    assert "106 ms" not in page


def test_an_incident_without_requests_has_no_data_and_does_not_recover(source: Source) -> None:
    incident = incident_of(source, "gone-latency")
    (status,) = (each for each in source.slos() if each.slo.name == "gone-latency")
    page = shown(source, "/slo/gone-latency?from=now-1h")

    assert (incident.state, incident.cause_kind) == ("open", "no_data")
    assert "has no data, burned 100" in incident.headline
    assert "no request since 11:5" in incident.headline
    assert (status.state, status.burn_5m) == ("no_data", None)
    assert "there was no request in the last 5 min, so whether it burns is unknown" in page
    assert "Recovering" not in page
    assert "No data" in shown(source, f"/incidents/{incident.id}")
    assert "has no data" in shown(source, "/")
