"""Reader of span exports: decodes an ExportTraceServiceRequest into columns, and retained traces of Stagelens agents into spans.

Spans are decoded together with numpy (`span_scan`); only spans that are new, odd or have measurements are parsed as messages, because
attribute access from Python takes ten times as long as parsing. The message classes have the field numbers of OTLP, but fields that are
rarely read stay bytes, and only the relevant attributes are read (`rules.RuleCache`).

Source: opentelemetry/proto/trace/v1/trace.proto, opentelemetry/proto/collector/trace/v1/trace_service.proto.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ...core import names
from ...core.errors import WireError
from ...core.health_probes import ProbePolicy
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
from ..otlp.protobuf_encoding import MAP, Messages, check_bulk, message_classes, scalar_attributes, serialized_scalar
from .columns import Spans, source_of
from .rule_config import KINDS, Rule, built_in
from .rules import Key, RuleCache, RuleSet, ScannedKinds, Shape, SpanMeaning, SpanOrigin
from .span_scan import ScannedSpans, scan_spans
from .span_validation import NO_SPAN, DecodedSpans, RawSpans, SpanMeasurements, rows_of, validate_spans

_SPAN = {
    1: ("trace_id", "bytes"),
    2: ("span_id", "bytes"),
    4: ("parent_id", "bytes"),
    5: ("name", "bytes"),
    6: ("kind", "int32"),
    7: ("start", "fixed64"),
    8: ("end", "fixed64"),
    9: ("attributes", MAP),
    11: ("events", "*bytes"),
    15: ("status", "bytes"),
}
_MESSAGES: Messages = {
    "Event": {1: ("time", "fixed64"), 2: ("name", "string")},
    "Status": {3: ("code", "int32")},
    "Span": _SPAN,
    # The same message with ordered attributes.
    "WholeSpan": {**_SPAN, 9: ("attributes", "*bytes")},
    "Scope": {1: ("name", "string")},
    # Spans are decoded in chunks: several of them as `Spans`.
    "ScopeSpans": {1: ("scope", "Scope"), 2: ("spans", "*bytes")},
    "Spans": {2: ("spans", "*Span")},
    "ResourceSpans": {1: ("resource", "bytes"), 2: ("scope_spans", "*ScopeSpans")},
    "Request": {1: ("resource_spans", "*ResourceSpans")},
}
_made = message_classes("stagelens.lite", _MESSAGES, descriptor_pool.DescriptorPool())
# Created at run time, so their fields are not known to type checkers.
LiteRequest: Any = _made["Request"]
LiteScopeSpans: Any = _made["ScopeSpans"]
LiteSpans: Any = _made["Spans"]
LiteWholeSpan: Any = _made["WholeSpan"]
LiteEvent: Any = _made["Event"]
LiteStatus: Any = _made["Status"]


# Memory of a body with two-byte elements once parsed: 10 MB at the first size; 40 MB at the second. A larger body is scanned first.
SMALL_BYTES, WALKED_BYTES = 256 * 1024, 1024 * 1024
# Spans that are decoded at once; at most 32 MB in memory. [count, bytes]
_SPANS_AT_ONCE, _BYTES_AT_ONCE = 2048, 4 * 1024 * 1024
# Fewer spans are decoded faster one after the other. [count]
_FEW_SPANS = 256
# Common serialized Status values, and whether they are errors.
_STATUS = {b"": False, b"\x18\x01": False, b"\x18\x02": True}


@dataclass(slots=True)
class ParsedSpans:
    """A parsed span export, whose last spans are not decoded yet, so that they can be decoded with those of other exports."""

    meanings: RuleCache
    size_bytes: int
    # The decoded spans; its sources include those of the serialized spans.
    read: DecodedSpans = field(default_factory=DecodedSpans)
    retained: list[ResourceSpans] = field(default_factory=list[ResourceSpans])  # traces that Stagelens agents retained
    # Serialized spans, at most `_SPANS_AT_ONCE` and `_BYTES_AT_ONCE`.
    spans: list[bytes] = field(default_factory=list[bytes])
    origins: list[SpanOrigin] = field(default_factory=list[SpanOrigin])  # origin of each serialized span
    spans_bytes: int = 0  # size of *spans*

    def add(self, some: Sequence[bytes], origin: SpanOrigin) -> None:
        """Add serialized spans of *origin*; decode the earlier ones if they are many."""
        size = sum(map(len, some))
        if len(self.spans) + len(some) > _SPANS_AT_ONCE or self.spans_bytes + size > _BYTES_AT_ONCE:
            _decode_spans([self], self.meanings)
        self.spans += some
        self.origins += [origin] * len(some)
        self.spans_bytes += size

    def clear(self) -> None:
        self.spans, self.origins, self.spans_bytes = [], [], 0


def parse_protobuf(body: bytes, meanings: RuleCache, correct: Correction | None) -> ParsedSpans:
    found = ParsedSpans(meanings, len(body))
    with _wire_errors(len(body)):
        for item in _parsed(body).resource_spans:
            resource = scalar_attributes(Resource.FromString(item.resource).attributes)
            if correct is not None:
                correct(resource)
            source = source_of(resource)
            for scope in item.scope_spans:
                if scope.scope.name == names.SCOPE:
                    spans = [
                        _protobuf_retained_span(LiteWholeSpan.FromString(each))
                        for some in _chunks(scope.spans)
                        for each in some
                    ]
                    found.retained.append(ResourceSpans(resource, spans))
                elif scope.scope.name != names.KEPT_SCOPE:
                    origin = meanings.place(scope.scope.name, resource)
                    for some in _chunks(scope.spans):
                        found.add(some, origin)
                    found.read.sources.append(source)
                    found.read.counts.append(len(scope.spans))
    return found


@contextmanager
def _wire_errors(size_bytes: int) -> Generator[None]:
    try:
        yield
    except (DecodeError, UnicodeDecodeError) as error:
        msg = f"the body is not a valid ExportTraceServiceRequest ({error}); it has {size_bytes} bytes"
        raise WireError(msg) from error


def decode_together(parsed: Sequence[ParsedSpans]) -> None:
    """Decode the serialized spans of all exports.

    Raises:
        BodyTooLargeError: An export has too many attributes and events; each export may be decoded alone.
        WireError: An export is malformed; each export may be decoded alone.
    """
    with _wire_errors(sum(each.size_bytes for each in parsed)):
        # The rules may have changed between two exports.
        for meanings in {id(each.meanings): each.meanings for each in parsed}.values():
            _decode_spans([each for each in parsed if each.meanings is meanings and each.spans], meanings)


def _parsed(body: bytes) -> Any:
    if len(body) > WALKED_BYTES:
        check_bulk(body, LiteRequest.DESCRIPTOR)
    request = LiteRequest.FromString(body)
    if len(body) > SMALL_BYTES:
        items = request.resource_spans
        count = len(items) + sum(len(scope.spans) + 1 for item in items for scope in item.scope_spans)
        if count > MAX_OBJECTS:
            msg = f"the body has {count} spans, scopes and resources, more than {MAX_OBJECTS}; send smaller batches"
            raise BodyTooLargeError(msg)
    return request


def _chunks(found: Any) -> Iterator[Sequence[bytes]]:
    for first in range(0, len(found), _SPANS_AT_ONCE):
        some = found[first : first + _SPANS_AT_ONCE]
        if sum(map(len, some)) <= _BYTES_AT_ONCE:
            yield some
        else:
            for span in some:
                if len(span) > _BYTES_AT_ONCE:
                    msg = f"a span has {len(span)} bytes, more than {_BYTES_AT_ONCE}; send fewer attributes per span"
                    raise BodyTooLargeError(msg)
                yield [span]


def _decode_spans(parsed: Sequence[ParsedSpans], meanings: RuleCache) -> None:
    # An attribute or event takes at least two bytes, so only larger exports can have too many of them.
    is_large = any(each.size_bytes > 2 * MAX_ELEMENTS for each in parsed)
    if is_large or sum(len(each.spans) for each in parsed) < _FEW_SPANS:
        for each in parsed:
            _decode_messages(each)
    else:
        _decode_scanned(parsed, meanings)


def _decode_messages(parsed: ParsedSpans) -> None:
    read, messages = parsed.read, _messages(parsed.spans)
    raw = _raw_spans(messages)
    rows = range(read.count, read.count + len(messages))
    found = _examine(messages, rows, raw.parents, parsed.origins, parsed.meanings)
    if read.elements + found.elements > MAX_ELEMENTS:
        msg = f"the body has more than {MAX_ELEMENTS} attributes and events; send smaller batches"
        raise BodyTooLargeError(msg)
    read.elements += found.elements
    read.meanings += found.meanings
    read.measurements += found.measurements
    read.add(rows_of(raw), range(len(messages)), raw)
    parsed.clear()


def _decode_scanned(parsed: Sequence[ParsedSpans], meanings: RuleCache) -> None:
    spans = [span for each in parsed for span in each.spans]
    origins = [origin for each in parsed for origin in each.origins]
    scanned = _scanned(spans, origins, meanings)
    rows, found, alone = scanned.spans.rows, scanned.found, scanned.alone()
    messages = _messages([spans[row] for row in alone])
    raw = _raw_spans(messages)
    rows[alone] = rows_of(raw)
    examined = _examine(messages, alone, raw.parents, [origins[row] for row in alone], meanings)
    excluded = examined.uncached.union(scanned.spans.odd)
    for row, meaning in zip(alone, examined.meanings, strict=True):
        found[row] = meaning
        if row not in excluded:
            scanned.kinds.meanings[scanned.spans.keys[row]] = meaning
    complete = [meaning for meaning in found if meaning is not None]
    measurements = sorted([*examined.measurements, *scanned.measurements(complete, set(alone))], key=attrgetter("row"))
    measured = [each.row for each in measurements]
    ends = list(accumulate((len(each.spans) for each in parsed), initial=0))
    for each, (first, last) in zip(parsed, pairwise(ends), strict=True):
        read, some = each.read, slice(bisect_left(alone, first), bisect_left(alone, last))
        read.meanings += complete[first:last]
        for one in measurements[bisect_left(measured, first) : bisect_left(measured, last)]:
            one.row += read.count - first
            read.measurements.append(one)
        read.add(rows[first:last], [row - first for row in alone[some]], raw.part(some))
        each.clear()


class _Scanned(NamedTuple):
    """Scanned spans and their cached rule results; None for those that are new or odd."""

    kinds: ScannedKinds
    spans: ScannedSpans
    found: list[SpanMeaning | None]

    def alone(self) -> list[int]:
        """Return the numbers of the spans that must be parsed: new ones, odd ones, and those with events to measure."""
        has_events = self.spans.has_events.tolist()
        return [
            row
            for row, meaning in enumerate(self.found)
            if meaning is None or (meaning.rule is not None and has_events[row])
        ]

    def measurements(self, meanings: Sequence[SpanMeaning], alone: Collection[int]) -> Iterator[SpanMeasurements]:
        rows = [row for row, meaning in enumerate(meanings) if meaning.measured and row not in alone]
        wanted = frozenset[str]().union(*{meanings[row].measured for row in rows})
        for row, values in self.spans.values_of(rows, self.kinds.strings.attributes, wanted).items():
            meaning = meanings[row]
            if meaning.rule is not None:
                numbers = _scalars(values, meaning.measured)
                yield SpanMeasurements(row, meaning.rule, meaning.eventless, numbers, [])


def _scanned(spans: Sequence[bytes], origins: Sequence[SpanOrigin], meanings: RuleCache) -> _Scanned:
    kinds = meanings.scanned()
    numbers = {origin: kinds.number_of(origin) for origin in dict.fromkeys(origins)}
    of_span = np.fromiter(map(numbers.__getitem__, origins), np.int64, len(spans))
    scanned = scan_spans(spans, of_span, kinds.strings)
    found = list(map(kinds.meanings.get, scanned.keys))
    for row in scanned.odd:
        found[row] = None
    return _Scanned(kinds, scanned, found)


def _messages(spans: Sequence[bytes]) -> Sequence[Any]:
    """Return *spans* as messages. One call of the parser for all takes much less time than one for each."""
    return LiteSpans.FromString(LiteScopeSpans(spans=spans).SerializeToString()).spans[:]


def _raw_spans(messages: Sequence[Any]) -> RawSpans:
    return RawSpans(
        [message.trace_id for message in messages],
        [message.span_id for message in messages],
        [message.parent_id or NO_SPAN for message in messages],
        [message.start for message in messages],
        [message.end for message in messages],
        [_is_error(status) if (status := message.status) else False for message in messages],
    )


class _Examined(NamedTuple):
    meanings: list[SpanMeaning]  # rule result of each span
    uncached: set[int]  # numbers of the spans whose rule results are too large for the cache
    measurements: list[SpanMeasurements]  # measured attributes and events
    elements: int  # number of attributes and of events of measured spans


def _examine(
    messages: Sequence[Any],
    rows: Sequence[int],
    parents: Sequence[bytes],
    origins: Sequence[SpanOrigin],
    meanings: RuleCache,
) -> _Examined:
    shapes, known = meanings.shapes, meanings.meanings
    uncached: set[int] = set()
    found: list[SpanMeaning] = []
    measurements: list[SpanMeasurements] = []
    elements = 0
    for row, message, parent, origin in zip(rows, messages, parents, origins, strict=True):
        attributes = message.attributes
        names_of = tuple(attributes)
        elements += len(names_of)
        shape = shapes[names_of]
        classes = tuple([meanings.rules.classify(serialized_scalar(attributes[name])) for name in shape.classified])
        key: Key = (origin, message.name, message.kind, parent == NO_SPAN, shape, shape.values(attributes), classes)
        meaning = known.get(key)
        if meaning is None:
            meaning = _learn_protobuf(meanings, key, shape, attributes)
            if key not in known:
                uncached.add(row)
        found.append(meaning)
        rule = meaning.rule
        if rule is None:
            continue
        events = message.events
        if events or meaning.measured:
            elements += len(events)
            numbers = _scalars(attributes, meaning.measured)
            wanted = _protobuf_events(events, meaning.events) if meaning.events else []
            parts = rule.parts if events else meaning.eventless
            measurements.append(SpanMeasurements(row, rule, parts, numbers, wanted))
    return _Examined(found, uncached, measurements, elements)


def _learn_protobuf(meanings: RuleCache, key: Key, shape: Shape, attributes: Mapping[str, bytes]) -> SpanMeaning:
    size = sum(len(attributes[name]) for name in shape.exact)
    return meanings.learn(key, _scalars(attributes, shape.exact), size)


def _scalars(attributes: Mapping[str, bytes], wanted: Iterable[str]) -> Attributes:
    found: Attributes = {}
    for key in wanted:
        value = serialized_scalar(attributes[key])
        if value is not None:
            found[key] = value
    return found


def _protobuf_events(found: Iterable[bytes], wanted: Collection[str]) -> list[SpanEvent]:
    events = map(LiteEvent.FromString, found)
    return [SpanEvent(event.name, event.time) for event in events if event.name in wanted]


def _is_error(status: bytes) -> bool:
    known = _STATUS.get(status)
    return LiteStatus.FromString(status).code == _ERROR_CODE if known is None else known


def _protobuf_retained_span(span: Any) -> RetainedSpan:
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

_RawSpan: TypeAlias = tuple[bytes, bytes, bytes, int, int, bool]


def parse_json(body: bytes, meanings: RuleCache, correct: Correction | None) -> ParsedSpans:
    """Decode a span export in JSON completely; arguments and errors are those of `parse_protobuf`."""
    parsed = ParsedSpans(meanings, len(body))
    read = parsed.read
    for item in objects(load(body), "resourceSpans"):
        resource = attributes(object_at(item, "resource"))
        if correct is not None:
            correct(resource)
        source = source_of(resource)
        for scope in objects(item, "scopeSpans"):
            name = string(object_at(scope, "scope"), "name")
            spans = objects(scope, "spans")
            if name == names.SCOPE:
                parsed.retained.append(ResourceSpans(resource, [_json_retained_span(span) for span in spans]))
            elif name != names.KEPT_SCOPE:
                place = meanings.place(name, resource)
                found = [_read_json_span(span, at, read, meanings, place) for at, span in enumerate(spans, read.count)]
                raw = RawSpans(*zip(*found, strict=True))
                read.add(rows_of(raw), range(len(spans)), raw)
                read.sources.append(source)
                read.counts.append(len(spans))
    return parsed


def _read_json_span(node: Object, row: int, read: DecodedSpans, meanings: RuleCache, place: SpanOrigin) -> _RawSpan:
    span, values = _json_retained_span(node), _values(node)
    parent = bytes.fromhex(span.parent_id) or NO_SPAN
    shape = meanings.shapes[tuple(values)]
    # 1, 1.0 and true are equal in Python, so the key includes their types.
    exact = tuple((type(values[name]), values[name]) for name in shape.exact)
    classes = tuple([meanings.rules.classify(values[name]) for name in shape.classified])
    key: Key = (place, span.name.encode(), _enum(node, "kind", _KINDS), parent == NO_SPAN, shape, exact, classes)
    meaning = meanings.meanings.get(key) or _learn_json(
        meanings, key, _without_none({name: values[name] for name in shape.exact})
    )
    if meaning.rule is not None:
        numbers = _without_none({name: values[name] for name in meaning.measured})
        events = _json_events(node, meaning.events)
        read.measurements.append(SpanMeasurements(row, meaning.rule, meaning.rule.parts, numbers, events))
    read.meanings.append(meaning)
    trace, own = bytes.fromhex(span.trace_id), bytes.fromhex(span.span_id)
    # A negative time becomes a time far in the future, which validation rejects.
    return trace, own, parent, span.start_ns & _MAX_UINT64, span.end_ns & _MAX_UINT64, span.error


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
    spans: Spans  # spans of all programs
    retained: list[ResourceSpans]  # spans of traces that Stagelens agents retained; their requests are already counted


class SpanReader:
    """Reader of span exports with a cache of rule results, which a new object of *own* rules resets. Thread-safe."""

    def __init__(
        self, own: Callable[[], Sequence[Rule] | None] = lambda: None, probes: ProbePolicy | None = None
    ) -> None:
        self._own, self._probes = own, probes
        rules = own()
        self._in_force = rules, self._meanings(rules)

    def read(
        self, media_type: str, body: bytes, window: TimeWindow, tally: IngestResult, correct: Correction | None = None
    ) -> SpanExport:
        """Read an inflated ExportTraceServiceRequest; arguments and errors are those of `parse` and `finish`."""
        return self.finish([self.parse(media_type, body, correct)], window, [tally])[0]

    def parse(self, media_type: str, body: bytes, correct: Correction | None = None) -> ParsedSpans:
        parse = parse_json if media_type == JSON else parse_protobuf
        try:
            return parse(body, self._current(), correct)
        except RecursionError as error:
            msg = "the body is nested too deeply"
            raise WireError(msg) from error

    def finish(
        self, parsed: Sequence[ParsedSpans], window: TimeWindow, tallies: Sequence[IngestResult]
    ) -> list[SpanExport]:
        """Decode and validate *parsed* exports together; after an error each may be finished alone."""
        decode_together(parsed)
        return [
            SpanExport(validate_spans(each.read, window, tally), each.retained)
            for each, tally in zip(parsed, tallies, strict=True)
        ]

    def _current(self) -> RuleCache:
        rules = self._own()
        # One attribute holds both, so that concurrent changes are harmless.
        if rules is not self._in_force[0]:
            self._in_force = rules, self._meanings(rules)
        return self._in_force[1]

    def _meanings(self, own: Sequence[Rule] | None) -> RuleCache:
        return RuleCache(RuleSet((*(own or ()), *built_in()), self._probes))
