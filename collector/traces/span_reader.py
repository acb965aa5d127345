"""Reader of span exports: decodes an ExportTraceServiceRequest into columns, and retained traces of Stagelens agents into spans.

`protobuf_spans` decodes the protobuf encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from ...core import names
from ...core.errors import WireError
from ..ingest.points import Window
from ..ingest.validation import IngestResult
from ..otlp.json_encoding import (
    INT32,
    UINT64,
    Object,
    attributes,
    identifier,
    load,
    object_at,
    objects,
    scalar,
    string,
    whole,
)
from ..otlp.model import Attributes, Correction, Event, ResourceSpans, Scalar, Span
from ..otlp.responses import JSON
from .columns import Spans, source_of
from .protobuf_spans import decode_protobuf
from .rule_cache import Key, RuleCache, SpanOrigin
from .rule_config import built_in
from .rules import KINDS, Rule, RuleSet, SpanMeaning
from .span_validation import NO_SPAN, DecodedSpans, SpanMeasurements, validate_spans

# opentelemetry/proto/trace/v1/trace.proto, Status.StatusCode and Span.SpanKind.
_ERROR_CODE = 2
_CODES = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": _ERROR_CODE}
_KINDS = {f"SPAN_KIND_{kind.upper()}": number for number, kind in enumerate(KINDS)} | {"SPAN_KIND_UNSPECIFIED": 0}
_MAX_UINT64 = 2**64 - 1


def decode_json(
    body: bytes, meanings: RuleCache, correct: Correction | None
) -> tuple[DecodedSpans, list[ResourceSpans]]:
    """Read *body*, as `read_protobuf` does."""
    read = DecodedSpans()
    kept: list[ResourceSpans] = []
    for item in objects(load(body), "resourceSpans"):
        resource = attributes(object_at(item, "resource"))
        if correct is not None:
            correct(resource)
        source = source_of(resource)
        for scope in objects(item, "scopeSpans"):
            name = string(object_at(scope, "scope"), "name")
            spans = objects(scope, "spans")
            if name == names.SCOPE:
                kept.append(ResourceSpans(resource, [_json_retained_span(span) for span in spans]))
            elif name != names.KEPT_SCOPE:
                place = meanings.place(name, resource)
                for span in spans:
                    _add_json_span(span, read, meanings, place)
                read.sources.append(source)
                read.counts.append(len(spans))
    return read, kept


def _add_json_span(node: Object, read: DecodedSpans, meanings: RuleCache, place: SpanOrigin) -> None:
    span, values = _json_retained_span(node), _values(node)
    parent = bytes.fromhex(span.parent_id) or NO_SPAN
    shape = meanings.shapes[tuple(values)]
    # 1, 1.0 and true are equal, but not the same.
    told = tuple((type(values[name]), values[name]) for name in shape.exact)
    key: Key = (place, span.name.encode(), _enum(node, "kind", _KINDS), parent == NO_SPAN, shape, told)
    meaning = meanings.meanings.get(key) or _learn(
        meanings, key, _without_none({name: values[name] for name in shape.exact})
    )
    if meaning.rule is not None:
        numbers = _without_none({name: values[name] for name in meaning.measured})
        read.tells.append(SpanMeasurements(len(read.spans), meaning.rule, numbers, _events(node, meaning.events)))
    if span.error:
        read.errors.append(len(read.spans))
    read.traces.append(bytes.fromhex(span.trace_id))
    read.spans.append(bytes.fromhex(span.span_id))
    read.parents.append(parent)
    # A negative time is none: it becomes one that is refused.
    read.starts.append(span.start_ns & _MAX_UINT64)
    read.ends.append(span.end_ns & _MAX_UINT64)
    read.meanings.append(meaning)


def _learn(meanings: RuleCache, key: Key, said: Attributes) -> SpanMeaning:
    return meanings.learn(key, said, sum(4 * len(str(value)) for value in said.values()))


def _values(node: Object) -> dict[str, Scalar | None]:
    """Return the attributes of *node*, None for what is no scalar; of two with one key the last, as a map of protobuf has it."""
    return {string(pair, "key"): scalar(object_at(pair, "value")) for pair in objects(node, "attributes")}


def _without_none(values: Mapping[str, Scalar | None]) -> Attributes:
    return {key: value for key, value in values.items() if value is not None}


def _events(node: Object, wanted: Collection[str]) -> list[Event]:
    found = objects(node, "events") if wanted else []
    events = [Event(string(event, "name"), whole(event, "timeUnixNano", UINT64)) for event in found]
    return [event for event in events if event.name in wanted]


def _json_retained_span(span: Object) -> Span:
    return Span(
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
    """Return the enumeration at *key*: a number by the specification, which some senders spell out."""
    found = node.get(key)
    return known[found] if isinstance(found, str) and found in known else whole(node, key, INT32)


class SpanExport(NamedTuple):
    """Content of a span export.

    Args:
        spans: Spans of all programs.
        kept: Spans of traces that Stagelens agents retained, whose requests are counted already.
    """

    spans: Spans
    kept: list[ResourceSpans]


class SpanReader:
    """Reads span exports with a cache of rule results. Thread-safe.

    Args:
        own: Returns the user's rules, None for none; they come before the built-in ones. A new object replaces the cache.
    """

    def __init__(self, own: Callable[[], Sequence[Rule] | None] = lambda: None) -> None:
        self._own = own
        rules = own()
        self._in_force = rules, _meanings(rules)

    def read(
        self, media_type: str, body: bytes, window: Window, tally: IngestResult, correct: Correction | None = None
    ) -> SpanExport:
        """Read an inflated ExportTraceServiceRequest.

        Args:
            media_type: Media type of *body*.
            body: The inflated body.
            window: Plausible times.
            tally: Counts rejected spans.
            correct: Corrects the attributes of each resource; None for no correction.

        Raises:
            TooLargeError: The body has more elements than allowed.
            WireError: The body is malformed.
        """
        read_as = decode_json if media_type == JSON else decode_protobuf
        try:
            read, kept = read_as(body, self._current(), correct)
        except RecursionError as error:
            msg = "the body is nested too deeply"
            raise WireError(msg) from error
        return SpanExport(validate_spans(read, window, tally), kept)

    def _current(self) -> RuleCache:
        rules = self._own()
        # One attribute for both, so concurrent changes are harmless.
        if rules is not self._in_force[0]:
            self._in_force = rules, _meanings(rules)
        return self._in_force[1]


def _meanings(own: Sequence[Rule] | None) -> RuleCache:
    return RuleCache(RuleSet((*(own or ()), *built_in())))
