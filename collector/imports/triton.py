"""Traces that Triton writes itself (`--trace-config mode=triton`): a list of what happened to which trace id, in any order.

They become the spans that the same server exports in its OpenTelemetry mode, so that the same built-in rules read them.
Its clock has no date: the file's own tells when the last one ended.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/trace.md, "JSON Trace Output"
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..otlp.json_fields import Object
from .source import Source
from .spans import EXPORT_SPANS, event, export, identifier, span

_SCOPE, SERVICE = "triton-server", "triton-inference-server"
_SERVER = 2
# Traces that are still added to, at most: more than a server works on at once.
_MOST_GROWING = 10_000
_COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
_MODEL = ("REQUEST_START", "QUEUE_START", "REQUEST_END")
# A connection waits for its next call in it.
_IDLE = ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END")


@dataclass(slots=True)
class _Trace:
    """What is known of one trace id."""

    model: str = ""
    version: str = ""
    parent: int = 0
    times: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    @property
    def is_cut_off(self) -> bool:
        """Whether it is a request whose end is not told, which would count as shorter than it was."""
        return not self.parent and bool(self.times) and not self.at(("REQUEST_END",))

    def at(self, names: tuple[str, ...]) -> list[tuple[str, int]]:
        return [(name, at) for name, at in self.times if name in names]


def read(source: Source, service: str | None) -> Iterator[tuple[str, Object]]:
    """Yield the requests of *source* as spans."""
    offset = _offset(source)
    service, spans = service or SERVICE, list[Object]()
    for number, trace, root in _traces(source):
        if trace.is_cut_off:
            source.told.skip(f"trace {number}", "has no REQUEST_END: the request was not over yet")
            continue
        spans += _spans(number, trace, root, offset, source.digest)
        if len(spans) >= EXPORT_SPANS:
            yield "", export(spans, service, _SCOPE)
            spans = []
    if spans:
        yield "", export(spans, service, _SCOPE)


def _offset(source: Source) -> int:
    """Return what makes Unix nanoseconds of the server's."""
    records = filter(_is_sound, source.items("item", quiet=True))
    latest = max((at for record in records for _, at in _times(record)), default=0)
    source.note_undated()
    return source.ended_ns - latest


def _is_sound(record: Any) -> bool:
    if not isinstance(record, dict) or type(record.get("id")) is not int:
        return False
    times: Any = record.get("timestamps", [])
    return isinstance(times, list) and all(
        isinstance(each, dict) and isinstance(each.get("name"), str) and type(each.get("ns")) is int and each["ns"] >= 0
        for each in times
    )


def _times(record: Object) -> list[tuple[str, int]]:
    return [(each["name"], each["ns"]) for each in record.get("timestamps", [])]


def _traces(source: Source) -> Iterator[tuple[int, _Trace, int]]:
    """Yield each trace with its number and that of its root, once no more of it is to be expected."""
    growing: OrderedDict[int, _Trace] = OrderedDict()
    for place, record in enumerate(source.items("item"), 1):
        if not _is_sound(record):
            source.told.skip(f"record {place}", "is no record of a Triton trace")
            continue
        trace = growing.setdefault(record["id"], _Trace())
        growing.move_to_end(record["id"])
        trace.times += _times(record)
        if "model_name" in record:
            trace.model, trace.version = str(record["model_name"]), str(record.get("model_version", ""))
            trace.parent = record["parent_id"] if type(record.get("parent_id")) is int else 0
        if len(growing) > _MOST_GROWING:
            yield _whole(growing)
    while growing:
        yield _whole(growing)


def _whole(growing: OrderedDict[int, _Trace]) -> tuple[int, _Trace, int]:
    """Take out the trace of which nothing has come for the longest time; those around it in an ensemble end after it."""
    root, number = 0, next(iter(growing))
    above, seen = number, set[int]()
    while above and above not in seen:
        seen.add(above)
        root = above
        above = growing[above].parent if above in growing else 0
    return number, growing.pop(number), root


def _spans(number: int, trace: _Trace, root: int, offset: int, digest: str) -> Iterator[Object]:
    key = f"{digest}/{number}"
    ids = identifier(f"{digest}/{root}", 32)
    model, compute = trace.at(_MODEL), trace.at(_COMPUTE)
    above = identifier(f"{digest}/{trace.parent}/model", 16) if trace.parent else ""
    if not trace.parent:
        whole = [(name, at) for name, at in trace.times if name not in (*_IDLE, *_COMPUTE)]
        above = identifier(f"{key}/request", 16)
        if whole:
            yield _span((ids, above, ""), "InferRequest", whole, offset, {})
    own = identifier(f"{key}/model", 16)
    if model:
        values = {"triton.model_name": trace.model, "triton.model_version": trace.version}
        yield _span((ids, own, above), trace.model or "model", model, offset, values)
    if compute:
        yield _span((ids, identifier(f"{key}/compute", 16), own), "compute", compute, offset, {})


def _span(
    ids: tuple[str, str, str], name: str, times: list[tuple[str, int]], offset: int, values: Mapping[str, str | int]
) -> Object:
    # A stream sends several times: in the order it happened each start is followed by its end.
    shifted = sorted((at + offset, event) for event, at in times)
    made = span(ids, name, (shifted[0][0], shifted[-1][0]), _SERVER, values)
    made["events"] = [event(each, at) for at, each in shifted]
    return made
