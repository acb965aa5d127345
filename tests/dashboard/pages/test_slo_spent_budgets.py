"""The card of stage budgets: which was broken and by how much, on the page and for programs."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
from flask.testing import FlaskClient

from stagelens.alerts.evaluation.evidence import stage_budgets
from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import TableData, page_data
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Store
from tests.dashboard.burning_slos import ENV, NOW
from tests.dashboard.rendering import page_at, shown
from tests.dashboard.served_versions import FAST, Served, write

SLOS = """slos:
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
def alerts(burning_store: Store, tmp_path: Path) -> AlertsReader:
    path = tmp_path / "slo.yaml"
    path.write_text(SLOS, encoding="utf-8")
    return AlertsReader(burning_store, LiveSloFile(path, ENV))


@pytest.fixture
def source(burning_store: Store, alerts: AlertsReader) -> Source:
    return Source(burning_store, alerts, NOW.timestamp)


@pytest.fixture
def client(burning_store: Store, alerts: AlertsReader) -> FlaskClient:
    return Dashboard(DashboardConfig(), burning_store, alerts, clock=NOW.timestamp).server.test_client()


def budgets_at(source: Source, address: str) -> TableData | None:
    found = page_at(source, address)
    return next((each for each in page_data(found.body).tables if each.name == "Stage budgets"), None)


def page_text_at(source: Source, address: str) -> str:
    return shown(source, address).replace("\u202f", " ")


def test_the_exceeded_stage_budget_is_listed_first(source: Source) -> None:
    table, text = (
        budgets_at(source, "/slo/hot-latency?from=now-1h"),
        page_text_at(source, "/slo/hot-latency?from=now-1h"),
    )
    slo = next(each.slo for each in source.slos() if each.slo.name == "hot-latency")
    end = NOW.replace(second=0)
    split = stage_budgets(source.read, slo, end - timedelta(hours=1), end)
    assert table is not None
    assert split is not None
    took = split.uses[0].seconds * 1000

    assert [row[0] for row in table.rows] == [
        "Queue",
        "Decode",
        "Forward",
        "Without a budget",
        "Whole request",
    ]
    assert f"Queue exceeded its budget: {took:.1f} ms of 5 ms." in text
    assert [cell.replace("\u202f", " ") for cell in table.rows[0][1:3]] == ["5 ms", f"{took:.1f} ms"]
    assert table.rows[0][4].endswith("over")
    assert table.rows[2][4].endswith("under")


def test_stage_budgets_and_the_remainder_add_up(source: Source, client: FlaskClient) -> None:
    table = budgets_at(source, "/slo/hot-latency?from=now-1h")
    body = client.get("/api/v1/query/budgets?name=hot-latency&from=now-1h").json
    assert table is not None
    assert body is not None
    seconds = [row[2] for row in body["rows"]]

    assert [row[1].replace("\u202f", " ") for row in table.rows] == ["5 ms", "1 ms", "40 ms", "14 ms", "60 ms"]
    assert sum(seconds) + body["rest_seconds"] == pytest.approx(body["value_seconds"])
    assert sum(row[3] for row in body["rows"]) + body["rest_mean_seconds"] == pytest.approx(body["mean_seconds"])
    assert [row[4] for row in body["rows"]] == pytest.approx([row[2] - row[1] for row in body["rows"]])


def test_window_and_version_filter_the_card(source: Source, client: FlaskClient) -> None:
    sentence = "Every stage stayed within its budget"
    end = int((NOW - timedelta(minutes=42)).timestamp() * 1000)
    start = int((NOW - timedelta(minutes=100)).timestamp() * 1000)
    by_version, by_window = (
        page_text_at(source, f"/slo/hot-latency?{query}") for query in ("v=1", f"from={start}&to={end}")
    )
    body = client.get("/api/v1/query/budgets?name=hot-latency&version=1").json
    assert body is not None

    assert sentence in by_version
    assert sentence in by_window
    assert sentence not in page_text_at(source, "/slo/hot-latency?v=2")
    assert max(row[4] for row in body["rows"]) < 0
    assert "No request in this window" in page_text_at(source, "/slo/hot-latency?v=3")
    assert "All versions 2 1" in page_text_at(source, "/slo/hot-latency")


def test_the_card_is_shown_for_objectives_with_budgets(source: Source) -> None:
    for name in ("plain", "up"):
        assert budgets_at(source, f"/slo/{name}") is None
        assert "Stage budgets" not in page_text_at(source, f"/slo/{name}")


def test_too_few_requests_for_stage_budgets_are_reported(source: Source, client: FlaskClient) -> None:
    rare, gone = page_text_at(source, "/slo/rare"), page_text_at(source, "/slo/gone")
    body = client.get("/api/v1/query/budgets?name=rare").json
    assert body is not None

    assert "Too few requests to evaluate p99.99 needs 100,000 requests, this window has" in rare
    assert "Stage budgets No request in this window" in " ".join(gone.split()).replace("Export ", "")
    assert body["enough"] is False
    assert client.get("/api/v1/query/budgets?name=gone").json["requests"] == 0  # pyright: ignore[reportOptionalSubscript]


def test_the_api_reports_objectives_without_budgets(client: FlaskClient) -> None:
    plain, never = (client.get(f"/api/v1/query/budgets?name={name}") for name in ("plain", "never"))
    assert plain.json is not None
    assert never.json is not None

    assert (plain.status_code, plain.json["key"]) == (404, "name")
    assert "budgets: {queue: 50ms}" in plain.json["fix"]
    assert (never.status_code, "hot-latency" in never.json["fix"]) == (404, True)


def test_the_budget_table_exports_as_csv(client: FlaskClient) -> None:
    response = client.get(
        "/api/v1/view?path=/slo/hot-latency&from=now-1h&table=Stage%20budgets&format=csv",
    )
    lines = list(csv.reader(io.StringIO(response.text)))

    assert lines[0][:5] == ["Stage", "Budget", "p99", "mean", "Over or under"]
    assert lines[1][0] == "Queue"


def test_stages_without_a_budget_are_blamed_when_they_exceed_the_threshold(
    traffic: ModuleType, store: Store, tmp_path: Path
) -> None:
    write(store, traffic, Served("hot", "1", 20, stages={**FAST, "preprocess": 200}))
    path = tmp_path / "slo.yaml"
    path.write_text(SLOS, encoding="utf-8")
    source = Source(store, AlertsReader(store, LiveSloFile(path, ENV)), NOW.timestamp)
    text = page_text_at(source, "/slo/hot-latency?from=now-15m")

    assert "Every stage stayed within its budget; Queue is closest" in text
    assert "Stages without a budget took" in text
    assert "14 ms of the threshold is left for them." in text
