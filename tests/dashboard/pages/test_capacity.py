"""The pages of capacity, cost and settings, for a store with known queues and for missing data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.capacity import loads_of
from stagelens.dashboard.pages.spending import spending
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.components import Chart
from stagelens.store import Store
from tests.dashboard import capacity_store
from tests.dashboard.rendering import all_of, check_views, context_at, data_at, page_at, shown, source_of
from tests.dashboard.served_versions import NOW

PAGE = "/s/ocr-api/capacity"


@pytest.fixture(scope="module")
def store(traffic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    filled = capacity_store.fill(traffic, tmp_path_factory.mktemp("loaded") / "loaded.db", NOW)
    yield filled
    filled.close()


@pytest.fixture
def priced(store: Store, tmp_path: Path) -> Source:
    return source_of(store, tmp_path, capacity_store.SLO, prices=capacity_store.PRICES)


def test_the_page_has_capacity_headroom_cost_and_what_is_missing(priced: Source, filled: Store) -> None:
    check_views("capacity", priced)
    # Without an objective, a price, batches or enough load.
    check_views("capacity_bare", source_of(priced.store), PAGE)
    check_views("capacity_unknown", source_of(filled), "/s/vision-api/capacity")


def test_the_capacity_of_each_version_matches_its_queueing(priced: Source) -> None:
    found = loads_of(context_at(priced, PAGE))
    assert found.before is not None

    assert (found.now.version, found.before.version) == ("1.15.0", "1.14.2")
    # p99 of an exponential wait is 4.6 times its mean; 55 ms stand beside it.
    for load in (found.now, found.before):
        wait, saturation = capacity_store.VERSIONS[load.version]
        rho = 1 / (1 + 4.6 * wait / 195)
        assert load.capacity is not None
        assert load.capacity.rate == pytest.approx(rho * saturation, rel=0.1)


def test_the_capacity_label_stays_inside_the_chart(priced: Source) -> None:
    layout: Any = next(each for each in all_of(page_at(priced, PAGE).body, Chart) if each.name == "load").figure[
        "layout"
    ]
    low, high = layout["xaxis"]["range"]
    labels = [annotation for annotation in layout["annotations"] if annotation["text"].startswith("<b>")]

    assert labels
    for label in labels:
        assert label["xanchor"] == ("right" if label["x"] - low > 0.8 * (high - low) else "left")


def test_headroom_and_use_are_one_number(priced: Source) -> None:
    match = re.search(r"can take (\d+) % more requests \(it uses (\d+) % of its capacity\)", shown(priced, PAGE))
    assert match is not None

    assert (1 + float(match[1]) / 100) * float(match[2]) / 100 == pytest.approx(1, abs=0.02)


def test_cost_is_that_of_the_price_and_the_requests(priced: Source) -> None:
    context = context_at(priced, PAGE)
    found = spending(context)
    assert found is not None
    assert found.each is not None
    assert found.good is not None

    requests = priced.read.latency(context.selection).count
    assert found.each == pytest.approx(12.4 * context.seconds / 3600 / requests)
    assert found.good >= found.each


def test_the_charts_have_tables_with_units(priced: Source) -> None:
    load, batch, machines = (chart.frame for chart in data_at(priced, PAGE).charts.values())
    assert load is not None
    assert batch is not None
    assert machines is not None

    assert list(load.columns) == ["version", "time (UTC)", "requests", "rate (requests/s)", "p99 (seconds)"]
    assert set(load["version"]) == {"1.14.2", "1.15.0"}
    assert list(batch["batch size"]) == ["1", "2-3", "4-7", "8-15"]
    assert batch["cost per 1 M requests ($)"].is_monotonic_decreasing
    assert list(machines.columns) == ["time (UTC)", "ocr-api-5d9c-9qzvt/gpu0", "ocr-api-5d9c-x2x7k/gpu0"]


def test_settings_show_files_and_limits_and_no_secret(priced: Source, tmp_path: Path) -> None:
    priced.config = DashboardConfig(token="very-secret", prices=tmp_path / "prices.yaml")  # noqa: S106 - made up
    priced.tracer = "https://someone:password@jaeger.example/trace/{trace_id}"
    (tmp_path / "prices.yaml").write_text("currency: 5 dollars", encoding="utf-8")
    text = shown(priced, "/settings")

    assert "very-secret" not in text
    assert "password@" not in text
    for each in ("jaeger.example", "a token", "The file has errors; the previous version stays in effect.", "ocr-api"):
        assert each in text
    assert "versions of a service" in text
