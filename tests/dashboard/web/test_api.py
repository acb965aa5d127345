"""JSON and CSV API of the dashboard: views, queries and tables, and the event endpoint."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from datetime import datetime, timedelta
from html import unescape
from ipaddress import ip_network
from typing import Any

import numpy as np
import pandas as pd
import pytest
from dash import html
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from stagelens.core.errors import StoreError
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.ui.components import attributes, card, chart, table
from stagelens.dashboard.ui.format import THIN, duration
from stagelens.dashboard.ui.page_export import page_data
from stagelens.dashboard.web.api_formats import as_csv, as_json, columns
from stagelens.dashboard.web.app import Dashboard
from stagelens.dashboard.web.write_api import EVENTS_PATH as EVENTS
from stagelens.store import Selection, Store
from tests.dashboard.rendering import check_answers, client_of, csrf_headers, titles
from tests.dashboard.served_versions import NOW

VIEW = "/api/v1/view"
EVENT = {"service": "vision-api", "kind": "deploy", "key": "3.0.0", "text": "3.0.0 is out"}


def fetch_json(client: FlaskClient, path: str, /, **query: str) -> Any:
    response = client.get(path, query_string=query)
    assert response.status_code == 200, response.text
    return response.json


def refused(client: FlaskClient, path: str, /, **query: str) -> tuple[int, str, str]:
    response = client.get(path, query_string=query)
    assert response.json is not None
    return response.status_code, response.json["key"], response.json["fix"]


def lines_of(response: TestResponse) -> list[list[str]]:
    return list(csv.reader(io.StringIO(response.text)))


def test_a_view_has_the_numbers_of_its_page(client: FlaskClient) -> None:
    view = fetch_json(client, VIEW, path="/s/vision-api", **{"from": "now-1h"})

    assert (view["title"], view["from"], view["to"]) == ("vision-api", "2026-11-20T11:00:00Z", "2026-11-20T12:00:00Z")
    assert set(view["charts"]) >= {"percentile", "over", "heat"}
    assert view["charts"]["over"]["title"] == "Breakdown over time"
    assert "Slow exemplars" in [each["name"] for each in view["tables"]]
    for each in view["tables"]:
        assert all(len(row) == len(each["head"]) for row in each["rows"])


def test_a_view_and_its_page_show_the_same_p99(client: FlaskClient, filled: Store) -> None:
    selection = Selection(NOW - timedelta(hours=6), NOW, service="vision-api")
    p99 = filled.read.latency(selection).quantile(0.99)
    row, rare = fetch_json(client, "/api/v1/query/latency", service="vision-api", p="99,99.99")["rows"]
    stages = fetch_json(client, VIEW, path="/s/vision-api")["tables"][0]["rows"]

    assert p99 is not None
    assert row[1] == pytest.approx(p99.value, rel=0.02)
    # Programs see which percentile has too few requests.
    assert (row[-1], rare[-1]) == (True, False)
    # Programs get plain spaces.
    assert stages[-1][2] == duration(row[1]).replace(THIN, " ")


def test_one_chart_or_table_as_csv(client: FlaskClient) -> None:
    drawn = fetch_json(client, VIEW, path="/s/vision-api", chart="percentile")
    response = client.get(VIEW, query_string={"path": "/s/vision-api", "chart": "percentile", "format": "csv"})
    lines = lines_of(response)

    assert response.mimetype == "text/csv"
    assert 'filename="stagelens-s-vision-api-percentile.csv"' in response.headers["Content-Disposition"]
    assert len(lines) == len(drawn["rows"]) + 1
    assert len(lines[0]) == len(drawn["columns"])
    query = {"path": "/s/vision-api", "table": "Slow exemplars"}
    table = fetch_json(client, VIEW, **query)
    assert lines_of(client.get(VIEW, query_string={**query, "format": "csv"})) == [table["head"], *table["rows"]]


def test_an_invalid_request_gets_the_parameter_and_the_allowed_values(client: FlaskClient) -> None:
    check_answers("api_refusals", client)


@pytest.mark.parametrize(
    ("method", "path", "takes"), [("POST", VIEW, "GET"), ("PUT", VIEW, "GET"), ("GET", EVENTS, "POST")]
)
def test_a_wrong_method_gets_the_allowed_one(client: FlaskClient, method: str, path: str, takes: str) -> None:
    response = client.open(path, method=method)

    assert response.json is not None
    assert (response.status_code, response.headers["Allow"]) == (405, takes)
    assert takes in response.json["fix"]


def test_every_query_answers_with_its_columns_and_numbers(client: FlaskClient) -> None:
    check_answers("answers", client)


def test_a_trace_has_the_samples_of_its_request(client: FlaskClient, filled: Store) -> None:
    found = filled.read.exemplars(Selection(NOW - timedelta(hours=1), NOW, service="vision-api"), limit=1).iloc[0]
    body = fetch_json(client, f"/api/v1/traces/{found['trace_id']}-{found['span_id']}")
    spent = [each["seconds"] for each in body["profile"]]

    assert spent == sorted(spent, reverse=True)
    assert {"stage", "seconds", "frames"} == body["profile"][0].keys()
    assert {"module", "function", "file", "line"} == body["profile"][0]["frames"][0].keys()
    assert body["resourceSpans"]


def test_retained_requests_are_paged(client: FlaskClient) -> None:
    query = {"service": "vision-api", "dom": "preprocess", "t": "new"}
    first, second = (fetch_json(client, "/api/v1/query/traces", **query, n=n) for n in ("1", "2"))
    names = [column["name"] for column in first["columns"]]

    assert {row[names.index("dominant")] for row in first["rows"]} == {"preprocess"}
    assert first["values"]["dominant"]["preprocess"] == first["matching"] > len(first["rows"]) == 50
    assert first["rows"][-1][names.index("at")] >= second["rows"][0][names.index("at")]


def test_a_wrong_parameter_of_a_page_is_refused_by_the_api_and_noted_on_the_page(client: FlaskClient) -> None:
    check_answers("api_wrong", client)
    wrong = defaultdict[str, dict[str, str]](dict)
    for title in titles("api_wrong"):
        path, key, value = re.split("[&=]", title.removeprefix("view?path="), maxsplit=2)
        wrong[path][key] = value
    for path, parameters in wrong.items():
        # An unknown service or environment has no names.
        hidden = {"from", *(("v", "m", "r") if {"env", "svc"} & parameters.keys() else ())}
        fixes = {refused(client, VIEW, path=path, **{key: parameters[key]})[2] for key in parameters.keys() - hidden}
        page = client.get(path, query_string=parameters)
        notes = re.findall(r'<div class="banner warn"[^>]*><b>[^<]*</b>Fix: ([^<]*)\.</div>', page.text)

        assert page.status_code == 200
        assert set(map(unescape, notes)) >= fixes, path


@pytest.mark.parametrize(
    "address",
    [
        "/s/vision-api?from=now-1h&p=0&vs=7d&cold=0&tz=utc&refresh=off&y=share&x=even&t=mean&by=count&d=select&v=2.0.0&r=/v1/detect",
        "/?kind=llm&rank=queue&sort=-p99",
        "/traces?min=0&max=1.5s&t=new&err=1&n=1&at=tenant:acme,tier",
        "/s/vision-api/advice?rank=cost&kind=all",
        "/compare?svc=vision-api&p=90",
        "/traces/abc?y=lanes",
        "/slo?w=7d",
    ],
)
def test_every_value_that_the_pages_link_to_is_accepted(client: FlaskClient, address: str) -> None:
    assert "Fix: " not in client.get(address).text


def test_an_unchanged_view_gets_304(client: FlaskClient) -> None:
    first = client.get(VIEW, query_string={"path": "/s/vision-api"})
    tag = {"If-None-Match": first.headers["ETag"]}
    same = client.get(VIEW, query_string={"path": "/s/vision-api"}, headers=tag)
    other = client.get(VIEW, query_string={"path": "/s/vision-api", "p": "95"}, headers=tag)

    assert same.status_code == 304
    assert same.data == b""
    assert other.status_code == 200
    assert "private" in first.headers["Cache-Control"]


def test_every_page_has_a_view(client: FlaskClient) -> None:
    for path in ("/", "/slo", "/traces", "/compare", "/regressions", "/advice", "/events", "/settings"):
        response = client.get(VIEW, query_string={"path": path, "svc": "vision-api"})

        assert response.status_code == 200
        assert json.loads(response.data, parse_constant=pytest.fail)["title"]


def test_page_data_has_chart_frames_and_table_texts() -> None:
    frame = pd.DataFrame({"at": [pd.Timestamp("2026-11-20T12:00:00Z")], "wait (ms)": [np.nan]})
    bar = html.Div(role="img", **attributes({"aria-label": "Stages: Queue 60 %"}))
    listed = table([("Name", ""), ("Bar", "")], [html.Tr([html.Th("a"), html.Td(bar)])], "Things")
    found = page_data([card("Title", chart("c", {"data": []}, "spoken", frame=frame)), card("Other", listed)])

    assert found.charts["c"].title == "Title"
    assert found.charts["c"].frame is frame
    assert found.tables[0].name == "Things"
    assert found.tables[0].rows == [["a", "Stages: Queue 60 %"]]


def test_columns_name_their_units() -> None:
    assert columns(pd.DataFrame(columns=["wait (ms)", "value_seconds", "n"])) == [
        {"name": "wait", "unit": "ms"},
        {"name": "value_seconds", "unit": "s"},
        {"name": "n"},
    ]


def test_json_encodes_pandas_and_numpy_values() -> None:
    values = [
        *(np.float64("nan"), float("inf"), np.int64(3), np.bool_(True), pd.NaT, pd.NA),
        *(pd.Timestamp("2026-11-20T12:00:00.5+01:00"), datetime(2026, 11, 20), timedelta(minutes=2), {1: (2,)}),  # noqa: DTZ001 - as a database without zones gives it
    ]

    assert json.loads(as_json(values)) == [
        *(None, None, 3, True, None, None),
        *("2026-11-20T11:00:00.500000Z", "2026-11-20T00:00:00Z", 120.0, {"1": [2]}),
    ]


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), max_size=5))
def test_csv_round_trips_and_contains_no_formulas(rows: list[list[str]]) -> None:
    text = as_csv(["a", "b"], rows)
    back = list(csv.reader(io.StringIO(text, newline="")))[1:]

    assert [[cell.removeprefix("'") for cell in row] for row in back] == [
        [cell.removeprefix("'") for cell in row] for row in rows
    ]
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for row in back for cell in row)


# ---- writing


@pytest.fixture
def writer(store: Store) -> FlaskClient:
    return client_of(store)


def test_an_event_is_stored_and_shown_at_once(store: Store, writer: FlaskClient) -> None:
    before = store.read.revision()
    response = writer.post(EVENTS, json=EVENT, headers=csrf_headers(writer))
    stored = store.read.events(NOW - timedelta(hours=1), NOW + timedelta(hours=1))

    assert response.status_code == 201
    assert response.json == {**EVENT, "link": "", "environment": "", "at": "2026-11-20T12:00:03Z"}
    assert stored["text"].tolist() == ["3.0.0 is out"]
    assert store.read.revision() >= before


def test_writes_need_a_csrf_token_of_the_session(store: Store, writer: FlaskClient) -> None:
    csrf = csrf_headers(writer)
    attempts: list[dict[str, Any]] = [
        {"json": EVENT},
        {"json": EVENT, "headers": {"X-CSRF-Token": "0" * 64}},
        {"json": EVENT, "headers": {**csrf, "Origin": "https://evil.example"}},
        {"json": EVENT, "headers": {**csrf, "Origin": "null"}},
        {"json": EVENT, "headers": {**csrf, "Sec-Fetch-Site": "cross-site"}},
        {"json": EVENT, "headers": {**csrf, "Sec-Fetch-Site": "same-site"}},
    ]

    assert {writer.post(EVENTS, **attempt).status_code for attempt in attempts} == {403}
    assert writer.post(EVENTS, data=json.dumps(EVENT), content_type="text/plain", headers=csrf).status_code == 415
    assert not len(store.read.events(NOW - timedelta(hours=1), NOW + timedelta(hours=1)))


def test_a_csrf_token_is_valid_for_its_session_only(store: Store) -> None:
    server = Dashboard(DashboardConfig(token="t", hosts=("localhost",)), store, clock=NOW.timestamp).server  # noqa: S106 - the secret of this test
    a, b = server.test_client(), server.test_client()
    a.get("/?token=t")
    csrf = csrf_headers(a)

    assert b.post(EVENTS, json=EVENT, headers=csrf).status_code == 401
    assert b.post(EVENTS, json=EVENT, headers={"Authorization": "Bearer t"}).status_code == 201
    assert a.post(EVENTS, json=EVENT, headers=csrf).status_code == 201


@pytest.mark.parametrize(("kind", "text"), [("note", "looked at it (by ada)"), ("advice", "looked at it")])
def test_an_event_names_its_author(store: Store, kind: str, text: str) -> None:
    client = client_of(store, proxy_header="X-Forwarded-User", trusted_proxies=(ip_network("127.0.0.1"),))
    named = {"X-Forwarded-User": "ada"}
    event = {"text": "looked at it", "kind": kind}
    response = client.post(EVENTS, json=event, headers=csrf_headers(client, "/", named))

    assert response.json is not None
    assert response.json["text"] == text


@pytest.mark.parametrize(
    ("body", "status", "key"),
    [
        ('{"text": ""}', 400, "text"),
        ('{"text": "x", "kind": "party"}', 400, "kind"),
        ("not json", 400, ""),
        (json.dumps({"text": "x" * 20_000}), 413, ""),
    ],
)
def test_an_invalid_event_gets_the_error_of_the_collector(
    client: FlaskClient, body: str, status: int, key: str
) -> None:
    response = client.post(EVENTS, data=body, content_type="application/json", headers=csrf_headers(client))

    assert response.json is not None
    assert (response.status_code, response.json["key"]) == (status, key)
    assert response.json["fix"]


@pytest.mark.parametrize(("error", "status"), [("attempt to write a readonly database", 409), ("disk I/O error", 503)])
def test_a_database_that_cannot_be_written_is_reported(
    store: Store, writer: FlaskClient, monkeypatch: pytest.MonkeyPatch, error: str, status: int
) -> None:
    def fail(_event: object) -> None:
        raise StoreError(error)

    monkeypatch.setattr(store, "add_event", fail)
    response = writer.post(EVENTS, json=EVENT, headers=csrf_headers(writer))

    assert response.status_code == status
    assert response.json is not None
    assert response.json["fix"]
