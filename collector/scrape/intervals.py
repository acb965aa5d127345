"""From what was counted to points: fixed buckets stay intervals.

Each observation is counted at both edges of its bucket, in two histograms; see `core.histogram`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...core import names
from ...core.histogram import Distribution, Histogram
from ...store import Point, Series
from ..ingest.dimensions import text
from .config import Target
from .reading import Counted, Labels, Stream
from .rules import Engine

_SERVER_ERROR = 500
# What stands in a label that has nothing to say: BentoML's, of a service that was not built.
_UNTOLD = "not available"
_PAIRS = {
    "request": names.ENGINE_REQUEST,
    "stage": names.ENGINE_STAGE,
    "first_token": names.ENGINE_FIRST_TOKEN,
    "output_token": names.ENGINE_OUTPUT_TOKEN,
}


def points(added: Mapping[Stream, Counted], target: Target, engine: Engine, at: int) -> Iterator[Point]:
    """Yield the points of what *added* counted at a *target*, around *at*, in Unix seconds."""
    for stream, counted in added.items():
        series = _series(stream.labels, target, engine)
        if stream.kind in _PAIRS:
            for metric, histogram in zip(_PAIRS[stream.kind], _edges(counted), strict=True):
                yield Point(series, metric, stream.key, at, histogram)
        else:
            metric = names.ENGINE_TOKENS if stream.kind == "tokens" else names.ENGINE_BATCH
            yield Point(series, metric, stream.key, at, Histogram(zero=counted.count, sum=counted.sum))


def _edges(counted: Counted) -> tuple[Histogram, Histogram]:
    found = Distribution()
    for (low, high), count in counted.buckets.items():
        found.add(low, high, count)
    found.set_sum(counted.sum)
    return found.lows, found.highs


def _series(labels: Labels, target: Target, engine: Engine) -> Series:
    values = dict(labels)

    def told(dimension: str) -> str:
        found = (values.get(name, "") for name in engine.labels.get(dimension, ()))
        return next((text(value) for value in found if value not in ("", _UNTOLD)), "")

    status = told("status")
    failed = status.isdecimal() and int(status) >= _SERVER_ERROR
    return Series(
        service=target.service,
        version=target.version or told("version"),
        environment=target.environment,
        model=told("model"),
        model_version=told("model_version"),
        route=told("route"),
        status=names.STATUS_ERROR if failed else names.STATUS_OK,
    )
