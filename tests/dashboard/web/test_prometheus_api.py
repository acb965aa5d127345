"""API of Prometheus: values, PromQL, names, limits, access, and the real `promtool`."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import promql_parser as promql
import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web import promql as promql_module
from stagelens.dashboard.web.app import Dashboard
from stagelens.dashboard.web.prometheus_api import METRICS
from stagelens.dashboard.web.promql import Matcher, QueryError, QueryEvaluator, QueryLimits, VectorSeries, parse
from stagelens.store import Retention, Store
from stagelens.store.queries import windows
from tests.dashboard.rendering import check_text, client_of
from tests.dashboard.served_versions import NOW
from tests.dashboard.tabs import Serve
from tests.support import prometheus_tool
from tests.support.raw_requests import NOON, Request, Site

ROOT = Path(__file__).parents[3]
# A whole minute, and the seconds of the data before it.
END, WINDOW = int(NOW.timestamp()) - 3, 1800
LAST = range(END - WINDOW, END)
TOKEN = "correct horse battery staple, again"  # noqa: S105 - the secret of this test
API = "/api/v1"


def data_of(client: FlaskClient, path: str, /, **query: Any) -> Any:
    response = client.post(f"{API}/{path}", data=query)
    assert response.status_code == 200, response.text
    assert response.json is not None
    assert response.json["status"] == "success"
    return response.json["data"]


def instant(client: FlaskClient, query: str, **more: Any) -> dict[tuple[str, ...], float]:
    found = data_of(client, "query", **{"query": query, "time": END, "lookback_delta": f"{WINDOW}s", **more})
    assert found["resultType"] == "vector"
    return {
        tuple(value for name, value in sorted(each["metric"].items()) if name != "__name__"): float(each["value"][1])
        for each in found["result"]
    }


def error_of(client: FlaskClient, path: str, status: int, kind: str, /, **query: Any) -> str:
    """Return the text of an error in the form of Prometheus."""
    response = client.post(f"{API}/{path}", data=query)
    assert response.json is not None
    assert response.json.keys() == {"status", "errorType", "error"}
    assert (response.status_code, response.json["status"], response.json["errorType"]) == (status, "error", kind)
    return response.json["error"]


def our_rows(client: FlaskClient, question: str, window: range, service: str, p: str) -> list[dict[str, Any]]:
    query = {"service": service, "from": str(window.start * 1000), "to": str(window.stop * 1000), "p": p}
    response = client.get(f"{API}/query/{question}", query_string=query)
    assert response.json is not None
    names = [column["name"] for column in response.json["columns"]]
    return [dict(zip(names, row, strict=True)) for row in response.json["rows"]]


@pytest.mark.parametrize("service", ["vision-api", "chat-llm", "fraud-score"])
def test_a_percentile_is_that_of_our_own_query(client: FlaskClient, service: str) -> None:
    rows = our_rows(client, "latency", LAST, service, "50,90,95,99,99.9")
    usual = instant(client, f'stagelens_latency_seconds{{service_name="{service}"}}')
    rare = instant(client, f'stagelens_latency_seconds{{service_name="{service}",quantile="0.999"}}')

    assert {float(quantile): value for (quantile, _), value in (usual | rare).items()} == {
        row["percentile"]: row["value_seconds"] for row in rows if row["enough"]
    }


def test_the_stages_are_those_of_our_own_query(client: FlaskClient) -> None:
    rows = our_rows(client, "breakdown", LAST, "vision-api", "50,99")
    found = instant(client, 'stagelens_stage_seconds{service_name="vision-api",quantile=~"0.5|0.99"}')
    latency = instant(client, 'stagelens_latency_seconds{service_name="vision-api",quantile=~"0.5|0.99"}')

    for row in rows:
        stages = {stage: value for (quantile, _, stage), value in found.items() if float(quantile) == row["percentile"]}
        assert stages == pytest.approx({stage: row[stage] for stage in stages})
        assert sum(stages.values()) == pytest.approx(row["value_seconds"])
        assert latency[f"{row['percentile']}", "vision-api"] == pytest.approx(row["value_seconds"])


def test_each_point_is_about_the_window_before_it(client: FlaskClient) -> None:
    query = {"query": 'stagelens_latency_seconds{service_name="vision-api",quantile="0.95"}'}
    times = {"start": END - 1193, "end": END + 7, "step": "5m", "lookback_delta": "10m"}
    (found,) = data_of(client, "query_range", **query, **times)["result"]

    assert [at for at, _ in found["values"]] == [END - 1193 + 300 * number for number in range(5)]
    for at, value in found["values"]:
        end = at // 60 * 60
        (row,) = our_rows(client, "latency", range(end - 600, end), "vision-api", "95")
        assert float(value) == row["value_seconds"]


def test_shares_add_up_to_one_over_time(client: FlaskClient) -> None:
    query = "sum by (service_name, quantile) (stagelens_stage_share)"
    found = data_of(client, "query_range", query=query, start=END - WINDOW, end=END, step=60, lookback_delta="10m")

    values = [float(value) for each in found["result"] for _, value in each["values"]]
    assert len(values) > 100
    assert values == pytest.approx([1.0] * len(values))


def test_rates_and_errors_are_counts(client: FlaskClient) -> None:
    window = {"from": str((END - WINDOW) * 1000), "to": str(END * 1000)}
    table = client.get(f"{API}/services", query_string=window).json
    assert table is not None
    names = [column["name"] for column in table["columns"]]
    rows = [dict(zip(names, row, strict=True)) for row in table["rows"]]
    rate, errors = instant(client, "stagelens_requests_per_second"), instant(client, "stagelens_error_ratio")

    for row in rows:
        assert rate[row["service"],] * WINDOW == pytest.approx(row["requests"])
        assert errors[row["service"],] * row["requests"] == pytest.approx(row["errors"])


def test_a_label_that_is_named_is_a_dimension(client: FlaskClient) -> None:
    whole = instant(client, 'stagelens_requests_per_second{service_name="vision-api"}')
    parts = instant(client, 'stagelens_requests_per_second{service_name="vision-api",service_version=~".+"}')
    routes = instant(client, 'stagelens_requests_per_second{service_name="vision-api",route!="",model=~".*"}')
    one = instant(client, 'stagelens_requests_per_second{service_name="vision-api",service_version="2.0.0"}')

    assert len(parts) == 2
    assert sum(parts.values()) == pytest.approx(whole["vision-api",])
    assert sum(routes.values()) == pytest.approx(whole["vision-api",])
    assert one == {key: value for key, value in parts.items() if key[1] == "2.0.0"}
    assert instant(client, 'stagelens_requests_per_second{environment=""}') == {}


def test_objectives_have_their_current_state(client: FlaskClient, alerts: AlertsReader) -> None:
    statuses = {slo.slo.name: slo for slo in alerts.slos(datetime.fromtimestamp(END, UTC))}
    burn = instant(client, "stagelens_slo_burn_rate")
    left = instant(client, 'stagelens_slo_budget_left{slo=~"vision.*"}')

    assert burn == {(each.slo.service, name): each.burn_1h for name, each in statuses.items()}
    assert left == {("vision-api", "vision-latency"): statuses["vision-latency"].budget_left}


def test_an_offset_moves_the_window(client: FlaskClient) -> None:
    selector = 'stagelens_latency_seconds{service_name="fraud-score"}'
    earlier = instant(client, f"{selector} offset 10m", lookback_delta="5m")

    assert earlier == instant(client, selector, time=END - 600, lookback_delta="5m")
    assert earlier == instant(client, f"{selector} offset -10m", time=END - 1200, lookback_delta="5m")
    assert earlier != instant(client, selector, lookback_delta="5m")


def test_the_health_check_of_grafana(client: FlaskClient) -> None:
    expected = {"resultType": "scalar", "result": [NOW.timestamp(), "2.0"]}
    got = client.get(f"{API}/query", query_string={"query": "1+1"})

    assert data_of(client, "query", query="1+1") == expected
    assert got.json == {"status": "success", "data": expected}
    assert data_of(client, "query_range", query="2^3", start=0, end=10, step="5s")["result"] == [
        {"metric": {}, "values": [[0, "8.0"], [5, "8.0"], [10, "8.0"]]}
    ]


ERRORS = "stagelens_error_ratio"
REFUSED = [
    *("1 +", "rate(stagelens_requests_per_second[5m])", f"{ERRORS}[5m]", f"{ERRORS} and {ERRORS}", f"{ERRORS} @ 5"),
    *("histogram_quantile(0.99, stagelens_latency_seconds)", "quantile(0.99, stagelens_latency_seconds)", '"text"'),
    *(
        "stddev(stagelens_latency_seconds)",
        *(f'stagelens_latency_seconds{{quantile="{each}"}}' for each in ("p99", "1")),
    ),
    *(f'{ERRORS}{{a="1" or b="2"}}', f'{ERRORS}{{model=~"("}}', f"{ERRORS} offset 100y", "+".join([ERRORS] * 40)),
    *("(" * 2000 + "1" + ")" * 2000, "-(" * 499 + ERRORS + ")" * 499, "1" * 70_000),
    *('{__name__=~"stagelens_stage_.*"} * 2', "stagelens_stage_share / on (quantile) stagelens_latency_seconds"),
    "stagelens_stage_share / on (service_name, quantile) stagelens_latency_seconds",
]
WRONG_TIMES = {
    "query": ("time=soon", "time=1e300", "time=nan", "lookback_delta=-5m", "lookback_delta=500d"),
    "query_range": (
        *("start=0", "start=10&end=0&step=1", "start=0&end=10&step=0", "start=0&end=10&step=soon"),
        *("start=0&end=11000&step=1", "start=2026-11-20T12:00:00&end=now&step=1"),
    ),
}


def test_a_refused_query_gets_the_reason(client: FlaskClient) -> None:
    times, during = f"time={END}&lookback_delta=30m", f"start={END - 60}&end={END}&step=60"
    queries = [f"query?query={quote(each)}&{times}" for each in REFUSED]
    queries += [f"{path}?query=1&{each}" for path, wrong in WRONG_TIMES.items() for each in wrong]
    queries += ["query", f"query?query={ERRORS}&limit=-1"]
    for of_now in ("stagelens_slo_budget_left", "1 > bool stagelens_slo_burn_rate"):
        queries.append(f"query_range?query={quote(of_now)}&{during}")
    lines = [f"{response.status_code} {response.get_json()['errorType']}: {query[:160]}\n  {response.get_json()['error'][:300]}\n"
             for query in queries if (response := client.get(f"{API}/{query}"))]  # fmt: skip

    check_text("prometheus_refusals", "".join(lines))


def test_too_many_values_are_refused(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MAX_VALUES", 1000)
    query = {"query": "stagelens_stage_seconds", "start": END - 1800, "end": END, "step": "10", "lookback_delta": "5m"}

    assert "larger step" in error_of(client, "query_range", 422, "execution", **query)


@pytest.mark.parametrize("query", ["up", 'stagelens_latency_seconds{service_name="no"}'])
def test_a_result_without_series_has_a_warning(client: FlaskClient, query: str) -> None:
    response = client.get(f"{API}/query", query_string={"query": query})

    assert response.json is not None
    assert response.json["data"] == {"resultType": "vector", "result": []}
    assert len(response.json["warnings"]) == 1


def test_a_percentile_with_too_few_requests_is_absent(client: FlaskClient) -> None:
    assert instant(client, 'stagelens_latency_seconds{quantile="0.999"}', lookback_delta="10s") == {}
    assert len(instant(client, "stagelens_requests_per_second", lookback_delta="10s")) == 3


def test_names_and_their_values(client: FlaskClient) -> None:
    window = {"start": END - WINDOW, "end": END}
    services = ["chat-llm", "fraud-score", "vision-api"]

    def values(name: str, **query: Any) -> Any:
        response = client.get(f"{API}/label/{name}/values", query_string={**window, **query})
        assert response.json is not None
        return response.json["data"]

    assert values("__name__") == sorted(METRICS)
    assert values("__name__", **{"match[]": '{__name__=~".*_share"}'}) == ["stagelens_stage_share"]
    assert values("service_name") == services
    assert values("service_name", limit=2) == services[:2]
    assert values("environment") == ["demo"]
    assert values("slo") == ["chat-latency", "vision-latency"]
    assert values("quantile", **{"match[]": 'stagelens_latency_seconds{service_name="fraud-score"}'}) == [
        *("0.5", "0.9", "0.95", "0.99"),
    ]
    assert len(values("service_version", **{"match[]": 'stagelens_error_ratio{service_name="vision-api"}'})) == 2
    assert "forward" in values("stage", **{"match[]": 'stagelens_stage_share{service_name="vision-api"}'})
    assert data_of(client, "labels", **{"match[]": "stagelens_slo_burn_rate"}) == ["__name__", "service_name", "slo"]
    assert {"quantile", "route", "service_version"} < set(data_of(client, "labels"))
    found = data_of(client, "series", **{"match[]": "stagelens_error_ratio", **window})
    assert found == [{"__name__": "stagelens_error_ratio", "service_name": name} for name in services]
    reversed_ = {"match[]": "stagelens_error_ratio", "start": "2026-11-20T12:00:00Z", "end": "2026-11-20T11:00:00Z"}
    assert "before start time" in error_of(client, "series", 400, "bad_data", **reversed_)


def test_metadata_and_version(client: FlaskClient) -> None:
    found = data_of_get(client, "metadata")
    label = client.get("/api/v1/label/colour/values").get_json()
    metric = client.get("/api/v1/metadata?metric=up").get_json()

    assert (label["data"], metric["data"]) == ([], {})
    assert "service_name" in label["warnings"][0]
    assert "stagelens_error_ratio" in metric["warnings"][0]
    assert found.keys() == METRICS.keys()
    assert {each[0]["type"] for each in found.values()} == {"gauge"}
    assert data_of_get(client, "metadata?metric=stagelens_error_ratio").keys() == {"stagelens_error_ratio"}
    assert re.fullmatch(r"3\.\d+\.\d+", data_of_get(client, "status/buildinfo")["version"])


def data_of_get(client: FlaskClient, path: str) -> Any:
    response = client.get(f"{API}/{path}")
    assert response.json is not None
    return response.json["data"]


def test_a_post_reads_and_needs_the_rights_of_a_page(filled: Store) -> None:
    client = client_of(filled, token=TOKEN)
    bearer = {"Authorization": f"Bearer {TOKEN}"}

    def post(headers: dict[str, str]) -> int:
        return client.post(f"{API}/query", data={"query": "1"}, headers=headers).status_code

    before = filled.read.audit(NOW - timedelta(days=1), NOW + timedelta(days=1), 100)
    assert post({}) == 401
    assert post(bearer) == 200
    assert post({**bearer, "Sec-Fetch-Site": "cross-site"}) == 403
    assert post({**bearer, "Origin": "https://elsewhere.example"}) == 403
    assert client.get(f"/?token={TOKEN}").status_code == 302
    assert post({}) == 200
    assert post({"Origin": "https://elsewhere.example"}) == 403
    after = filled.read.audit(NOW - timedelta(days=1), NOW + timedelta(days=1), 100)
    assert [each for each in after if each.action != "sign in"] == [each for each in before if each.action != "sign in"]


@pytest.mark.parametrize("path", ["query", "query_range", "labels", "series"])
def test_a_wrong_method_gets_the_allowed_ones(client: FlaskClient, path: str) -> None:
    response = client.put(f"{API}/{path}")

    assert (response.status_code, response.headers["Allow"]) == (405, "GET, POST")
    assert client.get(f"{API}/query/latency").status_code == 400


WORDS = [
    *("stagelens_error_ratio", '{model=~".*"}', "stagelens_slo_burn_rate", "sum", "topk", "by (model)", "on (model)"),
    *'+-*/^%<>()[]{},="1 ',
    *("group_left", "bool", "1e308", "NaN", "Inf", "offset 5m", "5m", "rate"),
]


@given(query=st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join))
def test_no_query_is_an_internal_error(client: FlaskClient, query: str) -> None:
    response = client.post(f"{API}/query", data={"query": query})

    assert response.status_code in (200, 400, 422), response.text


def test_a_regular_expression_takes_linear_time() -> None:
    matcher = Matcher("route", "(a+)+b|x.y", QueryLimits(60), is_regex=True)

    assert not matcher.matches("a" * 200)
    assert matcher.matches("aab")
    assert matcher.matches("x\ny")
    assert not matcher.matches("aab\n")


@pytest.mark.parametrize(
    ("expressions", "text"),
    [
        ([rf"\pL{{0,90}}\w{{0,90}}x{number}" for number in range(150)], "500,000 bytes"),
        ([r"[\pL\pN]{1000}"], "500,000 bytes"),
        ([r"\pL{ 0, 00090 }"], "500,000 bytes"),
        ([r"(\pL?){0,9}{9}"], "500,000 bytes"),
        (["((a{0,50}){0,50}){0,50}"], "500,000 bytes"),
        (["x{1000000}"], "500,000 bytes"),
        (["x{" + "9" * 5000 + "}"], "500,000 bytes"),
        (["(?i)" + "|".join(f"größe-{number}" for number in range(400))], "500,000 bytes"),
        (["k*" * 5000], "500,000 bytes"),
        ([r"(?x)\pL {90}"], "flag x"),
        ([r"\pL){90}(?:x"], "invalid regex"),
        (["a"] * 201, "200 matchers"),
    ],
)
def test_large_regular_expressions_are_refused_together(client: FlaskClient, expressions: list[str], text: str) -> None:
    matchers = ",".join(f'route=~"{each}"'.replace("\\", "\\\\") for each in expressions)
    many = [f'stagelens_error_ratio{{route=~"{each}"}}'.replace("\\", "\\\\") for each in expressions]
    for path, form in (
        ("query", {"query": f"stagelens_error_ratio{{{matchers}}}"}),
        ("series", {"match[]": many[:30]}),
        ("labels", {"match[]": many[:30]}),
    ):
        if len(many) == len(many[:30]) or path == "query":
            assert text in error_of(client, path, 400, "bad_data", **form)


def test_an_expression_of_a_variable_of_grafana_is_not_too_large(client: FlaskClient) -> None:
    values = "|".join(f"vision-api-{number}\\\\.v1" for number in range(400))
    expression = (
        f'service_name=~"(vision-api|{values})",service_name!~"{values}",service_name=~"\\\\w+-(api|{values[:6000]}x)"'
    )
    found = instant(client, " + ".join([f"stagelens_error_ratio{{{expression}}}"] * 2))

    assert list(found) == [("vision-api",)]
    assert instant(client, 'stagelens_error_ratio{service_name=~"vision-api|"}').keys() == {("vision-api",)}
    assert instant(client, 'stagelens_error_ratio{service_name=~"vision"}') == {}


def test_a_query_over_its_time_ends(client: FlaskClient) -> None:
    query = {"query": "stagelens_error_ratio", "timeout": "0.000001"}

    assert "larger step" in error_of(client, "query", 503, "timeout", **query)


@pytest.mark.parametrize("name", ["series", "values", "points in the response"])
def test_a_large_result_is_refused(client: FlaskClient, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(promql_module.LIMITS, name, (3, "execution", "the fix"))
    query = {"query": "topk(9, stagelens_latency_seconds)", "start": END - 600, "end": END, "step": "60"}
    error = error_of(client, "query_range", 422, "execution", lookback_delta="30m", **query)

    assert error == f"the query needs more than 3 {name}; the fix"


PIECES = [*"\"'`\\=},#\n a()", '{a=~"b"', "=~", "!~", '"x"', "'y'", "`z`", 'b!~"c"']


@given(pieces=st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_the_parser_compiles_no_expression(pieces: str) -> None:
    def operators(expression: Any) -> Iterator[Any]:
        if isinstance(expression, promql.VectorSelector):
            yield from (each.op for each in expression.matchers.matchers)
        elif isinstance(expression, promql.ParenExpr):
            yield from operators(expression.expr)

    with contextlib.suppress(QueryError):
        found = list(operators(parse('{a=~"b"' + pieces)))
        assert promql.MatchOp.Re not in found
        assert promql.MatchOp.NotRe not in found


def test_hours_are_read_where_minutes_are_deleted(tmp_path: Path) -> None:
    retention = Retention(seconds_10=timedelta(hours=2), minutes=timedelta(hours=3))
    one = Site(f"sqlite:///{tmp_path}/hours.db", {"retention": retention})
    one.write([Request({"forward": 1_000_000}, NOON + 40 * number) for number in range(90)])
    one.store.maintain()
    # Data after a gap delete nothing until they have arrived for a day.
    for day in (2, 3, 4):
        one.clock.now += 86_400
        one.write([Request({"forward": 1_000_000}, NOON + day * 86_400)])
    one.clock.now += 86_400
    one.store.maintain()
    client = Dashboard(DashboardConfig(), one.store, clock=one.clock).server.test_client()

    for minute, expected in ((0, 90), (59, 90), (60, None)):
        found = instant(
            client, "stagelens_requests_per_second * 3600", time=NOON + 3600 + minute * 60, lookback_delta="5m"
        )
        assert [round(value) for value in found.values()] == ([expected] if expected else [])
    one.close()


# Vectors for tests of PromQL: NaN is no sample.
LABELS = [{"a": a, "b": b} for a, b in product("xy", "12")]
VALUES = st.lists(st.one_of(st.just(math.nan), st.floats(-100, 100, width=16)).map(float), min_size=3, max_size=3)
VECTORS = st.lists(st.tuples(st.sampled_from(LABELS), VALUES), max_size=4, unique_by=lambda each: str(each[0]))


def evaluated(query: str, **vectors: list[tuple[dict[str, str], list[float]]]) -> dict[tuple[Any, ...], list[float]]:
    def select(selector: promql.VectorSelector) -> list[VectorSeries]:
        own = vectors[selector.name or ""]
        return [VectorSeries({"__name__": selector.name or "", **labels}, np.array(values)) for labels, values in own]

    found = QueryEvaluator(select, 3, QueryLimits(60)).evaluate(parse(query))
    assert isinstance(found, list)
    return {each.key(): each.values.tolist() for each in found}


@given(left=VECTORS, right=VECTORS)
def test_matching_and_aggregation_follow_their_definition(left: Any, right: Any) -> None:
    difference, sums = evaluated("left - right", left=left, right=right), evaluated("sum by (a) (left)", left=left)
    highest = evaluated("max without (a) (left > right)", left=left, right=right)
    for at in range(3):
        ours, others = (
            {tuple(sorted(labels.items())): values[at] for labels, values in each if not math.isnan(values[at])}
            for each in (left, right)
        )
        both = ours.keys() & others.keys()
        assert at_time(difference, at) == {key: ours[key] - others[key] for key in both}
        groups = {key[:1]: [value for other, value in ours.items() if other[0] == key[0]] for key in ours}
        assert at_time(sums, at) == pytest.approx({key: sum(values) for key, values in groups.items()})
        above = [(key[1:], ours[key]) for key in both if ours[key] > others[key]]
        assert at_time(highest, at) == {key: max(value for own, value in above if own == key) for key, _ in above}


def at_time(found: dict[tuple[Any, ...], list[float]], at: int) -> dict[tuple[Any, ...], float]:
    return {key: values[at] for key, values in found.items() if not math.isnan(values[at])}


NAN = math.nan
STAGES = [({"a": "x", "s": "1"}, [1.0, 2.0, NAN]), ({"a": "x", "s": "2"}, [3.0, NAN, 5.0])]
TOTAL = [({"a": "x", "team": "blue"}, [4.0, 2.0, 10.0])]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "stages / on (a) group_left (team) total",
            {
                (("a", "x"), ("s", "1"), ("team", "blue")): [0.25, 1.0, NAN],
                (("a", "x"), ("s", "2"), ("team", "blue")): [0.75, NAN, 0.5],
            },
        ),
        (
            "total - ignoring (s, team) group_right stages",
            {(("a", "x"), ("s", "1")): [3.0, 0.0, NAN], (("a", "x"), ("s", "2")): [1.0, NAN, 5.0]},
        ),
        (
            "topk (1, stages)",
            {
                (("__name__", "stages"), ("a", "x"), ("s", "1")): [NAN, 2.0, NAN],
                (("__name__", "stages"), ("a", "x"), ("s", "2")): [3.0, NAN, 5.0],
            },
        ),
        ("bottomk (1, stages) < 2", {(("__name__", "stages"), ("a", "x"), ("s", "1")): [1.0, NAN, NAN]}),
        ("count (stages)", {(): [2.0, 1.0, 1.0]}),
        ("avg (stages)", {(): [2.0, 2.0, 5.0]}),
        ("-min (stages) + 1", {(): [0.0, -1.0, -4.0]}),
        ("3 > bool sum (stages)", {(): [0.0, 1.0, 0.0]}),
        ("sum (stages) != 2", {(): [4.0, NAN, 5.0]}),
        ("sum by (team) (total) % 3", {(("team", "blue"),): [1.0, 2.0, 1.0]}),
        ("sum (total) == sum (stages)", {(): [4.0, 2.0, NAN]}),
    ],
)
def test_operators(query: str, expected: dict[tuple[Any, ...], list[float]]) -> None:
    found = evaluated(query, stages=STAGES, total=TOTAL)

    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, nan_ok=True)


def test_series_that_alternate_match_one_at_a_time() -> None:
    first, second = ({"a": "x", "s": "1"}, [1.0, NAN, NAN]), ({"a": "x", "s": "2"}, [NAN, 2.0, NAN])
    (found,) = evaluated("one / on (a) two", one=TOTAL, two=[first, second]).values()

    assert found == pytest.approx([4.0, 1.0, NAN], nan_ok=True)


@pytest.mark.stacks
def test_promtool_reads_percentiles_and_stages(serve: Serve, filled: Store, client: FlaskClient) -> None:
    served = serve(filled, token=TOKEN).removeprefix("http://")
    times = {"instant": [f"--time={END}"], "range": [f"--start={END - 600}", f"--end={END}"]}
    documented = (ROOT / "docs" / "prometheus.md").read_text()
    printed: dict[str, str] = {}
    for command in re.findall(r"^promtool (query .*)$", documented, re.MULTILINE):
        _, kind, *rest = shlex.split(command)
        address = f"http://:{quote(TOKEN)}@{served}"
        rest = [each.replace("https://:TOKEN@stagelens.example.com", address) for each in rest]
        status, printed[kind] = prometheus_tool.run("query", kind, *times[kind], *rest)
        assert status == 0, printed[kind]

    latency = instant(client, 'stagelens_latency_seconds{quantile="0.99"}', lookback_delta="5m")
    assert dict(re.findall(r'service_name="(.*?)"} => (\S+)', printed["instant"])) == {
        service: f"{value!r}" for (_, service), value in latency.items()
    }
    query = 'stagelens_stage_share{service_name="vision-api", quantile="0.9"}'
    shares = data_of(client, "query_range", query=query, start=END - 600, end=END, step="5m")["result"]  # --step
    assert [line.split()[0] for line in printed["range"].splitlines() if "@" in line] == [
        value for share in shares for _, value in share["values"]
    ]
