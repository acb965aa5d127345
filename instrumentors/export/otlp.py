"""OTLP protobuf bodies of metrics and retained traces; `docs/architecture.md` describes them under "On the wire".

Written series by series with a real pause in between: encoding a hundred series at once would hold the interpreter lock for as
long as a slow request takes. Field numbers are those of https://github.com/open-telemetry/opentelemetry-proto; fields are
written in the order of their message.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from ...core import hardware, names
from ...core.hardware import Kind, Measure, Reading
from ...core.histogram import ZERO_THRESHOLD, Histogram, dense
from ..agent.aggregate import Delta, Dimensions
from ..agent.spans import Span, Trace, series_attributes
from .protobuf import double, fixed, message, packed, signed, text, whole

T = TypeVar("T")

DROP_REASON = "reason"

# What one post carries: a few hundred kB before compression.
SERIES_A_BODY = 50
TRACES_A_BODY = 100

# AggregationTemporality, SpanKind, StatusCode
DELTA, CUMULATIVE = 1, 2
SPAN_INTERNAL, SPAN_SERVER = 1, 2
STATUS_ERROR = 2


@dataclass(frozen=True, slots=True)
class Interval:
    """Time interval of a delta, (start, end], in Unix nanoseconds."""

    start_ns: int
    end_ns: int


class Encoder:
    """Writes bodies for one process.

    Args:
        resource: Resource attributes, the instance id among them.
        pause: Called between two pieces of work that each take about a millisecond.
    """

    def __init__(self, resource: Mapping[str, str | int], pause: Callable[[], None]) -> None:
        self._resource = message(1, _attributes(1, resource))
        self._pause = pause

    def metrics(
        self,
        interval: Interval,
        deltas: Mapping[Dimensions, Delta],
        dropped: Mapping[str, int],
        readings: Iterable[Reading] = (),
    ) -> bytes:
        """Return the body of the metrics of *deltas*, gzipped.

        Args:
            interval: What time they stand for.
            deltas: What each series counted.
            dropped: Requests that could not be counted, by reason.
            readings: What the machine did.
        """
        points: defaultdict[str, list[bytes]] = defaultdict(list)
        for dimensions, delta in deltas.items():
            for metric, point in _series_points(interval, dimensions, delta):
                points[metric].append(message(1, point))
            self._pause()
        metrics = [_histogram_metric(name, points[name]) for name in names.METRICS if points[name]]
        if dropped:
            metrics.append(_dropped_metric(interval, dropped))
        metrics += _machine_metrics(interval, readings)
        return self._body(metrics)

    def traces(self, traces: Iterable[Trace], anchor_ns: int) -> bytes:
        """Return the body of the spans of *traces*, gzipped.

        Args:
            traces: What was kept.
            anchor_ns: What to add to the recorder's clock for Unix time. [nanoseconds]
        """
        spans: list[bytes] = []
        for some in chunks(traces, 8):
            for trace in some:
                spans += (_span(bytes.fromhex(trace.trace_id), span, anchor_ns) for span in trace.spans)
            self._pause()
        return self._body(spans)

    def _body(self, items: Iterable[bytes]) -> bytes:
        """Return the body of an export of metrics or of spans: both have the same outer messages."""
        scope = message(1, text(1, names.SCOPE)) + b"".join(message(2, item) for item in items)
        # Level 1: a third of the time of the default for a tenth more bytes.
        return gzip.compress(message(1, self._resource + message(2, scope)), compresslevel=1, mtime=0)


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Return *items* in lists of at most *size*.

    >>> list(chunks("abc", 2))
    [['a', 'b'], ['c']]
    """
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _series_points(interval: Interval, dimensions: Dimensions, delta: Delta) -> Iterator[tuple[str, bytes]]:
    """Yield metric and ExponentialHistogramDataPoint."""
    series, times = _attributes(1, series_attributes(dimensions)), _times(interval)
    for metric, key, histogram in delta.counts.histograms():
        own = _attributes(1, {names.METRICS[metric]: key})
        yield metric, series + own + times + _numbers(histogram, summed=metric not in names.TIME_METRICS)


def _numbers(histogram: Histogram, *, summed: bool) -> bytes:
    offset, counts = dense(histogram.buckets)
    return b"".join(
        (
            fixed(4, histogram.zero + sum(counts)),
            # A sum of microseconds over buckets of seconds would be no sum of what the point counts.
            double(5, histogram.sum) if summed else b"",
            signed(6, histogram.scale),
            fixed(7, histogram.zero),
            message(8, signed(1, offset) + packed(2, counts)),
            double(14, ZERO_THRESHOLD),
        )
    )


def _histogram_metric(name: str, points: Iterable[bytes]) -> bytes:
    """Return a Metric that is an ExponentialHistogram."""
    return text(1, name) + text(3, names.UNITS.get(name, "s")) + message(10, b"".join(points) + whole(2, DELTA))


def _dropped_metric(interval: Interval, dropped: Mapping[str, int]) -> bytes:
    """Return a Metric that is a monotonic Sum."""
    points = b"".join(
        message(1, _times(interval) + fixed(6, count) + _attributes(7, {DROP_REASON: reason}))
        for reason, count in dropped.items()
    )
    total = points + whole(2, DELTA) + whole(3, value=True)
    return text(1, names.REQUESTS_DROPPED) + text(3, "{request}") + message(7, total)


def _machine_metrics(interval: Interval, readings: Iterable[Reading]) -> Iterator[bytes]:
    """Yield a Metric for each that is read of the machine: a Gauge, or a Sum."""
    points: defaultdict[tuple[str, str, Kind], list[bytes]] = defaultdict(list)
    for measure, value, device in readings:
        seconds = (interval.end_ns - interval.start_ns) / 1e9 if measure.kind == "rate" else 1.0
        point = _times(interval) + double(4, value * seconds) + _attributes(7, _about(measure, device))
        points[measure.metric, measure.unit, measure.kind].append(message(1, point))
    for (name, unit, kind), own in points.items():
        told = b"".join(own)
        if kind == "level":
            told += whole(2, CUMULATIVE)
        elif kind == "rate":
            told += whole(2, DELTA) + whole(3, value=True)
        yield text(1, name) + text(3, unit) + message(5 if kind == "gauge" else 7, told)


def _about(measure: Measure, device: str) -> dict[str, str]:
    """Return the attributes that distinguish the points of a metric."""
    about: dict[str, str] = {}
    if measure.of == "gpu":
        about = {hardware.GPU_ID: device, hardware.GPU_TYPE: "gpu"}
    elif measure.of == "device":
        about = {names.DEVICE: device}
    return {**about, hardware.DIRECTION: measure.direction} if measure.direction else about


def _times(interval: Interval) -> bytes:
    """Return the two times of a data point."""
    return fixed(2, interval.start_ns) + fixed(3, interval.end_ns)


def _span(trace_id: bytes, span: Span, anchor_ns: int) -> bytes:
    return b"".join(
        (
            message(1, trace_id),
            message(2, bytes.fromhex(span.span_id)),
            message(4, bytes.fromhex(span.parent_id)),
            text(5, span.name),
            whole(6, SPAN_SERVER if span.kind == "server" else SPAN_INTERNAL),
            fixed(7, anchor_ns + span.start),
            fixed(8, anchor_ns + span.end),
            _attributes(9, span.attributes),
            message(15, whole(3, STATUS_ERROR)) if span.failed else b"",
        )
    )


def _attributes(number: int, values: Mapping[str, str | int]) -> bytes:
    """Return *values* as field *number*, one KeyValue each."""
    return b"".join(
        message(number, text(1, key) + message(2, whole(3, value) if isinstance(value, int) else text(1, value)))
        for key, value in values.items()
    )
