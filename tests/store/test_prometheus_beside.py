"""Accuracy compared with a real Prometheus on the same requests, as documented."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Generator
from pathlib import Path

import pytest
from prometheus_client import Histogram as ClientHistogram

from tests.store.latency_shapes import BY_NAME, QUANTILES, exact, spread
from tests.support import prometheus_server
from tests.support.prometheus_server import Prometheus, scraped
from tests.support.raw_requests import NOON, SHOP, Site

pytestmark = pytest.mark.stacks

HOUR = 3600
START, END = NOON - HOUR, NOON
SAMPLES = BY_NAME["lognormal"].samples(20_000)
REQUESTS = spread(SAMPLES, START, HOUR, [SHOP])
DEFAULT_BOUNDS = [bound for bound in ClientHistogram.DEFAULT_BUCKETS if bound != float("inf")]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Generator[Prometheus]:
    if not prometheus_server.is_installed():
        if os.environ.get("CI"):
            pytest.fail(prometheus_server.HINT)
        pytest.skip(prometheus_server.HINT)
    folder: Path = tmp_path_factory.mktemp("prometheus")
    prometheus_server.write(folder, "latency", DEFAULT_BOUNDS, REQUESTS, scraped(START, END))
    with prometheus_server.serving(folder) as server:
        yield server


def test_p99_of_default_buckets_is_less_exact(sqlite: Site, prometheus: Prometheus) -> None:
    sqlite.write(REQUESTS)
    latency = sqlite.store.read.latency(sqlite.between(START, END))
    truth = {quantile: exact(SAMPLES, quantile) for quantile in QUANTILES}
    theirs = prometheus.quantile("latency", 0.99, END, HOUR)

    for quantile in QUANTILES:
        estimate = latency.quantile(quantile)
        assert estimate is not None
        assert abs(estimate.value / truth[quantile] - 1) <= 0.011
    assert abs(theirs / truth[0.99] - 1) > 0.11
    # In the right bucket all the same.
    assert bisect_left(DEFAULT_BOUNDS, theirs) == bisect_left(DEFAULT_BOUNDS, truth[0.99])
