"""Queries of the API about the fleet: services, incidents, capacity, advice and collectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flask.testing import FlaskClient

from stagelens.alerts.delivery.message import Finding, LatencyRegression
from stagelens.alerts.incidents.lifecycle import IncidentRecord, save_incident
from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.core.histogram import Histogram
from stagelens.core.names import BY_CLIENT_CONTENT, BY_ENGINE, FIRST_TOKEN, OUTPUT_TOKEN
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Batch, Point, Series, Store
from stagelens.store.collectors import Report, Vitals, write_report
from tests.dashboard import capacity_store, many_incidents
from tests.dashboard.burning_slos import ENV
from tests.dashboard.served_versions import NOW


def client_of(store: Store, slos: Path, env: Mapping[str, str]) -> FlaskClient:
    alerts = AlertsReader(store, LiveSloFile(slos, env))
    return Dashboard(DashboardConfig(), store, alerts, clock=NOW.timestamp).server.test_client()


@pytest.fixture(scope="module")
def burning(burning_store: Store, burning_folder: Path) -> FlaskClient:
    return client_of(burning_store, burning_folder / "slo.yaml", ENV)


@pytest.fixture(scope="module")
def loaded(traffic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    folder = tmp_path_factory.mktemp("loaded")
    (folder / "slo.yaml").write_text(capacity_store.SLO, encoding="utf-8")
    store = capacity_store.fill(traffic, folder / "loaded.db", NOW)
    yield client_of(store, folder / "slo.yaml", {})
    store.close()


def ask(client: FlaskClient, question: str, status: int = 200) -> dict[str, Any]:
    response = client.get(f"/api/v1/query/{question}")
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json or {}
    names = [each["name"] for each in found.get("columns", [])]
    return found | {"records": [dict(zip(names, row, strict=True)) for row in found.get("rows", [])]}


def test_the_fleet_has_the_stage_and_the_state_of_each_service(burning: FlaskClient) -> None:
    [first, *_] = ask(burning, "fleet?from=now-1h")["records"]
    own = ask(burning, f"breakdown?service={first['service']}&p=99&from=now-1h")["records"][0]

    assert first["state"] in ("burning", "at_risk")
    assert first["requests"] > 0
    assert first["p99_seconds"] == pytest.approx(own["value_seconds"])
    assert first["stage_share"] == pytest.approx(own[first["slowest_stage"]] / own["value_seconds"], abs=0.05)


def test_incidents_are_listed_and_one_is_complete(burning: FlaskClient) -> None:
    every = ask(burning, "incidents")["records"]
    open_ones = ask(burning, f"incidents?state=open&service={every[0]['service']}")["records"]
    one = ask(burning, f"incidents?id={every[0]['id']}")

    assert open_ones == [each for each in every if each["state"] == "open" and each["service"] == every[0]["service"]]
    assert one["records"] == every[:1]
    assert one["incident"]["headline"] == every[0]["headline"]
    assert one["incident"]["transitions"]


def test_incidents_are_in_the_order_of_the_page_and_limited_to_a_window(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'own.db'}", clock=many_incidents.NOW.timestamp)
    many_incidents.fill(store)
    client = Dashboard(DashboardConfig(), store, clock=many_incidents.NOW.timestamp).server.test_client()
    rows = ask(client, "incidents?from=now-6h")["records"]
    old = ask(client, "incidents?from=2026-11-16T00:00&to=2026-11-18T00:00&severity=page")["records"]
    every = ask(client, "incidents")["records"]
    store.close()

    assert [each["severity"] for each in rows] == ["page"] * 11 + ["ticket"] * 40
    assert [each["status"] for each in rows[:3]] == ["acknowledged", "recovering", "open"]
    assert {each["story"] for each in rows[11:]} == {"sl-ticket00", "sl-ticket20"}
    assert [each["id"] for each in old] == ["sl-old"]
    assert sum(each["severity"] == "page" for each in every) >= many_incidents.PAGES


def test_an_old_open_incident_is_listed_behind_many_resolved_ones(tmp_path: Path) -> None:
    store, at = Store.open(f"sqlite:///{tmp_path / 'own.db'}", clock=NOW.timestamp), NOW.timestamp()
    shift = LatencyRegression(0.99, 0.252, 0.312, 1.18, 1.31, 48_210, 1800.0, 9.3)
    finding = Finding("tail", "search", "p99 was 252 ms", "tail", "ticket", at, shift=shift)
    with store.transaction() as connection:
        save_incident(connection, IncidentRecord("inc-old", "tail:old", finding, at - 9000, at, at))
        for number in range(60):
            record = IncidentRecord(f"inc-{number}", f"tail:{number}", finding, at - number, at, at, resolved_at=at)
            save_incident(connection, record)
    client = Dashboard(DashboardConfig(), store, clock=NOW.timestamp).server.test_client()
    found, every = (
        [each["id"] for each in ask(client, f"incidents{query}")["records"]] for query in ("?state=open", "")
    )
    store.close()

    assert found == ["inc-old"]
    assert every[0] == "inc-old"
    assert len(every) == 51


@pytest.mark.parametrize(("query", "status", "key"), [("state=closed", 400, "state"), ("id=inc-none", 404, "id")])
def test_an_invalid_filter_of_incidents_is_named(burning: FlaskClient, query: str, status: int, key: str) -> None:
    refused = ask(burning, f"incidents?{query}", status)

    assert refused["key"] == key
    assert refused["fix"]


def test_tokens_have_the_percentiles_of_each_definition(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'streams.db'}")
    counted = Histogram()
    for seconds in (0.1, 0.2, 0.4):
        counted.record(seconds, 20)
    at = int((NOW - timedelta(minutes=5)).timestamp())
    series = Series("chat", "1", "", "m", "1", "/", "cpu", "ok")
    points = [
        Point(series, FIRST_TOKEN, BY_ENGINE, at, counted),
        Point(series, OUTPUT_TOKEN, BY_CLIENT_CONTENT, at, counted),
    ]
    store.write([Batch("streams", points)])

    found = ask(client_of(store, tmp_path / "slo.yaml", {}), "tokens?service=chat&p=50&from=now-1h")["records"]
    store.close()

    assert [(row["measure"], row["definition"], row["requests"]) for row in found] == [
        ("first_token", BY_ENGINE, 60),
        ("output_token", BY_CLIENT_CONTENT, 60),
    ]
    assert [row["value_seconds"] for row in found] == pytest.approx([0.2, 0.2], rel=0.011)


def test_capacity_has_the_numbers_of_its_page(loaded: FlaskClient) -> None:
    found = ask(loaded, "capacity?service=ocr-api&from=now-80m")

    assert found["version"] == "1.15.0"
    assert found["capacity"]["low"] <= found["capacity"]["rate"] <= found["capacity"]["high"]
    assert found["summary"].startswith("1.15.0 keeps p99 within 250")
    assert len(found["records"]) >= 20


def test_capacity_without_a_curve_says_why(burning: FlaskClient) -> None:
    service = ask(burning, "fleet?from=now-1h")["records"][0]["service"]
    found = ask(burning, f"capacity?service={service}&from=now-5m")

    assert found["capacity"] is None
    assert "A longer window has more steps" in found["summary"]


def test_advice_is_that_of_the_service_or_the_largest_of_each(burning: FlaskClient) -> None:
    fleet = ask(burning, "advice?from=now-1h")["records"]
    own = ask(burning, f"advice?service={fleet[0]['service']}&from=now-1h")["records"]

    assert fleet[0] in own
    assert fleet[0]["options"]
    assert ask(burning, "advice?rank=p75", 400)["key"] == "rank"


def test_collectors_have_a_row_for_each_problem(store: Store) -> None:
    at = NOW.timestamp()
    refusing = Vitals(refused_per_second={"401": 2.0})
    with store.transaction() as connection:
        write_report(connection, Report("a", "pod-a", "1.2.3", at - 60, at - 3))
        write_report(connection, Report("b", "pod-b", "1.2.3", at - 60, at - 3, refusing))
    found = ask(Dashboard(DashboardConfig(), store, clock=NOW.timestamp).server.test_client(), "collectors")

    assert [(each["collector"], each["state"]) for each in found["records"]] == [("pod-a", "ok"), ("pod-b", "look")]
    assert found["records"][0]["problem"] is None
    assert "401" in found["records"][1]["problem"]
    assert found["last_received"] is None
