"""The page of one service: consistent numbers, no percentile of too few requests, and a link for every control."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import delete

from stagelens.alerts.evaluation.slo_status import SloStatus
from stagelens.alerts.incidents.lifecycle import IncidentRecord, save_incident
from stagelens.alerts.reader import Incident
from stagelens.alerts.schema import incidents
from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION, STAGE_TIME
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.service import mixtures, nearest_in_rank, slow_of_each_cause
from stagelens.dashboard.pages.service_charts import CHARTS
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import THIN, UNKNOWN, duration, interval, money
from stagelens.dashboard.ui.page_export import PageData, as_html, page_data
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Batch, Event, Point, Series, Store
from tests.dashboard import notified_store
from tests.dashboard.rendering import context_at, page_at
from tests.dashboard.served_versions import NOW

QUARTER = "from=now-15m"


class Incidents:
    """Alerts that know incidents only."""

    def __init__(self, *found: Incident) -> None:
        self.found = found

    def slos(self, now: datetime | None = None) -> list[SloStatus]:  # noqa: ARG002 - there are none
        return []

    def incidents(self) -> list[Incident]:
        return list(self.found)

    def problems(self) -> list[str]:
        return []


@contextmanager
def opened(store: Store, *found: IncidentRecord) -> Generator[Source]:
    with store.transaction() as connection:
        for each in found:
            save_incident(connection, each)
    try:
        yield Source(store, Incidents(), NOW.timestamp)
    finally:
        with store.transaction() as connection:
            connection.execute(delete(incidents))


def incident(minutes: float, until: float | None = None, service: str = "two-models", **where: str) -> IncidentRecord:
    made = notified_store.record(f"sl-{minutes}{until}{service}{where}"[:32], "latency", 9.0, minutes * 60, service)
    at, ended = NOW.timestamp() - minutes * 60, None if until is None else NOW.timestamp() - until * 60
    finding = replace(made.finding, since=at, where=where)
    over = {"resolved_at": ended, "ending": "" if ended is None else "recovered"}
    return replace(made, cause=made.id, finding=finding, opened_at=at, **over)


def scraped(now: datetime) -> Batch:
    random = np.random.default_rng(1)
    seconds = np.exp(random.normal(np.log(0.05), 0.6, 5000))
    bucket = np.ceil(np.log2(seconds)).astype(int) - 1
    at = int((now - timedelta(minutes=2)).timestamp()) // 10 * 10
    counted = {int(index): int(n) for index, n in zip(*np.unique(bucket, return_counts=True), strict=True)}
    spent = {index: n * 1000 for index, n in counted.items()}
    series = Series("scraped", "1", "demo", "m", "1", "/", "cpu")
    points = [
        Point(series, REQUEST_DURATION, "forward", at, Histogram(0, counted, 0, float(seconds.sum()))),
        Point(series, STAGE_TIME, "forward", at, Histogram(0, spent, 0, 0.0)),
    ]
    return Batch("scraped", points, [], 0, "scraper")


@pytest.fixture(scope="module")
def store(traffic: ModuleType, open_module_store: Callable[[], Store]) -> Store:
    shape = traffic.Shape
    stages = {"forward": shape(20, 0.2), "queue": shape(4, 1.0, 0.05, 20), "overhead": shape(1, 0.2)}
    unclaimed = {"forward": shape(20, 0.2), "overhead": shape(9, 0.2)}
    busy = [traffic.Service("two-models", model, 12.0, ("/",), stages) for model in ("small", "large")]
    made = open_module_store()
    traffic.fill(made, NOW - timedelta(minutes=20), NOW, services=busy[:1])
    for at in range(int(NOW.timestamp()) // 10 * 10 - 300, int(NOW.timestamp()), 10):
        second = traffic.batch(busy[1], at, second_version=False, seed=1)
        made.write([replace(second, id=f"large:{at}")])
    few = [traffic.Service("unclaimed", "m", 9.0, ("/",), unclaimed), traffic.Service("rare", "m", 1.0, ("/",), stages)]
    traffic.fill(made, NOW - timedelta(minutes=3), NOW, services=few)
    at = int(NOW.timestamp()) // 10 * 10 - 60
    random, series = np.random.default_rng(2), Series("one", "1")
    one = traffic.draw(stages, 1, random)
    traces = list(traffic.kept(series, at, one, random))
    made.write([scraped(NOW), Batch("one", list(traffic.points(series, at, one)), traces, 0, "one")])
    return made


@pytest.fixture(scope="module")
def source(store: Store) -> Source:
    return Source(store, Incidents(), NOW.timestamp)


def page_data_of(source: Source, address: str) -> PageData:
    return page_data(page_at(source, address).body)


def html_of(source: Source, address: str) -> str:
    return as_html(page_at(source, address).body)


def figure(source: Source, name: str, address: str) -> dict[str, Any]:
    return CHARTS[name](context_at(source, address))


def stages_in(made: dict[str, Any]) -> set[str]:
    return {trace["name"] for trace in made["data"] if "stackgroup" in trace}


def notes(made: dict[str, Any]) -> str:
    return " ".join(str(each["text"]) for each in made["layout"]["annotations"])


@pytest.mark.parametrize("query", [QUARTER, f"{QUARTER}&m=small", f"{QUARTER}&vs=off", "from=now-5m"])
def test_tile_chart_and_table_show_the_same_numbers(source: Source, query: str) -> None:
    address = f"/s/two-models?{query}"
    data = page_data_of(source, address)
    frame = data.charts["percentile"].frame
    assert frame is not None
    p99 = duration(float(frame.loc[frame["percentile"] == "p99", "latency (s)"].iloc[0]))
    page = html_of(source, address)

    assert p99 in notes(figure(source, "percentile", address))
    assert re.search(rf">p99<.*?>{p99.partition(THIN)[0]} <small>{p99.partition(THIN)[2]}", page)
    assert re.search(rf"<td[^>]*data-total[^>]*>{p99}<", page)


def test_every_chart_has_a_table_with_units(source: Source) -> None:
    charts = page_data_of(source, f"/s/two-models?{QUARTER}").charts
    frames = {name: drawn.frame for name, drawn in charts.items()}

    assert set(frames) == {"percentile", "over", "heat"}
    assert all(frame is not None and len(frame) for frame in frames.values())
    assert all(frame is not None and not any("_" in str(column) for column in frame) for frame in frames.values())
    assert all(any(letter.isdigit() for letter in drawn.spoken) for drawn in charts.values())


def test_a_rate_is_compared_over_the_existing_history(source: Source) -> None:
    made = context_at(source, f"/s/two-models?{QUARTER}&m=small")
    page = html_of(source, f"/s/two-models?{QUARTER}&m=small")
    change = page.partition("Requests")[2].partition("vs prev.")[0]

    assert made.previous_seconds == pytest.approx(300, abs=20)
    assert "▲\u202f1" not in change
    assert "▲\u202f2" not in change


def test_vs_off_omits_the_comparison(source: Source) -> None:
    page = html_of(source, "/s/two-models?from=now-5m&vs=off")

    assert "vs prev." in html_of(source, "/s/two-models?from=now-5m")
    assert "vs prev." not in page
    assert "k requests" in page


def test_a_model_has_a_link(source: Source) -> None:
    both, small, large = (
        context_at(source, f"/s/two-models?{QUARTER}{query}") for query in ("", "&m=small", "&m=large")
    )
    counted = [each.source.read.latency(each.selection).count for each in (both, small, large)]
    page = html_of(source, f"/s/two-models?{QUARTER}")

    assert counted[0] == counted[1] + counted[2]
    assert counted[2] < counted[1]
    assert "m=small" in page
    assert "m=large" in page
    assert "Model small: show all models" in html_of(source, f"/s/two-models?{QUARTER}&m=small")


def test_fixed_buckets_give_intervals(source: Source) -> None:
    page = html_of(source, f"/s/scraped?{QUARTER}")
    written = notes(figure(source, "percentile", f"/s/scraped?{QUARTER}"))

    assert interval(0.125, 0.25) in written
    assert interval(0.125, 0.25) in page
    assert "fixed buckets" in page
    assert "≈ " in page


def test_one_request_has_no_percentile_and_no_rank_but_a_chart_scale(source: Source) -> None:
    page = html_of(source, f"/s/one?{QUARTER}")
    table = next(each for each in page_data_of(source, f"/s/one?{QUARTER}").tables if each.name == "Slow exemplars")
    ticks = figure(source, "heat", f"/s/one?{QUARTER}")["layout"]["yaxis"]["ticktext"]

    assert [row[table.head.index("Rank")] for row in table.rows] == [UNKNOWN]
    assert "and up" not in page
    assert "Too few requests for a percentile" in page
    assert "could not be rendered" not in page
    assert "1 request, needs 1,000" in page
    assert set(page_data_of(source, f"/s/one?{QUARTER}").charts) == {"over", "heat"}
    assert len(ticks) >= 2


def test_percentiles_of_few_requests_are_greyed(source: Source) -> None:
    tail, mean = (figure(source, "over", f"/s/rare?{QUARTER}&t={each}") for each in ("99", "mean"))
    veiled = [shape for shape in tail["layout"]["shapes"] if shape["type"] == "rect"]

    assert veiled
    assert "p99 needs 1,000" in tail["subtitle"]
    assert not [shape for shape in mean["layout"]["shapes"] if shape["type"] == "rect"]


def test_unattributed_time_above_15_percent_is_named(source: Source) -> None:
    assert "this time is between stages and belongs to no stage" in html_of(source, f"/s/unclaimed?{QUARTER}")
    assert "this time is between stages and belongs to no stage" not in html_of(source, f"/s/two-models?{QUARTER}")


def test_a_stage_can_be_left_out(source: Source) -> None:
    address = f"/s/two-models?{QUARTER}&hide=queue,nobody"
    percentiles, over, heat = (figure(source, name, address) for name in ("percentile", "over", "heat"))
    page = html_of(source, address)

    assert stages_in(percentiles) == stages_in(over) == {"Forward", "Unattributed"}
    assert "ms</b>" not in notes(percentiles)
    whole, whole_heat = (figure(source, name, f"/s/two-models?{QUARTER}") for name in ("percentile", "heat"))
    assert percentiles["layout"]["yaxis"]["range"][1] < whole["layout"]["yaxis"]["range"][1]
    assert heat["data"][0]["_cells"]["counts"] != whole_heat["data"][0]["_cells"]["counts"]
    assert "Not in the charts" in page
    assert "Show all" in page


def test_a_pinned_percentile_is_marked_and_has_its_own_exemplars(source: Source) -> None:
    address = f"/s/two-models?{QUARTER}&p=97"
    page = html_of(source, address)
    solid = [
        each for each in figure(source, "percentile", address)["layout"]["shapes"] if each["line"]["dash"] == "solid"
    ]

    assert len(solid) == 1
    assert "Exemplars around p97" in page
    assert "p50→p96.8" in page or "p50→p97" in page


def test_events_are_marked_in_the_time_charts(store: Store) -> None:
    store.add_event(Event(NOW - timedelta(minutes=4), "two-models", "deploy", "v9", "new weights"))
    store.add_event(Event(NOW - timedelta(minutes=4), "two-models", "advice", "batching", "done"))
    found = (incident(3), incident(8, 6), incident(480, 420), incident(3, service="another"))
    with opened(store, *found) as source:
        made = figure(source, "over", f"/s/two-models?{QUARTER}&t=mean")
    fields = [each for each in made["layout"]["shapes"] if each["type"] == "rect"]
    solid = [each for each in made["layout"]["shapes"] if each["type"] == "line" and each["line"]["dash"] == "solid"]

    assert len(fields) == 4, "two alerts, each a field and a mark along its top"
    assert fields[0]["x1"] - fields[0]["x0"] == pytest.approx(120_000)
    assert notes(made).count("■ latency") == 2
    assert len(solid) == 1
    assert "v9" in notes(made)


def test_an_alert_outside_the_scope_is_omitted(store: Store) -> None:
    about: list[dict[str, str]] = [{"model": "small"}, {}, {"model": "large"}, {"route": "/other", "model": "small"}]
    with opened(store, *(incident(3, None, "two-models", **each) for each in about)) as source:
        drawn = [
            notes(figure(source, "over", f"/s/two-models?{QUARTER}&{part}")).count("■")
            for part in ("m=small&r=/", "m=small", "")
        ]

    assert drawn == [2, 3, 4]


@pytest.mark.parametrize(
    "query",
    ["p=banana", "p=-3", "p=100", "hide=,,", "hide=%3Cb%3E", "m=no-such-model", "t=7&by=x&y=z&x=q", "v=0&m=small"],
)
def test_invalid_values_in_the_address_break_nothing(source: Source, query: str) -> None:
    page = html_of(source, f"/s/two-models?{QUARTER}&{query}")

    assert "could not be rendered" not in page
    assert "Not in the charts" not in page


def test_a_control_fetches_only_its_chart(dashboard: Dashboard) -> None:
    client = dashboard.server.test_client()
    found = client.get("/figures/percentile?path=/s/vision-api&y=share")
    wrong = client.get("/figures/no-such-chart?path=/s/vision-api")
    lost = client.get("/figures/percentile?path=/s/nobody")

    assert found.status_code == 200
    assert found.get_json()["layout"]["yaxis"]["range"] == [0, 1.0]
    assert wrong.status_code == 404
    assert (lost.status_code, lost.mimetype) == (404, "text/plain")
    assert "/s/nobody has no requests" in lost.text


def test_a_mixture_needs_two_dominant_causes() -> None:
    frame = pd.DataFrame({"percentile": [0.5, 0.9, 0.99]})
    rows = [
        (0.5, "forward", 1.0),
        *((0.9, "queue", 0.93), (0.9, "load", 0.07)),
        *((0.99, "queue", 0.58), (0.99, "load", 0.41), (0.99, "forward", 0.01)),
    ]
    found = mixtures(pd.DataFrame(rows, columns=["percentile", "stage", "share"]), frame)

    assert found == [None, None, ("queue", 0.58, "load", 0.41)]


def test_slow_exemplars_show_each_cause_once() -> None:
    traces = pd.DataFrame(
        {
            "dominant": ["queue", "load", "queue", "forward"],
            "rank": [0.999, float("nan"), 0.99, 0.59],
            "trace_id": list("abcd"),
        }
    )

    assert "".join(slow_of_each_cause(traces)["trace_id"]) == "ab"
    assert "".join(slow_of_each_cause(traces.tail(1))["trace_id"]) == "d"
    assert slow_of_each_cause(traces.head(0)).empty


def test_exemplars_around_a_percentile_are_the_nearest_in_rank() -> None:
    traces = pd.DataFrame(
        {"rank": [0.2, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0, float("nan")], "trace_id": list("abcdefgh")}
    )

    assert "".join(nearest_in_rank(traces, 0.99, limit=3)["trace_id"]) == "fed"
    assert "".join(nearest_in_rank(traces, 0.5, limit=1)["trace_id"]) == "a"


def test_a_service_of_another_environment_is_not_mixed_in(source: Source) -> None:
    made = replace(context_at(source, f"/s/two-models?{QUARTER}").selection, environment="staging")

    page = html_of(source, f"/s/two-models?{QUARTER}&env=staging")

    assert source.read.latency(made).count == 0
    assert "two-models was not seen in staging" in page
    assert "All environments" in page
    assert "No service called nobody" in html_of(source, f"/s/nobody?{QUARTER}&env=staging")


def test_every_stage_can_be_left_out(source: Source) -> None:
    address = f"/s/two-models?{QUARTER}&hide=forward,queue,overhead"

    assert "could not be rendered" not in html_of(source, address)
    assert stages_in(figure(source, "percentile", address)) == stages_in(figure(source, "over", address)) == set()


def test_cost_is_shown_only_for_all_requests_of_a_price(store: Store, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: '$'\nprices:\n  - service: two-models\n    per_hour: 36\n")
    source = Source(store, Incidents(), NOW.timestamp, config=DashboardConfig(prices=prices))
    made = context_at(source, f"/s/two-models?{QUARTER}")
    requests = store.read.latency(made.selection).count
    page = html_of(source, f"/s/two-models?{QUARTER}")

    assert money(36 / 3600 * made.seconds / requests * 1e6, "$") in page.partition("Cost per 1 M")[2]
    assert "Cost per 1 M" not in html_of(source, f"/s/two-models?{QUARTER}&m=small")
    assert "Cost per 1 M" not in html_of(source, f"/s/rare?{QUARTER}")
