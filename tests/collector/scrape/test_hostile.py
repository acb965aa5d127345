"""Hostile scrape targets affect no other target."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import pytest

from stagelens.collector.scrape import fetch
from stagelens.collector.scrape.config import ScrapeTarget
from stagelens.collector.scrape.scraper import Scraper
from stagelens.store import Store
from tests.support.hostile_peer import PEERS, listening
from tests.support.scrape_target import serving


@pytest.mark.parametrize("name", PEERS)
def test_a_hostile_target_does_not_affect_another(
    open_store: Callable[..., Store], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "TIMEOUT_SECONDS", 2.0)
    monkeypatch.setattr(fetch, "MAX_BYTES", 1024**2)
    with listening(name) as url, serving() as served:
        served.counts(0.3)
        targets = ScrapeTarget(url=f"{url}/metrics", service="hostile"), ScrapeTarget(url=served.url, service="honest")
        scraper = Scraper(open_store(), lambda: targets, dict(os.environ))

        async def read() -> None:
            await asyncio.gather(*(scraper.scrape(target) for target in targets))

        asyncio.run(read())
    hostile, honest = (next(each for each in scraper.states.all() if each.url == target.url) for target in targets)

    assert (hostile.state, honest.state) == ("down", "up")
    assert hostile.error.isprintable()
    assert 0 < len(hostile.error) < 300
    # The text of an unexpected exception starts with its type.
    assert "Error:" not in hostile.error
