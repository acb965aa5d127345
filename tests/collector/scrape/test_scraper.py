"""Scraper: counts of a target reach the store once, with errors, restarts and several collectors."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stagelens.collector.config import LiveConfig
from stagelens.collector.scrape import fetch
from stagelens.collector.scrape.config import ScrapeTarget
from stagelens.collector.scrape.scraper import Scraper
from stagelens.collector.scrape.target_states import TargetState
from stagelens.core.errors import StoreError
from stagelens.store import Batch, Selection, Store
from tests.collector.conftest import last_day
from tests.support.hostile_peer import PEERS, listening
from tests.support.scrape_target import Served, serving

NOW = 1_800_000_000.0
EVER = Selection(datetime.fromtimestamp(NOW - 3600, UTC), datetime.fromtimestamp(NOW + 86_400, UTC))


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Rig:
    """Store, target, and scrapers that read on request."""

    def __init__(self, store: Store, served: Served, clock: Clock) -> None:
        self.store, self.served, self.clock = store, served, clock
        self.target = ScrapeTarget(url=served.url, service="chat")
        self.scraper = self.another()

    def another(self) -> Scraper:
        return Scraper(self.store, lambda: (self.target,), dict(os.environ), clock=self.clock)

    def read(self, *served: float, scraper: Scraper | None = None, seconds: float = 10) -> TargetState:
        """Scrape the target after it has served requests that took *served* seconds in all, if any."""
        if served:
            self.served.counts(*served)
        self.clock.now += seconds
        scraper = scraper or self.scraper
        asyncio.run(scraper.scrape(self.target))
        return scraper.states.all()[0]

    def counted(self) -> int:
        engines = self.store.read.engines(EVER)

        assert all(each.requests.count == each.requests.highs.count for each in engines)

        return sum(each.requests.count for each in engines)


def read_by(scraper: Scraper, url: str) -> None:
    while [state.url for state in scraper.states.all() if state.state == "up"] != [url]:
        threading.Event().wait(0.01)


@pytest.fixture
def rig(open_store: Callable[..., Store]) -> Generator[Rig]:
    clock = Clock()
    with serving() as served:
        served.counts()
        yield Rig(open_store(clock=clock), served, clock)


def test_the_first_scrape_counts_nothing_and_the_next_the_difference(rig: Rig) -> None:
    first = rig.read(0.3, 0.7)
    second = rig.read(0.3, 0.7, 0.8, 5.0)

    samples = {
        (sample.name.removeprefix("stagelens_collector_scrape_"), sample.labels["target"]): sample.value
        for family in rig.scraper.states.collect()
        for sample in family.samples
    }
    shown = [samples[name, rig.target.url] for name in ("up", "streams", "failures_total")]

    assert (first.state, first.engine) == ("up", "vLLM")
    assert shown == [1, 1, 0]
    assert "counted from now on" in first.error
    assert (second.state, second.error) == ("up", "")
    assert rig.counted() == 2
    assert rig.store.read.state().instances == 0


def test_two_targets_of_a_service_are_its_replicas(rig: Rig) -> None:
    with serving() as slow:
        slow.counts()
        target = ScrapeTarget(url=slow.url, service="chat")
        for fast_values, slow_values in (((), ()), ((0.3, 0.4), (1.5, 1.7, 1.8))):
            rig.served.counts(*fast_values)
            slow.counts(*slow_values)
            rig.read()
            asyncio.run(rig.scraper.scrape(target))
        table = rig.store.read.replica_counts(replace(EVER, service="chat"))

        assert {replica.place: replica.requests.sum() for replica in table.replicas} == {
            f"127.0.0.1:{rig.served.port}": 2,
            f"127.0.0.1:{slow.port}": 3,
        }


def test_a_failed_scrape_is_counted_by_the_next(rig: Rig) -> None:
    rig.read()
    rig.served.counts(0.3)
    good = rig.served.bodies["/metrics"]
    states: list[TargetState] = []
    for body, status in (
        (b'vllm:e2e_request_latency_seconds_sum{a="} 1', 200),
        (good, 500),
        (good, 302),
        (b"\xff", 200),
    ):
        rig.served.bodies["/metrics"], rig.served.status = body, status
        states.append(rig.read())
    rig.served.counts(0.3, 0.4, 0.5)
    rig.served.status = 200
    last = rig.read()

    assert [state.state for state in states] == ["down"] * 4
    assert "line 1 is not valid in the Prometheus text format" in states[0].error
    assert "it returns 500" in states[1].error
    assert "redirects, which is not followed" in states[2].error
    assert "cannot be parsed" in states[3].error
    assert (last.state, last.failures, rig.counted()) == ("up", 4, 3)


def test_a_server_restart_loses_no_exposed_counts(rig: Rig) -> None:
    rig.served.counts(start=NOW - 50)
    rig.read()
    rig.served.counts(0.3, 0.3, 0.3, start=NOW - 50)
    rig.read()
    rig.served.counts(0.3, 0.3, 0.3, 0.3, start=rig.clock.now + 5)
    rig.read()

    assert rig.counted() == 7


def test_two_collectors_count_one_target_once(rig: Rig) -> None:
    other = rig.another()
    rig.read()
    rig.read(0.3, 0.3)
    waiting = rig.read(scraper=other, seconds=1)
    taken = rig.read(*[0.3] * 5, scraper=other, seconds=120)
    back = rig.read(seconds=1)

    assert (waiting.state, taken.state, back.state) == ("elsewhere", "up", "elsewhere")
    assert rig.counted() == 5


def test_a_collector_that_lost_its_target_counts_nothing(rig: Rig) -> None:
    other = rig.another()
    rig.read()
    rig.served.counts(0.3, 0.3)
    rig.served.stall.clear()
    late = threading.Thread(target=rig.read)
    late.start()
    while len(rig.served.asked) < 2:
        late.join(0.01)
    rig.clock.now += 300
    rig.store.take_target(rig.target.url, "somebody", rig.clock.now, 60)
    rig.store.write_reading(rig.target.url, "somebody", rig.clock.now + 60, b"", Batch("theirs"))
    rig.served.stall.set()
    late.join()

    assert rig.scraper.states.all()[0].state == "elsewhere"
    assert rig.counted() == 0
    assert rig.read(scraper=other, seconds=1).state == "elsewhere"


def test_a_stopping_collector_releases_its_targets(rig: Rig) -> None:
    rig.scraper.start()
    read_by(rig.scraper, rig.target.url)
    rig.scraper.stop()
    rig.served.counts(0.3)

    assert rig.read(scraper=rig.another(), seconds=1).state == "up"
    assert rig.counted() == 1


def test_a_commit_with_unknown_outcome_is_not_repeated(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.read()
    rig.served.counts(0.3, 0.3)
    write = rig.store.write_reading

    def committed_and_broken(*arguments: object) -> None:
        write(*arguments)  # pyright: ignore[reportArgumentType] - the same
        msg = "the connection is gone"
        raise StoreError(msg)

    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "write_reading", committed_and_broken)
        broken = rig.read()
    again = rig.read()

    assert (broken.state, again.state) == ("down", "up")
    assert rig.counted() == 2


def test_scrape_responses_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_BYTES", 1024**2)
    good = rig.served.bodies["/metrics"]
    rig.served.bodies["/metrics"] = b"#" * (2 * 1024**2)
    large = rig.read()
    rig.served.headers["Content-Encoding"] = "gzip"
    rig.served.bodies["/metrics"] = gzip.compress(b"#" * (64 * 1024**2))
    bomb = rig.read()
    rig.served.bodies["/metrics"] = gzip.compress(good)

    assert rig.read().state == "up"
    assert "gzip" in rig.served.asked[0]["accept-encoding"]
    assert large.error == bomb.error == "its response is larger than 1 MiB; drop metrics or labels at the target"


def test_a_target_receives_only_its_configured_headers(rig: Rig, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    rig.target = rig.target.model_copy(update={"headers": {"X-Scope": "team"}, "bearer_token_file": token})
    rig.read()
    token.write_text("new\n")
    rig.read()

    assert [asked["authorization"] for asked in rig.served.asked] == ["Bearer old", "Bearer new"]
    assert rig.served.asked[0]["x-scope"] == "team"
    assert rig.served.asked[0]["host"] == f"127.0.0.1:{rig.served.port}"


def test_a_name_resolving_to_a_metadata_service_is_not_scraped(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = [(2, 1, 6, "", ("169.254.169.254", 80))]

    async def getaddrinfo(*_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return looked_up

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    rig.target = rig.target.model_copy(update={"url": "http://engine.example/metrics"})

    assert "is an address of a cloud metadata service with credentials, which is not allowed" in rig.read().error


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"<html>hello</html>", "no metrics of a known engine"),
        (
            b'request_predict_seconds_count{model_name="m"} 1\nvllm:e2e_request_latency_seconds_sum 1\n',
            "write `engine: kserve` or `engine: vllm`",
        ),
    ],
)
def test_a_target_that_is_not_one_known_engine_is_an_error(rig: Rig, body: bytes, error: str) -> None:
    rig.served.bodies["/metrics"] = body

    assert error in rig.read().error


def test_targets_follow_the_file(rig: Rig) -> None:
    named: list[ScrapeTarget] = [rig.target]
    scraper = Scraper(rig.store, lambda: named, {}, clock=rig.clock)
    scraper.start()
    with serving() as other:
        other.counts()
        read_by(scraper, rig.target.url)
        named[:] = [rig.target.model_copy(update={"url": other.url})]
        read_by(scraper, other.url)
        scraper.stop()

    assert [state.state for state in scraper.states.all()] == ["up"]


def test_failing_statistics_do_not_affect_the_metrics(rig: Rig) -> None:
    path = "/v2/models/stats"
    rig.target = rig.target.model_copy(update={"statistics_url": rig.served.url.replace("/metrics", path)})
    missing = rig.read()
    rig.served.counts(0.3)
    rig.served.bodies[path] = b"{}"
    garbage = rig.read()
    states: list[TargetState] = []
    for runs in (100, 107):
        batch = {"batch_size": 4, "compute_infer": {"count": runs, "ns": runs * 10**9}}
        rig.served.bodies[path] = json.dumps({"model_stats": [{"name": "m", "batch_stats": [batch]}]}).encode()
        states.append(rig.read())
    found = [
        (band, runs.count, runs.sum) for each in rig.store.read.engines(EVER) for band, runs in each.batches.items()
    ]

    assert "it returns 404" in missing.error
    assert "not in Triton's format" in garbage.error
    assert [state.state for state in states] == ["up", "up"]
    assert rig.counted() == 1
    assert found == [("4-7", 7, 7.0)]


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


@pytest.mark.timeout(60)
def test_targets_of_the_file_are_scraped_and_reported(
    serve: Callable[..., Any], bodies: Any, tmp_path: Path, until: Callable[..., None]
) -> None:
    file = tmp_path / "collector.yaml"
    file.write_text("scrape: {targets: []}\n")
    live = LiveConfig(file, {})
    with serving() as engine:
        engine.counts()
        served = serve(live, grpc_port=None)
        own = f"{served.url}/metrics"
        file.write_text(FILE.format(engine=engine.url, own=own))
        live.refresh()

        def counted(service: str) -> int:
            return sum(each.count for each in served.store.read.engines(last_day(service)))

        for url in (engine.url, own):
            until(lambda url=url: served.metric(f'stagelens_collector_scrape_up{{target="{url}"}}') == 1)
        engine.counts(0.3, 0.7, 1.5)
        assert served.post("/v1/metrics", bodies.metrics(bodies.point())).status_code == 200
        until(lambda: counted("chat") > 0 and counted("collector") > 0)
        served.collector.stop()

    assert (counted("chat"), counted("collector")) == (3, 1)
