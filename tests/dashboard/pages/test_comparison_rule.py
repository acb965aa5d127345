"""One comparison rule: page, API, alert and `stagelens compare` give the same verdict and interval for the same data."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from stagelens.alerts.regression.findings import merged_latency
from stagelens.analysis.regression.scoring import WindowScore
from stagelens.analysis.regression.statistic import END_TO_END, Row
from stagelens.analysis.regression.verdict import make_verdict
from stagelens.cli.compare_output import json_text, verdict
from stagelens.cli.comparison import Side, compare_sides
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.comparison import compared, newest_pair
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.app import Dashboard
from stagelens.dashboard.web.routing import context_of
from stagelens.store import Store
from tests.dashboard.served_versions import FAST, NOW, SLOW, Served, write


@pytest.mark.parametrize(
    ("before", "after", "rate", "kind", "sentence"),
    [
        (FAST, SLOW, 20, "regression", "B is slower at p99"),
        (SLOW, FAST, 20, "improvement", "B is faster at p99"),
        (FAST, FAST, 20, "same", "No significant difference at p99"),
        (FAST, {**FAST, "forward": 10.2}, 20, "same", "No significant difference at p99"),
        (FAST, SLOW, 1, "not_enough", "Too few requests to compare p99"),
    ],
)
def test_page_api_alert_and_cli_give_the_same_verdict(  # noqa: PLR0917 - a case of the table
    store: Store,
    traffic: ModuleType,
    before: dict[str, float],
    after: dict[str, float],
    rate: int,
    kind: str,
    sentence: str,
) -> None:
    versions = Served("shop", "1.0", 20, 10, before, rate), Served("shop", "2.0", 10, 0, after, rate)
    source = write(store, traffic, *versions)
    context = context_of(parse("/compare", "svc=shop", NOW), source)
    pair = newest_pair(context)
    assert pair is not None
    client = Dashboard(DashboardConfig(), store, None, clock=NOW.timestamp).server.test_client()

    page = compared(context, pair, 0.99).verdict
    api = client.get("/api/v1/query/compare", query_string={"service": "shop", "p": "99"}).get_json()
    command = compare_sides(source.read, Side("A", pair.a), Side("B", pair.b), 0.99, [])
    sides = merged_latency(source.read, [pair.a]), merged_latency(source.read, [pair.b])
    alert = make_verdict(Row(END_TO_END, 0.99, 0, 1.0, 0.01, 0.4), WindowScore(0, 9.0, 1.0, 0.5), *sides)

    assert (page.kind, api["verdict"]["kind"], command.at.kind) == (kind, kind, kind)
    assert verdict(command).startswith(sentence)
    interval = page.ratio, page.ratio_low, page.ratio_high
    printed = next(each for each in json.loads(json_text(command))["latency"] if each["percentile"] == "p99")
    assert printed["verdict"] == kind
    for found in (api["verdict"], api["summary"], printed):
        assert (found["ratio"], found["ratio_low"], found["ratio_high"]) == pytest.approx(interval)
    assert (command.at.ratio, command.at.ratio_low, command.at.ratio_high) == interval
    assert alert.change is not None
    assert (alert.change.value, alert.change.low, alert.change.high) == interval
    assert (command.at.low > 0) == (alert.change.low > 1)
