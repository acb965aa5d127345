"""An ExportTraceServiceRequest in its binary form, as columns; our own kept traces as the spans they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ...core import names
from ...core.errors import WireError
from ..otlp.model import MAX_ELEMENTS, MAX_OBJECTS, Attributes, Correction, Event, ResourceSpans, Span, TooLargeError
from ..otlp.protobuf_bulk import check_bulk
from ..otlp.protobuf_encoding import scalar
from . import lite
from .rule_cache import Key, Meanings, Place, Shape
from .rules import Meaning
from .sources import source_of
from .span_validation import NO_SPAN, Read, Tells

# What a body of two-byte elements becomes once it is parsed: 20 MB for one of the first size; of the second, with its spans left as
# they are, 40 MB. A larger one is walked first.
SMALL_BYTES, WALKED_BYTES = 256 * 1024, 1024 * 1024
# Spans of a large body are parsed so many at a time, and no more bytes of them: 32 MB at the worst.
_SPANS_AT_ONCE, _BYTES_AT_ONCE = 1024, 4 * 1024 * 1024
_ERROR = 2
# The serialized Status that nearly every span has, and whether it is an error.
_STATUS = {b"": False, b"\x18\x01": False, b"\x18\x02": True}


def read_protobuf(body: bytes, meanings: Meanings, correct: Correction | None) -> tuple[Read, list[ResourceSpans]]:
    """Read *body*.

    Args:
        body: An ExportTraceServiceRequest.
        meanings: What spans are.
        correct: What is done to each resource; None for nothing.

    Returns:
        The spans of all programs, and our own kept traces.

    Raises:
        TooLargeError: It has more spans than an export may.
        WireError: It is none.
    """
    read = Read()
    kept: list[ResourceSpans] = []
    try:
        request, large = _parsed(body)
        for number, item in enumerate(request.resource_spans):
            resource = _attributes(Resource.FromString(item.resource).attributes)
            if correct is not None:
                correct(resource)
            source = source_of(resource)
            for at, scope in enumerate(item.scope_spans):
                if scope.scope.name == names.SCOPE:
                    # Once more: a map does not keep the order of their attributes.
                    large = large or lite.LargeRequest.FromString(body)
                    spans = _chunks(large.resource_spans[number].scope_spans[at].spans, lite.WholeSpan)
                    kept.append(ResourceSpans(resource, [_whole(span) for some in spans for span in some]))
                elif scope.scope.name != names.KEPT_SCOPE:
                    before = len(read.spans)
                    place = meanings.place(scope.scope.name, resource)
                    for some in _chunks(scope.spans, lite.Span):
                        _take(some, read, meanings, place)
                    read.sources.append(source)
                    read.counts.append(len(read.spans) - before)
    except (DecodeError, UnicodeDecodeError) as error:
        msg = f"the body is not a valid ExportTraceServiceRequest ({error}); it holds {len(body)} bytes"
        raise WireError(msg) from error
    return read, kept


def _parsed(body: bytes) -> tuple[Any, Any]:
    """Return *body*, parsed; and the same with its spans as they are, if it is a large one, else None."""
    if len(body) <= SMALL_BYTES:
        return lite.Request.FromString(body), None
    if len(body) > WALKED_BYTES:
        check_bulk(body, lite.LargeRequest.DESCRIPTOR)
    request = lite.LargeRequest.FromString(body)
    items = request.resource_spans
    count = len(items) + sum(len(scope.spans) + 1 for item in items for scope in item.scope_spans)
    if count > MAX_OBJECTS:
        msg = f"the body has {count} spans and what holds them, more than {MAX_OBJECTS}; send smaller batches"
        raise TooLargeError(msg)
    return request, request


def _chunks(found: Any, kind: Any) -> Iterator[Sequence[Any]]:
    """Yield the spans *found*, some at a time; those that are still bytes are parsed as *kind*."""
    for first in range(0, len(found), _SPANS_AT_ONCE):
        some = found[first : first + _SPANS_AT_ONCE]
        if not isinstance(some[0], bytes):
            yield some
        elif sum(map(len, some)) <= _BYTES_AT_ONCE:
            yield list(map(kind.FromString, some))
        else:
            for span in some:
                if len(span) > _BYTES_AT_ONCE:
                    msg = f"a span has {len(span)} bytes, more than {_BYTES_AT_ONCE}; send less with each"
                    raise TooLargeError(msg)
                yield [kind.FromString(span)]


def _take(some: Sequence[Any], read: Read, meanings: Meanings, place: Place) -> None:
    """Take in spans of one scope and process."""
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
        meaning = found.get(key) or _learn(meanings, key, shape, attributes)
        add(meaning)
        if _STATUS.get(span.status, True) and _is_error(span.status):
            read.errors.append(row)
        if meaning.rule is not None and (meaning.measured or span.events):
            numbers = _scalars(attributes, meaning.measured)
            read.elements += len(span.events)
            events = _events(span.events, meaning.events) if meaning.events else []
            read.tells.append(Tells(row, meaning.rule, numbers, events))
    if read.elements > MAX_ELEMENTS:
        msg = f"the body has more than {MAX_ELEMENTS} attributes and events; send smaller batches"
        raise TooLargeError(msg)


def _learn(meanings: Meanings, key: Key, shape: Shape, attributes: Mapping[str, bytes]) -> Meaning:
    size = sum(len(attributes[name]) for name in shape.exact)
    return meanings.learn(key, _scalars(attributes, shape.exact), size)


def _scalars(attributes: Mapping[str, bytes], wanted: Iterable[str]) -> Attributes:
    """Return those *wanted* of serialized *attributes*, which are all there, that say something."""
    values = ((key, scalar(AnyValue.FromString(attributes[key]))) for key in wanted)
    return {key: value for key, value in values if value is not None}


def _events(found: Iterable[bytes], wanted: Collection[str]) -> list[Event]:
    events = map(lite.Event.FromString, found)
    return [Event(event.name, event.time) for event in events if event.name in wanted]


def _is_error(status: bytes) -> bool:
    known = _STATUS.get(status)
    return lite.Status.FromString(status).code == _ERROR if known is None else known


def _whole(span: Any) -> Span:
    """Return a span of ours, all of it."""
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_id.hex(),
        name=span.name.decode(),
        start_ns=span.start,
        end_ns=span.end,
        error=_is_error(span.status),
        attributes=_attributes(map(KeyValue.FromString, span.attributes)),
    )


def _attributes(pairs: Iterable[KeyValue]) -> Attributes:
    found: Attributes = {}
    for pair in pairs:
        value = scalar(pair.value)
        if value is not None:
            found[pair.key] = value
    return found
