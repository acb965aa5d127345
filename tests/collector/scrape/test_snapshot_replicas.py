"""Targets of one service are its replicas: their latency and stages have the address of the target."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest

from stagelens.analysis.replicas import ReplicaCounts, ReplicaTable, find_outlier
from stagelens.collector.scrape import config
from stagelens.collector.scrape.config import ScrapeTarget
from stagelens.collector.scrape.points import replica_points_of
from stagelens.collector.scrape.snapshot import (
    ONE_BUCKET,
    MetricStream,
    StreamCounts,
)
from stagelens.core.attributes import ATTRIBUTE_SCALE
from stagelens.core.histogram import bucket_index
from stagelens.core.names import REPLICA_STAGE_TIME, REQUEST_BY_ATTRIBUTE
from stagelens.store import Point

MODEL = (("model_name", "m"),)
REQUESTS = MetricStream("request", "engine", MODEL)
# Of vLLM's latency of requests. [seconds]
EDGES = (0.0, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, math.inf)


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


def test_the_place_is_the_host_without_a_port() -> None:
    added = {REQUESTS: StreamCounts({ONE_BUCKET: 1}, 1.0)}

    assert points(added, "https://gpu-2/metrics")[0].stage == "replica=@gpu-2"


def scraped(medians: Sequence[float], rng: np.random.Generator) -> ReplicaTable:
    """Return six minutes of targets with these *medians*, scraped every ten seconds at one request per second."""
    index = np.arange(-40, 20)
    replicas: list[ReplicaCounts] = []
    for number, median in enumerate(medians):
        counts = np.zeros((6, len(index)), np.int64)
        for scrape in range(36):
            latencies = median * rng.lognormal(0, 0.2, 10)
            buckets = Counter(list(pairwise(EDGES))[bucket - 1] for bucket in np.searchsorted(EDGES, latencies))
            (found,) = points({REQUESTS: StreamCounts(buckets, float(latencies.sum()))})
            for bucket, requests in found.histogram.buckets.items():
                counts[scrape // 6, bucket - index[0]] += requests
        replicas.append(ReplicaCounts(f"gpu-{number}:8000", counts, {}))
    return ReplicaTable(ATTRIBUTE_SCALE, index, 60 * np.arange(6), replicas)


@pytest.mark.parametrize("median", [0.05, 0.2, 1.2])
def test_a_slow_target_is_named(median: float) -> None:
    found = find_outlier(scraped([median, 3 * median], np.random.default_rng(1)))

    assert found is not None
    assert (found.place, found.ratio) == ("gpu-1:8000", pytest.approx(3.0, rel=0.2))


def test_targets_on_both_sides_of_an_edge_are_not_slow() -> None:
    rng = np.random.default_rng(1)

    assert {find_outlier(scraped([0.29, 0.31], rng)) for _ in range(20)} == {None}
