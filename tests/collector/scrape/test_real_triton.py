"""Scraping of metrics and statistics of a real Triton server."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
import urllib.request
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stagelens.collector.scrape.config import ScrapeTarget
from stagelens.collector.scrape.scraper import Scraper
from stagelens.store import Selection, Store
from tests.support.triton.triton_server import TritonServer, is_installed

pytestmark = pytest.mark.stacks

CALLS = 24


@pytest.fixture(scope="module")
def triton() -> Generator[TritonServer]:
    if not is_installed() and not os.environ.get("CI"):
        pytest.skip("no Triton server; `make triton` installs one, and `make test-stacks` does")
    with TritonServer(tells_metrics=True) as server:
        yield server


def call(triton: TritonServer, model: str) -> None:
    shape = [1, 2] if model == "batched" else [2]
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": shape, "data": [1.0, 2.0]}]}
    request = urllib.request.Request(
        f"http://{triton.http}/v2/models/{model}/infer", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        response.read()


def statistics(triton: TritonServer, model: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{triton.http}/v2/models/{model}/stats", timeout=30) as response:
        return json.load(response)["model_stats"][0]


def await_calls(triton: TritonServer, model: str, count: int) -> dict[str, Any]:
    while True:
        found = statistics(triton, model)
        # A batch is counted after all of its requests.
        runs = sum(each["batch_size"] * each["compute_infer"]["count"] for each in found["batch_stats"])
        if min(found["inference_stats"]["success"]["count"], runs) >= count:
            return found
        time.sleep(0.01)


def test_triton_counts_are_stored_exactly(triton: TritonServer, open_store: Callable[..., Store]) -> None:
    target = ScrapeTarget(
        url=triton.metrics_url,
        service="vision",
        every=timedelta(seconds=1),
        statistics_url=f"http://{triton.http}/v2/models/stats",
    )
    store = open_store()
    scraper = Scraper(store, lambda: (target,), {})
    for model in ("batched", "plain"):
        call(triton, model)
        await_calls(triton, model, 1)
    asyncio.run(scraper.scrape(target))
    before = statistics(triton, "batched")
    with ThreadPoolExecutor(CALLS) as threads:
        for done in [threads.submit(call, triton, "batched") for _ in range(CALLS)]:
            done.result()
    after = await_calls(triton, "batched", CALLS + 1)
    asyncio.run(scraper.scrape(target))
    now = datetime.now(UTC)
    found = {
        each.model: each for each in store.read.engines(Selection(now - timedelta(hours=1), now + timedelta(hours=1)))
    }
    batched = found["batched"]

    def added(what: str) -> float:
        first, last = (each["inference_stats"][what]["ns"] for each in (before, after))
        return (last - first) / 1e9

    assert [state.state for state in scraper.states.all()] == ["up"]
    assert scraper.states.all()[0].engine == "Triton"
    assert batched.requests.count == CALLS
    assert "plain" not in found
    # Triton's metrics count whole microseconds.
    microseconds = CALLS * 1e-6
    assert math.isclose(batched.requests.lows.sum, added("success"), abs_tol=microseconds)
    for stage, name in (
        ("queue", "queue"),
        ("h2d", "compute_input"),
        ("forward", "compute_infer"),
        ("d2h", "compute_output"),
    ):
        assert math.isclose(batched.stages[stage].lows.sum, added(name), abs_tol=microseconds)
    runs = sum(each["compute_infer"]["count"] for each in after["batch_stats"])
    runs -= sum(each["compute_infer"]["count"] for each in before["batch_stats"])
    assert sum(band.count for band in batched.batches.values()) == runs
    # Two dozen concurrent calls form batches.
    assert set(batched.batches) - {"1"}
    for band in batched.batches.values():
        assert band.sum / band.count >= 0.030
