"""Points of scraped targets: quantiles within their error bounds, and each target as a replica of its service."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.collector.scrape import config, exposition, snapshot
from stagelens.collector.scrape.config import ScrapeTarget
from stagelens.collector.scrape.points import points_of, replica_points_of
from stagelens.collector.scrape.snapshot import (
    ONE_BUCKET,
    MetricStream,
    Snapshot,
    StreamCounts,
    difference_between,
)
from stagelens.core import names
from stagelens.core.attributes import ATTRIBUTE_SCALE
from stagelens.core.histogram import Distribution, Histogram, bucket_index, rank_of
from stagelens.core.names import REPLICA_STAGE_TIME, REQUEST_BY_ATTRIBUTE
from stagelens.store import Point

MODEL = (("model_name", "m"),)
REQUESTS = MetricStream("request", "engine", MODEL)


def points(added: Mapping[MetricStream, StreamCounts], url: str = "http://gpu-1:8000/metrics") -> list[Point]:
    engine = config.engines()["vllm"]
    return list(replica_points_of(added, ScrapeTarget(url=url, service="chat"), engine, 100))


@pytest.mark.parametrize(
    ("counted", "values"),
    [
        pytest.param(StreamCounts({(0.0, 0.5): 4}, 0.4), {0.1: 4}, id="one bucket: the mean"),
        pytest.param(StreamCounts({ONE_BUCKET: 4}, 2.0), {0.5: 4}, id="no buckets: the mean"),
        pytest.param(StreamCounts({(0.2, 0.5): 3, (0.5, 1.0): 1}, 1.7), {0.4: 3, 0.5: 1}, id="the common edge"),
        pytest.param(StreamCounts({(0.0, 0.5): 2, (1.0, 4.0): 2}, 5.4), {0.5: 2, 2.2: 2}, id="the upper bucket"),
        pytest.param(StreamCounts({(0.0, 0.5): 1, (8.0, math.inf): 2}, 40.5), {0.5: 1, 20.0: 2}, id="no end"),
        pytest.param(StreamCounts({(1.0, 4.0): 2}, 9.0), {4.0: 2}, id="an impossible sum"),
    ],
)
def test_requests_count_as_close_to_each_other_as_possible(counted: StreamCounts, values: dict[float, int]) -> None:
    (found,) = points({REQUESTS: counted})

    assert (found.metric, found.stage, found.series.model, found.at) == (
        REQUEST_BY_ATTRIBUTE,
        "replica=@gpu-1:8000",
        "m",
        100,
    )
    assert found.histogram.buckets == {bucket_index(value, ATTRIBUTE_SCALE): n for value, n in values.items()}
    assert found.histogram.sum == pytest.approx(sum(value * n for value, n in values.items()))


def test_the_time_in_stages_is_exact() -> None:
    added = {
        REQUESTS: StreamCounts({ONE_BUCKET: 4}, 2.0),
        MetricStream("stage", "prefill", MODEL): StreamCounts({ONE_BUCKET: 4}, 0.5),
        MetricStream("stage", "decode", MODEL): StreamCounts({ONE_BUCKET: 4}, 1.25),
        MetricStream("stage", "decode", (*MODEL, ("reason", "stop"))): StreamCounts({ONE_BUCKET: 1}, 0.25),
        MetricStream("stage", "queue", MODEL): StreamCounts({ONE_BUCKET: 4}, 0.0),
    }
    found = {point.stage: point.histogram.buckets for point in points(added) if point.metric == REPLICA_STAGE_TIME}
    mean = bucket_index(0.5, ATTRIBUTE_SCALE)

    assert found == {"prefill;@gpu-1:8000": {mean: 500_000}, "decode;@gpu-1:8000": {mean: 1_500_000}}
    assert points(added, "https://gpu-2/metrics")[0].stage == "replica=@gpu-2"


@pytest.mark.parametrize(
    "added",
    [
        {},
        {MetricStream("stage", "decode", MODEL): StreamCounts({ONE_BUCKET: 4}, 1.0)},
        {REQUESTS: StreamCounts({}, 0.0)},
    ],
)
def test_a_target_without_requests_has_no_replica(added: Mapping[MetricStream, StreamCounts]) -> None:
    assert points(added) == []


VALUES = st.lists(st.floats(1e-7, 1e5), min_size=1, max_size=60)
BUCKET_EDGES = st.lists(st.floats(1e-6, 1e4), unique=True, max_size=8).map(sorted)


def merged(values: list[float], edges: list[float]) -> dict[str, Histogram]:
    engine = config.engines()["vllm"]
    total: dict[str, Histogram] = {}
    base = Snapshot(0.0, "")
    for at, seen in ((10.0, values[: len(values) // 2]), (20.0, values)):
        lines = [
            f'vllm:e2e_request_latency_seconds_bucket{{le="{edge!r}"}} {sum(value <= edge for value in seen)}'
            for edge in edges
        ]
        lines.append(f'vllm:e2e_request_latency_seconds_bucket{{le="+Inf"}} {len(seen)}')
        lines.append(f"vllm:e2e_request_latency_seconds_sum {math.fsum(seen)!r}")
        samples = exposition.parse_exposition("\n".join(lines), "text/plain", engine.wanted())
        difference = difference_between(base, snapshot.read_snapshot(samples, engine, at, ""))
        base = difference.base
        for point in points_of(difference.added, ScrapeTarget(url="http://e/metrics", service="s"), engine, int(at)):
            total.setdefault(point.metric, Histogram()).merge(point.histogram)
    return total


@given(VALUES, BUCKET_EDGES, st.floats(0, 1))
def test_the_interval_of_a_quantile_contains_it_and_is_no_wider_than_its_bucket(
    values: list[float], edges: list[float], quantile: float
) -> None:
    found = Distribution(*(merged(values, edges)[metric] for metric in names.ENGINE_REQUEST))
    interval = found.quantile(quantile)
    true = sorted(values)[rank_of(quantile, len(values)) - 1]
    above = min((edge for edge in edges if edge >= true), default=math.inf)
    below = max((edge for edge in edges if edge < true), default=0.0)

    assert interval is not None
    assert below / 1.0221 <= interval.low <= true <= interval.high <= above * 1.0221
    assert found.count == found.highs.count == len(values)
    assert found.mean is not None
    assert math.isclose(found.mean * len(values), math.fsum(values), rel_tol=1e-9)
    assert found.lows.sum == found.highs.sum
