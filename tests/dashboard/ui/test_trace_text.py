"""Stall texts: beside the percentiles that contain stalls, and on the affected trace."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.core.request_histograms import RequestHistograms
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Batch, Point, RetainedTrace, Series, Store
from tests.dashboard.served_versions import NOW
from tests.dashboard.tabs import DESKTOP, SOON, Visit, hover

pytestmark = pytest.mark.stacks

MS = 1_000_000
TRACE, SPAN = "ab" * 16, "cd" * 8
QUICK = {"forward": 20 * MS, "queue": 2 * MS, "overhead": MS}
SLOW = {"forward": 120 * MS, "queue": 42 * MS, "overhead": MS}
PAUSED = {"gc:forward": 80 * MS, "gc:queue": 20 * MS, "loop:queue": 10 * MS}


def paused() -> Batch:
    counts = RequestHistograms()
    for number in range(2000):
        stages = SLOW if number % 50 == 0 else QUICK
        counts.add(stages, sum(stages.values()))
        if stages is SLOW:
            counts.add_stalls(PAUSED, sum(stages.values()))
    at = int(NOW.timestamp()) - 120
    series = Series("paused", "1")
    attributes: dict[str, str | int | float | bool] = {"stagelens.stall.gc": 100 * MS, "stagelens.stall.gc.odd": "odd"}
    attributes |= {"stagelens.around": 1_000 * MS, "stagelens.around.switches": 340, "stagelens.around.major_faults": 1}
    attributes |= {f"stagelens.stall.{name.replace(':', '.')}": spent for name, spent in PAUSED.items()}
    spans = [
        {"name": stage, "stage": stage, "start_ns": 0, "duration_ns": SLOW[stage], "attributes": stall}
        for stage, stall in (("forward", {"stagelens.stall.gc": 80 * MS}), ("queue", {"stagelens.stall.loop": 10 * MS}))
    ]
    slow = sum(SLOW.values())
    trace = RetainedTrace(TRACE, SPAN, series, at * 10**9, slow, "slow", "forward", SLOW, spans, attributes)
    return Batch("a", [Point(series, metric, key, at, value) for metric, key, value in counts.histograms()], [trace])


@pytest.fixture(scope="module")
def visits(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    folder = tmp_path_factory.mktemp("paused")
    slos = folder / "slo.yaml"
    slos.write_text("slos: [{name: fast, service: paused, objective: 0.9, threshold: 300ms, window: 30d}]\n")
    store = Store.open(f"sqlite:///{folder / 'paused.db'}", clock=NOW.timestamp)
    store.write([paused()])
    served = Dashboard(DashboardConfig(port=0), store, AlertsReader(store, LiveSloFile(slos, {})), clock=NOW.timestamp)
    served.start()
    host, port = served.address
    context = browser.new_context(viewport=DESKTOP, color_scheme="light", reduced_motion="reduce")
    opened = Visit(context.new_page(), f"http://{host}:{port}")
    yield opened
    context.close()
    served.stop()
    store.close()
    assert opened.trouble == []


def test_the_page_names_the_stalls_at_a_percentile(visits: Visit) -> None:
    page = visits.go("/s/paused?from=now-15m")
    foot = page.locator(".card", has_text="What the tail adds").locator(".foot")
    # The latency there is the middle of a bucket that is 2.2 % wide.
    pattern = re.compile(r"Garbage collection took 10\d\u202fms of p99, 80\.\d\u202fms of it in Forward\.")

    expect(foot).to_contain_text(pattern)
    expect(foot).to_contain_text(re.compile(r"The event loop was blocked for 10\.\d\u202fms of p99, in Queue\."))
    hover(page, "percentile", 0.1, lambda: expect(foot).not_to_contain_text("Garbage collection took", timeout=SOON))
    page.mouse.move(5, 5)
    expect(foot).to_contain_text(pattern)


def test_a_trace_names_its_stalls(visits: Visit) -> None:
    page = visits.go(f"/traces/{TRACE}-{SPAN}")

    expect(page.locator(".verdict")).to_contain_text(
        "Garbage collection took 100\u202fms of the request, 80.0\u202fms of it in Forward."
    )
    expect(page.locator(".verdict")).to_contain_text(
        "The event loop was blocked for 10.0\u202fms of the request, in Queue."
    )
    expect(page.locator("table.wf")).to_contain_text("GC pause 80.0\u202fms")
    expect(page.locator(".kv")).to_contain_text("340 of the process in 1.00\u202fs")
    expect(page.locator("table.wf")).to_contain_text("event loop stalled 10.0\u202fms")
