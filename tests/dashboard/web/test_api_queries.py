"""Queries of the API about the fleet: services, incidents, capacity, advice and collectors."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flask.testing import FlaskClient

from stagelens.alerts.delivery.message import Finding, LatencyRegression
from stagelens.alerts.incidents.lifecycle import IncidentRecord, save_incident
from stagelens.core.names import BY_CLIENT_CONTENT, BY_ENGINE, FIRST_TOKEN, OUTPUT_TOKEN
from stagelens.store import Batch, Point, Series, Store
from stagelens.store.collectors import Report, Vitals, write_report
from tests.dashboard import capacity_store, many_incidents
from tests.dashboard.burning_slos import SLO
from tests.dashboard.rendering import alerts_of, check_answers, client_of, observed
from tests.dashboard.served_versions import NOW


@pytest.fixture(scope="module")
def burning(burning_store: Store, burning_folder: Path) -> FlaskClient:
    return client_of(burning_store, alerts_of(burning_store, burning_folder, SLO))


def ask(client: FlaskClient, question: str, status: int = 200) -> dict[str, Any]:
    response = client.get(f"/api/v1/query/{question}")
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json or {}
    names = [column["name"] for column in found.get("columns", [])]
    return found | {"records": [dict(zip(names, row, strict=True)) for row in found.get("rows", [])]}


def test_queries_about_the_fleet_and_its_incidents_answer(burning: FlaskClient) -> None:
    incident = ask(burning, "incidents")["records"][0]["id"]
    queries = ["fleet?from=now-1h", "slo", "incidents", "incidents?state=open&service=hot", f"incidents?id={incident}"]
    queries += [
        "incidents?state=closed",
        "incidents?id=inc-none",
        "advice?from=now-1h",
        "advice?service=hot&from=now-1h",
    ]
    queries += ["advice?rank=p75", "capacity?service=hot&from=now-5m", "waste", "breakdown?service=failing&from=now-1h"]
    check_answers("answers_burning", burning, *(f"query/{query}" for query in queries))


def test_the_stage_of_the_fleet_is_that_of_the_breakdown(burning: FlaskClient) -> None:
    [first, *_] = ask(burning, "fleet?from=now-1h")["records"]
    own = ask(burning, f"breakdown?service={first['service']}&p=99&from=now-1h")["records"][0]

    assert first["p99_seconds"] == pytest.approx(own["value_seconds"])
    assert first["stage_share"] == pytest.approx(own[first["slowest_stage"]] / own["value_seconds"], abs=0.05)


def test_incidents_are_in_the_order_of_the_page_and_limited_to_a_window(store: Store) -> None:
    many_incidents.fill(store)
    client = client_of(store)
    rows = ask(client, "incidents?from=now-6h")["records"]
    old = ask(client, "incidents?from=2026-11-16T00:00&to=2026-11-18T00:00&severity=page")["records"]
    every = ask(client, "incidents")["records"]

    assert [each["severity"] for each in rows] == ["page"] * 11 + ["ticket"] * 40
    assert [each["status"] for each in rows[:3]] == ["acknowledged", "recovering", "open"]
    assert {each["story"] for each in rows[11:]} == {"sl-ticket00", "sl-ticket20"}
    assert [each["id"] for each in old] == ["sl-old"]
    assert sum(each["severity"] == "page" for each in every) >= many_incidents.PAGES


def test_an_old_open_incident_is_listed_behind_many_resolved_ones(store: Store) -> None:
    at = NOW.timestamp()
    shift = LatencyRegression(0.99, 0.252, 0.312, 1.18, 1.31, 48_210, 1800.0, 9.3)
    finding = Finding("tail", "search", "p99 was 252 ms", "tail", "ticket", at, shift=shift)
    with store.transaction() as connection:
        save_incident(connection, IncidentRecord("inc-old", "tail:old", finding, at - 9000, at, at))
        for number in range(60):
            record = IncidentRecord(f"inc-{number}", f"tail:{number}", finding, at - number, at, at, resolved_at=at)
            save_incident(connection, record)
    client = client_of(store)
    found, every = (
        [each["id"] for each in ask(client, f"incidents{query}")["records"]] for query in ("?state=open", "")
    )

    assert found == ["inc-old"]
    assert every[0] == "inc-old"
    assert len(every) == 51


def test_tokens_have_the_percentiles_of_each_definition(store: Store) -> None:
    counted = observed(0.1, 20)
    for seconds in (0.2, 0.4):
        counted.record(seconds, 20)
    at, series = int((NOW - timedelta(minutes=5)).timestamp()), Series("chat", "1", "", "m", "1", "/", "cpu", "ok")
    metrics = ((FIRST_TOKEN, BY_ENGINE), (OUTPUT_TOKEN, BY_CLIENT_CONTENT))
    store.write([Batch("streams", [Point(series, *metric, at, counted) for metric in metrics])])

    check_answers("answers_tokens", client_of(store), "query/tokens?service=chat&p=50&from=now-1h")


def test_capacity_has_the_numbers_of_its_page(traffic: ModuleType, tmp_path: Path) -> None:
    store = capacity_store.fill(traffic, tmp_path / "loaded.db", NOW)
    client = client_of(store, alerts_of(store, tmp_path, capacity_store.SLO))
    check_answers("answers_capacity", client, "query/capacity?service=ocr-api&from=now-80m")
    store.close()


def test_collectors_have_a_row_for_each_problem(store: Store) -> None:
    at = NOW.timestamp()
    with store.transaction() as connection:
        write_report(connection, Report("a", "pod-a", "1.2.3", at - 60, at - 3))
        refusing = Vitals(refused_per_second={"401": 2.0})
        write_report(connection, Report("b", "pod-b", "1.2.3", at - 60, at - 3, refusing))

    check_answers("answers_collectors", client_of(store), "query/collectors")
