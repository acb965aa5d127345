"""Data model of OTLP exports, independent of the encoding.

`protobuf_encoding` and `json_encoding` build these objects; `ingest.points` and `ingest.retained_traces` validate them. Fields that
the collector does not use are left out: non-scalar attributes, exemplars and links. Times are Unix nanoseconds, as in OTLP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ...core import names
from ...core.errors import WireError
from ...core.hardware import BY_METRIC

Scalar: TypeAlias = str | int | float | bool
Attributes: TypeAlias = dict[str, Scalar]
# Changes the attributes of a resource before validation: an authenticated sender may not claim any environment.
Correction: TypeAlias = Callable[[Attributes], None]

# opentelemetry/proto/metrics/v1/metrics.proto, AggregationTemporality and DataPointFlags.
DELTA, CUMULATIVE = 1, 2
NO_RECORDED_VALUE = 1

# The names of a metric's `data` field in OTLP/JSON.
EXPONENTIAL_HISTOGRAM, GAUGE, SUM = "exponentialHistogram", "gauge", "sum"
KINDS = (GAUGE, SUM, "histogram", EXPONENTIAL_HISTOGRAM, "summary")
# Only points of these metrics are decoded; points of other metrics are only counted.
WANTED = {**dict.fromkeys(names.METRICS, EXPONENTIAL_HISTOGRAM), names.REQUESTS_DROPPED: SUM}


def is_wanted(name: str, kind: str) -> bool:
    """Return whether the points of a metric with this *name* and *kind* are decoded."""
    return WANTED.get(name) == kind or (name in BY_METRIC and kind in (GAUGE, SUM))


# Limits of one export. An object (resource, metric, point, attribute) costs a few hundred bytes and a few microseconds, an
# element (mostly bucket counts) up to 60 bytes, and either as little as two bytes on the wire, so the size of a body alone is
# no limit. The largest exports of the agent have a tenth of this.
MAX_OBJECTS = 250_000
MAX_ELEMENTS = 2_000_000


class BodyTooLargeError(WireError):
    """The payload exceeds a size limit."""


class UnsupportedError(WireError):
    """The media type or Content-Encoding of the payload is not supported."""


@dataclass(slots=True)
class HistogramPoint:
    """One data point of an exponential histogram.

    Args:
        attributes: Scalar attributes.
        start_ns: Start of the interval (start_ns, time_ns]. [Unix nanoseconds]
        time_ns: End of the interval. [Unix nanoseconds]
        flags: DataPointFlags of OTLP.
        count: Number of values.
        sum: Sum of the values; None if it was not sent.
        scale: Binary logarithm of the number of buckets per doubling.
        zero: Number of zero values.
        offset: Index of the first positive bucket.
        counts: Counts of the positive buckets, starting at *offset*.
        negative: Whether any value was negative.
    """

    attributes: Attributes
    start_ns: int
    time_ns: int
    flags: int
    count: int
    sum: float | None
    scale: int
    zero: int
    offset: int
    counts: Sequence[int]
    negative: bool


@dataclass(slots=True)
class NumberPoint:
    """One data point of a gauge or a sum.

    Args:
        value: Value of the gauge or sum.
        attributes: Scalar attributes.
        start_ns: Start of the interval of a sum, (start_ns, time_ns]; 0 if it was not sent. [Unix nanoseconds]
        time_ns: End of the interval of a sum, or time of a gauge. [Unix nanoseconds]
        flags: DataPointFlags of OTLP.
    """

    value: int | float
    attributes: Attributes
    start_ns: int
    time_ns: int
    flags: int


@dataclass(slots=True)
class Metric:
    """One metric of an export.

    Args:
        name: Name of the metric.
        kind: One of `KINDS`, "" for an unknown kind.
        size: Number of data points.
        temporality: AggregationTemporality of OTLP.
        monotonic: Whether a sum is monotonic.
        histograms: Points of a wanted exponential histogram; those of protobuf are serialized.
        numbers: Points of a wanted sum or gauge, decoded.
    """

    name: str
    kind: str
    size: int
    temporality: int = 0
    monotonic: bool = False
    histograms: Sequence[HistogramPoint] | Sequence[bytes] = field(default_factory=list[HistogramPoint])
    numbers: list[NumberPoint] = field(default_factory=list[NumberPoint])


@dataclass(slots=True)
class ResourceMetrics:
    """Metrics of one resource.

    Args:
        resource: Attributes of the resource.
        metrics: Metrics of all scopes.
    """

    resource: Attributes
    metrics: list[Metric]


class SpanEvent(NamedTuple):
    """Span event.

    Args:
        name: Name of the event.
        time_ns: Time of the event. [Unix nanoseconds]
    """

    name: str
    time_ns: int


@dataclass(slots=True)
class RetainedSpan:
    """Span of a Stagelens agent.

    Args:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        parent_id: 16 hexadecimal digits, "" for a root.
        name: Name of the span.
        start_ns: Start time. [Unix nanoseconds]
        end_ns: End time. [Unix nanoseconds]
        error: Whether the status is an error.
        attributes: Scalar attributes.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    error: bool
    attributes: Attributes


@dataclass(slots=True)
class ResourceSpans:
    """Spans of the traces that a Stagelens agent retained.

    Args:
        resource: Attributes of the resource.
        spans: Spans of all its traces.
    """

    resource: Attributes
    spans: list[RetainedSpan]
