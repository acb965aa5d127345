"""The pages of capacity, cost and settings, for a store with known queues and for missing data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.capacity import loads_of
from stagelens.dashboard.pages.page import Context
from stagelens.dashboard.pages.spending import spending
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.components import Chart
from stagelens.dashboard.ui.page_export import text_of
from stagelens.dashboard.view import parse
from stagelens.store import Store
from tests.dashboard import capacity_store
from tests.dashboard.rendering import page_at
from tests.dashboard.served_versions import NOW


@pytest.fixture(scope="module")
def store(traffic: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    filled = capacity_store.fill(traffic, tmp_path_factory.mktemp("loaded") / "loaded.db", NOW)
    yield filled
    filled.close()


def source_of(store: Store, folder: Path, *, slo: bool = True, prices: bool = True) -> Source:
    (folder / "slo.yaml").write_text(capacity_store.SLO, encoding="utf-8")
    (folder / "prices.yaml").write_text(capacity_store.PRICES, encoding="utf-8")
    alerts = AlertsReader(store, LiveSloFile(folder / "slo.yaml", {})) if slo else None
    return Source(
        store, alerts, NOW.timestamp, config=DashboardConfig(prices=folder / "prices.yaml" if prices else None)
    )


def rendered(source: Source, address: str = "/s/ocr-api/capacity") -> Any:
    page = page_at(source, address)
    return page.body


def shown(source: Source, address: str = "/s/ocr-api/capacity") -> str:
    return " ".join(text_of(each) for each in rendered(source, address))


def charts(node: Any) -> list[Chart]:
    if isinstance(node, Chart):
        return [node]
    inside = getattr(node, "children", node if isinstance(node, list | tuple) else None)
    return [
        found
        for each in (inside if isinstance(inside, list | tuple) else [inside] if inside else [])
        for found in charts(each)
    ]


def test_the_capacity_of_each_version_matches_its_queueing(store: Store, tmp_path: Path) -> None:
    found = loads_of(Context(parse("/s/ocr-api/capacity", "", NOW), source_of(store, tmp_path), "ocr-api"))
    before = found.before
    assert found.now.capacity is not None
    assert before is not None
    assert before.capacity is not None

    assert (found.now.version, before.version) == ("1.15.0", "1.14.2")
    # p99 of an exponential wait is 4.6 times its mean; 55 ms stand beside it.
    for load in (found.now, before):
        wait, saturation = capacity_store.VERSIONS[load.version]
        rho = 1 / (1 + 4.6 * wait / 195)
        assert load.capacity is not None
        assert load.capacity.rate == pytest.approx(rho * saturation, rel=0.1)


def test_the_capacity_label_stays_inside_the_chart(store: Store, tmp_path: Path) -> None:
    drawn = next(each for each in charts(rendered(source_of(store, tmp_path))) if each.name == "load")
    low, high = drawn.figure["layout"]["xaxis"]["range"]
    labels = [each for each in drawn.figure["layout"]["annotations"] if each["text"].startswith("<b>")]

    assert [each["xanchor"] for each in labels] == [
        "right" if each["x"] - low > 0.8 * (high - low) else "left" for each in labels
    ]
    assert labels


def test_the_page_starts_with_capacity_compared_with_the_previous_version(store: Store, tmp_path: Path) -> None:
    text = shown(source_of(store, tmp_path))

    assert "1.15.0 keeps p99 within 250 ms up to about" in text
    found = re.search(
        r"handles ([\d.]+)/s now and can take (\d+) % more requests \(it uses (\d+) % of its capacity\)", text
    )
    assert found is not None
    assert (1 + float(found[2]) / 100) * float(found[3]) / 100 == pytest.approx(1, abs=0.02)
    assert f"Headroom +{found[2]} % more load; uses {found[3]} % of capacity" in text
    assert "/s on 1.14.2" in text
    assert "The knee of the curve is at" in text


def test_without_an_objective_the_curve_is_shown_without_capacity(store: Store, tmp_path: Path) -> None:
    text = shown(source_of(store, tmp_path, slo=False))

    assert "this service has no latency objective" in text
    assert "needs an objective" in text


def test_a_short_window_reports_steps_present_and_required(store: Store, tmp_path: Path) -> None:
    text = shown(source_of(store, tmp_path), "/s/ocr-api/capacity?from=now-15m")

    assert "Not enough data to estimate capacity" in text
    assert "a curve needs 20 time steps" in text
    assert "could not be rendered" not in text


def test_cost_needs_a_configured_price(store: Store, tmp_path: Path) -> None:
    source = source_of(store, tmp_path)
    context = Context(parse("/s/ocr-api/capacity", "", NOW), source, "ocr-api")
    found = spending(context)
    assert found is not None
    assert found.each is not None
    assert found.good is not None
    requests = source.read.latency(context.selection).count

    assert found.each == pytest.approx(12.4 * context.seconds / 3600 / requests)
    assert found.good >= found.each
    free = shown(source_of(store, tmp_path, prices=False))
    assert "$" not in free.replace('currency: "$"', "")
    assert "no price is set" in free


def test_the_charts_have_tables_with_units(store: Store, tmp_path: Path) -> None:
    found = charts(rendered(source_of(store, tmp_path)))
    frames = [each.frame for each in found]
    assert all(frame is not None for frame in frames)
    load, batch, machines = (frame for frame in frames if frame is not None)

    assert list(load.columns) == ["version", "time (UTC)", "requests", "rate (requests/s)", "p99 (seconds)"]
    assert set(load["version"]) == {"1.14.2", "1.15.0"}
    assert list(batch["batch size"]) == ["1", "2-3", "4-7", "8-15"]
    assert batch["cost per 1 M requests ($)"].is_monotonic_decreasing
    assert list(machines.columns) == ["time (UTC)", "ocr-api-5d9c-9qzvt/gpu0", "ocr-api-5d9c-x2x7k/gpu0"]


def test_services_without_batches_or_load_have_a_notice(filled: Store, alerts: AlertsReader) -> None:
    text = shown(Source(filled, alerts, NOW.timestamp), "/s/vision-api/capacity")

    assert "Batch size unknown" in text
    assert "no request reported a batch size" in text
    assert "could not be rendered" not in text


def test_settings_show_files_and_limits_and_no_secret(store: Store, tmp_path: Path) -> None:
    source = source_of(store, tmp_path)
    source.config = DashboardConfig(token="very-secret", prices=tmp_path / "prices.yaml")  # noqa: S106 - made up
    source.tracer = "https://someone:password@jaeger.example/trace/{trace_id}"
    (tmp_path / "prices.yaml").write_text("currency: 5 dollars", encoding="utf-8")
    text = shown(source, "/settings")

    assert "very-secret" not in text
    assert "password@" not in text
    assert "jaeger.example" in text
    assert "a token" in text
    assert "The file has errors; the previous version stays in effect." in text
    assert "ocr-api" in text
    assert "versions of a service" in text
