"""Points of the counts between two snapshots.

Fixed buckets are intervals: each observation is counted at both edges of its bucket, in two histograms; see `core.histogram`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from math import inf
from urllib.parse import urlsplit

from ...core import names
from ...core.addresses import host_and_port
from ...core.attributes import ATTRIBUTE_SCALE, REPLICA, SCRAPED, attribute_key, replica_stage_key
from ...core.histogram import ZERO_THRESHOLD, Distribution, Histogram, bucket_index
from ...store import Point, Series
from ..ingest.validation import printable_text
from .config import Engine, ScrapeTarget
from .snapshot import Labels, StreamCounts, Streams

_SERVER_ERROR = 500
# Label value without information: BentoML sets it for a service that is not a built Bento.
_NOT_AVAILABLE = "not available"
_PAIRS = {
    "request": names.ENGINE_REQUEST,
    "stage": names.ENGINE_STAGE,
    "first_token": names.ENGINE_FIRST_TOKEN,
    "output_token": names.ENGINE_OUTPUT_TOKEN,
}


def points_of(added: Streams, target: ScrapeTarget, engine: Engine, at: int) -> Iterator[Point]:
    """Yield points with the counts *added* at *target*, all at the time *at*, in Unix seconds."""
    for stream, counted in added.items():
        series = _series_of(stream.labels, target, engine)
        if stream.kind in _PAIRS:
            for metric, histogram in zip(_PAIRS[stream.kind], _edge_histograms(counted), strict=True):
                yield Point(series, metric, stream.key, at, histogram)
        else:
            metric = names.ENGINE_TOKENS if stream.kind == "tokens" else names.ENGINE_BATCH
            yield Point(series, metric, stream.key, at, Histogram(zero=counted.count, sum=counted.sum))


def replica_points_of(added: Streams, target: ScrapeTarget, engine: Engine, at: int) -> Iterator[Point]:
    """Yield points with the counts *added* at *target* as those of one replica, so that a slow target of a service has a name.

    Requests count at the values of `_closest_values`, because a fast and a slow replica may share a fixed bucket. The time in stages counts
    at the mean latency of all requests, because only its sum is known.
    """
    asked = {stream: counted for stream, counted in added.items() if stream.kind == "request"}
    count, total = (
        sum(stream_counts.count for stream_counts in asked.values()),
        math.fsum(stream_counts.sum for stream_counts in asked.values()),
    )
    if not count or total < ZERO_THRESHOLD * count:
        return
    address = urlsplit(target.url)
    host = address.hostname or ""
    replica = f"{SCRAPED}{host_and_port(host, address.port) if address.port else host}"
    latency: defaultdict[Series, Histogram] = defaultdict(lambda: Histogram(ATTRIBUTE_SCALE))
    spent: Counter[tuple[Series, str]] = Counter()
    for stream, counted in added.items():
        series = _series_of(stream.labels, target, engine)
        if stream.kind == "request":
            for value, number in _closest_values(counted):
                latency[series].record(value, number)
        elif stream.kind == "stage":
            spent[series, stream.key] += round(counted.sum * 1e6)
    for series, histogram in latency.items():
        yield Point(series, names.REQUEST_BY_ATTRIBUTE, attribute_key(REPLICA.key, replica), at, histogram)
    bucket = bucket_index(total / count, ATTRIBUTE_SCALE)
    for (series, stage), time in spent.items():
        if time:
            key = replica_stage_key(stage, replica)
            yield Point(series, names.REPLICA_STAGE_TIME, key, at, Histogram(ATTRIBUTE_SCALE, {bucket: time}))


def _closest_values(counted: StreamCounts) -> Iterator[tuple[float, int]]:
    """Yield the value at which the observations of each bucket count, and their number.

    The values are as close to each other as their buckets and their sum allow: all buckets have the same value, or their edge nearest
    to it. Observations of one bucket therefore count at their mean, and those next to a common edge on both of its sides.
    """
    edges = sorted({edge for bucket in counted.buckets for edge in bucket if edge < inf})

    def total(value: float) -> float:
        return math.fsum(min(max(value, low), high) * number for (low, high), number in counted.buckets.items())

    # Between two edges the total is linear.
    below = max((edge for edge in edges if total(edge) <= counted.sum), default=edges[0])
    inside = sum(number for (low, high), number in counted.buckets.items() if low <= below < high)
    value = below + (counted.sum - total(below)) / inside if inside else below
    for (low, high), number in counted.buckets.items():
        yield min(max(value, low), high), number


def _edge_histograms(counted: StreamCounts) -> tuple[Histogram, Histogram]:
    distribution = Distribution()
    for (low, high), count in counted.buckets.items():
        distribution.add(low, high, count)
    distribution.set_sum(counted.sum)
    return distribution.lows, distribution.highs


def _series_of(labels: Labels, target: ScrapeTarget, engine: Engine) -> Series:
    values = dict(labels)

    def label_value(dimension: str) -> str:
        candidates = (values.get(name, "") for name in getattr(engine.labels, dimension))
        return next((printable_text(value) for value in candidates if value not in ("", _NOT_AVAILABLE)), "")

    status = label_value("status")
    failed = status.isdecimal() and int(status) >= _SERVER_ERROR
    return Series(
        service=target.service,
        version=target.version or label_value("version"),
        environment=target.environment,
        model=label_value("model"),
        model_version=label_value("model_version"),
        route=label_value("route"),
        status=names.STATUS_ERROR if failed else names.STATUS_OK,
    )
