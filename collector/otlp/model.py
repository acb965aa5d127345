"""What an OTLP export says, in the terms the collector works with, whichever encoding it came in.

`protobuf_wire` and `json_wire` build these; `points` and `spans` judge them. Only what the collector uses is kept: attributes
that are no scalars, exemplars and links are passed over. Times are nanoseconds since the Unix epoch, as on the wire.
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
# What is done to the attributes of a resource before they are believed: a sender may not claim everything.
Correction: TypeAlias = Callable[[Attributes], None]

# opentelemetry/proto/metrics/v1/metrics.proto, AggregationTemporality and DataPointFlags.
DELTA, CUMULATIVE = 1, 2
NO_RECORDED_VALUE = 1

# The names of a metric's `data` field in OTLP/JSON.
EXPONENTIAL_HISTOGRAM, GAUGE, SUM = "exponentialHistogram", "gauge", "sum"
KINDS = (GAUGE, SUM, "histogram", EXPONENTIAL_HISTOGRAM, "summary")
# Points are decoded for these names only; of other metrics it is enough to know how many points they have.
WANTED = {**dict.fromkeys(names.METRICS, EXPONENTIAL_HISTOGRAM), names.REQUESTS_DROPPED: SUM}


def is_wanted(name: str, kind: str) -> bool:
    """Say whether the points of a metric that is called *name*, and of *kind*, are decoded."""
    return WANTED.get(name) == kind or (name in BY_METRIC and kind in (GAUGE, SUM))


# What one export may hold: objects (resources, metrics, points, attributes) cost a few hundred bytes and a few
# microseconds each, elements (bucket counts above all) up to 60 bytes, and as little as two bytes on the wire: the size of
# a body bounds nothing by itself. The agent's largest exports have a tenth of it.
MAX_OBJECTS = 250_000
MAX_ELEMENTS = 2_000_000


class TooLargeError(WireError):
    """The payload is larger, once inflated, than the collector is willing to hold."""


class UnsupportedError(WireError):
    """The payload is of a type or an encoding the collector does not read."""


@dataclass(slots=True)
class HistogramPoint:
    """One data point of an exponential histogram.

    Args:
        attributes: Its scalar attributes.
        start_ns: The interval it stands for is (start_ns, time_ns].
        time_ns: The end of that interval.
        flags: OTLP's DataPointFlags.
        count: How many values.
        sum: Their sum; None when the sender left it out.
        scale: Buckets a doubling, as the exponent.
        zero: How many of the values were zero.
        offset: The index of the first positive bucket.
        counts: The counts of the positive buckets from there on.
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
        value: What it is, or what was counted since the point before.
        attributes: Its scalar attributes.
        start_ns: The interval a sum stands for is (start_ns, time_ns]; 0 where it is not said.
        time_ns: The end of that interval, or when it was so.
        flags: OTLP's DataPointFlags.
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
        name: Its name.
        kind: Which of `KINDS` it is, "" for one OTLP got after this was written.
        size: How many data points it has.
        temporality: OTLP's AggregationTemporality.
        monotonic: Whether a sum only grows.
        histograms: Its points, if it is a wanted exponential histogram; of protobuf serialized, as they came.
        numbers: Its points, if it is a wanted sum or gauge.
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
    """The metrics one process sent.

    Args:
        resource: What the process says about itself.
        metrics: Of all scopes.
    """

    resource: Attributes
    metrics: list[Metric]


class Event(NamedTuple):
    """Something that happened in a span.

    Args:
        name: What.
        time_ns: When.
    """

    name: str
    time_ns: int


@dataclass(slots=True)
class Span:
    """One span of ours.

    Args:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        parent_id: The same, or "" for none.
        name: What the sender called it.
        start_ns: When it began.
        end_ns: When it ended.
        error: Whether its status is an error.
        attributes: Its scalar attributes.
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
    """The spans of traces that one of our agents has kept.

    Args:
        resource: What its process says about itself.
        spans: Of all those traces.
    """

    resource: Attributes
    spans: list[Span]
