"""OTLP/HTTP JSON bodies of what the fold took: metrics and kept traces, as `docs/architecture.md` says under "On the wire".

Written series by series, with a real pause in between: to encode a hundred series in one go would hold the interpreter's
lock for as long as a slow request takes.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from ..core import names
from .fold import Delta, Dimensions
from .spans import Span, Trace, series_attributes

T = TypeVar("T")

DROP_REASON = "reason"

# What one post carries: a few hundred kB before compression.
SERIES_A_BODY = 50
TRACES_A_BODY = 100

# https://github.com/open-telemetry/opentelemetry-proto: AggregationTemporality, SpanKind, StatusCode
DELTA = 1
SPAN_INTERNAL, SPAN_SERVER = 1, 2
STATUS_ERROR = 2

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
        pause: Called between two pieces of work that each take about a millisecond.
    """

    def __init__(self, resource: Mapping[str, str], pause: Callable[[], None]) -> None:
        self._resource = json.dumps({"attributes": _attributes(resource)})
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

    def traces(self, traces: Iterable[Trace], anchor_ns: int) -> bytes:
        """Return the body of the spans of *traces*, gzipped.

        Args:
            traces: What was kept.
            anchor_ns: What to add to the recorder's clock for Unix time. [nanoseconds]
        """
        spans: list[str] = []
        for some in chunks(traces, 8):
            for trace in some:
                spans += (json.dumps(_span(trace.trace_id, span, anchor_ns)) for span in trace.spans)
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


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Return *items* in lists of at most *size*.

    >>> list(chunks("abc", 2))
    [['a', 'b'], ['c']]
    """
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _series_points(interval: Interval, dimensions: Dimensions, delta: Delta) -> Iterator[tuple[str, dict[str, Any]]]:
    series = series_attributes(dimensions)
    times = {"startTimeUnixNano": str(interval.start_ns), "timeUnixNano": str(interval.end_ns)}

    for metric, key, histogram in delta.counts.histograms():
        numbers = histogram.to_otlp()
        if metric in names.TIME_METRICS:
            # A sum of microseconds over buckets of seconds would be no sum of what the point counts.
            del numbers["sum"]
        yield metric, {"attributes": _attributes(series | {names.METRICS[metric]: key})} | times | numbers


def _histogram_metric(name: str, points: Sequence[str]) -> str:
    unit = names.UNITS.get(name, "s")
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


def _span(trace_id: str, span: Span, anchor_ns: int) -> dict[str, Any]:
    return {
        "traceId": trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "name": span.name,
        "kind": SPAN_SERVER if span.kind == "server" else SPAN_INTERNAL,
        "startTimeUnixNano": str(anchor_ns + span.start),
        "endTimeUnixNano": str(anchor_ns + span.end),
        "attributes": _attributes(span.attributes),
        "status": {"code": STATUS_ERROR} if span.failed else {},
    }


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]
