"""Reader of span exports: decodes an ExportTraceServiceRequest into columns, and retained traces of Stagelens agents into spans.

Spans are decoded together with numpy (`span_scan`); only spans that are new, odd or have measurements are parsed as messages, because
attribute access from Python takes ten times as long as parsing. The message classes have the field numbers of OTLP, but fields that are
rarely read stay bytes, and only the relevant attributes are read (`rules.RuleCache`).

Source: opentelemetry/proto/trace/v1/trace.proto, opentelemetry/proto/collector/trace/v1/trace_service.proto.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from ...core import names
from ...core.errors import WireError
from ...core.health_probes import ProbePolicy
from ..ingest.validation import IngestResult, TimeWindow
from ..otlp.message_classes import MAP, Messages, check_bulk, message_classes
from ..otlp.model import (
    MAX_ELEMENTS,
    MAX_OBJECTS,
    Attributes,
    BodyTooLargeError,
    Correction,
    ResourceSpans,
    RetainedSpan,
    SpanEvent,
)
from ..otlp.protobuf_encoding import scalar_attributes, serialized_scalar
from .columns import ROW, Flag, Rows, Spans, source_of
from .measurements import SpanMeasurements
from .parsed_spans import ParsedSpans
from .rule_config import Rule, built_in
from .rules import Key, RuleCache, RuleSet, ScannedKinds, SpanMeaning, SpanOrigin
from .span_scan import SPAN_BYTES, TRACE_BYTES, ScannedSpans, scan_spans
from .span_validation import validate_spans

_MESSAGES: Messages = {
    "Span": {
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
    },
    "Scope": {1: ("name", "string")},
    # Spans are decoded in chunks: several of them as `Spans`.
    "ScopeSpans": {1: ("scope", "Scope"), 2: ("spans", "*bytes")},
    "Spans": {2: ("spans", "*Span")},
    "ResourceSpans": {1: ("resource", "bytes"), 2: ("scope_spans", "*ScopeSpans")},
    "Request": {1: ("resource_spans", "*ResourceSpans")},
}
_classes = message_classes("stagelens.lite", _MESSAGES, descriptor_pool.DescriptorPool())
# Created at run time, so their fields are not known to type checkers.
LiteRequest: Any = _classes["Request"]
LiteScopeSpans: Any = _classes["ScopeSpans"]
LiteSpans: Any = _classes["Spans"]

# Memory of a body with two-byte elements once parsed: 10 MB at the first size; 40 MB at the second. A larger body is scanned first.
SMALL_BYTES, WALKED_BYTES = 256 * 1024, 1024 * 1024
# Spans that are decoded at once; at most 32 MB in memory. [count, bytes]
_SPANS_AT_ONCE, _BYTES_AT_ONCE = 2048, 4 * 1024 * 1024
# Fewer spans are decoded faster one after the other. [count]
_FEW_SPANS = 256
# Common serialized Status values, and whether they are errors.
_STATUS = {b"": False, b"\x18\x01": False, b"\x18\x02": True}
_NO_SPAN = bytes(SPAN_BYTES)


class SpanReader:
    """Reader of span exports with a cache of rule results, which a new object from *read_rules* resets. Thread-safe."""

    def __init__(
        self, read_rules: Callable[[], Sequence[Rule] | None] = lambda: None, probes: ProbePolicy | None = None
    ) -> None:
        self._read_rules, self._probes = read_rules, probes
        rules = read_rules()
        self._in_force = rules, self._cache_of(rules)

    def parse(self, body: bytes, correct: Correction | None = None) -> ParsedSpans:
        return _parse(body, self.rule_cache, correct)

    def finish(
        self, exports: Sequence[ParsedSpans], window: TimeWindow, results: Sequence[IngestResult]
    ) -> list[Spans]:
        """Decode and validate *exports* together.

        Raises:
            BodyTooLargeError: An export has too many attributes and events; each export may be finished alone.
            WireError: An export is malformed; each export may be finished alone.
        """
        with _wire_errors():
            # The rules may have changed between two exports.
            for cache in {id(export.rule_cache): export.rule_cache for export in exports}.values():
                _decode([export for export in exports if export.rule_cache is cache])
        return [validate_spans(export, window, result) for export, result in zip(exports, results, strict=True)]

    @property
    def rule_cache(self) -> RuleCache:
        rules = self._read_rules()
        # One attribute holds both, so that concurrent changes are harmless.
        if rules is not self._in_force[0]:
            self._in_force = rules, self._cache_of(rules)
        return self._in_force[1]

    def _cache_of(self, rules: Sequence[Rule] | None) -> RuleCache:
        return RuleCache(RuleSet((*(rules or ()), *built_in()), self._probes))


@contextmanager
def _wire_errors() -> Generator[None]:
    try:
        yield
    except (DecodeError, UnicodeDecodeError) as error:
        msg = f"the body is not a valid ExportTraceServiceRequest ({error})"
        raise WireError(msg) from error


def _parse(body: bytes, cache: RuleCache, correct: Correction | None) -> ParsedSpans:
    parsed = ParsedSpans(cache)
    with _wire_errors():
        for item in _request(body).resource_spans:
            resource = scalar_attributes(Resource.FromString(item.resource).attributes)
            if correct is not None:
                correct(resource)
            source = source_of(resource)
            for scope in item.scope_spans:
                if scope.scope.name == names.SCOPE:
                    spans = [_retained_span(span) for chunk in _chunks(scope.spans) for span in chunk]
                    parsed.retained.append(ResourceSpans(resource, spans))
                elif scope.scope.name != names.RETAINED_SCOPE:
                    origin = cache.place(scope.scope.name, resource)
                    for chunk in _chunks(scope.spans):
                        if (
                            len(parsed.spans) + len(chunk) > _SPANS_AT_ONCE
                            or parsed.spans_bytes + sum(map(len, chunk)) > _BYTES_AT_ONCE
                        ):
                            _decode([parsed])
                        parsed.add(chunk, origin)
                    parsed.sources.append(source)
                    parsed.counts.append(len(scope.spans))
    return parsed


def _request(body: bytes) -> Any:
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


def _chunks(spans: Any) -> Iterator[Sequence[bytes]]:
    for first in range(0, len(spans), _SPANS_AT_ONCE):
        chunk = spans[first : first + _SPANS_AT_ONCE]
        if sum(map(len, chunk)) <= _BYTES_AT_ONCE:
            yield chunk
        else:
            for span in chunk:
                if len(span) > _BYTES_AT_ONCE:
                    msg = f"a span has {len(span)} bytes, more than {_BYTES_AT_ONCE}; send fewer attributes per span"
                    raise BodyTooLargeError(msg)
                yield [span]


def _retained_span(serialized: bytes) -> RetainedSpan:
    span = Span.FromString(serialized)
    return RetainedSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        error=span.status.code == Status.STATUS_CODE_ERROR,
        attributes=scalar_attributes(span.attributes),
    )


def _decode(exports: Sequence[ParsedSpans]) -> None:
    cache = exports[0].rule_cache
    spans = [span for export in exports for span in export.spans]
    if not spans:
        return
    origins = [origin for export in exports for origin in export.origins]
    scanned = _Scanned.of(spans, origins, cache) if len(spans) >= _FEW_SPANS else None
    rows = np.zeros(len(spans), ROW) if scanned is None else scanned.spans.rows
    meanings: list[SpanMeaning | None] = [None] * len(spans) if scanned is None else scanned.meanings
    alone = list(range(len(spans))) if scanned is None else scanned.alone()
    messages = _messages([spans[row] for row in alone])
    rows[alone], malformed = _rows_of(messages, alone)
    examined = _examine(messages, alone, [origins[row] for row in alone], cache)
    ends = list(accumulate(len(export.spans) for export in exports))
    elements = [export.elements for export in exports]
    for row, number in zip(alone, examined.elements, strict=True):
        elements[bisect_right(ends, row)] += number
    if max(elements) > MAX_ELEMENTS:
        msg = f"the body has more than {MAX_ELEMENTS} attributes and events; send smaller batches"
        raise BodyTooLargeError(msg)
    # From here on nothing fails: after an error each export may be decoded alone.
    for row, meaning in zip(alone, examined.meanings, strict=True):
        meanings[row] = meaning
    if scanned is not None:
        scanned.learn(alone, examined)
    complete = [meaning for meaning in meanings if meaning is not None]
    measurements = examined.measurements
    if scanned is not None:
        measurements = sorted([*measurements, *scanned.measurements(complete, set(alone))], key=attrgetter("row"))
    measured = [measurement.row for measurement in measurements]
    for export, end, number in zip(exports, ends, elements, strict=True):
        first, export.elements = end - len(export.spans), number
        for measurement in measurements[bisect_left(measured, first) : bisect_left(measured, end)]:
            measurement.row += export.count - first
            export.measurements.append(measurement)
        export.malformed |= {row + export.count - first: ids for row, ids in malformed.items() if first <= row < end}
        export.rows.append(rows[first:end])
        export.meanings += complete[first:end]
        export.count += len(export.spans)
        export.spans, export.origins, export.spans_bytes = [], [], 0


class _Scanned(NamedTuple):
    """Scanned spans and their cached rule results; None for those that are new or odd."""

    kinds: ScannedKinds
    spans: ScannedSpans
    meanings: list[SpanMeaning | None]

    @classmethod
    def of(cls, spans: Sequence[bytes], origins: Sequence[SpanOrigin], cache: RuleCache) -> _Scanned:
        kinds = cache.scanned()
        numbers = {origin: kinds.number_of(origin) for origin in dict.fromkeys(origins)}
        of_span = np.fromiter(map(numbers.__getitem__, origins), np.int64, len(spans))
        scanned = scan_spans(spans, of_span, kinds.strings)
        meanings = list(map(kinds.meanings.get, scanned.keys))
        for row in scanned.odd:
            meanings[row] = None
        return cls(kinds, scanned, meanings)

    def alone(self) -> list[int]:
        """Return the numbers of the spans that must be parsed: new ones, odd ones, and those with events to measure."""
        has_events = self.spans.has_events.tolist()
        return [
            row
            for row, meaning in enumerate(self.meanings)
            if meaning is None or (meaning.rule is not None and has_events[row])
        ]

    def learn(self, alone: Sequence[int], examined: _Examined) -> None:
        excluded = examined.uncached.union(self.spans.odd)
        for row, meaning in zip(alone, examined.meanings, strict=True):
            if row not in excluded:
                self.kinds.meanings[self.spans.keys[row]] = meaning

    def measurements(self, meanings: Sequence[SpanMeaning], alone: Collection[int]) -> Iterator[SpanMeasurements]:
        rows = [row for row, meaning in enumerate(meanings) if meaning.measured and row not in alone]
        wanted = frozenset[str]().union(*{meanings[row].measured for row in rows})
        for row, values in self.spans.values_of(rows, self.kinds.strings.attributes, wanted).items():
            meaning = meanings[row]
            if meaning.rule is not None:
                numbers = _scalars(values, meaning.measured)
                yield SpanMeasurements(row, meaning.rule, meaning.eventless, numbers, [])


def _messages(spans: Sequence[bytes]) -> Sequence[Any]:
    # One call of the parser for all takes much less time than one for each.
    return LiteSpans.FromString(LiteScopeSpans(spans=spans).SerializeToString()).spans[:]


def _rows_of(messages: Sequence[Any], numbers: Sequence[int]) -> tuple[Rows, dict[int, tuple[bytes, bytes]]]:
    """Return the rows of *messages*, ids of a wrong size as zero, and by *numbers* the ids of spans that have such ids."""
    ids = [(message.trace_id, message.span_id, message.parent_id or _NO_SPAN) for message in messages]
    malformed = {
        number: (trace, span)
        for number, (trace, span, parent) in zip(numbers, ids, strict=True)
        if (len(trace), len(span), len(parent)) != (TRACE_BYTES, SPAN_BYTES, SPAN_BYTES)
    }
    rows = np.zeros(len(messages), ROW)
    traces = _ids([trace for trace, _, _ in ids], TRACE_BYTES).reshape(-1, 2)
    rows["trace_high"], rows["trace_low"] = traces[:, 0], traces[:, 1]
    rows["span"] = _ids([span for _, span, _ in ids], SPAN_BYTES)
    rows["parent"] = _ids([parent for _, _, parent in ids], SPAN_BYTES)
    rows["start"] = np.array([message.start for message in messages], np.uint64).view(np.int64)
    rows["end"] = np.array([message.end for message in messages], np.uint64).view(np.int64)
    rows["flags"] = np.array([_is_error(message.status) for message in messages], np.bool_) * np.uint16(Flag.ERROR)
    return rows, malformed


def _ids(ids: Sequence[bytes], size: int) -> NDArray[np.uint64]:
    """Return *ids* as 8-byte numbers; ids that do not have *size* bytes become zero."""
    if set(map(len, ids)) != {size}:
        ids = [identifier if len(identifier) == size else bytes(size) for identifier in ids]
    return np.frombuffer(b"".join(ids), ">u8").astype(np.uint64)


def _is_error(status: bytes) -> bool:
    is_error = _STATUS.get(status)
    return Status.FromString(status).code == Status.STATUS_CODE_ERROR if is_error is None else is_error


class _Examined(NamedTuple):
    meanings: list[SpanMeaning]  # rule result of each span
    uncached: set[int]  # numbers of the spans whose rule results are too large for the cache
    measurements: list[SpanMeasurements]  # measured attributes and events
    elements: list[int]  # number of attributes, and of events of a measured span, of each span


def _examine(
    messages: Sequence[Any], rows: Sequence[int], origins: Sequence[SpanOrigin], cache: RuleCache
) -> _Examined:
    shapes, cached = cache.shapes, cache.meanings
    examined = _Examined([], set(), [], [])
    for row, message, origin in zip(rows, messages, origins, strict=True):
        attributes = message.attributes
        names_of = tuple(attributes)
        elements = len(names_of)
        shape = shapes[names_of]
        classes = tuple([cache.rules.classify(serialized_scalar(attributes[name])) for name in shape.classified])
        is_root = message.parent_id in (b"", _NO_SPAN)
        key: Key = (origin, message.name, message.kind, is_root, shape, shape.values(attributes), classes)
        meaning = cached.get(key)
        if meaning is None:
            size = sum(len(attributes[name]) for name in shape.exact)
            meaning = cache.learn(key, _scalars(attributes, shape.exact), size)
            if key not in cached:
                examined.uncached.add(row)
        examined.meanings.append(meaning)
        if meaning.rule is not None and ((events := message.events) or meaning.measured):
            elements += len(events)
            numbers = _scalars(attributes, meaning.measured)
            wanted = _events(events, meaning.events) if meaning.events else []
            parts = meaning.rule.parts if events else meaning.eventless
            examined.measurements.append(SpanMeasurements(row, meaning.rule, parts, numbers, wanted))
        examined.elements.append(elements)
    return examined


def _scalars(attributes: Mapping[str, bytes], wanted: Iterable[str]) -> Attributes:
    scalars: Attributes = {}
    for key in wanted:
        value = serialized_scalar(attributes[key])
        if value is not None:
            scalars[key] = value
    return scalars


def _events(serialized: Iterable[bytes], wanted: Collection[str]) -> list[SpanEvent]:
    events = map(Span.Event.FromString, serialized)
    return [SpanEvent(event.name, event.time_unix_nano) for event in events if event.name in wanted]
