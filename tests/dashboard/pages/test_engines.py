"""The page of engines: error bounds for fixed buckets, exact means, and no number without a measurement."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core import names
from stagelens.core.histogram import Distribution, Histogram, bucket_bounds, bucket_index
from stagelens.dashboard.pages.engines import roundest
from stagelens.store import Batch, Point, Selection, Series, Store
from tests.dashboard.rendering import check_views, source_of
from tests.dashboard.served_versions import NOW

AT = int(NOW.timestamp()) - 600
CHAT = Series("chat", model="llama")
VISION = Series("vision", model="resnet")
ENDLESS = float("inf")


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


def requests(series: Series, total: float, *buckets: tuple[float, float, int]) -> list[Point]:
    return pair(series, names.ENGINE_REQUEST, names.BY_ENGINE, counted(total, *buckets))


@pytest.fixture(scope="module")
def store(open_module_store: Callable[[], Store]) -> Store:
    """A vLLM server with a thousand requests in fixed buckets, a Triton server with sums only, and servers with few or slow ones."""
    opened = open_module_store()
    points = [
        *requests(CHAT, 600.0, (0.0, 0.5, 400), (0.5, 1.0, 580), (1.0, 2.5, 15), (10.0, ENDLESS, 5)),
        *pair(CHAT, names.ENGINE_STAGE, "queue", counted(100.0, (0.0, 0.3, 995), (0.3, 0.5, 5))),
        *pair(CHAT, names.ENGINE_STAGE, "decode", counted(450.0, (0.0, 60.0, 1000))),
        *pair(CHAT, names.ENGINE_FIRST_TOKEN, names.BY_ENGINE, counted(125.0, (0.1, 0.25, 1000))),
        Point(CHAT, names.ENGINE_TOKENS, names.TOKENS_OUT, AT, Histogram(zero=60_000)),
        *requests(VISION, 4.0, (0.0, ENDLESS, 200)),
        *pair(VISION, names.ENGINE_STAGE, "forward", counted(3.0, (0.0, ENDLESS, 200))),
        Point(VISION, names.ENGINE_BATCH, "8-15", AT, Histogram(zero=50, sum=1.5)),
        *requests(Series("slow"), 9000.0, (0.0, 1.0, 900), (10.0, ENDLESS, 1100)),
        *requests(Series("few"), 5.0, (0.5, 1.0, 100)),
    ]
    opened.write([Batch("one", points)])
    opened.maintain()
    return opened


def test_percentiles_are_intervals_where_there_are_enough_requests(store: Store) -> None:
    check_views("engines", source_of(store), "/engines?from=now-1h")


def test_the_mean_is_split_by_stage_to_the_last_bit(store: Store) -> None:
    engines = store.read.engines(Selection(NOW - timedelta(hours=1), NOW))
    (chat,) = (engine for engine in engines if engine.service == "chat")

    assert chat.requests.mean == 0.6
    assert chat.mean_by_stage == {"decode": 0.45, "queue": 0.1}
    assert chat.tokens == {"output": 60_000}


def test_without_targets_the_page_explains_how_to_add_them(open_store: Callable[..., Store]) -> None:
    check_views("engines_none", source_of(open_store(clock=NOW.timestamp)), "/engines")


def test_bucket_edges_are_shown_unrounded() -> None:
    edges = [0.001, 0.005, 0.02, 0.025, 0.04, 0.06, 0.075, 0.08, 0.1, 0.25, 0.3, 0.8, 1.0, 1.5, 2.5, 7.5, 10.0, 480.0]

    assert [roundest(*bucket_bounds(bucket_index(edge))) for edge in edges] == edges


@given(st.floats(1e-9, 1e9))
def test_an_edge_is_shown_within_its_bucket(edge: float) -> None:
    low, high = bucket_bounds(bucket_index(edge))

    assert low * (1 - 1e-3) <= roundest(low, high) <= high * (1 + 1e-3)
