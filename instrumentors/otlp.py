"""OTLP/HTTP JSON bodies of what the fold took: metrics and kept traces, as `docs/architecture.md` says under "On the wire".

Written series by series, with a real pause in between: to encode a hundred series in one go would hold the interpreter's
lock for as long as a slow request takes.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from ..core import names
from ..core.histogram import SCALE, dense
from ..core.stages import position
from .fold import Delta, Dimensions, Request
from .sampler import Because

T = TypeVar("T")

METHOD = "http.request.method"
BATCH_SIZE = "inference.batch.size"
DROP_REASON = "reason"

# What one post carries: a few hundred kB before compression.
SERIES_A_BODY = 50
TRACES_A_BODY = 100

# https://github.com/open-telemetry/opentelemetry-proto: AggregationTemporality, SpanKind, StatusCode
DELTA = 1
SPAN_INTERNAL, SPAN_SERVER = 1, 2
STATUS_ERROR = 2

# https://www.w3.org/TR/trace-context/#traceparent-header: version, trace id, parent id, flags; later versions may add.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")

# The metric and its data points, each already JSON.
Points = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Interval:
    """What time a delta stands for, (start, end], in Unix nanoseconds."""

    start_ns: int
    end_ns: int


class Encoder:
    """Writes bodies for one process.

    Args:
        resource: Resource attributes, the instance id among them.
        rng: Draws trace and span ids.
        pause: Called between two pieces of work that each take about a millisecond.
    """

    def __init__(self, resource: Mapping[str, str], rng: random.Random, pause: Callable[[], None]) -> None:
        self._resource = json.dumps({"attributes": _attributes(resource)})
        self._rng = rng
        self._pause = pause

    def metrics(self, interval: Interval, deltas: Mapping[Dimensions, Delta], dropped: Mapping[str, int]) -> bytes:
        """Return the body of the metrics of *deltas*, gzipped.

        Args:
            interval: What time they stand for.
            deltas: What each series counted.
            dropped: Requests that could not be counted, by reason.
        """
        points: Points = defaultdict(list)
        for dimensions, delta in deltas.items():
            for metric, point in _series_points(interval, dimensions, delta):
                points[metric].append(json.dumps(point))
            self._pause()
        metrics = [_histogram_metric(name, points[name]) for name in names.METRICS if points[name]]
        if dropped:
            metrics.append(_dropped_metric(interval, dropped))
        return self._body("resourceMetrics", "scopeMetrics", "metrics", metrics)

    def traces(self, kept: Iterable[tuple[Request, Because]], anchor_ns: int) -> bytes:
        """Return the body of the spans of *kept* requests, gzipped.

        Args:
            kept: The requests and why they were kept.
            anchor_ns: What to add to the recorder's clock for Unix time. [nanoseconds]
        """
        spans: list[str] = []
        for some in chunks(kept, 8):
            for request, because in some:
                spans += map(json.dumps, self._trace_spans(request, because, anchor_ns))
            self._pause()
        return self._body("resourceSpans", "scopeSpans", "spans", spans)

    def _body(self, outer: str, inner: str, field: str, items: Iterable[str]) -> bytes:
        scope = json.dumps({"name": names.SCOPE})
        text = (
            f'{{"{outer}":[{{"resource":{self._resource},'
            f'"{inner}":[{{"scope":{scope},"{field}":[{",".join(items)}]}}]}}]}}'
        )
        # Level 1: a third of the time of the default for a tenth more bytes.
        return gzip.compress(text.encode(), compresslevel=1)

    def _trace_spans(self, request: Request, because: Because, anchor_ns: int) -> Iterator[dict[str, Any]]:
        trace_id, parent = parents(request.traceparent) or (f"{self._rng.getrandbits(128) or 1:032x}", "")
        root_id = self._span_id()
        yield _root_span(request, because, anchor_ns) | {
            "traceId": trace_id,
            "spanId": root_id,
            "parentSpanId": parent,
        }
        for stage, start, end in sorted(request.intervals, key=lambda interval: interval[1:]):
            if start <= request.end and end >= request.start and start <= end:
                yield {
                    "traceId": trace_id,
                    "spanId": self._span_id(),
                    "parentSpanId": root_id,
                    "name": stage,
                    "kind": SPAN_INTERNAL,
                    # What a thread did after the response is not the request's.
                    "startTimeUnixNano": str(anchor_ns + max(start, request.start)),
                    "endTimeUnixNano": str(anchor_ns + min(end, request.end)),
                    "attributes": _attributes({names.STAGE: stage}),
                }

    def _span_id(self) -> str:
        return f"{self._rng.getrandbits(64) or 1:016x}"


def parents(traceparent: str) -> tuple[str, str] | None:
    """Return trace id and parent span id of a W3C `traceparent`, or None where it is missing or invalid.

    >>> parents("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    ('0af7651916cd43dd8448eb211c80319c', 'b7ad6b7169203331')
    """
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None or not match[1].strip("0") or not match[2].strip("0"):
        return None
    return match[1], match[2]


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Return *items* in lists of at most *size*.

    >>> list(chunks("abc", 2))
    [['a', 'b'], ['c']]
    """
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def microseconds(spent: Mapping[str, int]) -> dict[str, int]:
    """Return nanoseconds per stage as whole microseconds that add up to the rounded total.

    Rounding each on its own would lose every stage below half a microsecond, and the sum with them.

    >>> microseconds({"forward": 400, "queue": 400, "overhead": 1200})
    {'forward': 0, 'queue': 1, 'overhead': 1}
    """
    rounded: dict[str, int] = {}
    total = before = 0
    for stage in sorted(spent, key=position):
        total += spent[stage]
        until = (total + 500) // 1000
        rounded[stage], before = until - before, until
    return rounded


def _series_points(interval: Interval, dimensions: Dimensions, delta: Delta) -> Iterator[tuple[str, dict[str, Any]]]:
    series = _series_attributes(dimensions)
    times = {"startTimeUnixNano": str(interval.start_ns), "timeUnixNano": str(interval.end_ns)}
    for stage, histogram in delta.requests.items():
        attributes = {"attributes": _attributes(series | {names.DOMINANT: stage})}
        yield names.REQUEST_DURATION, attributes | times | histogram.to_otlp()
    for stage, histogram in delta.stages.items():
        attributes = {"attributes": _attributes(series | {names.STAGE: stage})}
        yield names.STAGE_DURATION, attributes | times | histogram.to_otlp()
    for stage, buckets in _time_buckets(delta.spent).items():
        offset, counts = dense(buckets)
        yield (
            names.STAGE_TIME,
            {
                "attributes": _attributes(series | {names.STAGE: stage}),
                **times,
                "count": str(sum(counts)),
                "scale": SCALE,
                "zeroCount": "0",
                "positive": {"offset": offset, "bucketCounts": [str(count) for count in counts]},
            },
        )


def _time_buckets(spent: Mapping[int, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    by_stage: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for bucket, stages in spent.items():
        for stage, count in microseconds(stages).items():
            if count:
                by_stage[stage][bucket] = count
    return by_stage


def _histogram_metric(name: str, points: Sequence[str]) -> str:
    unit = "us" if name == names.STAGE_TIME else "s"
    return (
        f'{{"name":"{name}","unit":"{unit}","exponentialHistogram":'
        f'{{"aggregationTemporality":{DELTA},"dataPoints":[{",".join(points)}]}}}}'
    )


def _dropped_metric(interval: Interval, dropped: Mapping[str, int]) -> str:
    points = [
        {
            "attributes": _attributes({DROP_REASON: reason}),
            "startTimeUnixNano": str(interval.start_ns),
            "timeUnixNano": str(interval.end_ns),
            "asInt": str(count),
        }
        for reason, count in dropped.items()
    ]
    total = {"aggregationTemporality": DELTA, "isMonotonic": True, "dataPoints": points}
    return json.dumps({"name": names.REQUESTS_DROPPED, "unit": "{request}", "sum": total})


def _root_span(request: Request, because: Because, anchor_ns: int) -> dict[str, Any]:
    attributes: dict[str, str | int] = {
        **_series_attributes(request.dimensions),
        **{
            key: value
            for key, value in (
                (METHOD, request.method),
                (names.HTTP_STATUS, request.http_status),
                (names.ERROR_TYPE, request.error_type),
                (BATCH_SIZE, request.batch),
            )
            if value
        },
        names.KEPT_BECAUSE: because,
        **{names.STAGE_SELF_PREFIX + stage: spent for stage, spent in request.own.items()},
    }
    return {
        "name": " ".join(filter(None, (request.method, request.name))) or "request",
        "kind": SPAN_SERVER if request.kind == "server" else SPAN_INTERNAL,
        "startTimeUnixNano": str(anchor_ns + request.start),
        "endTimeUnixNano": str(anchor_ns + request.end),
        "attributes": _attributes(attributes),
        "status": {"code": STATUS_ERROR} if request.error_type else {},
    }


def _series_attributes(dimensions: Dimensions) -> dict[str, str]:
    keys = (names.MODEL, names.MODEL_VERSION, names.ROUTE, names.DEVICE, names.STATUS)
    return {key: value for key, value in zip(keys, dimensions, strict=True) if value}


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]
