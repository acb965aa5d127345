"""The whole way once: OTLP over HTTP into a collector, an evaluation, a message in Slack, and the page in a browser."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, expect

from stagelens.alerts.delivery.channels.slack import SlackWebhook
from stagelens.alerts.delivery.outbox import DeliveryWorker
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.objectives.slo_file import LiveSloFile, read_slo_file
from stagelens.alerts.reader import AlertsReader
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.core.request_histograms import RequestHistograms
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Store
from stagelens.store.lease import new_holder
from tests.alerts.receiver import Moods
from tests.alerts.vendors import SlackHook
from tests.support.otlp_bodies import AGENT_HEADERS, agent_body
from tests.support.serving import serving

MINUTE = timedelta(minutes=1)
FAST = {"preprocess": 0.010, "forward": 0.030, "overhead": 0.001}
SLOW = {"preprocess": 0.400, "forward": 0.032, "overhead": 0.001}
SLO_FILE = """
slos:
  - {name: shop-latency, service: shop, objective: 0.99, threshold: 250ms, window: 30d}
channels:
  - {kind: slack, webhook_url_env: SLACK_URL}
"""
# On a busy machine a message comes late. [seconds]
TIMEOUT_SECONDS = 120


class Inbox(SlackHook):
    def __init__(self) -> None:
        super().__init__(Moods(failing=0.0))
        self.came = threading.Event()

    def take(self, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        response = super().take(path, headers, body)
        self.came.set()
        return response


def export(at: datetime, count: int, stages: Mapping[str, float], version: str) -> bytes:
    counts = RequestHistograms()
    spent = {stage: round(seconds * 1e9) for stage, seconds in stages.items()}
    for _ in range(count):
        counts.add(spent, sum(spent.values()))
    return agent_body("shop", counts, int(at.timestamp() * 1e9), version=version, route="/predict")


def test_a_slow_stage_appears_in_the_message_and_on_the_page(tmp_path: Path, browser: Browser) -> None:
    now = datetime.now(UTC)
    file = tmp_path / "slo.yaml"
    file.write_text(SLO_FILE)
    inbox = Inbox()
    store = Store.open(f"sqlite:///{tmp_path / 'stagelens.db'}")
    with serving(Collector(CollectorConfig(port=0), store)) as address:
        sent = [export(now - step * MINUTE, 200, FAST, "1") for step in range(35, 5, -1)]
        sent += [export(now - step * MINUTE, 200, SLOW, "2") for step in range(5, 0, -1)]
        statuses = {
            httpx.post(f"{address}/v1/metrics", content=body, headers=AGENT_HEADERS, timeout=60).status_code
            for body in sent
        }
    environment = {"SLACK_URL": f"{inbox.url}/services/T0/B0/x"}
    Evaluator(store, "me", lease_seconds=30).tick(read_slo_file(file, environment), now)
    worker = DeliveryWorker(store, SlackWebhook("slack", environment["SLACK_URL"], gap_seconds=0.0), new_holder())
    worker.start()
    came = inbox.came.wait(TIMEOUT_SECONDS)
    worker.stop()
    inbox.close()
    reader = AlertsReader(store, LiveSloFile(file, environment))
    with serving(Dashboard(DashboardConfig(port=0), store, reader)) as address:
        page = browser.new_page()
        page.goto(f"{address}/s/shop")

        for words in ("Burning", "7.00k requests", "Preprocess explains 99"):
            expect(page.locator("#root")).to_contain_text(words)
        page.close()
    store.close()

    assert statuses == {200}
    assert came
    assert inbox.violations == []
    assert "in preprocess since version 2" in inbox.bodies[0]
