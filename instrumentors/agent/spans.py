"""Spans of retained requests and of the cold start of this process.

A retained request becomes a root span, one span for each interval of a stage, and one for each request inside it. A fact that
was recorded right after a stage (the model, the batch size) becomes an attribute of the span of that stage. The parent of a
span is the innermost request around it. The phases of the cold start are spans of one separate trace.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ...core import attributes as known
from ...core import names
from ...core.partition import partition
from ...core.stages import LOAD_START, OVERHEAD
from ...core.text import to_integer, to_text
from .. import loads
from ..loads import LoadRecord
from ..records import ATTRIBUTE, CALLED, TIMINGS, Kind, Marks, Record, triples_of
from ..request_marks import RequestFacts, read_request, stage_timings
from ..stalls import by_stage, overlaps, stalls
from ..trace_context import caller_of, parent_of
from .aggregate import Dimensions, known_stage
from .attributes import NUMBERS, to_size
from .sample import RetentionReason
from .stacks import profile_text

# Limit of spans per trace: the longest intervals are retained.
MAX_SPANS = 256
CHILD = "@child "
# Names of the span attributes, by fact.
TEXTS = {
    "@model": names.MODEL,
    "@model_version": names.MODEL_VERSION,
    "@device": names.DEVICE,
    "@provider": names.PROVIDER,
    "@failed": names.CALL_FAILURE,
}


class RetainedRequest(NamedTuple):
    record: Record
    because: RetentionReason
    dimensions: Dimensions
    own_stages: set[str]


class Span(NamedTuple):
    name: str
    span_id: str
    parent_id: str
    kind: Kind
    start: int
    end: int
    attributes: dict[str, str | int]
    failed: bool = False


class Trace(NamedTuple):
    trace_id: str
    sampled: bool
    spans: list[Span]


def build_trace(request: RetainedRequest) -> Trace:
    marks, start, end = request.record[:3]
    parsed = read_request(request.record)
    parent = parent_of(parsed.facts)
    fresh = os.urandom(24).hex()
    trace_id, root_id = parsed.facts.get("@trace", (parent.trace_id if parent else fresh[:32], fresh[32:]))
    root = _root(request, parsed, root_id, parent.span_id if parent and parent.trace_id == trace_id else "")
    inside = _children(marks, root, max(start, end)) + _stages(marks, root, request.own_stages)
    longest = heapq.nsmallest(MAX_SPANS, inside, key=lambda span: span.start - span.end)
    below = sorted(longest, key=lambda span: (span.start, -span.end))
    return Trace(trace_id, parent is None or bool(parent.flags & 1), [root, *_nest_spans(root, below)])


def _root(request: RetainedRequest, parsed: RequestFacts, span_id: str, parent_id: str) -> Span:
    marks, start, end, route, error_type, http_status, kind = request.record
    end = max(start, end)
    facts = parsed.facts
    method = to_text(facts.get("@method"))
    intervals = [(known_stage(stage, request.own_stages), t0, t1) for stage, t0, t1 in parsed.intervals]
    stage_times = partition(intervals, start, end)
    failed = request.dimensions.status == names.STATUS_ERROR
    attributes: dict[str, str | int] = {
        **series_attributes(request.dimensions),
        **_without_empty(
            {
                names.METHOD: method,
                names.HTTP_STATUS: to_integer(http_status),
                names.ERROR_TYPE: to_text(error_type) or (str(http_status) if failed else ""),
                names.BATCH_SIZE: to_integer(facts.get("@batch")),
                names.PROVIDER: to_text(facts.get("@provider")),
                names.PROFILE: profile_text(facts.get("@profile")),
                names.SUSPECT: ", ".join(sorted({to_text(dialect) for dialect, _ in facts.get("@suspect", ())})),
            }
        ),
        **_request_attributes(facts),
        names.RETAINED_BECAUSE: request.because,
        **{names.STAGE_SELF_PREFIX + stage: spent for stage, spent in stage_times.items()},
        **{f"{names.TIMING}.{stage}": timing for stage, timing in stage_timings(marks).items()},
        **_stall_attributes(by_stage(stalls.during(start, end), intervals, start, end)),
    }
    name = " ".join(filter(None, (method, to_text(route)))) or "request"
    return Span(name, span_id, parent_id, kind, start, end, attributes, failed)


def _request_attributes(facts: Mapping[str, Any]) -> dict[str, str | int]:
    texts = {to_text(name): to_text(value) for name, value in facts.get(ATTRIBUTE, {}).items()}
    if "@caller" in facts:
        texts[known.CALLER.key] = to_text(caller_of(facts["@caller"]))
    sizes = {
        attribute.key: (to_size(facts[fact]), lowest) for fact, (attribute, lowest) in NUMBERS.items() if fact in facts
    }
    values = _without_empty(texts) | {key: size for key, (size, lowest) in sizes.items() if size >= lowest}
    return {f"{names.ATTRIBUTE}.{key}": value for key, value in values.items() if key}


def _children(marks: Marks, root: Span, end: int) -> list[Span]:
    return [
        _span(to_text(key.removeprefix(CHILD)) or "request", t0, min(t1, end), {})
        for key, t0, t1 in triples_of(marks)
        if key.startswith(CHILD) and root.start <= t0 <= t1 and t0 <= end
    ]


def _stages(marks: Marks, root: Span, own_stages: set[str]) -> list[Span]:
    spans: list[Span] = []
    latest: Span | None = None
    for key, first, second in triples_of(marks):
        stage, _, timing = key.partition("@")
        if stage:
            name = known_stage(stage, own_stages)
            latest = None
            # Work of other threads after the response does not belong to the request.
            if first <= second and first <= root.end and second >= root.start:
                attributes = {names.TIMING if f"@{timing}" in TIMINGS else names.PART: timing} if timing else {}
                latest = _span(name, max(first, root.start), min(second, root.end), {names.STAGE: name, **attributes})
                spans.append(latest)
        elif latest is not None and key in TEXTS:
            latest.attributes[TEXTS[key]] = to_text(first)
        elif latest is not None and key == CALLED:
            latest.attributes.update(_without_empty({names.SERVER: called_host(first)}))
        elif latest is not None and key == "@batch":
            latest.attributes[names.BATCH_SIZE] = to_integer(first)
    return spans


def called_host(address: object) -> str:
    """Return the host in the address of a call; "" for none. Never raises.

    >>> called_host("api.example.com"), called_host(b"dns:///ranker:50051"), called_host("::1")
    ('api.example.com', 'ranker', '::1')
    """
    text = to_text(address.decode("latin-1") if isinstance(address, bytes) else address)
    try:
        if text.count(":") > 1 and "/" not in text:
            return text
        parts = urlsplit(text if "://" in text else f"//{text}")
        return parts.hostname or urlsplit(f"/{parts.path}").hostname or ""
    except ValueError:
        return ""


def _span(name: str, start: int, end: int, attributes: dict[str, str | int]) -> Span:
    return Span(name, "", "", "internal", start, end, attributes)


def _nest_spans(root: Span, below: list[Span]) -> Iterator[Span]:
    """Yield the spans *below* the root by start, with ids, stalls, and the innermost request around each as its parent."""
    around = [root]
    met = stalls.during(root.start, root.end)
    for span in below:
        while len(around) > 1 and around[-1].end < span.end:
            around.pop()
        stalled = overlaps(met, str(span.attributes.get(names.STAGE, OVERHEAD)), span.start, span.end)
        attributes = span.attributes | {names.STALL_PREFIX + cause: spent for cause, spent in stalled.items()}
        placed = span._replace(span_id=os.urandom(8).hex(), parent_id=around[-1].span_id, attributes=attributes)
        yield placed
        if names.STAGE not in span.attributes:
            around.append(placed)


def _stall_attributes(time_by_stall: Mapping[tuple[str, str], int]) -> dict[str, int]:
    attributes: dict[str, int] = {}
    for (cause, stage), spent in time_by_stall.items():
        whole_request = names.STALL_PREFIX + cause
        attributes[whole_request] = attributes.get(whole_request, 0) + spent
        attributes[f"{whole_request}.{stage}"] = spent
    return attributes


def _without_empty(values: Mapping[str, Any]) -> dict[str, str | int]:
    return {key: value for key, value in values.items() if value}


def series_attributes(dimensions: Dimensions) -> dict[str, str]:
    keys = (names.MODEL, names.MODEL_VERSION, names.ROUTE, names.DEVICE, names.STATUS, names.COLD)
    return {key: value for key, value in zip(keys, dimensions, strict=True) if value}


class LoadSpans:
    def __init__(self) -> None:
        self._trace_id = os.urandom(16).hex()
        self._began = False

    def take(self, first_request: int | None) -> list[Trace]:
        records = loads.loads.take()
        if first_request is not None and not self._began:
            self._began = True
            born = min(loads.born, first_request)
            records.append(LoadRecord(LOAD_START.key, "", "", born, first_request, first_request - born))
        return (
            [Trace(self._trace_id, sampled=False, spans=[_load_to_span(load) for load in records])] if records else []
        )


def _load_to_span(load: LoadRecord) -> Span:
    attributes: dict[str, str | int] = {names.LOAD_PHASE: load.phase, names.LOAD_OWN: load.own_ns}
    optional = {names.MODEL: load.model, names.INPUT_SHAPE: load.shape}
    attributes |= {key: value for key, value in optional.items() if value}
    return Span(f"load {load.phase}", os.urandom(8).hex(), "", "internal", load.start, load.end, attributes)
