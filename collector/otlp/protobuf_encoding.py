"""Decoding of OTLP metrics in protobuf.

`MetricsExport` leaves data points serialized, so that histogram points can be decoded in columns. A point with an unusual
encoding is brought into the usual one first (`_normalized`).

Source: opentelemetry/proto/metrics/v1/metrics.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint, NumberDataPoint
from opentelemetry.proto.resource.v1 import resource_pb2

from ...core.columns import Bools, Buckets, Columnar, HistogramArrays, Ints, varints_ending_at
from ...core.errors import WireError
from ...core.varint import BITS, CONTINUES
from . import model
from .message_classes import Messages, check_bulk, message_classes
from .scan import Scan, Unsigned

_MESSAGES: Messages = {
    "MetricsExport": {1: ("resource_metrics", "*ResourceMetrics")},
    "ResourceMetrics": {
        1: ("resource", str(resource_pb2.Resource.DESCRIPTOR.full_name)),
        2: ("scope_metrics", "*ScopeMetrics"),
    },
    "ScopeMetrics": {2: ("metrics", "*Metric")},
    "Metric": {1: ("name", "string")} | {number: (kind, "|Data") for number, kind in model.KINDS.items()},
    "Data": {1: ("data_points", "*bytes"), 2: ("aggregation_temporality", "int32"), 3: ("is_monotonic", "bool")},
}
# Created at run time, so its fields are not known to type checkers.
MetricsExport: Any = message_classes(
    "stagelens.lite", _MESSAGES, descriptor_pool.Default(), str(resource_pb2.DESCRIPTOR.name)
)["MetricsExport"]

# A body of this size with two-byte messages needs 60 MB once parsed. Larger ones are scanned first.
WALKED_BYTES = 1024 * 1024
# Enough for far more buckets than a valid point has.
MAX_POINT_BYTES = 256 * 1024
# Tag of `int_value` in AnyValue, and the size of one with a value from 128 to 16,383.
_INT_TAG, _TWO_BYTE_INT = 0x18, 3

_Read = TypeVar("_Read", bound=Message)


def read_metrics(body: bytes) -> list[model.ResourceMetrics]:
    """Decode an ExportMetricsServiceRequest.

    Raises:
        BodyTooLargeError: The export has more than `MAX_OBJECTS` messages, or a point of more than `MAX_POINT_BYTES`.
        WireError: *body* is malformed.
    """
    if len(body) > WALKED_BYTES:
        check_bulk(body, MetricsExport.DESCRIPTOR)
    request = _parse(MetricsExport(), body)
    scopes = [scope for item in request.resource_metrics for scope in item.scope_metrics]
    if len(request.resource_metrics) + sum(1 + len(scope.metrics) for scope in scopes) > model.MAX_OBJECTS:
        msg = f"the body has more than {model.MAX_OBJECTS} resources, scopes and metrics; send smaller batches"
        raise model.BodyTooLargeError(msg)
    return [
        model.ResourceMetrics(
            scalar_attributes(item.resource.attributes),
            [_metric(metric) for scope in item.scope_metrics for metric in scope.metrics],
        )
        for item in request.resource_metrics
    ]


def _metric(metric: Any) -> model.Metric:
    kind: str | None = metric.WhichOneof("data")
    if kind is None:
        return model.Metric(metric.name, "", 0)
    data = getattr(metric, kind)
    points: list[bytes] = [*data.data_points]
    if max(map(len, points), default=0) > MAX_POINT_BYTES:
        msg = f"a data point of {metric.name} has more than {MAX_POINT_BYTES} bytes; send smaller batches of coarser points"
        raise model.BodyTooLargeError(msg)
    result = model.Metric(metric.name, kind, len(points), data.aggregation_temporality, data.is_monotonic)
    if (metric.name, kind) in model.DECODED:
        if kind == model.EXPONENTIAL_HISTOGRAM:
            result.histograms = points
        else:
            result.numbers = [_number(point) for point in points]
    return result


def _number(point: bytes) -> model.NumberPoint:
    number = _parse(NumberDataPoint(), point)
    return model.NumberPoint(
        value=number.as_double if number.HasField("as_double") else number.as_int,
        attributes=scalar_attributes(number.attributes),
        start_ns=number.start_time_unix_nano,
        time_ns=number.time_unix_nano,
        flags=number.flags,
    )


def _parse(message: _Read, body: bytes) -> _Read:
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        msg = f"the body is not a valid ExportMetricsServiceRequest; it has {len(body)} bytes"
        raise WireError(msg) from error
    return message


def read_attributes(attributes: bytes) -> model.Attributes:
    return scalar_attributes(_parse(KeyValueList(), attributes).values)


def scalar_attributes(pairs: Iterable[KeyValue]) -> model.Attributes:
    scalars = ((pair.key, _scalar(pair.value)) for pair in pairs)
    return {key: value for key, value in scalars if value is not None}


def _scalar(value: AnyValue) -> model.Scalar | None:
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "bool_value":
            return value.bool_value
        case _:
            return None


def serialized_scalar(value: bytes) -> model.Scalar | None:
    # Most numbers are small, and parsing them as messages takes five times as long.
    if len(value) == _TWO_BYTE_INT and value[0] == _INT_TAG and value[2] < CONTINUES <= value[1]:
        return value[1] & BITS | value[2] << 7
    return _scalar(AnyValue.FromString(value))


@dataclass(frozen=True, slots=True)
class HistogramColumns(Columnar):
    """Data points in columns, each of shape (n,)."""

    attributes: list[bytes]  # serialized attributes of each point
    flags: Ints  # DataPointFlags of OTLP
    negative: Bools  # whether a value was negative
    start_ns: Unsigned
    time_ns: Unsigned
    count: Unsigned
    has_sum: Bools  # whether the point has a sum
    lengths: Ints  # number of positive buckets of each point, including empty ones
    # At the scale of the sender; only non-empty buckets. A count of 2**63 or more is negative. Without a sum it is 0.
    histograms: HistogramArrays


def histogram_columns(points: Sequence[bytes]) -> HistogramColumns:
    """Return *points*, serialized ExponentialHistogramDataPoints, as columns; WireError if one is malformed."""
    columns, odd = _scanned(points)
    rows = np.flatnonzero(odd).tolist()
    if not rows:
        return columns
    normalized = [_normalized(points[row]) for row in rows]
    usual = [*points]
    for row, (point, _, _) in zip(rows, normalized, strict=True):
        usual[row] = point.SerializeToString()
    columns, _ = _scanned(usual)
    for row, (point, attributes, is_negative) in zip(rows, normalized, strict=True):
        columns.attributes[row] = attributes
        columns.flags[row], columns.negative[row] = point.flags, is_negative
    return columns


def _normalized(point: bytes) -> tuple[ExponentialHistogramDataPoint, bytes, bool]:
    """Return *point* without unknown and unused fields, its serialized attributes, and whether it has negative values."""
    message = _parse(ExponentialHistogramDataPoint(), point)
    attributes = KeyValueList(values=message.attributes).SerializeToString()
    is_negative = any(message.negative.bucket_counts)
    for field in ("attributes", "negative", "exemplars"):
        message.ClearField(field)
    message.DiscardUnknownFields()
    return message, attributes, is_negative


def _scanned(points: Sequence[bytes]) -> tuple[HistogramColumns, Bools]:
    """Return *points* in columns, and a mask of the odd ones, whose columns are arbitrary."""
    scan = Scan.of(points)
    begin = scan.at
    scan.skip(1)
    attributes = scan.pieces(begin, scan.at)
    _, start_ns = scan.fixed64(2)
    _, time_ns = scan.fixed64(3)
    _, count = scan.fixed64(4)
    has_sum, total = scan.fixed64(5)
    scale = scan.sint32(6)
    _, zero = scan.fixed64(7)
    positive = scan.inside(8)
    offset = positive.sint32(1)
    counts = scan.pieces(*positive.contents(2))
    negative_begin, negative_end = scan.contents(9)
    flags = scan.uint32(10)
    scan.skip(11)
    for number in (12, 13, 14):
        scan.fixed64(number)
    buckets, lengths, is_truncated = _filled(counts, offset)
    odd = scan.odd | positive.odd | is_truncated | (negative_begin < negative_end)
    histograms = HistogramArrays(scale, zero.view(np.int64), total.view(np.float64), buckets)
    columns = HistogramColumns(
        attributes, flags, np.zeros(len(points), bool), start_ns, time_ns, count, has_sum, lengths, histograms
    )
    return columns, odd


def _filled(counts: Sequence[bytes], offset: Ints) -> tuple[Buckets, Ints, Bools]:
    """Return the non-empty buckets, their number by point from *offset* on, and a mask of points with a truncated count."""
    # A leading zero byte, so that every byte and the first point have a predecessor.
    data = np.frombuffer(b"\0" + b"".join(counts), np.uint8)
    edges = 1 + np.cumsum(np.fromiter(map(len, (b"", *counts)), np.int64, 1 + len(counts)))
    ends = data < CONTINUES
    # A zero count is a single zero byte.
    filled = ends & (data != 0)
    filled[1:] |= ends[1:] & ~ends[:-1]
    last = np.flatnonzero(filled)
    number = np.cumsum(ends, dtype=np.int32)
    first = number[edges - 1]
    offsets = np.searchsorted(last, edges)
    index = number[last] + np.repeat(offset - first[:-1] - 1, np.diff(offsets))
    return Buckets(offsets, index, varints_ending_at(data, last)), np.diff(first), ~ends[edges[1:] - 1]
