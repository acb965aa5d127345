"""One breakdown for page, API, client, command line and alerts."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from flask.testing import FlaskClient

from stagelens.alerts.evaluation.evidence import stage_budgets
from stagelens.alerts.objectives.slo import Slo
from stagelens.cli.run_output import summarize_run
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.questions.breakdown import breakdown
from tests.support.raw_requests import NOON, Clock, Request, Site

STAGES = ("forward", "preprocess", "queue")
# Preprocess of the median request: few requests have the large image that makes it slow.
USUAL = 0.007


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    random = np.random.default_rng(5)
    preprocess = np.where(
        random.random(1500) < 0.08,
        random.lognormal(np.log(0.06), 0.4, 1500),
        random.lognormal(np.log(0.005), 0.6, 1500),
    )
    spent = (random.lognormal(np.log(0.009), 0.15, 1500), preprocess, random.exponential(0.002, 1500))
    one = Site(f"sqlite:///{tmp_path / 'one.db'}", {}, Clock(NOON))
    one.write(
        [
            Request(
                {stage: int(each * 1e9) for stage, each in zip(STAGES, parts, strict=True)}, NOON - 600 + place % 500
            )
            for place, parts in enumerate(zip(*spent, strict=True))
        ]
    )
    yield one
    one.close()


def test_page_api_summary_and_alert_show_the_same_stages(site: Site) -> None:
    found = breakdown(site.store.read, site.around(service="shop"))
    client = Dashboard(DashboardConfig(), site.store, None, clock=site.clock).server.test_client()
    answer = client.get("/api/v1/query/breakdown?service=shop&p=50,99&from=now-1d").get_json()
    columns = [column["name"] for column in answer["columns"]]
    median, tail = (dict(zip(columns, row, strict=True)) for row in answer["rows"])
    page = client.get("/s/shop?from=now-1d").text
    shown = json.loads(html.unescape(re.search(r'data-inspector="([^"]+)"', page)[1]))  # type: ignore[index] - it has one
    (fleet,) = client.get("/api/v1/query/fleet?from=now-1d").get_json()["rows"]
    (service,) = summarize_run(site.store.read).services
    slo = Slo(
        "x",
        "shop",
        0.99,
        timedelta(days=1),
        timedelta(seconds=1),
        budgets=tuple((each, timedelta(1)) for each in STAGES),
    )
    split = stage_budgets(
        site.store.read, slo, datetime.fromtimestamp(NOON - 86_400, UTC), datetime.fromtimestamp(NOON, UTC)
    )

    for row, quantile, summary in ((median, 0.5, service.typical), (tail, 0.99, service.tail)):
        stages = {each: row[each] for each in STAGES}
        assert found.stages(quantile) == pytest.approx(stages)
        assert summary is not None
        assert summary.stages == pytest.approx(stages)
        assert sum(stages.values()) == pytest.approx(row["value_seconds"])
        assert row["n"] >= 16
    assert {each: shown["base"][each] for each in STAGES} == pytest.approx(
        {each: median[each] for each in STAGES}, rel=1e-3
    )
    at = shown["default"]
    assert {each: shown["stages"][each][at] for each in STAGES} == pytest.approx(
        {each: tail[each] for each in STAGES}, rel=1e-3
    )
    assert max(tail[each] for each in STAGES) / tail["value_seconds"] == pytest.approx(
        fleet[_column(client, "stage_share")]
    )
    assert split is not None
    assert {use.stage: use.seconds for use in split.uses} == pytest.approx({each: tail[each] for each in STAGES})


def test_each_share_has_its_requests_and_an_interval(site: Site) -> None:
    client = Dashboard(DashboardConfig(), site.store, None, clock=site.clock).server.test_client()
    shares = client.get("/api/v1/query/breakdown?service=shop&p=50&from=now-1d").get_json()["shares"]
    preprocess = next(share for share in shares if share["stage"] == "preprocess")

    assert preprocess["n"] > 50
    assert preprocess["seconds"] == pytest.approx(USUAL, rel=0.25)
    for share in shares:
        assert 0 <= share["low_share"] <= share["share"] <= share["high_share"] <= 1


def _column(client: FlaskClient, name: str) -> int:
    columns = client.get("/api/v1/query/fleet?from=now-1d").get_json()["columns"]
    return [column["name"] for column in columns].index(name)
