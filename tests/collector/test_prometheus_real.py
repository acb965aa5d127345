"""A real Prometheus that scrapes collectors: quantiles, restarts, and two collectors over one store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagelens.collector import prometheus
from stagelens.core.histogram import bucket_bounds, bucket_index
from stagelens.core.prometheus_names import LADDER
from tests.collector.conftest import last_day
from tests.support import prometheus_server
from tests.support.ports import free_port
from tests.support.prometheus_server import Prometheus

pytestmark = pytest.mark.stacks

NATIVE = ("--enable-feature=native-histograms",)
NAME = "stagelens_request_duration_seconds"
# A median of 0.1 s.
SAMPLES: list[float] = np.random.default_rng(8).lognormal(-2.3, 0.8, 2000).tolist()
QUANTILES = (0.5, 0.9, 0.99)
Scraping = Callable[..., AbstractContextManager[Prometheus]]
Until = Callable[[Callable[[], object]], None]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "EMPTY_SECONDS", 0.0)


@pytest.fixture
def scraping(tmp_path: Path) -> Scraping:
    if not prometheus_server.is_installed():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(prometheus_server.HINT)

    @contextmanager
    def run(*addresses: tuple[str, int], flags: tuple[str, ...] = ()) -> Generator[Prometheus]:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        targets = [f"{host}:{port}" for host, port in addresses]
        job = f"{{job_name: stagelens, scrape_interval: 200ms, scrape_timeout: 200ms, static_configs: [{{targets: {targets}}}]}}"
        with prometheus_server.serving(folder, f"scrape_configs: [{job}]\n", flags) as server:
            yield server

    return run


def query_value(server: Prometheus, expression: str) -> float:
    while (found := server.number(expression)) is None:
        pass
    return found


def test_prometheus_quantiles_equal_stagelens_quantiles(
    served: Any, bodies: Any, scraping: Scraping, until: Until
) -> None:
    served.post("/v1/metrics", bodies.metrics(bodies.point(tuple(SAMPLES))))
    with scraping(served.collector.address, flags=NATIVE) as native, scraping(served.collector.address) as classic:
        until(lambda: native.number(f"histogram_count({NAME})") == len(SAMPLES))
        until(lambda: classic.number(f"{NAME}_count") == len(SAMPLES))
        asked = {
            quantile: (
                query_value(native, f"histogram_quantile({quantile}, {NAME})"),
                query_value(classic, f"histogram_quantile({quantile}, {NAME}_bucket)"),
            )
            for quantile in QUANTILES
        }

    for quantile, (fine, coarse) in asked.items():
        ours = served.store.read.latency(last_day()).quantile(quantile).value
        low, high = bucket_bounds(bucket_index(ours))
        assert low <= fine <= high
        assert (
            max(bound for bound in LADDER if bound < ours) <= coarse <= min(bound for bound in LADDER if bound >= ours)
        )


def test_collectors_over_one_store_add_up(serve: Any, bodies: Any, scraping: Scraping, until: Until) -> None:
    first, second = serve(), serve()
    twice = bodies.metrics(bodies.point((0.1, 0.2)))
    for served in (first, second):
        served.post("/v1/metrics", twice, x_stagelens_batch="pod-1:1")
    second.post("/v1/metrics", bodies.metrics(bodies.point((0.3,))), x_stagelens_batch="pod-1:2")
    with scraping(first.collector.address, second.collector.address) as prometheus:
        until(lambda: prometheus.number("count(up == 1)") == 2)
        until(lambda: prometheus.number(f"sum({NAME}_count)") == 3)

    assert first.store.read.latency(last_day()).count == 3


def test_a_restarted_collector_is_a_counter_reset(serve: Any, bodies: Any, scraping: Scraping, until: Until) -> None:
    def post(served: Any, name: str, *durations: float) -> None:
        served.post("/v1/metrics", bodies.metrics(bodies.point(durations)), x_stagelens_batch=name)

    # Between both collectors no other process uses the port.
    port = free_port()
    before = serve(port=port)
    with scraping(before.collector.address, flags=NATIVE) as prometheus:
        post(before, "a:1", 0.1)
        until(lambda: prometheus.number(f"histogram_count({NAME})") == 1)
        post(before, "a:2", 0.1, 0.1, 0.1, 0.1)
        until(lambda: prometheus.number(f"histogram_count({NAME})") == 5)
        before.collector.stop()
        after = serve(port=port)
        post(after, "a:3", 0.1, 0.1, 0.1)
        until(lambda: prometheus.number(f"histogram_count({NAME})") == 3)
        grown = prometheus.number(f"histogram_count(rate({NAME}[1m])) * 60")

    # With counts 1, 5 and 3: an increase of four, and three after the reset, plus extrapolation.
    assert grown is not None
    assert grown >= 6.99
