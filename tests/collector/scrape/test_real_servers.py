"""Scraping of real BentoML, KServe and Triton servers, which `make` installs beside the packages for tests."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stagelens.collector.scrape.config import ScrapeTarget
from stagelens.collector.scrape.scraper import Scraper
from stagelens.core.histogram import Distribution
from stagelens.store import Selection, Store
from tests.support.ports import free_port
from tests.support.real_servers import installed, is_up
from tests.support.triton.triton_server import TritonServer, is_installed

pytestmark = pytest.mark.stacks
HERE = Path(__file__).parent


@contextmanager
def running(part: str, *arguments: str, ready: str = "/", **env: str) -> Generator[str]:
    url = f"http://127.0.0.1:{free_port()}"
    path = os.pathsep.join((str(installed(part)), str(HERE)))
    command = [sys.executable, *arguments, url.rpartition(":")[2]]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path, **env}) as server:
        try:
            while server.poll() is None and not is_up(url + ready):
                time.sleep(0.1)

            assert server.poll() is None

            yield url
        finally:
            server.terminate()


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


class Scraped:
    """Scraper of one target, and what its service did since the first scrape."""

    def __init__(self, store: Store, url: str, service: str, **options: str) -> None:
        self.store = store
        self.target = ScrapeTarget(url=url, service=service, every=timedelta(seconds=1), **options)  # pyright: ignore[reportArgumentType] - texts
        self.scraper = Scraper(store, lambda: (self.target,), {})

    def scrape(self) -> None:
        asyncio.run(self.scraper.scrape(self.target))

    def engines(self, **dimensions: str) -> Mapping[str, Any]:
        now = datetime.now(UTC)
        window = Selection(now - timedelta(hours=1), now + timedelta(hours=1))
        return {engine.model: engine for engine in self.store.read.engines(replace(window, **dimensions))}


def lasts_20_ms(found: Distribution) -> None:
    """Check the time of a model that takes 20 ms; buckets end at 10, 25, 50, ... ms."""
    median = found.quantile(0.5)

    assert median is not None
    assert median.low > 0.0097
    assert (found.mean or 0) >= 0.020


def test_requests_of_each_bentoml_service_equal_the_sent_ones(tmp_path: Path, open_store: Callable[..., Store]) -> None:
    serve = ("-m", "bentoml", "serve", "served_by_bentoml:Front", "--host", "127.0.0.1", "--port")
    home = {"BENTOML_HOME": str(tmp_path), "BENTOML_DO_NOT_TRACK": "True"}
    with running("bentoml", *serve, ready="/readyz", **home) as url:

        def predict(row: int) -> None:
            if row < 0:
                with pytest.raises(urllib.error.HTTPError, match="500"):
                    post(f"{url}/predict", {"row": row})
            else:
                assert post(f"{url}/predict", {"row": row}) == row + 1

        scraped = Scraped(open_store(), f"{url}/metrics", "sums")
        predict(0)
        scraped.scrape()
        with ThreadPoolExecutor(4) as clients:
            list(clients.map(predict, [*range(12), -1, -1]))

        assert is_up(f"{url}/readyz")
        assert is_up(f"{url}/livez")

        scraped.scrape()
    engines = scraped.engines()

    assert {model: engine.count for model, engine in engines.items()} == {"Front": 14, "Model": 12}
    assert {model: engine.count for model, engine in scraped.engines(status="error").items()} == {"Front": 2}
    lasts_20_ms(engines["Model"].requests)


def test_steps_of_kserve_are_stages(open_store: Callable[..., Store]) -> None:
    with running("kserve", str(HERE / "served_by_kserve.py")) as url:
        scraped = Scraped(open_store(), f"{url}/metrics", "iris")
        for calls in (1, 5):
            for _ in range(calls):
                assert post(f"{url}/v1/models/iris:predict", {"instances": [[1, 2]]}) == {"predictions": [3]}
            scraped.scrape()
    ((model, iris),) = scraped.engines().items()

    assert (iris.service, model, iris.count, iris.requests.count) == ("iris", "iris", 5, 0)
    assert {stage: found.count for stage, found in iris.stages.items()} == dict.fromkeys(
        ("forward", "preprocess", "postprocess"), 5
    )
    lasts_20_ms(iris.stages["forward"])
    assert (iris.stages["preprocess"].mean or 0) >= 0.002


def statistics(triton: TritonServer, model: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{triton.http}/v2/models/{model}/stats", timeout=30) as response:
        return json.load(response)["model_stats"][0]


def runs_of(found: dict[str, Any]) -> int:
    return sum(stat["compute_infer"]["count"] for stat in found["batch_stats"])


def await_calls(triton: TritonServer, model: str, count: int) -> dict[str, Any]:
    while True:
        found = statistics(triton, model)
        # A batch is counted after all of its requests.
        runs = sum(stat["batch_size"] * stat["compute_infer"]["count"] for stat in found["batch_stats"])
        if min(found["inference_stats"]["success"]["count"], runs) >= count:
            return found
        time.sleep(0.01)


def test_triton_counts_are_stored_exactly(open_store: Callable[..., Store]) -> None:
    if not is_installed() and not os.environ.get("CI"):
        pytest.skip("no Triton server; `make triton` installs one, and `make test-stacks` does")
    calls = 24
    with TritonServer(tells_metrics=True) as triton:

        def call(model: str) -> None:
            shape = [1, 2] if model == "batched" else [2]
            body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": shape, "data": [1.0, 2.0]}]}
            post(f"http://{triton.http}/v2/models/{model}/infer", body)

        statistics_url = f"http://{triton.http}/v2/models/stats"
        scraped = Scraped(open_store(), triton.metrics_url, "vision", statistics_url=statistics_url)
        for model in ("batched", "plain"):
            call(model)
            await_calls(triton, model, 1)
        scraped.scrape()
        before = statistics(triton, "batched")
        with ThreadPoolExecutor(calls) as threads:
            list(threads.map(call, ["batched"] * calls))
        after = await_calls(triton, "batched", calls + 1)
        scraped.scrape()
    (state,) = scraped.scraper.states.all()
    engines = scraped.engines()
    batched = engines["batched"]

    def added(what: str) -> float:
        first, last = (each["inference_stats"][what]["ns"] for each in (before, after))
        return (last - first) / 1e9

    assert (state.state, state.engine) == ("up", "Triton")
    assert (batched.requests.count, "plain" in engines) == (calls, False)
    # Triton's metrics count whole microseconds.
    microseconds = calls * 1e-6
    assert math.isclose(batched.requests.lows.sum, added("success"), abs_tol=microseconds)
    names = {"queue": "queue", "h2d": "compute_input", "forward": "compute_infer", "d2h": "compute_output"}
    for stage, name in names.items():
        assert math.isclose(batched.stages[stage].lows.sum, added(name), abs_tol=microseconds)
    assert sum(band.count for band in batched.batches.values()) == runs_of(after) - runs_of(before)
    # Two dozen concurrent calls form batches.
    assert set(batched.batches) - {"1"}
    assert all(band.sum / band.count >= 0.030 for band in batched.batches.values())
