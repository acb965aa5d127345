"""Scraping of a real BentoML deployment."""

from __future__ import annotations

import asyncio
import urllib.error
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from stagelens.collector.scrape.config import ScrapeTarget
from stagelens.collector.scrape.scraper import Scraper
from stagelens.store import Selection, Store
from tests.collector.scrape.real_server import is_up, post, running

pytestmark = pytest.mark.stacks
CALLS = 12
FAILURES = 2
SERVE = ("-m", "bentoml", "serve", "served_by_bentoml:Front", "--host", "127.0.0.1", "--port")


@pytest.fixture(scope="module")
def bentoml(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    home = str(tmp_path_factory.mktemp("bentoml"))
    with running("bentoml", *SERVE, ready="/readyz", BENTOML_HOME=home, BENTOML_DO_NOT_TRACK="True") as url:
        yield url


def predict(bentoml: str, row: int) -> None:
    if row < 0:
        with pytest.raises(urllib.error.HTTPError, match="500"):
            post(f"{bentoml}/predict", {"row": row})
    else:
        assert post(f"{bentoml}/predict", {"row": row}) == row + 1


def test_requests_of_each_service_equal_the_sent_ones(bentoml: str, open_store: Callable[..., Store]) -> None:
    target = ScrapeTarget(url=f"{bentoml}/metrics", service="sums", every=timedelta(seconds=1))
    store = open_store()
    scraper = Scraper(store, lambda: (target,), {})
    predict(bentoml, 0)
    asyncio.run(scraper.scrape(target))
    with ThreadPoolExecutor(4) as clients:
        list(clients.map(lambda row: predict(bentoml, row), [*range(CALLS), *[-1] * FAILURES]))

    assert is_up(f"{bentoml}/readyz")
    assert is_up(f"{bentoml}/livez")

    asyncio.run(scraper.scrape(target))
    now = datetime.now(UTC)
    every = Selection(now - timedelta(hours=1), now + timedelta(hours=1))
    found = {engine.model: engine for engine in store.read.engines(every)}
    failed = store.read.engines(replace(every, status="error"))
    low = found["Model"].requests.quantile(0.5)

    assert {model: engine.count for model, engine in found.items()} == {"Front": CALLS + FAILURES, "Model": CALLS}
    assert [(engine.model, engine.count) for engine in failed] == [("Front", FAILURES)]
    assert low is not None
    # The model takes 20 ms, and buckets end at 10, 25, 50, ... ms.
    assert low.low > 0.0097
    assert (found["Model"].requests.mean or 0) >= 0.020
