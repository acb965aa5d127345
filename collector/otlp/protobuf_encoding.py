"""Decoding of OTLP metrics in protobuf.

`MetricsExport` is a message class with the field numbers of ExportMetricsServiceRequest that leaves data points serialized, so that
histogram points can be decoded in columns. A large body is scanned before it is parsed (`check_bulk`): an empty message takes two
bytes on the wire, about a hundred in the parser and several hundred as Python objects, so 64 MiB of them, 64 kB of gzip, would take
gigabytes. Small bodies are not scanned.

Encoders write the fields of a message in the order of their numbers. Histogram points are therefore decoded in parallel with numpy
(`Scan`): each step decodes one field in all points that have it, and advances their read positions. A point with another order of
fields does not reach its end; it is called *odd* and must be decoded alone.

Source: opentelemetry/proto/metrics/v1/metrics.proto, https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, MessageOptions
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint, NumberDataPoint
from opentelemetry.proto.resource.v1 import resource_pb2

from ...core.errors import WireError
from ...store.points import Buckets, Ints
from . import model

_RESOURCE: str = resource_pb2.DESCRIPTOR.message_types_by_name["Resource"].full_name
# Fields of the oneof `data` of a metric; all have the same fields here.
DATA = {5: "gauge", 7: "sum", 9: "histogram", 10: "exponential_histogram", 11: "summary"}
# Fields of each message by number, with their types: "*" for repeated fields, a capital letter for messages, "|" for those of the
# oneof `data`. On the wire a map from string to bytes is a repeated KeyValue, with the value left serialized.
Messages: TypeAlias = Mapping[str, Mapping[int, tuple[str, str]]]
MAP = "*Map"
_MESSAGES: Messages = {
    "MetricsExport": {1: ("resource_metrics", "*ResourceMetrics")},
    "ResourceMetrics": {1: ("resource", _RESOURCE), 2: ("scope_metrics", "*ScopeMetrics")},
    "ScopeMetrics": {2: ("metrics", "*Metric")},
    "Metric": {1: ("name", "string")} | {number: (name, "|Data") for number, name in DATA.items()},
    "Data": {1: ("data_points", "*bytes"), 2: ("aggregation_temporality", "int32"), 3: ("is_monotonic", "bool")},
}


def message_classes(
    package: str, messages: Messages, pool: descriptor_pool.DescriptorPool, *requires: str
) -> dict[str, Any]:
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3", dependency=requires)
    for message, fields in messages.items():
        made = file.message_type.add(name=message)
        for number, (name, kind) in fields.items():
            field = made.field.add(name=name, number=number, **_type(package, kind))
            if kind == MAP:
                entry = made.nested_type.add(name=f"{name.capitalize()}Entry", options=MessageOptions(map_entry=True))
                entry.field.add(name="key", number=1, **_type(package, "string"))
                entry.field.add(name="value", number=2, **_type(package, "bytes"))
                field.type_name = f".{package}.{message}.{entry.name}"
            elif kind.startswith("|"):
                field.oneof_index = 0
        if any(kind.startswith("|") for _, kind in fields.values()):
            made.oneof_decl.add(name="data")
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def _type(package: str, kind: str) -> dict[str, Any]:
    label = FieldDescriptorProto.LABEL_REPEATED if kind.startswith("*") else FieldDescriptorProto.LABEL_OPTIONAL
    kind = kind.lstrip("*|")
    if kind.islower():
        return {"label": label, "type": getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")}
    full_name = f".{kind}" if "." in kind else f".{package}.{kind}"
    return {"label": label, "type": FieldDescriptorProto.TYPE_MESSAGE, "type_name": full_name}


# Created at run time, so its fields are not known to type checkers.
MetricsExport: Any = message_classes(
    "stagelens.lite", _MESSAGES, descriptor_pool.Default(), str(resource_pb2.DESCRIPTOR.name)
)["MetricsExport"]


# A body of this size needs at most 60 MB once parsed; larger bodies are scanned first, which takes as long as parsing.
SMALL_BYTES = 256 * 1024

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_DEPTH = 100  # limit of the parser

# Length-delimited fields that become objects: messages by their type, bytes as None.
_Messages: TypeAlias = dict[int, Descriptor | None]


def check_bulk(body: bytes, message: Descriptor) -> None:
    """Refuse a *body* with too many objects; the parser checks whether it is well-formed."""
    if len(body) <= SMALL_BYTES:
        return
    objects = elements = 0
    waiting = [(0, len(body), message, 0)]
    while waiting:
        at, end, kind, depth = waiting.pop()
        messages, packed = _messages(kind), _packed(kind)
        while at < end:
            number, wire_type, at, size = _field(body, at)
            if at + size > end or depth > _MAX_DEPTH:
                return  # malformed
            if wire_type == _LENGTH_DELIMITED:
                if number in messages:
                    objects += 1
                    child = messages[number]
                    if child is not None:
                        waiting.append((at, at + size, child, depth + 1))
                elif number in packed:
                    elements += size
            at += size
            elements += 1
            if objects > model.MAX_OBJECTS or elements > model.MAX_ELEMENTS:
                msg = f"the body has more than {model.MAX_OBJECTS} objects or {model.MAX_ELEMENTS} fields; send smaller batches"
                raise model.BodyTooLargeError(msg)


@cache
def _messages(message: Descriptor) -> _Messages:
    return {
        field.number: field.message_type
        for field in message.fields
        if field.message_type is not None or field.type == FieldDescriptor.TYPE_BYTES
    }


@cache
def _packed(message: Descriptor) -> frozenset[int]:
    text = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)
    return frozenset(field.number for field in message.fields if field.type not in text)


def _field(body: bytes, at: int) -> tuple[int, int, int, int]:
    """Return the number and wire type of the field at position *at*, and the position and size of its content.

    The size of a truncated field, or of a field with an unknown wire type, exceeds the body.
    """
    beyond = len(body) + 1
    tag, at = _varint(body, at)
    match tag & 7:
        case 0:
            return tag >> 3, _VARINT, at, _varint(body, at)[1] - at
        case 1:
            return tag >> 3, _FIXED64, at, 8
        case 2:
            size, at = _varint(body, at)
            return tag >> 3, _LENGTH_DELIMITED, at, size
        case 5:
            return tag >> 3, _FIXED32, at, 4
        case _:
            return tag >> 3, tag & 7, at, beyond


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(at, min(at + 10, len(body))):
        byte = body[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint has its high bit clear
            return value, position + 1
        shift += 7
    return value, len(body) + 1


# A body of this size with two-byte messages needs 60 MB once parsed. Larger ones are scanned first.
WALKED_BYTES = 1024 * 1024
# Enough for far more buckets than a valid point has.
MAX_POINT_BYTES = 256 * 1024

_Read = TypeVar("_Read", bound=Message)
_JSON_KIND = {"exponential_histogram": model.EXPONENTIAL_HISTOGRAM}


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


def read_point(point: bytes) -> model.HistogramPoint:
    found = _parse(ExponentialHistogramDataPoint(), point)
    return model.HistogramPoint(
        attributes=scalar_attributes(found.attributes),
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


def read_attributes(attributes: bytes) -> model.Attributes:
    return scalar_attributes(_parse(KeyValueList(), attributes).values)


def _parse(message: _Read, body: bytes) -> _Read:
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        msg = f"the body is not a valid ExportMetricsServiceRequest; it has {len(body)} bytes"
        raise WireError(msg) from error
    return message


def _metric(metric: Any) -> model.Metric:
    field: str | None = metric.WhichOneof("data")
    if field is None:
        return model.Metric(metric.name, "", 0)
    kind = _JSON_KIND.get(field, field)
    data = getattr(metric, field)
    points = cast("list[bytes]", [*data.data_points])
    if max(map(len, points), default=0) > MAX_POINT_BYTES:
        msg = f"a data point of {metric.name} has more than {MAX_POINT_BYTES} bytes; send smaller batches of coarser points"
        raise model.BodyTooLargeError(msg)
    result = model.Metric(metric.name, kind, len(points))
    if not model.is_wanted(metric.name, kind):
        return result
    result.temporality = data.aggregation_temporality
    if kind == model.EXPONENTIAL_HISTOGRAM:
        result.histograms = points
    else:
        result.monotonic = data.is_monotonic
        result.numbers = [_number(point) for point in points]
    return result


def _number(point: bytes) -> model.NumberPoint:
    found = _parse(NumberDataPoint(), point)
    return model.NumberPoint(
        value=found.as_double if found.HasField("as_double") else found.as_int,
        attributes=scalar_attributes(found.attributes),
        start_ns=found.start_time_unix_nano,
        time_ns=found.time_unix_nano,
        flags=found.flags,
    )


def scalar_attributes(pairs: Iterable[KeyValue]) -> model.Attributes:
    found: model.Attributes = {}
    for pair in pairs:
        value = protobuf_scalar(pair.value)
        if value is not None:
            found[pair.key] = value
    return found


def protobuf_scalar(value: AnyValue) -> model.Scalar | None:
    """Return the scalar in *value*, or None for no value, bytes, a list or a map."""
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


# Tag of `int_value` in AnyValue, and the size of one with a value from 128 to 16,383.
_INT_TAG, _TWO_BYTE_INT = 0x18, 3


def serialized_scalar(value: bytes) -> model.Scalar | None:
    """Return the scalar in a serialized AnyValue; see `protobuf_scalar`."""
    # Most numbers are small, and parsing them as messages takes five times as long.
    if len(value) == _TWO_BYTE_INT and value[0] == _INT_TAG and value[2] < _CONTINUES <= value[1]:
        return value[1] & _BITS | value[2] << 7
    return protobuf_scalar(AnyValue.FromString(value))


# Bytes that may be read past the end of the last message.
_PADDING = bytes(64)
_SCANNED_VARINT_BYTES = 4
_ONE = np.ones(1, np.int64)
# Maximum number of elements of a repeated field; the default limit of the attributes of a span is 128.
_MOST_REPEATED = 130
_CONTINUES, _BITS = 0x80, 0x7F
_MAX_VARINT_BYTES = 10


class Scan:
    """Serialized messages of one type, with a read position in each message.

    Args:
        data: All messages, each followed by a zero byte (which starts no field), and `_PADDING` at the end.
        at: Read position in each message; shape (n,).
        end: End of each message; shape (n,).

    Attributes:
        bytes: *data* as numbers.
        words: The number in the eight bytes that start at each byte of *data*, little-endian.
    """

    def __init__(self, data: bytes, at: Ints, end: Ints) -> None:
        self.data, self.at, self._end = data, at, end
        self.bytes = np.frombuffer(data, np.uint8)
        # The eight bytes that start at each byte. Only indexing is fast: `take` copies an array with overlapping elements.
        self.words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
        self._last = len(data) - len(_PADDING)
        self._odd = np.zeros(len(at), bool)

    @classmethod
    def of(cls, messages: Sequence[bytes]) -> Scan:
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        end = np.cumsum(sizes + 1) - 1
        return cls(b"\0".join((*messages, _PADDING)), end - sizes, end)

    @property
    def odd(self) -> model.Flags:
        """Mask of the messages that were not decoded completely; shape (n,)."""
        return self._odd | (self.at != self._end)

    def fixed64(self, number: int) -> tuple[model.Flags, model.Unsigned]:
        """Decode a fixed64, or the bits of a double; return a mask of the messages that have it, and its values or 0."""
        has = self._has(number, _FIXED64)
        if not has.any():
            return has, np.zeros(len(has), np.uint64)
        value = np.where(has, self.words[self.at + 1], np.uint64(0))
        self._go(9 * has)
        return has, value

    def skip_fixed32(self, number: int) -> None:
        first, second = (number << 3 & _BITS) | _FIXED32 | _CONTINUES, number >> 4
        self._go(6 * ((self.bytes[self.at] == first) & (self.bytes[self.at + 1] == second)))

    def uint32(self, number: int) -> Ints:
        """Decode a uint32 or an enumeration; return its value in each message, or 0."""
        has = self._has(number, _VARINT)
        if not has.any():
            return np.zeros(len(has), np.int64)
        value, size = self._varint(self.at, has)
        self._go(has * (1 + size))
        return np.where(has, value, 0)

    def sint32(self, number: int) -> Ints:
        """Decode a sint32; return its value in each message, or 0."""
        value = self.uint32(number)
        return (value >> 1) ^ -(value & 1)

    def contents(self, number: int) -> tuple[Ints, Ints]:
        """Decode a length-delimited field; return the start and end of its content."""
        has = self._has(number, _LENGTH_DELIMITED)
        if not has.any():
            return self.at, self.at
        length, size = self._varint(self.at, has)
        if not has.all():
            length, size = length * has, (1 + size) * has - 1
        begin = np.minimum(self.at + 1 + size, self._last)
        self._go(1 + size + length)
        return begin, self.at

    def words_at(self, at: Ints, count: int) -> NDArray[np.uint64]:
        """Return the *count* words, up to 6, that start at each position *at*; shape (count, n)."""
        size = 8 * count
        # Copying an element of many bytes is as fast as copying a word.
        blocks = np.ndarray((len(self.data) - size + 1,), f"V{size}", self.data, strides=(1,))[at]
        return blocks.view("<u8").reshape(-1, count).T.copy()

    def inside(self, number: int) -> Scan:
        """Return a scan of the embedded messages of field *number*; a missing message is empty."""
        return Scan(self.data, *self.contents(number))

    def elements(self, number: int) -> tuple[Ints, Scan]:
        tag, at = number << 3 | _LENGTH_DELIMITED, self.at.copy()
        message = np.flatnonzero(self._has(number, _LENGTH_DELIMITED))
        here = at.take(message)
        messages, begins, ends = [message[:0]], [here[:0]], [here[:0]]
        for _ in range(_MOST_REPEATED):
            if not len(message):
                break
            length, size = self._varint(here, message)
            begin = np.minimum(here + (1 + size), self._last)
            end = np.minimum(begin + length, self._last)
            messages.append(message)
            begins.append(begin)
            ends.append(end)
            more = self.bytes.take(end) == tag
            if not more.all():
                at[message] = end
                message, end = message[more], end[more]
            here = end
        at[message] = here
        self.at = at
        return np.concatenate(messages), Scan(self.data, np.concatenate(begins), np.concatenate(ends))

    def skip(self, number: int) -> None:
        for _ in range(_MOST_REPEATED):
            begin = self.at
            self.contents(number)
            if self.at is begin:
                return

    def pieces(self, start: Ints, end: Ints) -> list[bytes]:
        data = self.data
        return [data[low:high] for low, high in zip(start.tolist(), end.tolist(), strict=True)]

    def _has(self, number: int, wire_type: int) -> model.Flags:
        return self.bytes.take(self.at) == (number << 3 | wire_type)

    def _varint(self, at: Ints, which: model.Flags | Ints) -> tuple[Ints, Ints]:
        """Return the varints of up to four bytes after the tags at the positions *at*, and their sizes."""
        first = self.bytes.take(at + 1).astype(np.int64)
        more = first >= _CONTINUES
        if which.dtype == np.bool_:
            more &= which
        if not more.any():
            return first, _ONE
        word, size = self.words[at + 1].view(np.int64), np.ones(len(first), np.int64)
        value = first & _BITS
        for place in range(1, _SCANNED_VARINT_BYTES):
            value |= np.where(more, (word >> 8 * place & _BITS) << 7 * place, 0)
            size += more
            more = more & (word >> 8 * place & _CONTINUES != 0)
        self._odd[more if which.dtype == np.bool_ else which[more]] = True
        return value, size

    def _go(self, step: Ints) -> None:
        # A read position past the end of its message stays there, so the message is odd.
        self.at = np.minimum(self.at + step, self._last)


def from_protobuf(points: Sequence[bytes]) -> model.HistogramColumns:
    """Return *points*, serialized ExponentialHistogramDataPoints, as columns.

    Points with flags, negative values or an unusual encoding are odd.
    """
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
    scan.skip(11)
    for number in (12, 13, 14):
        scan.fixed64(number)
    buckets, lengths, broken = _filled(counts, offset)
    odd = scan.odd | positive.odd | broken | (negative_begin < negative_end)
    for number in np.flatnonzero(odd).tolist():
        attributes[number] = b""
    return model.HistogramColumns(
        odd=odd,
        attributes=attributes,
        start_ns=start_ns,
        time_ns=time_ns,
        count=count,
        has_sum=has_sum,
        sum=total.view(np.float64),
        scale=scale,
        zero=zero,
        lengths=lengths,
        buckets=buckets,
    )


def _filled(counts: Sequence[bytes], offset: Ints) -> tuple[Buckets, Ints, model.Flags]:
    """Return the non-empty buckets, their number by point from *offset* on, and a mask of points with a truncated count."""
    # A leading zero byte, so that every byte and the first point have a predecessor.
    data = np.frombuffer(b"\0" + b"".join(counts), np.uint8)
    edges = 1 + np.cumsum(np.fromiter(map(len, (b"", *counts)), np.int64, 1 + len(counts)))
    ends = data < _CONTINUES
    # A zero count is a single zero byte.
    filled = ends & (data != 0)
    filled[1:] |= ends[1:] & ~ends[:-1]
    where = np.flatnonzero(filled)
    number = np.cumsum(ends, dtype=np.int32)
    first = number[edges - 1]
    offsets = np.searchsorted(where, edges)
    index = number[where] + np.repeat(offset - first[:-1] - 1, np.diff(offsets))
    return Buckets(offsets, index, _varints(data, where)), np.diff(first), ~ends[edges[1:] - 1]


def _varints(data: NDArray[np.uint8], last: Ints) -> Ints:
    values = data[last].astype(np.int64)
    before = last - 1
    here = np.flatnonzero(data[before] >= _CONTINUES)
    before = before[here]
    for _ in range(_MAX_VARINT_BYTES - 1):
        if not len(here):
            return values
        values[here] = values[here] << 7 | data[before] & _BITS
        before = before - 1
        longer = data[before] >= _CONTINUES
        here, before = here[longer], before[longer]
    values[here] = -1
    return values
