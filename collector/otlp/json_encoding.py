"""Decoding of OTLP metrics in JSON, and typed access to the fields of OTLP JSON objects.

OTLP differs from the JSON mapping of protobuf: trace and span ids are hexadecimal, and enumerations are integers. 64-bit integers
are strings or numbers, unknown fields are ignored, and null means "not set". All functions raise `WireError` for a field of the
wrong type.

Source: OpenTelemetry protocol specification, "JSON Protobuf Encoding".
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, TypeAlias, cast

from ...core.errors import WireError
from . import model

Object: TypeAlias = dict[str, Any]

INT64, UINT64, INT32 = (-(2**63), 2**63 - 1), (-(2**63), 2**64 - 1), (-(2**31), 2**31 - 1)
# At most the 20 digits of 2**64.
_INTEGER = re.compile(r"-?[0-9]{1,20}")


def load(body: bytes) -> Object:
    if body.count(b"{") > model.MAX_OBJECTS or body.count(b",") + body.count(b"[") > model.MAX_ELEMENTS:
        msg = f"the body has more than {model.MAX_OBJECTS} objects or {model.MAX_ELEMENTS} list elements; send smaller batches"
        raise model.BodyTooLargeError(msg)
    try:
        root = json.loads(body.decode(), parse_constant=_refuse_constant)
    except RecursionError as error:
        msg = "the body is not OTLP: its JSON is nested too deeply"
        raise WireError(msg) from error
    except ValueError as error:  # bad JSON, bad UTF-8, or an integer of thousands of digits
        msg = f"the body is not valid JSON ({error})"
        raise WireError(msg) from error
    if not isinstance(root, dict):
        refuse("the body", "an object", root)
    return cast("Object", root)


def attributes(node: Object) -> model.Attributes:
    """Return the scalar `attributes` of *node*; for a duplicate key the last value."""
    found: model.Attributes = {}
    for pair in objects(node, "attributes"):
        value = json_scalar(object_at(pair, "value"))
        if value is not None:
            found[string(pair, "key")] = value
    return found


def json_scalar(value: Object) -> model.Scalar | None:
    """Return the scalar in an AnyValue, or None for no value, bytes, a list or a map."""
    if value.get("stringValue") is not None:
        return string(value, "stringValue")
    if value.get("intValue") is not None:
        return whole(value, "intValue", INT64)
    if value.get("doubleValue") is not None:
        return double(value, "doubleValue")
    if value.get("boolValue") is not None:
        return boolean(value, "boolValue")
    return None


def objects(node: Object, key: str) -> list[Object]:
    found = node.get(key)
    if found is None:
        return []
    if type(found) is not list:
        refuse(key, "a list", found)
    for index, item in enumerate(found):
        if type(item) is not dict:
            refuse(f"{key}[{index}]", "an object", item)
    return found


def object_at(node: Object, key: str) -> Object:
    found = node.get(key)
    if found is None:
        return {}
    if type(found) is not dict:
        refuse(key, "an object", found)
    return found


def string(node: Object, key: str) -> str:
    found = node.get(key)
    if found is None:
        return ""
    if type(found) is not str:
        refuse(key, "a string", found)
    if not found.isascii():
        try:
            found.encode()
        except UnicodeEncodeError as error:  # "\ud800": JSON allows lone surrogates, UTF-8 does not
            msg = f"{key} is not valid Unicode ({error.reason})"
            raise WireError(msg) from error
    return found


def boolean(node: Object, key: str) -> bool:
    found = node.get(key)
    if found is None:
        return False
    if type(found) is not bool:
        refuse(key, "true or false", found)
    return found


def whole(node: Object, key: str, span: tuple[int, int]) -> int:
    found = node.get(key)
    return 0 if found is None else integer(found, key, span)


def integer(found: Any, key: str, span: tuple[int, int]) -> int:
    value = found
    if type(value) is str:
        value = int(value) if _INTEGER.fullmatch(value) else None
    elif type(value) is float:  # JSON has one number type: 5.0 is an integer
        value = int(value) if value.is_integer() else None
    if type(value) is not int or not span[0] <= value <= span[1]:
        refuse(key, f"an integer between {span[0]} and {span[1]}", found)
    return value


def double(node: Object, key: str) -> float:
    found = node.get(key)
    if type(found) is float:
        return found
    # The JSON mapping of protobuf allows the strings "NaN", "Infinity" and "-Infinity"; validation follows later.
    if type(found) is not str and type(found) is not int:
        refuse(key, "a number", found)
    try:
        return float(found)
    except (ValueError, OverflowError):
        refuse(key, "a number", found)


def identifier(node: Object, key: str) -> str:
    found = string(node, key).lower()
    try:
        return bytes.fromhex(found).hex()
    except ValueError:
        refuse(key, "hexadecimal digits", found)


def _refuse_constant(constant: str) -> NoReturn:
    msg = f"{constant} is not a JSON number"
    raise ValueError(msg)


def refuse(key: str, wanted: str, found: Any) -> NoReturn:
    """Raise `WireError` with a message: the value of *key* is *found* instead of *wanted*."""
    shapes = {dict: "an object", list: "a list", type(None): "nothing"}
    shown = shapes.get(type(found)) or repr(found)[:40]
    msg = f"{key} must be {wanted}, got {shown}"
    raise WireError(msg)


# A list of counts joined by commas, each shorter than the 19 digits of 2**63.
_INTEGERS, _SHORT = re.compile(r"[0-9]+(?:,[0-9]+)*"), 19


def read_metrics(body: bytes) -> list[model.ResourceMetrics]:
    return [
        model.ResourceMetrics(
            attributes(object_at(item, "resource")),
            [_metric(metric) for scope in objects(item, "scopeMetrics") for metric in objects(scope, "metrics")],
        )
        for item in objects(load(body), "resourceMetrics")
    ]


def _metric(metric: Object) -> model.Metric:
    name = string(metric, "name")
    kind = next((kind for kind in model.KINDS if metric.get(kind) is not None), "")
    if not kind:
        return model.Metric(name, kind, 0)
    data = object_at(metric, kind)
    points = objects(data, "dataPoints")
    result = model.Metric(name, kind, len(points))
    if not model.is_wanted(name, kind):
        return result
    result.temporality = whole(data, "aggregationTemporality", INT32)
    if kind == model.EXPONENTIAL_HISTOGRAM:
        result.histograms = [_histogram(point) for point in points]
    else:
        result.monotonic = boolean(data, "isMonotonic")
        result.numbers = [_number(point) for point in points]
    return result


def _histogram(point: Object) -> model.HistogramPoint:
    positive = object_at(point, "positive")
    return model.HistogramPoint(
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


def _number(point: Object) -> model.NumberPoint:
    is_double = point.get("asDouble") is not None
    return model.NumberPoint(
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
        return list(map(int, found))  # the form that every exporter sends, at a tenth of the cost
    return [integer(count, "bucketCounts", UINT64) for count in found]
