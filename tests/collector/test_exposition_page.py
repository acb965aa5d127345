"""Consistency of docs/metrics.md, alert rules and the metrics of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from stagelens.alerts import export
from stagelens.alerts.serve import AlertMetrics
from stagelens.core.prometheus_names import FAMILIES
from stagelens.store import Store
from tests.support import prometheus_tool

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "metrics.md").read_text()
NAME = re.compile(r"\bstagelens_(?:collector|alerts)_\w+")


@pytest.fixture
def exposed_names(served: Any, store: Store) -> set[str]:
    served.collector.metrics.include(AlertMetrics(store))
    lines = served.client.get("/metrics").text.splitlines()
    found = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    # The client library adds the creation time of counters.
    return {name for name in found if name.startswith("stagelens_") and not name.endswith("_created")}


def test_every_metric_is_documented(exposed_names: set[str]) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `stagelens_")]
    described = {name for row in rows for name in NAME.findall(row.split("|")[1])}

    assert described == exposed_names
    assert all(row.count("|") == 4 and row.split("|")[3].strip() for row in rows)


def test_other_pages_name_existing_metrics(exposed_names: set[str]) -> None:
    named = {
        page.name: {name for name in NAME.findall(page.read_text()) if not name.endswith("_")}
        for page in DOCS.glob("*.md")
    }

    assert len(named["runbook.md"]) > 10
    assert {page: names - exposed_names for page, names in named.items() if names - exposed_names} == {}


def test_every_histogram_is_on_the_page_about_prometheus() -> None:
    page = (DOCS / "prometheus.md").read_text().partition("\n## Exported histograms\n")[2].partition("\n## ")[0]

    assert set(re.findall(r"^\| `(stagelens_\w+_seconds)`", page, re.MULTILINE)) == {each.name for each in FAMILIES}


@pytest.mark.stacks
def test_the_monitoring_rules_are_valid_and_use_existing_metrics(tmp_path: Path, exposed_names: set[str]) -> None:
    written = export.write_self_monitoring_rules()
    file = tmp_path / "rules.yml"
    file.write_text(written)
    code, output = prometheus_tool.run("check", "rules", file)
    expressions = " ".join(rule["expr"] for rule in yaml.safe_load(written)["groups"][0]["rules"])

    assert code == 0, output
    assert {name.removesuffix("_bucket") for name in NAME.findall(expressions)} <= exposed_names


def test_counters_used_by_alerts_exist_from_the_start(served: Any, store: Store) -> None:
    served.collector.metrics.include(AlertMetrics(store, channels=lambda: ["slack"]))
    lines = served.client.get("/metrics").text.splitlines()
    rules = yaml.safe_load(export.write_self_monitoring_rules())["groups"][0]["rules"]
    growing = [re.search(r"(?:increase|delta)\((\w+)(?:\{(.*?)\})?\[", rule["expr"]) for rule in rules]
    asked = [(found[1], (found[2] or "").replace("!=", "=")) for found in growing if found is not None]

    assert len(asked) == 4
    for name, label in asked:
        assert any(line.startswith((f"{name} ", f"{name}{{")) and label in line for line in lines), name


def test_the_initial_exposition_is_valid(served: Any) -> None:
    families = list(text_string_to_metric_families(served.client.get("/metrics").text))

    assert {each.name for each in families}.isdisjoint(each.name for each in FAMILIES)
