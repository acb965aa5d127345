"""Encoding of metrics and retained traces as OTLP protobuf; see `docs/design/wire.md`.

Series are encoded one by one with a pause in between: encoding a hundred series at once would hold the interpreter lock for as
long as a slow request takes. Field numbers are those of https://github.com/open-telemetry/opentelemetry-proto; fields are
written in the order of their message.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias, TypeVar

from ...core import hardware, names
from ...core.hardware import Kind, Measure, Reading
from ...core.histogram import ZERO_THRESHOLD, Histogram, dense
from ..agent.aggregate import Delta, Dimensions
from ..agent.spans import Span, Trace, series_attributes
from .protobuf import double_field, fixed64_field, integer_field, message_field, packed_field, signed_field, text_field

T = TypeVar("T")

DROP_REASON = "reason"

# Limits of one post: a few hundred kB before compression.
SERIES_A_BODY = 50
TRACES_A_BODY = 100
POINTS_A_BODY = 1000

# Metric, key (`names.METRICS`) and histogram.
Point: TypeAlias = tuple[str, str, Histogram]

# AggregationTemporality, SpanKind, StatusCode
DELTA, CUMULATIVE = 1, 2
SPAN_INTERNAL, SPAN_SERVER = 1, 2
STATUS_ERROR = 2


@dataclass(frozen=True, slots=True)
class ExportInterval:
    """Time interval of a delta, (start, end], in Unix nanoseconds."""

    start_ns: int
    end_ns: int


class Encoder:
    def __init__(self, resource: Mapping[str, str | int], pause: Callable[[], None]) -> None:
        self._resource = message_field(1, _attribute_fields(1, resource))
        self._pause = pause

    def metrics(
        self,
        interval: ExportInterval,
        deltas: Mapping[Dimensions, Delta],
        dropped: Mapping[str, int],
        readings: Iterable[Reading] = (),
    ) -> bytes:
        series = ((dimensions, delta.counts.histograms()) for dimensions, delta in deltas.items())
        metrics = self._histogram_metrics(interval, series)
        if dropped:
            metrics.append(_dropped_metric(interval, dropped))
        metrics += _machine_metrics(interval, readings)
        return self._body(metrics)

    def points(self, interval: ExportInterval, series: Iterable[tuple[Dimensions, Iterable[Point]]]) -> bytes:
        return self._body(self._histogram_metrics(interval, series))

    def _histogram_metrics(
        self, interval: ExportInterval, series: Iterable[tuple[Dimensions, Iterable[Point]]]
    ) -> list[bytes]:
        points: defaultdict[str, list[bytes]] = defaultdict(list)
        times = _interval_fields(interval)
        for dimensions, histograms in series:
            dimension_fields = _attribute_fields(1, series_attributes(dimensions))
            for metric, key, histogram in histograms:
                fields = dimension_fields + _attribute_fields(1, {names.METRICS[metric]: key}) + times
                fields += _histogram_fields(histogram, summed=metric not in names.TIME_METRICS)
                points[metric].append(message_field(1, fields))
            self._pause()
        return [_histogram_metric(name, points[name]) for name in names.METRICS if points[name]]

    def traces(self, traces: Iterable[Trace], anchor_ns: int) -> bytes:
        spans: list[bytes] = []
        for some in chunks(traces, 8):
            for trace in some:
                spans += (_span_fields(bytes.fromhex(trace.trace_id), span, anchor_ns) for span in trace.spans)
            self._pause()
        return self._body(spans)

    def _body(self, items: Iterable[bytes]) -> bytes:
        scope = message_field(1, text_field(1, names.SCOPE)) + b"".join(message_field(2, item) for item in items)
        # Level 1 takes a third of the time of the default level, for 10 % more bytes.
        return gzip.compress(message_field(1, self._resource + message_field(2, scope)), compresslevel=1, mtime=0)


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield *items* in lists of at most *size*.

    >>> list(chunks("abc", 2))
    [['a', 'b'], ['c']]
    """
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _histogram_fields(histogram: Histogram, *, summed: bool) -> bytes:
    offset, counts = dense(histogram.buckets)
    return b"".join(
        (
            fixed64_field(4, histogram.zero + sum(counts)),
            # The sum of a time histogram is in another unit than its buckets, so it is left out.
            double_field(5, histogram.sum) if summed else b"",
            signed_field(6, histogram.scale),
            fixed64_field(7, histogram.zero),
            message_field(8, signed_field(1, offset) + packed_field(2, counts)),
            double_field(14, ZERO_THRESHOLD),
        )
    )


def _histogram_metric(name: str, points: Iterable[bytes]) -> bytes:
    return (
        text_field(1, name)
        + text_field(3, names.UNITS.get(name, "s"))
        + message_field(10, b"".join(points) + integer_field(2, DELTA))
    )


def _dropped_metric(interval: ExportInterval, dropped: Mapping[str, int]) -> bytes:
    points = b"".join(
        message_field(
            1, _interval_fields(interval) + fixed64_field(6, count) + _attribute_fields(7, {DROP_REASON: reason})
        )
        for reason, count in dropped.items()
    )
    total = points + integer_field(2, DELTA) + integer_field(3, value=True)
    return text_field(1, names.REQUESTS_DROPPED) + text_field(3, "{request}") + message_field(7, total)


def _machine_metrics(interval: ExportInterval, readings: Iterable[Reading]) -> Iterator[bytes]:
    points: defaultdict[tuple[str, str, Kind], list[bytes]] = defaultdict(list)
    for measure, value, device in readings:
        seconds = (interval.end_ns - interval.start_ns) / 1e9 if measure.kind == "rate" else 1.0
        point = (
            _interval_fields(interval)
            + double_field(4, value * seconds)
            + _attribute_fields(7, _device_attributes(measure, device))
        )
        points[measure.metric, measure.unit, measure.kind].append(message_field(1, point))
    for (name, unit, kind), encoded_points in points.items():
        point_fields = b"".join(encoded_points)
        if kind == "level":
            point_fields += integer_field(2, CUMULATIVE)
        elif kind == "rate":
            point_fields += integer_field(2, DELTA) + integer_field(3, value=True)
        yield text_field(1, name) + text_field(3, unit) + message_field(5 if kind == "gauge" else 7, point_fields)


def _device_attributes(measure: Measure, device: str) -> dict[str, str]:
    about: dict[str, str] = {}
    if measure.of == "gpu":
        about = {hardware.GPU_ID: device, hardware.GPU_TYPE: "gpu"}
    elif measure.of == "device":
        about = {names.DEVICE: device}
    return {**about, hardware.DIRECTION: measure.direction} if measure.direction else about


def _interval_fields(interval: ExportInterval) -> bytes:
    return fixed64_field(2, interval.start_ns) + fixed64_field(3, interval.end_ns)


def _span_fields(trace_id: bytes, span: Span, anchor_ns: int) -> bytes:
    return b"".join(
        (
            message_field(1, trace_id),
            message_field(2, bytes.fromhex(span.span_id)),
            message_field(4, bytes.fromhex(span.parent_id)),
            text_field(5, span.name),
            integer_field(6, SPAN_SERVER if span.kind == "server" else SPAN_INTERNAL),
            fixed64_field(7, anchor_ns + span.start),
            fixed64_field(8, anchor_ns + span.end),
            _attribute_fields(9, span.attributes),
            message_field(15, integer_field(3, STATUS_ERROR)) if span.failed else b"",
        )
    )


def _attribute_fields(number: int, values: Mapping[str, str | int]) -> bytes:
    return b"".join(
        message_field(
            number,
            text_field(1, key)
            + message_field(2, integer_field(3, value) if isinstance(value, int) else text_field(1, value)),
        )
        for key, value in values.items()
    )
