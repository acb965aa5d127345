"""What spent a budget: the stage of the requests that broke the objective, and the budgets of stages."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
from flask.testing import FlaskClient

from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.evaluation.evidence import stage_budgets
from stagelens.alerts.objectives.slo_file import read_slo_file
from stagelens.alerts.reader import Incident
from stagelens.dashboard.pages.measures import urgent_first
from stagelens.dashboard.source import Source
from stagelens.store import Batch, RetainedTrace, Series, Store
from tests.dashboard.rendering import alerts_of, check_views, client_of, context_at, data_at, shown, source_of
from tests.dashboard.served_versions import FAST, NOW, Served, write

BUDGETS = """slos:
  - name: hot-latency
    service: hot
    objective: 0.99
    threshold: 60ms
    window: 30d
    budgets: {queue: 5ms, forward: 40ms, decode: 1ms}
  - {name: plain, service: hot, objective: 0.9, threshold: 60ms, window: 30d}
  - {name: up, service: hot, objective: 0.9, window: 30d}
  - {name: rare, service: hot, objective: 0.9999, threshold: 60ms, window: 30d, budgets: {queue: 5ms}}
  - {name: gone, service: nobody, objective: 0.9, threshold: 60ms, window: 30d, budgets: {queue: 5ms}}
"""


@pytest.fixture
def budgeted(burning_store: Store, tmp_path: Path) -> Source:
    return source_of(burning_store, tmp_path, BUDGETS)


@pytest.fixture
def client(burning_store: Store, tmp_path: Path) -> FlaskClient:
    return client_of(burning_store, alerts_of(burning_store, tmp_path, BUDGETS))


def test_the_card_lists_exceeded_budgets_first_for_the_window_and_version(budgeted: Source) -> None:
    check_views("stage_budgets", budgeted)


def test_the_exceeded_budget_is_that_of_the_evidence_of_an_alert(budgeted: Source) -> None:
    slo = next(each.slo for each in budgeted.slos() if each.slo.name == "hot-latency")
    end = NOW.replace(second=0)
    split = stage_budgets(budgeted.read, slo, end - timedelta(hours=1), end)
    tables = data_at(budgeted, "/slo/hot-latency?from=now-1h").tables
    row = next(table for table in tables if table.name == "Stage budgets").rows[0]
    assert split is not None

    assert row[2].split()[0] == f"{split.uses[0].seconds * 1000:.1f}"


def test_stage_budgets_and_the_remainder_add_up(client: FlaskClient) -> None:
    body = client.get("/api/v1/query/budgets?name=hot-latency&from=now-1h").get_json()
    first = client.get("/api/v1/query/budgets?name=hot-latency&version=1").get_json()

    assert sum(row[2] for row in body["rows"]) + body["rest_seconds"] == pytest.approx(body["value_seconds"])
    assert sum(row[3] for row in body["rows"]) + body["rest_mean_seconds"] == pytest.approx(body["mean_seconds"])
    assert [row[4] for row in body["rows"]] == pytest.approx([row[2] - row[1] for row in body["rows"]])
    assert max(row[4] for row in first["rows"]) < 0


def test_the_api_reports_objectives_without_budgets_or_requests(client: FlaskClient) -> None:
    plain, never, rare, gone = (
        client.get(f"/api/v1/query/budgets?name={name}") for name in ("plain", "never", "rare", "gone")
    )

    assert (plain.status_code, plain.get_json()["key"]) == (404, "name")
    assert "budgets: {queue: 50ms}" in plain.get_json()["fix"]
    assert (never.status_code, "hot-latency" in never.get_json()["fix"]) == (404, True)
    assert (rare.get_json()["enough"], gone.get_json()["requests"]) == (False, 0)


def test_the_budget_table_exports_as_csv(client: FlaskClient) -> None:
    response = client.get("/api/v1/view?path=/slo/hot-latency&from=now-1h&table=Stage%20budgets&format=csv")
    lines = list(csv.reader(io.StringIO(response.text)))

    assert lines[0][:5] == ["Stage", "Budget", "p99", "mean", "Over or under"]
    assert lines[1][0] == "Queue"


def test_stages_without_a_budget_are_blamed_when_they_exceed_the_threshold(
    traffic: ModuleType, store: Store, tmp_path: Path
) -> None:
    write(store, traffic, Served("hot", "1", 20, stages={**FAST, "preprocess": 200}))
    budgeted = source_of(store, tmp_path, BUDGETS)
    check_views("stage_budgets_unassigned", budgeted, "/slo/hot-latency?from=now-15m # Stage budgets")


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
def blamed(tmp_path_factory: pytest.TempPathFactory, traffic: ModuleType) -> Iterator[Source]:
    folder = tmp_path_factory.mktemp("bad")
    store = Store.open(f"sqlite:///{folder / 'bad.db'}", clock=NOW.timestamp)
    made = source_of(store, folder, SLO)
    write(store, traffic, *FLEET)
    store.write([Batch("kept", [], [HEALTHY])])
    evaluator = Evaluator(store, "tests", lease_seconds=600)
    for minutes in (9, 0):
        objectives = replace(read_slo_file(folder / "slo.yaml", {}), dashboard_url="")
        evaluator.tick(objectives, NOW - timedelta(minutes=minutes))
    yield made
    store.close()


def incident_of(blamed: Source, name: str) -> Incident:
    return next(each for each in blamed.incidents() if each.name == name)


def test_every_page_names_what_broke_the_objective(blamed: Source) -> None:
    names = ("shop-latency", "line-queue", "pay-latency", "gone-latency")
    incidents = [f"/incidents/{incident_of(blamed, name).id}" for name in names]
    cards = [f"/slo/{name}?from=now-1h # {card}" for name in names for card in ("head", "What spent", "Multi")]
    check_views("blame", blamed, "/ # head", "/events # head", "/s/pay # head", *cards, *incidents)


def test_the_stage_is_that_of_the_bad_requests(blamed: Source) -> None:
    (row,) = (each for each in urgent_first(context_at(blamed, "/")) if each.service == "shop")
    incident = incident_of(blamed, "shop-latency")

    assert max(row.now.tail_stages, key=lambda stage: row.now.tail_stages[stage]) == "dependency"
    assert incident.stages[0].stage == "load"
    assert "in cold start" in incident.headline
    assert "Dependency is" not in shown(blamed, "/")
    assert "106 ms" not in shown(blamed, f"/incidents/{incident.id}")


def test_failures_are_named_instead_of_a_stage(blamed: Source) -> None:
    incident = incident_of(blamed, "pay-latency")

    assert (incident.cause_kind, incident.blamed, incident.stages) == ("failures", None, ())
    assert "in queue" not in shown(blamed, f"/incidents/{incident.id}")


def test_an_incident_without_requests_has_no_data_and_does_not_recover(blamed: Source) -> None:
    incident = incident_of(blamed, "gone-latency")
    (status,) = (each for each in blamed.slos() if each.slo.name == "gone-latency")

    assert (incident.state, incident.cause_kind) == ("open", "no_data")
    assert (status.state, status.burn_5m) == ("no_data", None)
    assert "Recovering" not in shown(blamed, "/slo/gone-latency?from=now-1h")
