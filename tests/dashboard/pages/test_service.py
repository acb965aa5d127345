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
from flask.testing import FlaskClient
from sqlalchemy import delete

from stagelens.alerts.incidents.lifecycle import IncidentRecord, save_incident
from stagelens.alerts.schema import incidents
from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION, STAGE_TIME
from stagelens.dashboard.pages.service import mixtures, nearest_in_rank, slow_of_each_cause
from stagelens.dashboard.pages.service_charts import CHARTS
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.format import THIN, UNKNOWN, duration, money
from stagelens.store import Batch, Event, Point, Series, Store
from tests.dashboard import notified_store
from tests.dashboard.rendering import check_views, context_at, data_at, html_at, source_of
from tests.dashboard.served_versions import NOW

QUARTER = "from=now-15m"


@contextmanager
def opened(store: Store, folder: Path, *found: IncidentRecord) -> Generator[Source]:
    with store.transaction() as connection:
        for each in found:
            save_incident(connection, each)
    try:
        yield source_of(store, folder)
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
    return source_of(store)


def figure(source: Source, name: str, address: str) -> dict[str, Any]:
    return CHARTS[name](context_at(source, address))


def stages_in(made: dict[str, Any]) -> set[str]:
    return {trace["name"] for trace in made["data"] if "stackgroup" in trace}


def notes(made: dict[str, Any]) -> str:
    return " ".join(str(annotation["text"]) for annotation in made["layout"]["annotations"])


@pytest.mark.parametrize("query", [QUARTER, f"{QUARTER}&m=small", f"{QUARTER}&vs=off", "from=now-5m"])
def test_tile_chart_and_table_show_the_same_numbers(source: Source, query: str) -> None:
    address = f"/s/two-models?{query}"
    frame = data_at(source, address).charts["percentile"].frame
    assert frame is not None
    p99 = duration(float(frame.loc[frame["percentile"] == "p99", "latency (s)"].iloc[0]))
    page = html_at(source, address)

    assert p99 in notes(figure(source, "percentile", address))
    assert re.search(rf">p99<.*?>{p99.partition(THIN)[0]} <small>{p99.partition(THIN)[2]}", page)
    assert re.search(rf"<td[^>]*data-total[^>]*>{p99}<", page)


def test_the_page_shows_models_buckets_pins_and_what_is_missing(source: Source) -> None:
    check_views("service", source)


def test_every_chart_has_a_table_with_units(source: Source) -> None:
    charts = data_at(source, f"/s/two-models?{QUARTER}").charts

    assert set(charts) == {"percentile", "over", "heat"}
    for drawn in charts.values():
        assert drawn.frame is not None
        assert len(drawn.frame)
        assert not any("_" in str(column) for column in drawn.frame)


def test_a_rate_is_compared_over_the_existing_history(source: Source) -> None:
    address = f"/s/two-models?{QUARTER}&m=small"
    change = html_at(source, address).partition("Requests")[2].partition("vs prev.")[0]

    assert context_at(source, address).previous_seconds == pytest.approx(300, abs=20)
    assert "▲\u202f1" not in change
    assert "▲\u202f2" not in change


def test_the_requests_of_a_model_are_those_of_its_page(source: Source) -> None:
    contexts = [context_at(source, f"/s/two-models?{QUARTER}{query}") for query in ("", "&m=small", "&m=large")]
    both, small, large = (context.source.read.latency(context.selection).count for context in contexts)

    assert both == small + large
    assert large < small


def test_one_request_has_no_percentile_and_no_rank_but_a_chart_scale(source: Source) -> None:
    data = data_at(source, f"/s/one?{QUARTER}")
    table = next(each for each in data.tables if each.name == "Slow exemplars")

    assert [row[table.head.index("Rank")] for row in table.rows] == [UNKNOWN]
    assert set(data.charts) == {"over", "heat"}
    assert len(figure(source, "heat", f"/s/one?{QUARTER}")["layout"]["yaxis"]["ticktext"]) >= 2


def test_stages_can_be_left_out(source: Source) -> None:
    whole, some, none = (
        f"/s/two-models?{QUARTER}{hide}" for hide in ("", "&hide=queue", "&hide=forward,queue,overhead")
    )
    charts = {name: [figure(source, name, each) for each in (whole, some, none)] for name in CHARTS}
    tops = [each["layout"]["yaxis"]["range"][1] for each in charts["percentile"]]
    cells = [each["data"][0]["_cells"]["counts"] for each in charts["heat"][:2]]

    for name in ("percentile", "over"):
        assert [stages_in(chart) for chart in charts[name][1:]] == [{"Forward", "Unattributed"}, set()]
    assert "ms</b>" not in notes(charts["percentile"][1])
    assert tops[1] < tops[0]
    assert cells[0] != cells[1]


def test_a_pinned_percentile_is_marked(source: Source) -> None:
    shapes = figure(source, "percentile", f"/s/two-models?{QUARTER}&p=97")["layout"]["shapes"]

    assert len([each for each in shapes if each["line"]["dash"] == "solid"]) == 1


def test_events_are_marked_in_the_time_charts(store: Store, tmp_path: Path) -> None:
    store.add_event(Event(NOW - timedelta(minutes=4), "two-models", "deploy", "v9", "new weights"))
    store.add_event(Event(NOW - timedelta(minutes=4), "two-models", "advice", "batching", "done"))
    found = (incident(3), incident(8, 6), incident(480, 420), incident(3, service="another"))
    with opened(store, tmp_path, *found) as source:
        made = figure(source, "over", f"/s/two-models?{QUARTER}&t=mean")
    fields = [each for each in made["layout"]["shapes"] if each["type"] == "rect"]
    solid = [each for each in made["layout"]["shapes"] if each["type"] == "line" and each["line"]["dash"] == "solid"]

    assert len(fields) == 4, "two alerts, each a field and a mark along its top"
    assert fields[0]["x1"] - fields[0]["x0"] == pytest.approx(120_000)
    assert notes(made).count("■ latency") == 2
    assert len(solid) == 1
    assert "v9" in notes(made)


def test_an_alert_outside_the_scope_is_omitted(store: Store, tmp_path: Path) -> None:
    about: list[dict[str, str]] = [{"model": "small"}, {}, {"model": "large"}, {"route": "/other", "model": "small"}]
    with opened(store, tmp_path, *(incident(3, None, "two-models", **each) for each in about)) as source:
        drawn = [
            notes(figure(source, "over", f"/s/two-models?{QUARTER}&{part}")).count("■")
            for part in ("m=small&r=/", "m=small", "")
        ]

    assert drawn == [2, 3, 4]


def test_invalid_values_in_the_address_break_nothing(source: Source) -> None:
    for query in ("p=banana", "p=-3", "p=100", "hide=,,", "hide=%3Cb%3E", "m=no-such-model", "t=7&by=x&y=z&x=q", "v=0"):
        page = html_at(source, f"/s/two-models?{QUARTER}&{query}")
        assert "could not be rendered" not in page, query
        assert "Not in the charts" not in page, query


def test_a_control_fetches_only_its_chart(client: FlaskClient) -> None:
    response = client.get("/figures/percentile?path=/s/vision-api&y=share")
    wrong = client.get("/figures/no-such-chart?path=/s/vision-api")
    lost = client.get("/figures/percentile?path=/s/nobody")

    assert response.get_json()["layout"]["yaxis"]["range"] == [0, 1.0]
    assert [each.status_code for each in (response, wrong, lost)] == [200, 404, 404]
    assert lost.mimetype == "text/plain"
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


def test_slow_exemplars_show_each_cause_once_and_those_of_a_percentile_the_nearest_rank() -> None:
    causes = pd.DataFrame(
        {
            "dominant": ["queue", "load", "queue", "forward"],
            "rank": [0.999, float("nan"), 0.99, 0.59],
            "trace_id": list("abcd"),
        }
    )
    ranks = [0.2, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0, float("nan")]
    traces = pd.DataFrame({"rank": ranks, "trace_id": list("abcdefgh")})

    assert "".join(slow_of_each_cause(causes)["trace_id"]) == "ab"
    assert "".join(slow_of_each_cause(causes.tail(1))["trace_id"]) == "d"
    assert slow_of_each_cause(causes.head(0)).empty
    assert "".join(nearest_in_rank(traces, 0.99, limit=3)["trace_id"]) == "fed"
    assert "".join(nearest_in_rank(traces, 0.5, limit=1)["trace_id"]) == "a"


def test_cost_is_shown_only_for_all_requests_of_a_price(store: Store, tmp_path: Path) -> None:
    prices = "currency: '$'\nprices:\n  - service: two-models\n    per_hour: 36\n"
    source = source_of(store, tmp_path, prices=prices)
    made = context_at(source, f"/s/two-models?{QUARTER}")
    requests = store.read.latency(made.selection).count
    page, *others = (
        html_at(source, f"/s/{each}")
        for each in (f"two-models?{QUARTER}", f"two-models?{QUARTER}&m=small", f"rare?{QUARTER}")
    )

    assert money(36 / 3600 * made.seconds / requests * 1e6, "$") in page.partition("Cost per 1 M")[2]
    assert ["Cost per 1 M" in other for other in others] == [False, False]
