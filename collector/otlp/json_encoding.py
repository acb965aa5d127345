"""Conversion of OTLP JSON to OTLP protobuf, and typed access to the fields of JSON objects.

OTLP differs from the JSON mapping of protobuf: trace and span ids are hexadecimal, and enumerations are integers. 64-bit integers
are strings or numbers, unknown fields are ignored, and null means "not set". All functions raise `WireError` for a field of the
wrong type.

Source: OpenTelemetry protocol specification, "JSON Protobuf Encoding".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NoReturn, TypeAlias, cast

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from ...core.errors import WireError
from . import model

Object: TypeAlias = dict[str, Any]
_Read: TypeAlias = Callable[[Any, str], Any]

_INT32, _INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
# A negative number becomes one that is too large, which validation rejects.
_UINT32, _UINT64 = (-(2**31), 2**32 - 1), (-(2**63), 2**64 - 1)
_RANGES = {
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_SINT32: _INT32,
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_SINT64: _INT64,
    FieldDescriptor.TYPE_SFIXED64: _INT64,
    FieldDescriptor.TYPE_UINT32: _UINT32,
    FieldDescriptor.TYPE_FIXED32: _UINT32,
    FieldDescriptor.TYPE_UINT64: _UINT64,
    FieldDescriptor.TYPE_FIXED64: _UINT64,
}
# At most the 20 digits of 2**64.
_INTEGER = re.compile(r"-?[0-9]{1,20}")
# A list of counts joined by commas, each shorter than the 19 digits of 2**63.
_INTEGERS, _SHORT = re.compile(r"[0-9]+(?:,[0-9]+)*"), 19
_IDS = frozenset({"trace_id", "span_id", "parent_span_id"})
# Fields that the collector does not use, and messages that it only counts.
_UNUSED = frozenset({
    "AnyValue.array_value", "AnyValue.kvlist_value", "AnyValue.bytes_value", "Event.attributes", "Span.links",
    "ExponentialHistogramDataPoint.exemplars", "NumberDataPoint.exemplars",
})  # fmt: skip
_ONLY_COUNTED = frozenset({"HistogramDataPoint", "SummaryDataPoint", "LogRecord"})


def to_protobuf(body: bytes, message: type[Message]) -> bytes:
    """Return *body*, the JSON of *message*, in protobuf."""
    root = load(body)
    try:
        return _message_reader(message.DESCRIPTOR)(root, "the body").SerializeToString()
    except UnicodeEncodeError as error:  # "\ud800": JSON allows lone surrogates, UTF-8 does not
        msg = f"the body is not valid Unicode ({error.reason})"
        raise WireError(msg) from error


@cache
def _message_reader(descriptor: Descriptor) -> _Read:
    make = message_factory.GetMessageClass(descriptor)
    fields = {
        field.json_name: (field.name, _reader_of(field))
        for field in descriptor.fields
        if descriptor.name not in _ONLY_COUNTED and f"{descriptor.name}.{field.name}" not in _UNUSED
    }

    def read(value: Any, key: str) -> Message:
        if type(value) is not dict:
            refuse(key, "an object", value)
        values: dict[str, Any] = {}
        for name, item in value.items():
            if item is not None and name in fields:
                field, read_field = fields[name]
                values[field] = read_field(item, name)
        return make(**values)

    return read


def _reader_of(field: FieldDescriptor) -> _Read:
    read: _Read
    if field.message_type is not None:
        read = _message_reader(field.message_type)
    elif field.enum_type is not None:
        read = partial(_enumeration, field.enum_type)
    elif field.type in _RANGES:
        read = partial(_integer, _RANGES[field.type])
    elif field.type == FieldDescriptor.TYPE_DOUBLE:
        read = _double
    else:
        read = _boolean if field.type == FieldDescriptor.TYPE_BOOL else _id if field.name in _IDS else _string
    if field.default_value != []:
        return read
    if field.name == "attributes":
        return _attributes
    return _counts if field.name == "bucket_counts" else partial(_list, read)


def _list(read: _Read, value: Any, key: str) -> list[Any]:
    if type(value) is not list:
        refuse(key, "a list", value)
    return [read(item, key) for item in value]


def _attributes(value: Any, key: str) -> list[Message]:
    if type(value) is not list:
        refuse(key, "a list", value)
    return [_text_attribute(pair) or _message_reader(KeyValue.DESCRIPTOR)(pair, key) for pair in value]


def _text_attribute(pair: Any) -> KeyValue | None:
    """Return an attribute whose value is a text, at a third of the cost; None for another one."""
    value: Any = pair.get("value") if type(pair) is dict else None
    text: Any = value.get("stringValue") if type(value) is dict else None
    name = pair.get("key", "") if type(text) is str else None
    return KeyValue(key=name, value=AnyValue(string_value=text)) if type(name) is str else None


def _counts(value: Any, key: str) -> list[int]:
    if type(value) is not list:
        refuse(key, "a list", value)
    if (
        value
        and set(map(type, value)) == {str}
        and max(map(len, value)) < _SHORT
        and _INTEGERS.fullmatch(",".join(value))
    ):
        return list(map(int, value))  # the form that every exporter sends, at a tenth of the cost
    return [_integer(_UINT64, count, key) for count in value]


def _integer(limits: tuple[int, int], sent: Any, key: str) -> int:
    value = sent
    if type(value) is str:
        value = int(value) if _INTEGER.fullmatch(value) else None
    elif type(value) is float:  # JSON has one number type: 5.0 is an integer
        value = int(value) if value.is_integer() else None
    low, high = limits
    if type(value) is not int or not low <= value <= high:
        refuse(key, f"an integer between {low} and {high}", sent)
    # The upper limit of an unsigned number is all bits.
    return value if value >= 0 or -low > high else value & high


def _double(value: Any, key: str) -> float:
    if type(value) is float:
        return value
    # The JSON mapping of protobuf allows the strings "NaN", "Infinity" and "-Infinity"; validation follows later.
    if type(value) is not str and type(value) is not int:
        refuse(key, "a number", value)
    try:
        return float(value)
    except (ValueError, OverflowError):
        refuse(key, "a number", value)


def _boolean(value: Any, key: str) -> bool:
    if type(value) is not bool:
        refuse(key, "true or false", value)
    return value


def _enumeration(kind: EnumDescriptor, value: Any, key: str) -> int:
    enum_value = kind.values_by_name.get(value) if isinstance(value, str) else None
    return _integer(_INT32, value, key) if enum_value is None else enum_value.number


def _id(value: Any, key: str) -> bytes:
    try:
        return bytes.fromhex(_string(value, key))
    except ValueError:
        refuse(key, "hexadecimal digits", value)


def _string(value: Any, key: str) -> str:
    if type(value) is not str:
        refuse(key, "a string", value)
    return value


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


def objects(node: Object, key: str) -> list[Object]:
    items = node.get(key)
    if items is None:
        return []
    if type(items) is not list:
        refuse(key, "a list", items)
    for index, item in enumerate(items):
        if type(item) is not dict:
            refuse(f"{key}[{index}]", "an object", item)
    return items


def object_at(node: Object, key: str) -> Object:
    child = node.get(key)
    if child is None:
        return {}
    if type(child) is not dict:
        refuse(key, "an object", child)
    return child


def string(node: Object, key: str) -> str:
    text = node.get(key)
    if text is None:
        return ""
    if type(text) is not str:
        refuse(key, "a string", text)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:  # "\ud800": JSON allows lone surrogates, UTF-8 does not
            msg = f"{key} is not valid Unicode ({error.reason})"
            raise WireError(msg) from error
    return text


def _refuse_constant(constant: str) -> NoReturn:
    msg = f"{constant} is not a JSON number"
    raise ValueError(msg)


def refuse(key: str, wanted: str, sent: Any) -> NoReturn:
    """Raise `WireError` with a message: the value of *key* is *sent* instead of *wanted*."""
    shapes = {dict: "an object", list: "a list", type(None): "nothing"}
    shown = shapes.get(type(sent)) or repr(sent)[:40]
    msg = f"{key} must be {wanted}, got {shown}"
    raise WireError(msg)
