"""Collector with scrape targets in its file: targets are read, shown on /metrics and counted."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from stagelens.collector.config import LiveConfig
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.store import Selection, Store
from tests.support.scrape_target import Served, serving

FILE = """scrape:
  targets:
  - {{url: {engine}, service: chat, every: 1s}}
  - url: {own}
    service: collector
    engine: generic
    every: 1s
    rules:
      request: stagelens_collector_commit_seconds
"""


class Site:
    """Collector that scrapes a vLLM server and its own metrics."""

    def __init__(self, collector: Collector, store: Store, engine: Served) -> None:
        self.collector, self.store, self.engine = collector, store, engine
        host, port = collector.address
        self.metrics_url = f"http://{host}:{port}/metrics"

    def metrics(self) -> str:
        return httpx.get(self.metrics_url, trust_env=False, timeout=60).text

    def commit(self, body: object) -> None:
        url = self.metrics_url.replace("/metrics", "/v1/metrics")
        httpx.post(url, json=body, trust_env=False, timeout=60).raise_for_status()

    def counted(self, service: str) -> int:
        now = datetime.now(UTC)
        window = Selection(now - timedelta(hours=1), now + timedelta(hours=1), service=service)
        return sum(each.count for each in self.store.read.engines(window))


@pytest.fixture
def site(tmp_path: Path, open_store: Callable[..., Store]) -> Generator[Site]:
    store = open_store()
    file = tmp_path / "collector.yaml"
    with serving() as engine:
        engine.counts()
        file.write_text("scrape: {targets: []}\n")
        live = LiveConfig(file, {})
        collector = Collector(CollectorConfig(port=0, grpc_port=None), store, file=live)
        collector.start()
        made = Site(collector, store, engine)
        file.write_text(FILE.format(engine=engine.url, own=made.metrics_url))
        live.refresh()
        yield made
        collector.stop()


@pytest.mark.timeout(60)
def test_targets_of_the_file_are_scraped_and_reported(site: Site, bodies: Any, until: Callable[..., None]) -> None:
    until(lambda: bool(re.search(rf'scrape_up{{target="{re.escape(site.engine.url)}"}} 1\.0', site.metrics())))
    until(lambda: bool(re.search(rf'scrape_up{{target="{re.escape(site.metrics_url)}"}} 1\.0', site.metrics())))
    site.engine.counts(0.3, 0.7, 1.5)
    site.commit(bodies.metrics(bodies.point()))
    until(lambda: site.counted("chat") > 0 and site.counted("collector") > 0)

    assert (site.counted("chat"), site.counted("collector")) == (3, 1)
