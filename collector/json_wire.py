"""OTLP in its JSON form.

Read by hand because OTLP departs from protobuf's JSON mapping: trace and span ids are hexadecimal, enumerations are
integers. 64-bit integers come as strings or numbers, fields nobody knows are passed over, null means "not set".

Source: OpenTelemetry protocol specification, "JSON Protobuf Encoding".
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, TypeAlias, cast

from ..core.errors import WireError
from .wire import (
    KINDS,
    MAX_ELEMENTS,
    MAX_OBJECTS,
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
    TooLargeError,
)

_Object: TypeAlias = dict[str, Any]

_INT64, _UINT64, _INT32 = (-(2**63), 2**63 - 1), (-(2**63), 2**64 - 1), (-(2**31), 2**31 - 1)
# At most the 20 digits of 2**64.
_INTEGER = re.compile(r"-?[0-9]{1,20}")
# A list of counts, joined, each shorter than the 19 digits of 2**63.
_INTEGERS, _SHORT = re.compile(r"[0-9]+(?:,[0-9]+)*"), 19
# opentelemetry/proto/trace/v1/trace.proto, Status.StatusCode.
_STATUS_ERROR = 2


def read_metrics(body: bytes) -> list[ResourceMetrics]:
    """Read an ExportMetricsServiceRequest.

    Raises:
        TooLargeError: It has more than `MAX_OBJECTS` objects or `MAX_ELEMENTS` list elements.
        WireError: *body* is no JSON, or a field that is read has the wrong type.
    """
    return [
        ResourceMetrics(
            _attributes(_object(item, "resource")),
            [_metric(metric) for scope in _objects(item, "scopeMetrics") for metric in _objects(scope, "metrics")],
        )
        for item in _objects(_load(body), "resourceMetrics")
    ]


def read_spans(body: bytes) -> list[ResourceSpans]:
    """Read an ExportTraceServiceRequest.

    Raises:
        TooLargeError: It has more than `MAX_OBJECTS` objects or `MAX_ELEMENTS` list elements.
        WireError: *body* is no JSON, or a field that is read has the wrong type.
    """
    return [_resource_spans(item) for item in _objects(_load(body), "resourceSpans")]


def _load(body: bytes) -> _Object:
    if body.count(b"{") > MAX_OBJECTS or body.count(b",") + body.count(b"[") > MAX_ELEMENTS:
        msg = f"the body has more than {MAX_OBJECTS} objects or {MAX_ELEMENTS} list elements; send smaller batches"
        raise TooLargeError(msg)
    try:
        root = json.loads(body.decode(), parse_constant=_refuse_constant)
    except RecursionError as error:
        msg = "the body is not OTLP: its JSON is nested too deeply"
        raise WireError(msg) from error
    except ValueError as error:  # bad JSON, bad UTF-8, or an integer of thousands of digits
        msg = f"the body is not valid JSON ({error})"
        raise WireError(msg) from error
    if not isinstance(root, dict):
        _refuse("the body", "an object", root)
    return cast("_Object", root)


def _resource_spans(item: _Object) -> ResourceSpans:
    spans: dict[str, list[Span]] = {}
    foreign = 0
    for scope in _objects(item, "scopeSpans"):
        found = _objects(scope, "spans")
        name = _string(_object(scope, "scope"), "name")
        if name in SCOPES:
            spans.setdefault(name, []).extend(_span(span) for span in found)
        else:
            foreign += len(found)
    return ResourceSpans(_attributes(_object(item, "resource")), spans, foreign)


def _metric(metric: _Object) -> Metric:
    name = _string(metric, "name")
    kind = next((kind for kind in KINDS if metric.get(kind) is not None), "")
    if not kind:
        return Metric(name, kind, 0)
    data = _object(metric, kind)
    points = _objects(data, "dataPoints")
    result = Metric(name, kind, len(points))
    if WANTED.get(name) != kind:
        return result
    result.temporality = _int(data, "aggregationTemporality", _INT32)
    if kind == SUM:
        result.monotonic = _bool(data, "isMonotonic")
        result.numbers = [_number(point) for point in points]
    else:
        result.histograms = [_histogram(point) for point in points]
    return result


def _histogram(point: _Object) -> HistogramPoint:
    positive = _object(point, "positive")
    return HistogramPoint(
        attributes=_attributes(point),
        start_ns=_int(point, "startTimeUnixNano", _UINT64),
        time_ns=_int(point, "timeUnixNano", _UINT64),
        flags=_int(point, "flags", _UINT64),
        count=_int(point, "count", _UINT64),
        sum=None if point.get("sum") is None else _double(point, "sum"),
        scale=_int(point, "scale", _INT32),
        zero=_int(point, "zeroCount", _UINT64),
        offset=_int(positive, "offset", _INT32),
        counts=_counts(positive),
        negative=any(_counts(_object(point, "negative"))),
    )


def _number(point: _Object) -> NumberPoint:
    if point.get("asDouble") is not None:
        return NumberPoint(_double(point, "asDouble"))
    return NumberPoint(_int(point, "asInt", _INT64))


def _span(span: _Object) -> Span:
    return Span(
        trace_id=_identifier(span, "traceId"),
        span_id=_identifier(span, "spanId"),
        parent_id=_identifier(span, "parentSpanId"),
        name=_string(span, "name"),
        start_ns=_int(span, "startTimeUnixNano", _UINT64),
        end_ns=_int(span, "endTimeUnixNano", _UINT64),
        error=_int(_object(span, "status"), "code", _INT32) == _STATUS_ERROR,
        attributes=_attributes(span),
        events=[
            Event(_string(event, "name"), _int(event, "timeUnixNano", _UINT64)) for event in _objects(span, "events")
        ],
    )


def _attributes(node: _Object) -> Attributes:
    found: Attributes = {}
    for pair in _objects(node, "attributes"):
        value = _scalar(_object(pair, "value"))
        if value is not None:
            found[_string(pair, "key")] = value
    return found


def _scalar(value: _Object) -> Scalar | None:
    """Return what an AnyValue holds, or None for nothing, bytes, a list or a map: none of these is a dimension."""
    if value.get("stringValue") is not None:
        return _string(value, "stringValue")
    if value.get("intValue") is not None:
        return _int(value, "intValue", _INT64)
    if value.get("doubleValue") is not None:
        return _double(value, "doubleValue")
    if value.get("boolValue") is not None:
        return _bool(value, "boolValue")
    return None


def _objects(node: _Object, key: str) -> list[_Object]:
    found = node.get(key)
    if found is None:
        return []
    if type(found) is not list:
        _refuse(key, "a list", found)
    for index, item in enumerate(found):
        if type(item) is not dict:
            _refuse(f"{key}[{index}]", "an object", item)
    return found


def _object(node: _Object, key: str) -> _Object:
    found = node.get(key)
    if found is None:
        return {}
    if type(found) is not dict:
        _refuse(key, "an object", found)
    return found


def _string(node: _Object, key: str) -> str:
    found = node.get(key)
    if found is None:
        return ""
    if type(found) is not str:
        _refuse(key, "a string", found)
    if not found.isascii():
        try:
            found.encode()
        except UnicodeEncodeError as error:  # "\ud800": JSON can write half a character, UTF-8 cannot
            msg = f"{key} is not valid Unicode ({error.reason})"
            raise WireError(msg) from error
    return found


def _bool(node: _Object, key: str) -> bool:
    found = node.get(key)
    if found is None:
        return False
    if type(found) is not bool:
        _refuse(key, "true or false", found)
    return found


def _int(node: _Object, key: str, span: tuple[int, int]) -> int:
    found = node.get(key)
    return 0 if found is None else _integer(found, key, span)


def _integer(found: Any, key: str, span: tuple[int, int]) -> int:
    value = found
    if type(value) is str:
        value = int(value) if _INTEGER.fullmatch(value) else None
    elif type(value) is float:  # JSON has one kind of number: 5.0 is an integer
        value = int(value) if value.is_integer() else None
    if type(value) is not int or not span[0] <= value <= span[1]:
        _refuse(key, f"an integer between {span[0]} and {span[1]}", found)
    return value


def _counts(buckets: _Object) -> list[int]:
    found = buckets.get("bucketCounts")
    if not found:
        return []
    if type(found) is not list:
        _refuse("bucketCounts", "a list", found)
    if set(map(type, found)) == {str} and max(map(len, found)) < _SHORT and _INTEGERS.fullmatch(",".join(found)):
        return list(map(int, found))  # what every exporter sends, at a tenth of the cost
    return [_integer(count, "bucketCounts", _UINT64) for count in found]


def _double(node: _Object, key: str) -> float:
    found = node.get(key)
    if type(found) is float:
        return found
    # As strings, protobuf's JSON mapping allows "NaN", "Infinity" and "-Infinity"; whether they make sense comes later.
    if type(found) is not str and type(found) is not int:
        _refuse(key, "a number", found)
    try:
        return float(found)
    except (ValueError, OverflowError):
        _refuse(key, "a number", found)


def _identifier(node: _Object, key: str) -> str:
    found = _string(node, key).lower()
    try:
        return bytes.fromhex(found).hex()
    except ValueError:
        _refuse(key, "hexadecimal digits", found)


def _refuse_constant(constant: str) -> NoReturn:
    msg = f"{constant} is no JSON number"
    raise ValueError(msg)


def _refuse(key: str, wanted: str, found: Any) -> NoReturn:
    shown = "an object" if type(found) is dict else "a list" if type(found) is list else repr(found)[:40]
    msg = f"{key} must be {wanted}, got {shown}"
    raise WireError(msg)
