"""Retained traces of Stagelens agents: spans of scope `stagelens`, assembled and validated as whole traces.

A trace consists of a root span, which has `stagelens.kept.because` and the times of its stages, and of the spans below it, all in
one export. Several requests of a distributed trace may share a trace id; they have different roots.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace

from ...analysis.profile import profile_of_request
from ...core import names
from ...core.attributes import REPLICA
from ...core.request_histograms import dominant_stage
from ...core.stages import LOAD_PHASES
from ...store.events import StoredLoad
from ...store.records import RetainedTrace
from ..otlp.model import Attributes, ResourceSpans, RetainedSpan, Scalar
from .series import SeriesReader, place_of, stack_of, stage_name
from .validation import IngestResult, Reason, RejectedError, TimeWindow, printable_text

MAX_SPANS_A_TRACE = 5000
MAX_TRACES_A_BATCH = 5000
MAX_ATTRIBUTES = 64
MAX_LOADS_A_BATCH = 1000
# Maximum length of the samples of a request, some dozens of stacks. [characters]
MAX_PROFILE_CHARS = 65_536
_TRACE_ID_DIGITS, _SPAN_ID_DIGITS = 32, 16
# Attributes of a root that are stored in columns.
_COLUMNS = {
    names.MODEL,
    names.MODEL_VERSION,
    names.ROUTE,
    names.DEVICE,
    names.STATUS,
    names.COLD,
    names.DOMINANT,
    names.RETAINED_BECAUSE,
}


@dataclass(slots=True)
class RetainedTraceReader:
    window: TimeWindow
    traces: list[RetainedTrace] = field(default_factory=list[RetainedTrace])
    loads: list[StoredLoad] = field(default_factory=list[StoredLoad])
    tally: IngestResult = field(default_factory=IngestResult)

    def read(self, export: list[ResourceSpans]) -> None:
        for item in export:
            reader = SeriesReader(item.resource)
            by_trace: dict[str, list[RetainedSpan]] = defaultdict(list)
            for span in item.spans:
                if names.LOAD_PHASE in span.attributes:
                    self._read_load(span, item.resource, reader)
                else:
                    by_trace[span.trace_id].append(span)
            for trace_id, spans in by_trace.items():
                self._read_trace(trace_id, spans, reader)

    def _read_load(self, span: RetainedSpan, resource: Attributes, reader: SeriesReader) -> None:
        try:
            self.loads.append(self._load(span, resource, reader))
        except RejectedError as error:
            self.tally.reject(error.reason, f"load {printable_text(span.span_id)[:16]}: {error}")

    def _load(self, span: RetainedSpan, resource: Attributes, reader: SeriesReader) -> StoredLoad:
        if len(self.loads) >= MAX_LOADS_A_BATCH:
            msg = f"the batch has more than {MAX_LOADS_A_BATCH} loads; send smaller batches"
            raise RejectedError(Reason.SIZE, msg)
        _check_span(span)
        # Spans of any age are valid: a process reports its start only after its first request.
        replace(self.window, oldest=0).check(span.end_ns)
        phase, spent = printable_text(span.attributes[names.LOAD_PHASE]), span.attributes.get(names.LOAD_OWN)
        if phase not in LOAD_PHASES:
            msg = f"{names.LOAD_PHASE} must be one of {', '.join(LOAD_PHASES)}, got {phase[:40]!r}"
            raise RejectedError(Reason.STAGE, msg)
        duration = span.end_ns - span.start_ns
        if type(spent) is not int or not 0 <= spent <= duration:
            msg = f"{names.LOAD_OWN} must be whole nanoseconds from 0 to its duration, {duration}"
            raise RejectedError(Reason.DURATION, msg)
        service, version, environment = reader.process
        return StoredLoad(
            service,
            version,
            environment,
            instance=printable_text(resource.get(names.SERVICE_INSTANCE, "")),
            place=place_of(resource),
            phase=phase,
            model=printable_text(span.attributes.get(names.MODEL, "")),
            shape=printable_text(span.attributes.get(names.INPUT_SHAPE, "")),
            started=span.start_ns,
            ended=span.end_ns,
            own=spent,
        )

    def _read_trace(self, trace_id: str, spans: list[RetainedSpan], reader: SeriesReader) -> None:
        try:
            groups = _by_root(spans)
        except RejectedError as error:
            self.tally.reject(error.reason, f"trace {trace_id[:40]}: {error}", len(spans))
            return
        for root, children in groups:
            try:
                self.traces.append(self._trace(root, children, reader))
            except RejectedError as error:
                message = f"trace {trace_id[:40]}, span {root.span_id[:16]}: {error}"
                self.tally.reject(error.reason, message, 1 + len(children))

    def _trace(self, root: RetainedSpan, children: list[RetainedSpan], reader: SeriesReader) -> RetainedTrace:
        if len(self.traces) >= MAX_TRACES_A_BATCH:
            msg = f"the batch has more than {MAX_TRACES_A_BATCH} traces; send smaller batches"
            raise RejectedError(Reason.SIZE, msg)
        for span in (root, *children):
            _check_span(span)
        self.window.check(root.start_ns)
        self.window.check(root.end_ns)
        stages_ns = _stages_ns(root)
        replica = {f"{names.ATTRIBUTE}.{REPLICA.key}": reader.place} if reader.place else {}
        return RetainedTrace(
            trace_id=root.trace_id,
            span_id=root.span_id,
            series=reader.series(root.attributes, error=root.error),
            started_ns=root.start_ns,
            duration_ns=root.end_ns - root.start_ns,
            because=printable_text(root.attributes[names.RETAINED_BECAUSE]),
            dominant=dominant_stage(stages_ns),
            stages_ns=stages_ns,
            spans=[_child_span(root, span) for span in sorted(children, key=lambda span: (span.start_ns, span.end_ns))],
            attributes=_shown_attributes(root.attributes) | replica,
            parent_id=root.parent_id if len(root.parent_id) == _SPAN_ID_DIGITS else "",
        )


def _by_root(spans: list[RetainedSpan]) -> list[tuple[RetainedSpan, list[RetainedSpan]]]:
    _check_ids(spans)
    by_id = {span.span_id: span for span in spans}
    if len(by_id) < len(spans):
        raise RejectedError(Reason.IDS, "two spans have the same spanId")
    # Root id of each visited span; that of a root is its own id.
    home = {span.span_id: span.span_id for span in spans if names.RETAINED_BECAUSE in span.attributes}
    below: dict[str, list[RetainedSpan]] = {root: [] for root in home}
    for span in spans:
        if span.span_id not in below:
            below[_root_of(span, by_id, home)].append(span)
    for root, children in below.items():
        if len(children) >= MAX_SPANS_A_TRACE:
            msg = f"root {root} has {len(children)} spans below it, more than {MAX_SPANS_A_TRACE}"
            raise RejectedError(Reason.SIZE, msg)
    return [(by_id[root], children) for root, children in below.items()]


def _check_ids(spans: list[RetainedSpan]) -> None:
    if any(len(span.span_id) != _SPAN_ID_DIGITS or not span.span_id.strip("0") for span in spans):
        raise RejectedError(Reason.IDS, "spanId must be 8 bytes, not all zero")
    if len(spans[0].trace_id) != _TRACE_ID_DIGITS or not spans[0].trace_id.strip("0"):
        raise RejectedError(Reason.IDS, "traceId must be 16 bytes, not all zero")


def _root_of(span: RetainedSpan, by_id: dict[str, RetainedSpan], home: dict[str, str]) -> str:
    way: dict[str, None] = {}
    at = span.span_id
    while at not in home:
        if at in way or at not in by_id:
            msg = f"span {span.span_id} has no root with {names.RETAINED_BECAUSE}; send a trace in one export"
            raise RejectedError(Reason.PARENT, msg)
        way[at] = None
        at = by_id[at].parent_id
    home.update(dict.fromkeys(way, home[at]))
    return home[at]


def _check_span(span: RetainedSpan) -> None:
    if span.end_ns < span.start_ns:
        msg = f"span {span.span_id} ends {span.start_ns - span.end_ns} ns before it begins"
        raise RejectedError(Reason.DURATION, msg)


def _stages_ns(root: RetainedSpan) -> dict[str, int]:
    stages_ns: dict[str, int] = {}
    for key, value in root.attributes.items():
        if not key.startswith(names.STAGE_SELF_PREFIX):
            continue
        if type(value) is not int or value < 0:
            msg = f"{printable_text(key)} must be whole nanoseconds from 0 up, got {printable_text(value)!r}"
            raise RejectedError(Reason.STAGE, msg)
        stages_ns[stage_name(key.removeprefix(names.STAGE_SELF_PREFIX), names.STAGE_SELF_PREFIX + "<key>")] = value
    duration = root.end_ns - root.start_ns
    if sum(stages_ns.values()) != duration:
        msg = f"its stages add up to {sum(stages_ns.values())} ns, but its duration is {duration} ns"
        raise RejectedError(Reason.PARTITION, msg)
    return stages_ns


def _child_span(root: RetainedSpan, span: RetainedSpan) -> dict[str, object]:
    return {
        "name": printable_text(span.name),
        # A nested request is not a stage.
        "stage": stage_name(span.attributes[names.STAGE], names.STAGE) if names.STAGE in span.attributes else "",
        "start_ns": span.start_ns - root.start_ns,
        "duration_ns": span.end_ns - span.start_ns,
        "attributes": _shown_attributes(span.attributes, {names.STAGE}),
    }


def _shown_attributes(attributes: Attributes, left_out: set[str] = _COLUMNS) -> dict[str, Scalar]:
    """Return *attributes* without those in *left_out* and without stage times; keys and texts are limited in length."""
    shown = {
        printable_text(key): printable_text(value) if isinstance(value, str) or not math.isfinite(value) else value
        for key, value in attributes.items()
        if key not in left_out and not key.startswith(names.STAGE_SELF_PREFIX)
    }
    if names.PROFILE in shown:
        shown[names.PROFILE] = _profile_text(attributes[names.PROFILE])
    return dict(list(shown.items())[:MAX_ATTRIBUTES])


def _profile_text(value: Scalar) -> str:
    """Return the valid lines of the samples of a request; lines beyond the maximum length are left out."""
    text = value if isinstance(value, str) else ""
    whole = text if len(text) <= MAX_PROFILE_CHARS else text[:MAX_PROFILE_CHARS].rpartition("\n")[0]
    return "\n".join(f"{spent} {key}" for key, spent in profile_of_request(whole).items() if _is_stack(key))


def _is_stack(key: str) -> bool:
    try:
        return bool(stack_of(key))
    except RejectedError:
        return False
