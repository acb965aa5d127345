"""Reader of span exports: decodes an ExportTraceServiceRequest into columns, and retained traces of Stagelens agents into spans.

The protobuf message classes have the field numbers of OTLP, but fields that are rarely read stay bytes. Parsing with the generated
classes takes a tenth of the time of reading a span; attribute access from Python takes most of it. Spans repeat their attributes, so
only the relevant ones are read (`rules.RuleCache`), which halves the time.

Source: opentelemetry/proto/trace/v1/trace.proto, opentelemetry/proto/collector/trace/v1/trace_service.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ...core import names
from ...core.errors import WireError
from ..ingest.validation import IngestResult, TimeWindow
from ..otlp.json_encoding import (
    INT32,
    UINT64,
    Object,
    attributes,
    identifier,
    json_scalar,
    load,
    object_at,
    objects,
    string,
    whole,
)
from ..otlp.model import (
    JSON,
    MAX_ELEMENTS,
    MAX_OBJECTS,
    Attributes,
    BodyTooLargeError,
    Correction,
    ResourceSpans,
    RetainedSpan,
    Scalar,
    SpanEvent,
)
from ..otlp.protobuf_encoding import check_bulk, protobuf_scalar, scalar_attributes
from .columns import Spans, source_of
from .rule_config import KINDS, Rule, built_in
from .rules import Key, RuleCache, RuleSet, Shape, SpanMeaning, SpanOrigin
from .span_validation import NO_SPAN, DecodedSpans, SpanMeasurements, validate_spans

_F = descriptor_pb2.FieldDescriptorProto
_BYTES, _TEXT, _NUMBER, _TIME = _F.TYPE_BYTES, _F.TYPE_STRING, _F.TYPE_INT32, _F.TYPE_FIXED64
_PACKAGE = "stagelens.lite"
# On the wire a repeated KeyValue is a map from string to bytes, with the value left serialized.
_MAP_TYPE = "map"
_ENTRY = descriptor_pb2.MessageOptions(map_entry=True)

# name, number, type or message, whether it is repeated
_MESSAGES: dict[str, list[tuple[str, int, int | str, bool]]] = {
    "Event": [("time", 1, _TIME, False), ("name", 2, _TEXT, False)],
    "Status": [("code", 3, _NUMBER, False)],
    "Span": [
        ("trace_id", 1, _BYTES, False),
        ("span_id", 2, _BYTES, False),
        ("parent_id", 4, _BYTES, False),
        ("name", 5, _BYTES, False),
        ("kind", 6, _NUMBER, False),
        ("start", 7, _TIME, False),
        ("end", 8, _TIME, False),
        ("attributes", 9, _MAP_TYPE, True),
        ("events", 11, _BYTES, True),
        ("status", 15, _BYTES, False),
    ],
    # The same message with ordered attributes.
    "WholeSpan": [],
    "Scope": [("name", 1, _TEXT, False)],
    "ScopeSpans": [("scope", 1, "Scope", False), ("spans", 2, "Span", True)],
    "ResourceSpans": [("resource", 1, _BYTES, False), ("scope_spans", 2, "ScopeSpans", True)],
    "Request": [("resource_spans", 1, "ResourceSpans", True)],
    # For large bodies, whose spans are parsed in chunks.
    "LargeScopeSpans": [("scope", 1, "Scope", False), ("spans", 2, _BYTES, True)],
    "LargeResourceSpans": [("resource", 1, _BYTES, False), ("scope_spans", 2, "LargeScopeSpans", True)],
    "LargeRequest": [("resource_spans", 1, "LargeResourceSpans", True)],
}


_MESSAGES["WholeSpan"] = [
    (name, number, _BYTES if kind == _MAP_TYPE else kind, repeated)
    for name, number, kind, repeated in _MESSAGES["Span"]
]


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="stagelens_lite.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            added = message.field.add(
                name=field, number=number, label=_F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
            )
            if kind == _MAP_TYPE:
                entry = message.nested_type.add(name=f"{field.capitalize()}Entry", options=_ENTRY)
                entry.field.add(name="key", number=1, label=_F.LABEL_OPTIONAL, type=_TEXT)
                entry.field.add(name="value", number=2, label=_F.LABEL_OPTIONAL, type=_BYTES)
                added.type, added.type_name = _F.TYPE_MESSAGE, f".{_PACKAGE}.{name}.{entry.name}"
            elif isinstance(kind, str):
                added.type, added.type_name = _F.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = _F.Type.ValueType(kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


_made = _classes()
# Created at run time, so their fields are not known to type checkers.
LiteRequest: Any = _made["Request"]
LiteLargeRequest: Any = _made["LargeRequest"]
LiteSpan: Any = _made["Span"]
LiteWholeSpan: Any = _made["WholeSpan"]
LiteEvent: Any = _made["Event"]
LiteStatus: Any = _made["Status"]


# Memory of a body with two-byte elements once parsed: 20 MB at the first size; 40 MB at the second, with spans left serialized.
# A larger body is scanned first.
SMALL_BYTES, WALKED_BYTES = 256 * 1024, 1024 * 1024
# Spans of a large body that are parsed at once; at most 32 MB in memory. [count, bytes]
_SPANS_AT_ONCE, _BYTES_AT_ONCE = 1024, 4 * 1024 * 1024
# Common serialized Status values, and whether they are errors.
_STATUS = {b"": False, b"\x18\x01": False, b"\x18\x02": True}


def decode_protobuf(
    body: bytes, meanings: RuleCache, correct: Correction | None
) -> tuple[DecodedSpans, list[ResourceSpans]]:
    """Decode a span export in protobuf.

    Args:
        body: Serialized ExportTraceServiceRequest.
        meanings: Cached rule results.
        correct: Function that corrects the attributes of each resource; None for no correction.

    Returns:
        The spans of all programs, and the traces that Stagelens agents retained.

    Raises:
        TooLargeError: The body has too many spans.
        WireError: The body is malformed.
    """
    read = DecodedSpans()
    retained: list[ResourceSpans] = []
    try:
        request, large = _parsed(body)
        for number, item in enumerate(request.resource_spans):
            resource = scalar_attributes(Resource.FromString(item.resource).attributes)
            if correct is not None:
                correct(resource)
            source = source_of(resource)
            for at, scope in enumerate(item.scope_spans):
                if scope.scope.name == names.SCOPE:
                    # Parsed again, because a map does not keep the order of attributes.
                    large = large or LiteLargeRequest.FromString(body)
                    spans = _chunks(large.resource_spans[number].scope_spans[at].spans, LiteWholeSpan)
                    retained.append(
                        ResourceSpans(resource, [_protobuf_retained_span(span) for some in spans for span in some])
                    )
                elif scope.scope.name != names.KEPT_SCOPE:
                    before = len(read.spans)
                    place = meanings.place(scope.scope.name, resource)
                    for some in _chunks(scope.spans, LiteSpan):
                        _add_spans(some, read, meanings, place)
                    read.sources.append(source)
                    read.counts.append(len(read.spans) - before)
    except (DecodeError, UnicodeDecodeError) as error:
        msg = f"the body is not a valid ExportTraceServiceRequest ({error}); it has {len(body)} bytes"
        raise WireError(msg) from error
    return read, retained


def _parsed(body: bytes) -> tuple[Any, Any]:
    """Return the parsed *body*, and for a large body the same message with serialized spans, else None."""
    if len(body) <= SMALL_BYTES:
        return LiteRequest.FromString(body), None
    if len(body) > WALKED_BYTES:
        check_bulk(body, LiteLargeRequest.DESCRIPTOR)
    request = LiteLargeRequest.FromString(body)
    items = request.resource_spans
    count = len(items) + sum(len(scope.spans) + 1 for item in items for scope in item.scope_spans)
    if count > MAX_OBJECTS:
        msg = f"the body has {count} spans, scopes and resources, more than {MAX_OBJECTS}; send smaller batches"
        raise BodyTooLargeError(msg)
    return request, request


def _chunks(found: Any, kind: Any) -> Iterator[Sequence[Any]]:
    """Yield the spans *found* in chunks; serialized ones are parsed as *kind*."""
    for first in range(0, len(found), _SPANS_AT_ONCE):
        some = found[first : first + _SPANS_AT_ONCE]
        if not isinstance(some[0], bytes):
            yield some
        elif sum(map(len, some)) <= _BYTES_AT_ONCE:
            yield list(map(kind.FromString, some))
        else:
            for span in some:
                if len(span) > _BYTES_AT_ONCE:
                    msg = f"a span has {len(span)} bytes, more than {_BYTES_AT_ONCE}; send fewer attributes per span"
                    raise BodyTooLargeError(msg)
                yield [kind.FromString(span)]


def _add_spans(some: Sequence[Any], read: DecodedSpans, meanings: RuleCache, place: SpanOrigin) -> None:
    """Add spans of one scope and process to *read*."""
    first = len(read.spans)
    read.traces += [span.trace_id for span in some]
    read.spans += [span.span_id for span in some]
    read.starts += [span.start for span in some]
    read.ends += [span.end for span in some]
    parents = [span.parent_id or NO_SPAN for span in some]
    read.parents += parents
    shapes, found, add = meanings.shapes, meanings.meanings, read.meanings.append
    for row, (span, parent) in enumerate(zip(some, parents, strict=True), first):
        attributes = span.attributes
        names_of = tuple(attributes)
        read.elements += len(names_of)
        shape = shapes[names_of]
        key: Key = (place, span.name, span.kind, parent == NO_SPAN, shape, shape.values(attributes))
        meaning = found.get(key) or _learn_protobuf(meanings, key, shape, attributes)
        add(meaning)
        if _STATUS.get(span.status, True) and _is_error(span.status):
            read.errors.append(row)
        if meaning.rule is not None and (meaning.measured or span.events):
            numbers = _scalars(attributes, meaning.measured)
            read.elements += len(span.events)
            events = _protobuf_events(span.events, meaning.events) if meaning.events else []
            read.measurements.append(SpanMeasurements(row, meaning.rule, numbers, events))
    if read.elements > MAX_ELEMENTS:
        msg = f"the body has more than {MAX_ELEMENTS} attributes and events; send smaller batches"
        raise BodyTooLargeError(msg)


def _learn_protobuf(meanings: RuleCache, key: Key, shape: Shape, attributes: Mapping[str, bytes]) -> SpanMeaning:
    size = sum(len(attributes[name]) for name in shape.exact)
    return meanings.learn(key, _scalars(attributes, shape.exact), size)


def _scalars(attributes: Mapping[str, bytes], wanted: Iterable[str]) -> Attributes:
    """Return the scalars among the *wanted* serialized *attributes*, which must all be present."""
    values = ((key, protobuf_scalar(AnyValue.FromString(attributes[key]))) for key in wanted)
    return {key: value for key, value in values if value is not None}


def _protobuf_events(found: Iterable[bytes], wanted: Collection[str]) -> list[SpanEvent]:
    events = map(LiteEvent.FromString, found)
    return [SpanEvent(event.name, event.time) for event in events if event.name in wanted]


def _is_error(status: bytes) -> bool:
    known = _STATUS.get(status)
    return LiteStatus.FromString(status).code == _ERROR_CODE if known is None else known


def _protobuf_retained_span(span: Any) -> RetainedSpan:
    """Return a span of a Stagelens agent with all attributes."""
    return RetainedSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_id.hex(),
        name=span.name.decode(),
        start_ns=span.start,
        end_ns=span.end,
        error=_is_error(span.status),
        attributes=scalar_attributes(map(KeyValue.FromString, span.attributes)),
    )


# opentelemetry/proto/trace/v1/trace.proto, Status.StatusCode and Span.SpanKind.
_ERROR_CODE = 2
_CODES = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": _ERROR_CODE}
_KINDS = {f"SPAN_KIND_{kind.upper()}": number for number, kind in enumerate(KINDS)} | {"SPAN_KIND_UNSPECIFIED": 0}
_MAX_UINT64 = 2**64 - 1


def decode_json(
    body: bytes, meanings: RuleCache, correct: Correction | None
) -> tuple[DecodedSpans, list[ResourceSpans]]:
    """Decode a span export in JSON; arguments, result and errors are those of `decode_protobuf`."""
    read = DecodedSpans()
    retained: list[ResourceSpans] = []
    for item in objects(load(body), "resourceSpans"):
        resource = attributes(object_at(item, "resource"))
        if correct is not None:
            correct(resource)
        source = source_of(resource)
        for scope in objects(item, "scopeSpans"):
            name = string(object_at(scope, "scope"), "name")
            spans = objects(scope, "spans")
            if name == names.SCOPE:
                retained.append(ResourceSpans(resource, [_json_retained_span(span) for span in spans]))
            elif name != names.KEPT_SCOPE:
                place = meanings.place(name, resource)
                for span in spans:
                    _add_json_span(span, read, meanings, place)
                read.sources.append(source)
                read.counts.append(len(spans))
    return read, retained


def _add_json_span(node: Object, read: DecodedSpans, meanings: RuleCache, place: SpanOrigin) -> None:
    span, values = _json_retained_span(node), _values(node)
    parent = bytes.fromhex(span.parent_id) or NO_SPAN
    shape = meanings.shapes[tuple(values)]
    # 1, 1.0 and true are equal in Python, so the key includes their types.
    exact = tuple((type(values[name]), values[name]) for name in shape.exact)
    key: Key = (place, span.name.encode(), _enum(node, "kind", _KINDS), parent == NO_SPAN, shape, exact)
    meaning = meanings.meanings.get(key) or _learn_json(
        meanings, key, _without_none({name: values[name] for name in shape.exact})
    )
    if meaning.rule is not None:
        numbers = _without_none({name: values[name] for name in meaning.measured})
        read.measurements.append(
            SpanMeasurements(len(read.spans), meaning.rule, numbers, _json_events(node, meaning.events))
        )
    if span.error:
        read.errors.append(len(read.spans))
    read.traces.append(bytes.fromhex(span.trace_id))
    read.spans.append(bytes.fromhex(span.span_id))
    read.parents.append(parent)
    # A negative time becomes a time far in the future, which validation rejects.
    read.starts.append(span.start_ns & _MAX_UINT64)
    read.ends.append(span.end_ns & _MAX_UINT64)
    read.meanings.append(meaning)


def _learn_json(meanings: RuleCache, key: Key, attributes: Attributes) -> SpanMeaning:
    return meanings.learn(key, attributes, sum(4 * len(str(value)) for value in attributes.values()))


def _values(node: Object) -> dict[str, Scalar | None]:
    """Return the attributes of *node*; None for values that are not scalars, and the last value of a duplicate key."""
    return {string(pair, "key"): json_scalar(object_at(pair, "value")) for pair in objects(node, "attributes")}


def _without_none(values: Mapping[str, Scalar | None]) -> Attributes:
    return {key: value for key, value in values.items() if value is not None}


def _json_events(node: Object, wanted: Collection[str]) -> list[SpanEvent]:
    found = objects(node, "events") if wanted else []
    events = [SpanEvent(string(event, "name"), whole(event, "timeUnixNano", UINT64)) for event in found]
    return [event for event in events if event.name in wanted]


def _json_retained_span(span: Object) -> RetainedSpan:
    return RetainedSpan(
        trace_id=identifier(span, "traceId"),
        span_id=identifier(span, "spanId"),
        parent_id=identifier(span, "parentSpanId"),
        name=string(span, "name"),
        start_ns=whole(span, "startTimeUnixNano", UINT64),
        end_ns=whole(span, "endTimeUnixNano", UINT64),
        error=_enum(object_at(span, "status"), "code", _CODES) == _ERROR_CODE,
        attributes=attributes(span),
    )


def _enum(node: Object, key: str, known: Mapping[str, int]) -> int:
    """Return the enumeration at *key*: a number by the specification, or its name as some senders write it."""
    found = node.get(key)
    return known[found] if isinstance(found, str) and found in known else whole(node, key, INT32)


class SpanExport(NamedTuple):
    """Content of a span export.

    Args:
        spans: Spans of all programs.
        retained: Spans of traces that Stagelens agents retained; their requests are already counted.
    """

    spans: Spans
    retained: list[ResourceSpans]


class SpanReader:
    """Reader of span exports with a cache of rule results. Thread-safe.

    Args:
        own: Function that returns the user's rules, which precede the built-in rules; None for no rules. A new object resets the
            cache.
    """

    def __init__(self, own: Callable[[], Sequence[Rule] | None] = lambda: None) -> None:
        self._own = own
        rules = own()
        self._in_force = rules, _meanings(rules)

    def read(
        self, media_type: str, body: bytes, window: TimeWindow, tally: IngestResult, correct: Correction | None = None
    ) -> SpanExport:
        """Read an inflated ExportTraceServiceRequest.

        Args:
            media_type: Media type of *body*.
            body: The inflated body.
            window: Plausible times.
            tally: Counter of rejected spans.
            correct: Function that corrects the attributes of each resource; None for no correction.

        Raises:
            TooLargeError: The body has more elements than allowed.
            WireError: The body is malformed.
        """
        read_as = decode_json if media_type == JSON else decode_protobuf
        try:
            read, retained = read_as(body, self._current(), correct)
        except RecursionError as error:
            msg = "the body is nested too deeply"
            raise WireError(msg) from error
        return SpanExport(validate_spans(read, window, tally), retained)

    def _current(self) -> RuleCache:
        rules = self._own()
        # One attribute holds both, so that concurrent changes are harmless.
        if rules is not self._in_force[0]:
            self._in_force = rules, _meanings(rules)
        return self._in_force[1]


def _meanings(own: Sequence[Rule] | None) -> RuleCache:
    return RuleCache(RuleSet((*(own or ()), *built_in())))
