"""Traces of Triton (`--trace-config mode=triton`): a list of events by trace id in any order.

The events become the spans that the server exports in its OpenTelemetry mode, so the same built-in rules apply. The clock of the
server has no date; the last event gets the modification time of the file.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/trace.md, "JSON Trace Output"
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..otlp.json_encoding import Object
from .source import ImportFile
from .spans import EXPORT_SPANS, make_id, otlp_event, otlp_span, span_export

_SCOPE, TRITON_SERVICE = "triton-server", "triton-inference-server"
_SERVER = 2
# Maximum number of incomplete traces: more than the concurrent requests of a server.
_MOST_GROWING = 10_000
_COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
_MODEL = ("REQUEST_START", "QUEUE_START", "REQUEST_END")
# Event of a connection that waits for its next call.
_IDLE = ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END")


@dataclass(slots=True)
class _Trace:
    model: str = ""
    version: str = ""
    parent: int = 0
    times: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    @property
    def is_cut_off(self) -> bool:
        """Whether the trace is a request without an end, whose duration would be too short."""
        return not self.parent and bool(self.times) and not self.at(("REQUEST_END",))

    def at(self, names: tuple[str, ...]) -> list[tuple[str, int]]:
        return [(name, at) for name, at in self.times if name in names]


def read_triton(source: ImportFile, service: str | None) -> Iterator[tuple[str, Object]]:
    offset = _unix_offset(source)
    service, spans = service or TRITON_SERVICE, list[Object]()
    for number, trace, root in _traces(source):
        if trace.is_cut_off:
            source.diagnostics.skip(f"trace {number}", "has no REQUEST_END: the request was not over yet")
            continue
        spans += _triton_spans(number, trace, root, offset, source.digest)
        if len(spans) >= EXPORT_SPANS:
            yield "", span_export(spans, service, _SCOPE)
            spans = []
    if spans:
        yield "", span_export(spans, service, _SCOPE)


def _unix_offset(source: ImportFile) -> int:
    """Return the offset to add to the nanoseconds of the server for Unix nanoseconds."""
    records = filter(_is_sound, source.items("item", quiet=True))
    latest = max((at for record in records for _, at in _times(record)), default=0)
    source.note_undated()
    return source.ended_ns - latest


def _is_sound(record: Any) -> bool:
    if not isinstance(record, dict) or type(record.get("id")) is not int:
        return False
    times: Any = record.get("timestamps", [])
    return isinstance(times, list) and all(
        isinstance(timestamp, dict)
        and isinstance(timestamp.get("name"), str)
        and type(timestamp.get("ns")) is int
        and timestamp["ns"] >= 0
        for timestamp in times
    )


def _times(record: Object) -> list[tuple[str, int]]:
    return [(timestamp["name"], timestamp["ns"]) for timestamp in record.get("timestamps", [])]


def _traces(source: ImportFile) -> Iterator[tuple[int, _Trace, int]]:
    growing: OrderedDict[int, _Trace] = OrderedDict()
    for number, record in enumerate(source.items("item"), 1):
        if not _is_sound(record):
            source.diagnostics.skip(f"record {number}", "is not a record of a Triton trace")
            continue
        trace = growing.setdefault(record["id"], _Trace())
        growing.move_to_end(record["id"])
        trace.times += _times(record)
        if "model_name" in record:
            trace.model, trace.version = str(record["model_name"]), str(record.get("model_version", ""))
            trace.parent = record["parent_id"] if type(record.get("parent_id")) is int else 0
        if len(growing) > _MOST_GROWING:
            yield _pop_oldest(growing)
    while growing:
        yield _pop_oldest(growing)


def _pop_oldest(growing: OrderedDict[int, _Trace]) -> tuple[int, _Trace, int]:
    """Remove and return the trace whose last record is the oldest; enclosing traces of an ensemble have later records."""
    root, number = 0, next(iter(growing))
    above, seen = number, set[int]()
    while above and above not in seen:
        seen.add(above)
        root = above
        above = growing[above].parent if above in growing else 0
    return number, growing.pop(number), root


def _triton_spans(number: int, trace: _Trace, root: int, offset: int, digest: str) -> Iterator[Object]:
    key = f"{digest}/{number}"
    ids = make_id(f"{digest}/{root}", 32)
    model, compute = trace.at(_MODEL), trace.at(_COMPUTE)
    above = make_id(f"{digest}/{trace.parent}/model", 16) if trace.parent else ""
    if not trace.parent:
        whole = [(name, at) for name, at in trace.times if name not in (*_IDLE, *_COMPUTE)]
        above = make_id(f"{key}/request", 16)
        if whole:
            yield _triton_span((ids, above, ""), "InferRequest", whole, offset, {})
    model_id = make_id(f"{key}/model", 16)
    if model:
        values = {"triton.model_name": trace.model, "triton.model_version": trace.version}
        yield _triton_span((ids, model_id, above), trace.model or "model", model, offset, values)
    if compute:
        yield _triton_span((ids, make_id(f"{key}/compute", 16), model_id), "compute", compute, offset, {})


def _triton_span(
    ids: tuple[str, str, str], name: str, times: list[tuple[str, int]], offset: int, values: Mapping[str, str | int]
) -> Object:
    # A stream has several responses: in order of time, each start is followed by its end.
    shifted = sorted((at + offset, event) for event, at in times)
    span = otlp_span(ids, name, (shifted[0][0], shifted[-1][0]), _SERVER, values)
    span["events"] = [otlp_event(event_name, at) for at, event_name in shifted]
    return span
