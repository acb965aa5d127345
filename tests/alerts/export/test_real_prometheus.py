"""Exported rules and dashboard in a real Prometheus that scrapes a collector: every expression returns correct data."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stagelens.alerts.delivery.channels.heartbeat import EVALUATED_LEASE
from stagelens.alerts.export import grafana, rules
from stagelens.alerts.export.rules import HistogramExpressions
from stagelens.alerts.objectives.slo import Slo
from stagelens.alerts.serve import AlertMetrics
from stagelens.analysis.policies import default_burn_rate_policy
from stagelens.collector import prometheus as prometheus_counters
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.core import names
from stagelens.core.histogram import Histogram
from stagelens.store import Batch, Point, Retention, Store, lease
from stagelens.store.series import Series
from tests.support import prometheus_server
from tests.support.prometheus_server import Prometheus, until

pytestmark = pytest.mark.stacks

MONTH = timedelta(days=30)
# Of four requests, one fails immediately and one is slow, mostly in the queue.
SERVED, FAILED = (0.1, 0.1, 2.0), (0.1,)
# Each SLO, and its share of bad requests.
PROMISED = (
    (Slo("latency", "shop", 0.99, MONTH, timedelta(milliseconds=250)), 0.5),
    (Slo("availability", "shop", 0.99, MONTH), 0.25),
    (Slo("stage", "shop", 0.99, MONTH, timedelta(seconds=1), watched="stage", stage="queue"), 1 / 3),
    (Slo("first", "shop", 0.99, MONTH, timedelta(seconds=1), watched="ttft"), 0.25),
    (Slo("each", "shop", 0.99, MONTH, timedelta(seconds=1), watched="tpot", definition="engine"), 0.25),
    (Slo("coverage", "shop", 0.9, MONTH, watched="coverage"), 0.2 / 2.3),
)
SERIOUS = {"latency", "availability", "stage", "first", "each"}
_FIRING = 'count by (slo) (ALERTS{alertstate="firing",severity="page"})'


@dataclass(frozen=True, slots=True)
class Scene:
    """Prometheus server that scraped a collector while requests arrived.

    Args:
        prometheus: The server.
        histograms: Expressions for its kind of histograms.
        at: Time at which all data were scraped; queries for this time give the same result even if a scrape is late.
            [Unix seconds]
    """

    prometheus: Prometheus
    histograms: HistogramExpressions
    at: float

    def query(self, expression: str) -> list[Any]:
        return self.prometheus.query(expression, self.at)


@pytest.fixture(scope="module", params=[False, True], ids=["classic", "native"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Scene]:
    if not prometheus_server.is_installed():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(prometheus_server.HINT)
    folder: Path = tmp_path_factory.mktemp("prometheus")
    histograms = HistogramExpressions(request.param)
    written = rules.write_rules([slo for slo, _ in PROMISED], default_burn_rate_policy(), histograms)
    (folder / "rules.yml").write_text(written.replace("interval: 1m", "interval: 200ms"))
    store = Store.open(f"sqlite:///{folder}/stagelens.db", retention=Retention(budget_bytes=10**9))
    with store.transaction() as connection:
        lease.hold(connection, EVALUATED_LEASE, "me", 0.0, 0.0)
        lease.note_done(connection, EVALUATED_LEASE, time.time())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prometheus_counters, "EMPTY_SECONDS", 0.0)
        collector = Collector(CollectorConfig(port=0), store, maintenance_seconds=0.5)
        collector.metrics.include(AlertMetrics(store))
        collector.start()
        flags = ("--enable-feature=native-histograms",) if histograms.native else ()
        try:
            with prometheus_server.serving(folder, _configuration(collector.address), flags) as prometheus:
                yield Scene(prometheus, histograms, _serve_requests(collector, prometheus))
        finally:
            collector.stop()
            store.close()


def _configuration(address: tuple[str, int]) -> str:
    host, port = address
    job = f"{{job_name: stagelens, scrape_interval: 200ms, scrape_timeout: 200ms, static_configs: [{{targets: ['{host}:{port}']}}]}}"
    return f"rule_files: [rules.yml]\nscrape_configs: [{job}]\n"


def _serve_requests(collector: Collector, prometheus: Prometheus) -> float:
    at = 0.0

    def come() -> bool:
        nonlocal at
        # A scrape in progress may still add a sample at this time.
        at = time.time() - 1
        collector.metrics.committed([Batch("", _points())], [True], 0.01)
        collector.metrics.request("metrics", 400)
        return (
            prometheus.number("count(slo:stagelens_burn:ratio_rate5m > 0)", at) == len(PROMISED)
            and prometheus.number('rate(stagelens_collector_requests_total{code="400"}[10s]) > 0', at) is not None
            and prometheus.number(f"count({_FIRING})", at) == len(SERIOUS)
            and prometheus.number("stagelens_collector_store_budget_bytes > 0", at) is not None
        )

    until(come)
    return at


def _points() -> list[Point]:
    points: list[Point] = []
    for status, durations in (("ok", SERVED), ("error", FAILED)):
        series = Series("shop", "1", "prod", status=status)

        def add(metric: str, stage: str, *seconds: float, series: Series = series) -> None:
            histogram = Histogram()
            for value in seconds:
                histogram.record(value)
            points.append(Point(series, metric, stage, 0, histogram))

        add(names.REQUEST_DURATION, "forward", *durations)
        # A tenth of the slow request is unattributed; untimed requests count as neither attributed nor unattributed.
        queued = 0.01 if status == "ok" else 0
        add(names.STAGE_DURATION, "queue", *(0.9 * duration for duration in durations if duration > 1), queued)
        add(names.STAGE_DURATION, "overhead", *(0.1 * duration for duration in durations if duration > 1))
        add(names.STAGE_DURATION, "forward", sum(duration for duration in durations if duration <= 1) - queued)
        add(names.STAGE_DURATION, "untimed", 5.0)
        add(names.FIRST_TOKEN, "engine", *durations)
        add(names.FIRST_TOKEN, "first_chunk", *(2 * duration for duration in durations))
        add(names.OUTPUT_TOKEN, "engine", *durations)
        add(names.AGENT_COST, "all", *(20e-6 for _ in durations))
        add(names.SUSPECT_REPORT, "tgi", *durations)
    return points


def test_every_panel_has_data(scene: Scene) -> None:
    dashboard = json.loads(grafana.write_dashboard(scene.histograms))
    asked = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", ())]
    empty = [
        (title, expression)
        for title, expression in asked
        if not _has_result(scene, expression.replace("$__rate_interval", "10s").replace("$service", ".+"))
    ]

    assert len(asked) > 20
    assert empty == []


def test_first_token_definitions_are_separate_lines(scene: Scene) -> None:
    dashboard = json.loads(grafana.write_dashboard(scene.histograms))
    (panel,) = (panel for panel in dashboard["panels"] if panel["title"] == "Time to first token")
    for target in panel["targets"]:
        found = scene.query(target["expr"].replace("$__rate_interval", "10s").replace("$service", ".+"))

        assert "{{definition}}" in target["legendFormat"]
        assert {each["metric"]["definition"] for each in found} == {"engine", "first_chunk"}


def _has_result(scene: Scene, expression: str) -> bool:
    values = [found["value"][1] for found in scene.query(expression)]
    return bool(values) and "NaN" not in values


@pytest.mark.parametrize(("slo", "share"), PROMISED, ids=lambda value: value.name if isinstance(value, Slo) else "")
def test_recorded_burn_rates_equal_those_of_the_requests(scene: Scene, slo: Slo, share: float) -> None:
    found = scene.prometheus.number(f'slo:stagelens_burn:ratio_rate1h{{slo="{slo.name}"}}', scene.at)

    assert found == pytest.approx(share / slo.budget, rel=1e-3)


def test_violated_slos_fire(scene: Scene) -> None:
    assert {found["metric"]["slo"] for found in scene.query(_FIRING)} == SERIOUS


@pytest.mark.parametrize("native", [False, True])
def test_the_dashboard_is_portable_and_panels_do_not_overlap(*, native: bool) -> None:
    dashboard = json.loads(grafana.write_dashboard(HistogramExpressions(native)))
    panels = dashboard["panels"]
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    taken = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    charts: list[dict[str, Any]] = [panel for panel in panels if panel["type"] != "row"]

    assert variables == {"datasource", "service"}
    assert {chart["datasource"]["uid"] for chart in charts} == {"${datasource}"}
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24
    for chart in charts:
        used = set(re.findall(r"\$(\w+)", " ".join(target["expr"] for target in chart["targets"])))
        assert used <= variables | {"__rate_interval"}
