"""JSON and CSV API of the dashboard: views, queries and tables, and the event endpoint."""

from __future__ import annotations

import csv
import io
import json
import re
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

    assert view["title"] == "vision-api"
    assert view["from"] == "2026-11-20T11:00:00Z"
    assert view["to"] == "2026-11-20T12:00:00Z"
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


@pytest.mark.parametrize(
    ("query", "status", "key", "fix"),
    [
        ({}, 400, "path", "path="),
        ({"path": "/nowhere/at/all"}, 404, "path", "/s/"),
        ({"path": "/s/vision-api", "chart": "pie"}, 404, "chart", "percentile, over, heat"),
        ({"path": "/s/vision-api", "table": "none"}, 404, "table", "Slow exemplars"),
        ({"path": "/s/vision-api", "format": "xml"}, 400, "format", "json or csv"),
        ({"path": "/s/vision-api", "format": "csv"}, 400, "chart", "chart="),
        ({"path": "/s/vision-api", "nonsense": "1"}, 400, "nonsense", "format"),
        ({"path": "/s/vision-api", "from": "9999-12-31"}, 400, "from", "to 2199"),
        ({"path": "/s/vision-api", "from": "now-401d"}, 400, "from", "400 days"),
        ({"path": "/s/nobody"}, 404, "path", "/api/v1/names"),
        ({"path": "/traces", "svc": "nobody"}, 404, "svc", "/api/v1/names"),
    ],
)
def test_an_invalid_request_gets_the_allowed_values(
    client: FlaskClient, query: dict[str, str], status: int, key: str, fix: str
) -> None:
    refusal = refused(client, VIEW, **query)

    assert refusal[:2] == (status, key)
    assert fix in refusal[2]


@pytest.mark.parametrize(
    ("path", "query", "status", "key", "fix"),
    [
        ("breakdown", {}, 400, "service", ""),
        ("breakdown", {"service": "nobody"}, 404, "service", ""),
        ("breakdown", {"service": "vision-api", "p": "99,x"}, 400, "p", ""),
        ("latency", {"service": "vision-api", "p": "100"}, 400, "p", ""),
        ("latency", {"service": "vision-api", "p": "50,0.99"}, 400, "p", "write 99 for p99"),
        ("latency", {"service": "vision-api", "route": "/v1/clasify"}, 404, "route", "/v1/classify"),
        ("latency", {"service": "vision-api", "version": "9"}, 404, "version", "one of 1.0.0, 2.0.0"),
        ("latency", {"service": "vision-api", "model": "x"}, 404, "model", "one of resnet50"),
        ("latency", {"service": "vision-api", "from": "2100-01-01", "to": "2100-01-02"}, 400, "from", ""),
        ("compare", {"service": "chat-llm"}, 404, "a", ""),
        ("compare", {"service": "vision-api", "a": "1.0.0"}, 400, "b", ""),
        ("slo", {"name": "no-such"}, 404, "name", ""),
        ("traces", {"n": "99999"}, 400, "n", ""),
        ("traces", {"min": "2s", "max": "1s"}, 400, "min", ""),
        ("traces", {"t": "oldest"}, 400, "t", ""),
        ("incidents", {"service": "nobody"}, 404, "service", ""),
        ("meaning-of-life", {}, 404, "question", ""),
    ],
)
def test_an_invalid_query_parameter_is_named(  # noqa: PLR0917 - a fixture and a case
    client: FlaskClient, path: str, query: dict[str, str], status: int, key: str, fix: str
) -> None:
    refusal = refused(client, f"/api/v1/query/{path}", **query)

    assert refusal[:2] == (status, key)
    assert fix in refusal[2]


def test_nothing_below_api_is_a_page(client: FlaskClient) -> None:
    status, _, fix = refused(client, "/api/v1/nothing")

    assert status == 404
    assert "/api/v1/view" in fix


@pytest.mark.parametrize(
    ("method", "path", "takes"), [("POST", VIEW, "GET"), ("PUT", VIEW, "GET"), ("GET", EVENTS, "POST")]
)
def test_a_wrong_method_gets_the_allowed_one(client: FlaskClient, method: str, path: str, takes: str) -> None:
    response = client.open(path, method=method)

    assert response.json is not None
    assert (response.status_code, response.headers["Allow"]) == (405, takes)
    assert takes in response.json["fix"]


def test_breakdown_adds_up(client: FlaskClient) -> None:
    body = fetch_json(client, "/api/v1/query/breakdown", service="vision-api", p="50,99")
    names = [each["name"] for each in body["columns"]]
    first_stage = names.index("high_seconds") + 1

    assert [row[0] for row in body["rows"]] == [0.5, 0.99]
    for row in body["rows"]:
        assert sum(row[first_stage:]) == pytest.approx(row[names.index("value_seconds")])


def test_stalls_without_data_have_no_rows(client: FlaskClient) -> None:
    body = fetch_json(client, "/api/v1/query/stalls", service="vision-api", p="50,99")

    assert [each["name"] for each in body["columns"]][:3] == ["percentile", "n", "value_seconds"]
    assert body["rows"] == []


def test_the_profile_names_the_function_of_the_tail(client: FlaskClient) -> None:
    body = fetch_json(client, "/api/v1/query/profile", service="vision-api", version="2.0.0", p="99")
    first = dict(zip([each["name"] for each in body["columns"]], body["rows"][0], strict=True))
    flame = {each["name"]: each for each in body["flame"]}

    assert (first["function"], first["file"], first["line"], first["stage"]) == ("resize", "serve.py", 41, "preprocess")
    assert first["stage_option"] == "--stage preprocess=serve:resize"
    assert first["tail_self_seconds"] > 10 * first["median_self_seconds"]
    assert body["sampled_requests"] >= 8
    assert flame["preprocess"]["tail_seconds"] == pytest.approx(
        sum(child["tail_seconds"] for child in flame["preprocess"]["children"])
    )


def test_a_service_without_samples_has_no_functions(client: FlaskClient) -> None:
    body = fetch_json(client, "/api/v1/query/profile", service="chat-llm")

    assert (body["rows"], body["flame"], body["sampled_requests"], body["value_seconds"]) == ([], [], 0, None)


def test_a_trace_has_the_samples_of_its_request(client: FlaskClient, filled: Store) -> None:
    found = filled.read.exemplars(Selection(NOW - timedelta(hours=1), NOW, service="vision-api"), limit=1).iloc[0]
    body = fetch_json(client, f"/api/v1/traces/{found['trace_id']}-{found['span_id']}")
    spent = [each["seconds"] for each in body["profile"]]

    assert spent == sorted(spent, reverse=True)
    assert {"stage", "seconds", "frames"} == body["profile"][0].keys()
    assert {"module", "function", "file", "line"} == body["profile"][0]["frames"][0].keys()
    assert body["resourceSpans"]


def test_compare_defaults_to_the_newest_versions(client: FlaskClient) -> None:
    body = fetch_json(client, "/api/v1/query/compare", service="vision-api")
    back = fetch_json(client, "/api/v1/query/compare", service="vision-api", a="2.0.0", b="1.0.0", p="99")

    assert (body["a"]["name"], body["b"]["name"]) == ("1.0.0", "2.0.0")
    assert body["verdict"]["kind"] == "regression"
    assert body["rows"][0][0] == "preprocess"
    first = body["functions"][0]
    assert (first["stage"], first["function"]) == ("preprocess", "resize (serve.py:41)")
    assert first["share"] > 0.8
    assert first["b_seconds"] > first["a_seconds"]
    assert back["verdict"]["kind"] == "improvement"
    # The time of the address is none of theirs.
    assert body["a"]["to"] == body["b"]["from"]
    assert "from" not in body


def test_waste_has_a_row_for_each_service(client: FlaskClient) -> None:
    body = fetch_json(client, "/api/v1/query/waste")
    names = [each["name"] for each in body["columns"]]
    queued = {row[0]: row[names.index("queue_seconds")] for row in body["rows"]}

    assert set(queued) == {"vision-api", "chat-llm", "fraud-score"}
    assert queued["vision-api"] > 0
    assert (body["currency"], body["rows"][0][names.index("idle_cost")]) == (None, None)
    assert fetch_json(client, "/api/v1/query/waste", at="team:nobody")["rows"] == []


def test_retained_requests_are_found_and_counted(client: FlaskClient) -> None:
    body = fetch_json(client, "/api/v1/query/traces", service="vision-api", dom="preprocess", t="new")
    second = fetch_json(client, "/api/v1/query/traces", service="vision-api", dom="preprocess", t="new", n="2")
    names = [each["name"] for each in body["columns"]]
    dominant = [row[names.index("dominant")] for row in body["rows"]]

    assert set(dominant) == {"preprocess"}
    assert (body["matching"], body["searched"] >= body["retained"]) == (body["retained"], True)
    assert body["values"]["dominant"]["preprocess"] == body["matching"] > len(body["rows"]) == 50
    assert body["rows"][-1][names.index("at")] >= second["rows"][0][names.index("at")]
    assert body["values"]["attribute.http.response.status_code"]["200"] > 0


def test_objectives_and_names(client: FlaskClient) -> None:
    slos = fetch_json(client, "/api/v1/query/slo", service="vision-api")["objectives"]
    services = fetch_json(client, "/api/v1/services", **{"from": "now-1h"})
    names = fetch_json(client, "/api/v1/names")["services"]

    assert [each["slo"]["name"] for each in slos] == ["vision-latency"]
    assert slos[0]["slo"]["window"] == 30 * 86_400
    assert len(services["rows"]) == 3
    assert {"name": "vision-api", "path": "/s/vision-api", "versions": ["2.0.0", "1.0.0"]} in names


_WRONG = [
    ("/s/vision-api", "from", "garbage", "now-6h"),
    ("/s/vision-api", "to", "garbage", "now-6h"),
    ("/s/vision-api", "from", "now", "before `to`"),
    ("/s/vision-api", "from", "2100-01-01", "before `to`"),
    ("/s/vision-api", "p", "0.99", "write 99 for p99"),
    ("/s/vision-api", "p", "0.5", "write 50 for p50"),
    ("/s/vision-api", "p", "100", "below 100"),
    ("/s/vision-api", "p", "abc", "below 100"),
    ("/s/vision-api", "p", "nan", "below 100"),
    ("/s/vision-api", "vs", "yesterday", "1d"),
    ("/s/vision-api", "cold", "2", "omit it"),
    ("/s/vision-api", "tz", "Europe/Berlin", "utc"),
    ("/s/vision-api", "refresh", "5s", "off"),
    ("/s/vision-api", "y", "log", "share"),
    ("/s/vision-api", "t", "new", "mean"),
    ("/s/vision-api", "by", "route", "stage"),
    ("/s/vision-api", "sel", "1:0", "low:high"),
    ("/s/vision-api", "r", "/v2/nowhere", "/v1/classify"),
    ("/s/vision-api", "m", "resnet51", "resnet50"),
    ("/s/vision-api", "v", "3.0.0", "1.0.0, 2.0.0"),
    ("/s/vision-api", "env", "prod", "demo"),
    ("/s/vision-api/advice", "rank", "p95", "cost"),
    ("/s/chat-llm/tokens", "by", "guess", "omit it"),
    ("/compare", "p", "97", "99"),
    ("/slo", "w", "2d", "7d"),
    ("/events", "kind", "party", "deploy"),
    ("/", "kind", "party", "llm"),
    ("/", "rank", "party", "queue"),
    ("/", "by", "team", "omit it"),
    ("/", "sort", "-party", "-p99"),
    ("/traces", "n", "0", "from 1"),
    ("/traces", "n", "two", "from 1"),
    ("/traces", "min", "fast", "250ms"),
    ("/traces", "max", "-5ms", "250ms"),
    ("/traces", "at", ":acme", "tenant:acme"),
    ("/traces", "err", "yes", "0, 1"),
    ("/traces", "r", "/v2/nowhere", "/v1/classify"),
    ("/traces", "svc", "vision-ap", "names"),
]


def test_the_api_refuses_a_wrong_parameter_of_a_page(client: FlaskClient) -> None:
    for path, key, value, fix in _WRONG:
        status, named, suggested = refused(client, VIEW, path=path, **{key: value})

        assert (status, named) == (404 if key in {"r", "m", "v", "env", "svc"} else 400, key)
        assert fix in suggested


@pytest.mark.parametrize("path", sorted({path for path, *_ in _WRONG}))
def test_a_page_opens_with_a_notice_for_each_wrong_parameter(client: FlaskClient, path: str) -> None:
    wrong = {key: value for each, key, value, _ in _WRONG if each == path}
    page = client.get(path, query_string=wrong)
    # An unknown service or environment has no names.
    hidden = {"from", *(("v", "m", "r") if {"env", "svc"} & wrong.keys() else ())}
    fixes = {refused(client, VIEW, path=path, **{key: wrong[key]})[2] for key in wrong.keys() - hidden}
    notes = [
        unescape(each)
        for each in re.findall(r'<div class="banner warn"[^>]*><b>[^<]*</b>Fix: ([^<]*)\.</div>', page.text)
    ]

    assert page.status_code == 200
    assert set(notes) >= fixes


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


@pytest.mark.parametrize(
    "path", ["/", "/slo", "/traces", "/compare", "/regressions", "/advice", "/events", "/settings"]
)
def test_every_page_has_a_view(client: FlaskClient, path: str) -> None:
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
    return Dashboard(DashboardConfig(), store, clock=NOW.timestamp).server.test_client()


def csrf_token_in(page: str) -> str:
    found = re.search(r'name="csrf-token" content="(\w+)"', page)
    assert found is not None
    return found[1]


def csrf_headers(client: FlaskClient) -> dict[str, str]:
    return {"X-CSRF-Token": csrf_token_in(client.get("/").text)}


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

    assert {writer.post(EVENTS, **each).status_code for each in attempts} == {403}
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
    config = DashboardConfig(proxy_header="X-Forwarded-User", trusted_proxies=(ip_network("127.0.0.1"),))
    client = Dashboard(config, store, clock=NOW.timestamp).server.test_client()
    named = {"X-Forwarded-User": "ada"}
    page = client.get("/", headers=named).text
    event = {"text": "looked at it", "kind": kind}
    response = client.post(EVENTS, json=event, headers={**named, "X-CSRF-Token": csrf_token_in(page)})

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
