"""OTLP metrics in their JSON form; what the form asks for is written in `json_fields`."""

from __future__ import annotations

import re

from .json_fields import (
    INT32,
    INT64,
    UINT64,
    Object,
    attributes,
    boolean,
    double,
    integer,
    load,
    object_at,
    objects,
    refuse,
    string,
    whole,
)
from .model import EXPONENTIAL_HISTOGRAM, KINDS, HistogramPoint, Metric, NumberPoint, ResourceMetrics, is_wanted

# A list of counts, joined, each shorter than the 19 digits of 2**63.
_INTEGERS, _SHORT = re.compile(r"[0-9]+(?:,[0-9]+)*"), 19


def read_metrics(body: bytes) -> list[ResourceMetrics]:
    """Read an ExportMetricsServiceRequest.

    Raises:
        TooLargeError: It has more than `MAX_OBJECTS` objects or `MAX_ELEMENTS` list elements.
        WireError: *body* is no JSON, or a field that is read has the wrong type.
    """
    return [
        ResourceMetrics(
            attributes(object_at(item, "resource")),
            [_metric(metric) for scope in objects(item, "scopeMetrics") for metric in objects(scope, "metrics")],
        )
        for item in objects(load(body), "resourceMetrics")
    ]


def _metric(metric: Object) -> Metric:
    name = string(metric, "name")
    kind = next((kind for kind in KINDS if metric.get(kind) is not None), "")
    if not kind:
        return Metric(name, kind, 0)
    data = object_at(metric, kind)
    points = objects(data, "dataPoints")
    result = Metric(name, kind, len(points))
    if not is_wanted(name, kind):
        return result
    result.temporality = whole(data, "aggregationTemporality", INT32)
    if kind == EXPONENTIAL_HISTOGRAM:
        result.histograms = [_histogram(point) for point in points]
    else:
        result.monotonic = boolean(data, "isMonotonic")
        result.numbers = [_number(point) for point in points]
    return result


def _histogram(point: Object) -> HistogramPoint:
    positive = object_at(point, "positive")
    return HistogramPoint(
        attributes=attributes(point),
        start_ns=whole(point, "startTimeUnixNano", UINT64),
        time_ns=whole(point, "timeUnixNano", UINT64),
        flags=whole(point, "flags", UINT64),
        count=whole(point, "count", UINT64),
        sum=None if point.get("sum") is None else double(point, "sum"),
        scale=whole(point, "scale", INT32),
        zero=whole(point, "zeroCount", UINT64),
        offset=whole(positive, "offset", INT32),
        counts=_counts(positive),
        negative=any(_counts(object_at(point, "negative"))),
    )


def _number(point: Object) -> NumberPoint:
    is_double = point.get("asDouble") is not None
    return NumberPoint(
        value=double(point, "asDouble") if is_double else whole(point, "asInt", INT64),
        attributes=attributes(point),
        start_ns=whole(point, "startTimeUnixNano", UINT64),
        time_ns=whole(point, "timeUnixNano", UINT64),
        flags=whole(point, "flags", UINT64),
    )


def _counts(buckets: Object) -> list[int]:
    found = buckets.get("bucketCounts")
    if not found:
        return []
    if type(found) is not list:
        refuse("bucketCounts", "a list", found)
    if set(map(type, found)) == {str} and max(map(len, found)) < _SHORT and _INTEGERS.fullmatch(",".join(found)):
        return list(map(int, found))  # what every exporter sends, at a tenth of the cost
    return [integer(count, "bucketCounts", UINT64) for count in found]
