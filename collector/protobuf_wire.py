"""OTLP in its binary form, read with the message classes of the `opentelemetry-proto` package."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from ..core.errors import WireError
from .protobuf_bulk import check_bulk
from .wire import (
    EXPONENTIAL_HISTOGRAM,
    SCOPES,
    SUM,
    WANTED,
    Attributes,
    Event,
    HistogramPoint,
    Metric,
    NumberPoint,
    ResourceMetrics,
    ResourceSpans,
    Scalar,
    Span,
)

_Request = TypeVar("_Request", bound=Message)
_JSON_KIND = {"exponential_histogram": EXPONENTIAL_HISTOGRAM}


def read_metrics(body: bytes) -> list[ResourceMetrics]:
    """Read an ExportMetricsServiceRequest.

    Raises:
        TooLargeError: It has more than `MAX_OBJECTS` messages or `MAX_ELEMENTS` numbers.
        WireError: *body* is none.
    """
    request = _parse(ExportMetricsServiceRequest(), body)
    return [
        ResourceMetrics(
            _attributes(item.resource.attributes),
            [_metric(metric) for scope in item.scope_metrics for metric in scope.metrics],
        )
        for item in request.resource_metrics
    ]


def read_spans(body: bytes) -> list[ResourceSpans]:
    """Read an ExportTraceServiceRequest.

    Raises:
        TooLargeError: It has more than `MAX_OBJECTS` messages or `MAX_ELEMENTS` numbers.
        WireError: *body* is none.
    """
    request = _parse(ExportTraceServiceRequest(), body)
    return [_resource_spans(item) for item in request.resource_spans]


def _resource_spans(item: trace_pb2.ResourceSpans) -> ResourceSpans:
    spans: dict[str, list[Span]] = {}
    foreign = 0
    for scope in item.scope_spans:
        if scope.scope.name in SCOPES:
            spans.setdefault(scope.scope.name, []).extend(_span(span) for span in scope.spans)
        else:
            foreign += len(scope.spans)
    return ResourceSpans(_attributes(item.resource.attributes), spans, foreign)


def _parse(request: _Request, body: bytes) -> _Request:
    check_bulk(body, cast("Descriptor", request.DESCRIPTOR))
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        msg = f"the body is not a valid {type(request).__name__} ({error}); it holds {len(body)} bytes"
        raise WireError(msg) from error
    return request


def _metric(metric: metrics_pb2.Metric) -> Metric:
    field = metric.WhichOneof("data")
    if field is None:
        return Metric(metric.name, "", 0)
    kind = _JSON_KIND.get(field, field)
    result = Metric(metric.name, kind, len(getattr(metric, field).data_points))
    if WANTED.get(metric.name) != kind:
        return result
    if kind == SUM:
        result.temporality, result.monotonic = metric.sum.aggregation_temporality, metric.sum.is_monotonic
        result.numbers = [_number(point) for point in metric.sum.data_points]
    else:
        result.temporality = metric.exponential_histogram.aggregation_temporality
        result.histograms = [_histogram(point) for point in metric.exponential_histogram.data_points]
    return result


def _histogram(point: metrics_pb2.ExponentialHistogramDataPoint) -> HistogramPoint:
    return HistogramPoint(
        attributes=_attributes(point.attributes),
        start_ns=point.start_time_unix_nano,
        time_ns=point.time_unix_nano,
        flags=point.flags,
        count=point.count,
        sum=point.sum if point.HasField("sum") else None,
        scale=point.scale,
        zero=point.zero_count,
        offset=point.positive.offset,
        counts=point.positive.bucket_counts,
        negative=any(point.negative.bucket_counts),
    )


def _number(point: metrics_pb2.NumberDataPoint) -> NumberPoint:
    return NumberPoint(point.as_double if point.HasField("as_double") else point.as_int)


def _span(span: trace_pb2.Span) -> Span:
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        error=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        attributes=_attributes(span.attributes),
        events=[Event(event.name, event.time_unix_nano) for event in span.events],
    )


def _attributes(pairs: Iterable[KeyValue]) -> Attributes:
    found: Attributes = {}
    for pair in pairs:
        value = _scalar(pair.value)
        if value is not None:
            found[pair.key] = value
    return found


def _scalar(value: AnyValue) -> Scalar | None:
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
