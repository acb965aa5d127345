"""OTLP metrics in their binary form; the points of histograms stay as they came, to be read many at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint, NumberDataPoint

from ...core.errors import WireError
from .model import (
    EXPONENTIAL_HISTOGRAM,
    MAX_OBJECTS,
    Attributes,
    HistogramPoint,
    Metric,
    NumberPoint,
    ResourceMetrics,
    Scalar,
    TooLargeError,
    is_wanted,
)
from .protobuf_bulk import check_bulk
from .protobuf_lite import MetricsExport

# A body of two-byte messages becomes 60 MB once it is parsed if it is of this size. A larger one is walked first.
WALKED_BYTES = 1024 * 1024
# Room for far more buckets than are believed.
MAX_POINT_BYTES = 256 * 1024

_Read = TypeVar("_Read", bound=Message)
_JSON_KIND = {"exponential_histogram": EXPONENTIAL_HISTOGRAM}


def read_metrics(body: bytes) -> list[ResourceMetrics]:
    """Read an ExportMetricsServiceRequest.

    Raises:
        TooLargeError: It has more than `MAX_OBJECTS` messages, or a point of more than `MAX_POINT_BYTES`.
        WireError: *body* is none.
    """
    if len(body) > WALKED_BYTES:
        check_bulk(body, MetricsExport.DESCRIPTOR)
    request = _parse(MetricsExport(), body)
    scopes = [scope for item in request.resource_metrics for scope in item.scope_metrics]
    if len(request.resource_metrics) + sum(1 + len(scope.metrics) for scope in scopes) > MAX_OBJECTS:
        msg = f"the body has more than {MAX_OBJECTS} resources, scopes and metrics; send smaller batches"
        raise TooLargeError(msg)
    return [
        ResourceMetrics(
            _attributes(item.resource.attributes),
            [_metric(metric) for scope in item.scope_metrics for metric in scope.metrics],
        )
        for item in request.resource_metrics
    ]


def read_point(point: bytes) -> HistogramPoint:
    """Read a serialized ExponentialHistogramDataPoint.

    Raises:
        WireError: *point* is none.
    """
    found = _parse(ExponentialHistogramDataPoint(), point)
    return HistogramPoint(
        attributes=_attributes(found.attributes),
        start_ns=found.start_time_unix_nano,
        time_ns=found.time_unix_nano,
        flags=found.flags,
        count=found.count,
        sum=found.sum if found.HasField("sum") else None,
        scale=found.scale,
        zero=found.zero_count,
        offset=found.positive.offset,
        counts=found.positive.bucket_counts,
        negative=any(found.negative.bucket_counts),
    )


def read_attributes(attributes: bytes) -> Attributes:
    """Read attributes as they stand in a point, one after the other.

    Raises:
        WireError: They are none.
    """
    return _attributes(_parse(KeyValueList(), attributes).values)


def _parse(message: _Read, body: bytes) -> _Read:
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        msg = f"the body is not a valid ExportMetricsServiceRequest; it holds {len(body)} bytes"
        raise WireError(msg) from error
    return message


def _metric(metric: Any) -> Metric:
    field: str | None = metric.WhichOneof("data")
    if field is None:
        return Metric(metric.name, "", 0)
    kind = _JSON_KIND.get(field, field)
    data = getattr(metric, field)
    points = cast("list[bytes]", [*data.data_points])
    if max(map(len, points), default=0) > MAX_POINT_BYTES:
        msg = f"a data point of {metric.name} has more than {MAX_POINT_BYTES} bytes; send smaller batches of coarser points"
        raise TooLargeError(msg)
    result = Metric(metric.name, kind, len(points))
    if not is_wanted(metric.name, kind):
        return result
    result.temporality = data.aggregation_temporality
    if kind == EXPONENTIAL_HISTOGRAM:
        result.histograms = points
    else:
        result.monotonic = data.is_monotonic
        result.numbers = [_number(point) for point in points]
    return result


def _number(point: bytes) -> NumberPoint:
    found = _parse(NumberDataPoint(), point)
    return NumberPoint(
        value=found.as_double if found.HasField("as_double") else found.as_int,
        attributes=_attributes(found.attributes),
        start_ns=found.start_time_unix_nano,
        time_ns=found.time_unix_nano,
        flags=found.flags,
    )


def _attributes(pairs: Iterable[KeyValue]) -> Attributes:
    found: Attributes = {}
    for pair in pairs:
        value = scalar(pair.value)
        if value is not None:
            found[pair.key] = value
    return found


def scalar(value: AnyValue) -> Scalar | None:
    """Return what *value* holds; None for nothing, bytes, a list or a map."""
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
