"""Targets of one service are its replicas: their latency and stages have the address of the target."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from stagelens.collector.scrape import config
from stagelens.collector.scrape.config import ScrapeTarget
from stagelens.collector.scrape.snapshot import (
    ONE_BUCKET,
    MetricStream,
    StreamCounts,
    replica_points_of,
)
from stagelens.core.attributes import ATTRIBUTE_SCALE
from stagelens.core.histogram import bucket_index
from stagelens.core.names import REPLICA_STAGE_TIME, REQUEST_BY_ATTRIBUTE
from stagelens.store import Point

MODEL = (("model_name", "m"),)
REQUESTS = MetricStream("request", "engine", MODEL)


def points(added: Mapping[MetricStream, StreamCounts], url: str = "http://gpu-1:8000/metrics") -> list[Point]:
    """Return the points of a vLLM target at *url*."""
    engine = config.engines()["vllm"]
    return list(replica_points_of(added, ScrapeTarget(url=url, service="chat"), engine, 100))


def test_a_request_counts_at_the_middle_of_its_bucket() -> None:
    """Requests count at the geometric middle of a bucket; a first and a last bucket have only one edge."""
    counted = StreamCounts({(0.0, 0.5): 1, (1.0, 4.0): 2, (8.0, math.inf): 3}, 40.0)
    (found,) = points({REQUESTS: counted})
    middles = {0.25: 1, 2.0: 2, 8.0: 3}

    assert (found.metric, found.stage, found.series.model, found.at) == (
        REQUEST_BY_ATTRIBUTE,
        "replica=gpu-1:8000",
        "m",
        100,
    )
    assert found.histogram.buckets == {bucket_index(value, ATTRIBUTE_SCALE): n for value, n in middles.items()}


def test_requests_without_buckets_count_at_their_mean() -> None:
    """A summary has only a number and a sum."""
    (found,) = points({REQUESTS: StreamCounts({ONE_BUCKET: 4}, 2.0)})

    assert found.histogram.buckets == {bucket_index(0.5, ATTRIBUTE_SCALE): 4}


def test_the_time_in_stages_is_exact() -> None:
    """Each stage has its exact sum at the mean latency; streams of one series are one point."""
    added = {
        REQUESTS: StreamCounts({ONE_BUCKET: 4}, 2.0),
        MetricStream("stage", "prefill", MODEL): StreamCounts({ONE_BUCKET: 4}, 0.5),
        MetricStream("stage", "decode", MODEL): StreamCounts({ONE_BUCKET: 4}, 1.25),
        MetricStream("stage", "decode", (*MODEL, ("reason", "stop"))): StreamCounts({ONE_BUCKET: 1}, 0.25),
        MetricStream("stage", "queue", MODEL): StreamCounts({ONE_BUCKET: 4}, 0.0),
    }
    found = {point.stage: point.histogram.buckets for point in points(added) if point.metric == REPLICA_STAGE_TIME}
    mean = bucket_index(0.5, ATTRIBUTE_SCALE)

    assert found == {"prefill;gpu-1:8000": {mean: 500_000}, "decode;gpu-1:8000": {mean: 1_500_000}}


@pytest.mark.parametrize(
    "added",
    [
        {},
        {MetricStream("stage", "decode", MODEL): StreamCounts({ONE_BUCKET: 4}, 1.0)},
        {REQUESTS: StreamCounts({}, 0.0)},
    ],
)
def test_a_target_without_requests_has_no_replica(added: Mapping[MetricStream, StreamCounts]) -> None:
    """Without requests a stage has no latency to count at."""
    assert points(added) == []


def test_the_place_is_the_host_without_a_port() -> None:
    """A target at the default port has no port in its place."""
    added = {REQUESTS: StreamCounts({ONE_BUCKET: 1}, 1.0)}

    assert points(added, "https://gpu-2/metrics")[0].stage == "replica=gpu-2"
