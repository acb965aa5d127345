"""Scraping of a real KServe model server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta

import pytest

from stagelens.collector.scrape.config import ScrapeTarget
from stagelens.collector.scrape.scraper import Scraper
from stagelens.store import Selection, Store
from tests.collector.scrape.real_server import HERE, post, running

pytestmark = pytest.mark.stacks
CALLS = 5


@pytest.fixture(scope="module")
def kserve() -> Generator[str]:
    with running("kserve", str(HERE / "served_by_kserve.py")) as url:
        yield url


def predict(kserve: str) -> None:
    assert post(f"{kserve}/v1/models/iris:predict", {"instances": [[1, 2]]}) == {"predictions": [3]}


def test_steps_of_kserve_are_stages(kserve: str, open_store: Callable[..., Store]) -> None:
    target = ScrapeTarget(url=f"{kserve}/metrics", service="iris", every=timedelta(seconds=1))
    store = open_store()
    scraper = Scraper(store, lambda: (target,), {})
    predict(kserve)
    asyncio.run(scraper.scrape(target))
    for _ in range(CALLS):
        predict(kserve)
    asyncio.run(scraper.scrape(target))
    now = datetime.now(UTC)
    (iris,) = store.read.engines(Selection(now - timedelta(hours=1), now + timedelta(hours=1)))
    forward = iris.stages["forward"].quantile(0.5)

    assert (iris.service, iris.model, iris.count) == ("iris", "iris", CALLS)
    assert {stage: found.count for stage, found in iris.stages.items()} == dict.fromkeys(
        ("forward", "preprocess", "postprocess"), CALLS
    )
    assert iris.requests.count == 0
    assert forward is not None
    # The model takes 20 ms, and buckets end at 10, 25, 50, ... ms.
    assert forward.low > 0.0097
    assert (iris.stages["forward"].mean or 0) >= 0.020
    assert (iris.stages["preprocess"].mean or 0) >= 0.002
