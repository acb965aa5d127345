"""Decoded OTLP exports, and their limits.

Fields that the collector does not use are left out: non-scalar attributes, exemplars and links. Times are Unix nanoseconds, as in
OTLP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from ...core import names
from ...core.errors import WireError
from ...core.hardware import BY_METRIC

Scalar: TypeAlias = str | int | float | bool
Attributes: TypeAlias = dict[str, Scalar]
# Changes the attributes of a resource before validation: an authenticated sender may not claim any environment.
Correction: TypeAlias = Callable[[Attributes], None]
ExportSignal: TypeAlias = Literal["metrics", "traces", "logs"]
PROTOBUF, JSON = "application/x-protobuf", "application/json"

# opentelemetry/proto/metrics/v1/metrics.proto, AggregationTemporality and DataPointFlags.
DELTA, CUMULATIVE = 1, 2
NO_RECORDED_VALUE = 1

# Fields of the oneof `data` of a metric.
EXPONENTIAL_HISTOGRAM, GAUGE, SUM = "exponential_histogram", "gauge", "sum"
KINDS = {5: GAUGE, 7: SUM, 9: "histogram", 10: EXPONENTIAL_HISTOGRAM, 11: "summary"}
# Kind of the metrics whose points are decoded; points of other metrics are only counted.
WANTED = {**dict.fromkeys(names.METRICS, EXPONENTIAL_HISTOGRAM), names.REQUESTS_DROPPED: SUM}
DECODED = {*WANTED.items(), *((name, kind) for name in BY_METRIC for kind in (GAUGE, SUM))}

# Limits of one export. An object (resource, metric, point, attribute) costs a few hundred bytes and a few microseconds, an
# element (mostly bucket counts) up to 60 bytes, and either as little as two bytes on the wire, so the size of a body alone is
# no limit. The largest exports of the agent have a tenth of this.
MAX_OBJECTS = 250_000
MAX_ELEMENTS = 2_000_000


class BodyTooLargeError(WireError):
    """The payload exceeds a size limit; *head* is its start as received, if known."""

    def __init__(self, message: str, head: bytes = b"") -> None:
        super().__init__(message)
        self.head = head


class UnsupportedError(WireError):
    """The media type or Content-Encoding of the payload is not supported."""


@dataclass(slots=True)
class NumberPoint:
    value: int | float
    attributes: Attributes
    start_ns: int  # start of the interval of a sum, (start_ns, time_ns]; 0 if it was not sent [Unix nanoseconds]
    time_ns: int  # end of the interval of a sum, or time of a gauge [Unix nanoseconds]
    flags: int  # DataPointFlags of OTLP


@dataclass(slots=True)
class Metric:
    name: str
    kind: str  # one of `KINDS`, "" for an unknown kind
    size: int  # number of data points
    temporality: int = 0  # AggregationTemporality of OTLP
    monotonic: bool = False
    # Serialized points, ExponentialHistogramDataPoint, of a metric in `DECODED`
    histograms: list[bytes] = field(default_factory=list[bytes])
    numbers: list[NumberPoint] = field(default_factory=list[NumberPoint])  # points of a sum or gauge in `DECODED`


@dataclass(slots=True)
class ResourceMetrics:
    resource: Attributes
    metrics: list[Metric]


class SpanEvent(NamedTuple):
    name: str
    time_ns: int


@dataclass(slots=True)
class RetainedSpan:
    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16 hexadecimal digits
    parent_id: str  # 16 hexadecimal digits, "" for a root
    name: str
    start_ns: int  # start time [Unix nanoseconds]
    end_ns: int  # end time [Unix nanoseconds]
    error: bool  # whether the status is an error
    attributes: Attributes


@dataclass(slots=True)
class ResourceSpans:
    resource: Attributes
    spans: list[RetainedSpan]
