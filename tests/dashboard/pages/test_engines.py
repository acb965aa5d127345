"""The page of engines: error bounds for fixed buckets, exact means, and no number without a measurement."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core import names
from stagelens.core.histogram import Distribution, Histogram, bucket_bounds, bucket_index
from stagelens.dashboard.pages.engines import roundest
from stagelens.dashboard.source import Source
from stagelens.store import Batch, Point, Selection, Series, Store
from tests.dashboard.rendering import shown
from tests.dashboard.served_versions import NOW

AT = int(NOW.timestamp()) - 600
CHAT = Series("chat", model="llama")
VISION = Series("vision", model="resnet")


def pair(series: Series, metrics: tuple[str, str], key: str, found: Distribution) -> list[Point]:
    return [
        Point(series, metric, key, AT, each) for metric, each in zip(metrics, (found.lows, found.highs), strict=True)
    ]


def counted(total: float, *buckets: tuple[float, float, int]) -> Distribution:
    made = Distribution()
    for low, high, count in buckets:
        made.add(low, high, count)
    made.set_sum(total)
    return made


@pytest.fixture(scope="module")
def store(open_module_store: Callable[[], Store]) -> Store:
    """A vLLM server with a thousand requests in fixed buckets, and a Triton server with sums only."""
    endless = float("inf")
    tokens = Histogram(zero=60_000)
    opened = open_module_store()
    requests = counted(600.0, (0.0, 0.5, 400), (0.5, 1.0, 580), (1.0, 2.5, 15), (10.0, endless, 5))
    points = [
        *pair(CHAT, names.ENGINE_REQUEST, names.BY_ENGINE, requests),
        *pair(CHAT, names.ENGINE_STAGE, "queue", counted(100.0, (0.0, 0.3, 995), (0.3, 0.5, 5))),
        *pair(CHAT, names.ENGINE_STAGE, "decode", counted(450.0, (0.0, 60.0, 1000))),
        *pair(CHAT, names.ENGINE_FIRST_TOKEN, names.BY_ENGINE, counted(125.0, (0.1, 0.25, 1000))),
        Point(CHAT, names.ENGINE_TOKENS, names.TOKENS_OUT, AT, tokens),
        *pair(VISION, names.ENGINE_REQUEST, names.BY_ENGINE, counted(4.0, (0.0, endless, 200))),
        *pair(VISION, names.ENGINE_STAGE, "forward", counted(3.0, (0.0, endless, 200))),
        Point(VISION, names.ENGINE_BATCH, "8-15", AT, Histogram(zero=50, sum=1.5)),
    ]
    opened.write([Batch("one", points)])
    opened.maintain()
    return opened


def window() -> Selection:
    return Selection(NOW - timedelta(hours=1), NOW)


@pytest.fixture
def page(store: Store) -> str:
    return shown(Source(store, None, NOW.timestamp), "/engines?from=now-1h")


def test_percentiles_are_intervals(page: str) -> None:
    assert re.search(r"chat llama 1\.00k .*?500 ms–1 s 500 ms–1 s 1 s–2\.5 s 600 ms", page)  # noqa: RUF001


def test_a_percentile_beyond_the_last_bucket_is_shown_as_above(store: Store) -> None:
    with_tail = counted(9000.0, (0.0, 1.0, 900), (10.0, float("inf"), 1100))
    store.write([Batch("tail", pair(Series("slow"), names.ENGINE_REQUEST, names.BY_ENGINE, with_tail))])

    assert re.search(
        r"slow – 2\.00k .*?above 10 s above 10 s above 10 s",  # noqa: RUF001
        shown(Source(store, None, NOW.timestamp), "/engines?from=now-1h"),
    )


def test_sums_without_a_distribution_have_a_mean_and_no_percentile(page: str) -> None:
    assert re.search(r"vision resnet 200 \S+ – – – 20\.0 ms", page)  # noqa: RUF001
    assert re.search(r"Run of a batch of 8–15 50 30\.0 ms – – –", page)  # noqa: RUF001


def test_percentiles_need_enough_requests(store: Store) -> None:
    few = counted(5.0, (0.5, 1.0, 100))
    store.write([Batch("few", pair(Series("few"), names.ENGINE_REQUEST, names.BY_ENGINE, few))])

    assert re.search(r"few – 100 \S+ 500 ms–1 s – –", shown(Source(store, None, NOW.timestamp), "/engines?from=now-1h"))  # noqa: RUF001


def test_the_mean_is_split_by_stage_to_the_last_bit(store: Store) -> None:
    chat = next(each for each in Source(store, None, NOW.timestamp).read.engines(window()) if each.service == "chat")

    assert chat.requests.mean == 0.6
    assert chat.mean_by_stage == {"decode": 0.45, "queue": 0.1}
    assert chat.tokens == {"output": 60_000}


def test_the_page_explains_intervals(page: str) -> None:
    assert "an engine counts requests in fixed buckets" in page
    assert "send the traces of the engine, or run the agent" in page


def test_without_targets_the_page_explains_how_to_add_them(tmp_path: Path) -> None:
    opened = Store.open(f"sqlite:///{tmp_path}/s.db", clock=NOW.timestamp)
    words = shown(Source(opened, None, NOW.timestamp), "/engines")
    opened.close()

    assert "No engine was scraped in this window" in words
    assert "url: http://llm:8000/metrics" in words


@pytest.mark.parametrize(
    "edge",
    [
        0.001,
        0.005,
        0.02,
        0.025,
        0.04,
        0.06,
        0.075,
        0.08,
        0.1,
        0.25,
        0.3,
        0.8,
        1.0,
        1.5,
        2.5,
        7.5,
        10.0,
        30.0,
        60.0,
        480.0,
    ],
)
def test_bucket_edges_are_shown_unrounded(edge: float) -> None:
    assert roundest(*bucket_bounds(bucket_index(edge))) == edge


@given(st.floats(1e-9, 1e9))
def test_an_edge_is_shown_within_its_bucket(edge: float) -> None:
    low, high = bucket_bounds(bucket_index(edge))

    assert low * (1 - 1e-3) <= roundest(low, high) <= high * (1 + 1e-3)
