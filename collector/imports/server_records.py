"""Import of records of inference servers: results of `vllm bench serve --save-result --save-detailed`, and traces of Triton.

vLLM: a request is `prefill` until its first token, including queue and network, and `decode` after it. Only newer versions record start
times (`start_times`); otherwise requests are distributed evenly over the run. Generated text is not read.

Triton (`--trace-config mode=triton`): a list of events by trace id in any order. The events become the spans that the server
exports in its OpenTelemetry mode, so the same built-in rules apply. The clock of the server has no date; the last event gets the
modification time of the file.

Sources: https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py;
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/trace.md, "JSON Trace Output"
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate, chain, repeat
from typing import Any

from ...core import names
from ..otlp.json_encoding import Object
from .source import ImportFile, ImportFileError
from .spans import (
    EXPORT_SPANS,
    FIRST_TOKEN,
    TOKENS_IN,
    TOKENS_OUT,
    ImportedRequest,
    StageInterval,
    make_id,
    otlp_event,
    otlp_span,
    span_export,
    span_exports,
)

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
        isinstance(each, dict) and isinstance(each.get("name"), str) and type(each.get("ns")) is int and each["ns"] >= 0
        for each in times
    )


def _times(record: Object) -> list[tuple[str, int]]:
    return [(each["name"], each["ns"]) for each in record.get("timestamps", [])]


def _traces(source: ImportFile) -> Iterator[tuple[int, _Trace, int]]:
    growing: OrderedDict[int, _Trace] = OrderedDict()
    for place, record in enumerate(source.items("item"), 1):
        if not _is_sound(record):
            source.diagnostics.skip(f"record {place}", "is not a record of a Triton trace")
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
    own = make_id(f"{key}/model", 16)
    if model:
        values = {"triton.model_name": trace.model, "triton.model_version": trace.version}
        yield _triton_span((ids, own, above), trace.model or "model", model, offset, values)
    if compute:
        yield _triton_span((ids, make_id(f"{key}/compute", 16), own), "compute", compute, offset, {})


def _triton_span(
    ids: tuple[str, str, str], name: str, times: list[tuple[str, int]], offset: int, values: Mapping[str, str | int]
) -> Object:
    # A stream has several responses: in order of time, each start is followed by its end.
    shifted = sorted((at + offset, event) for event, at in times)
    made = otlp_span(ids, name, (shifted[0][0], shifted[-1][0]), _SERVER, values)
    made["events"] = [otlp_event(each, at) for at, each in shifted]
    return made


VLLM_SERVICE = "vllm"
# Keys that identify a vLLM benchmark result.
VLLM_KEYS = ("ttfts", "itls", "request_throughput", "output_throughput", "mean_ttft_ms")
_NS = 1_000_000_000
# Upper limit of a valid time; the comparison also excludes NaN and infinity. [seconds]
_MOST = 1e12
# Longer than any request lasts. [seconds]
_MOST_SECONDS = 1e6


def read_vllm(source: ImportFile, service: str | None) -> Iterator[tuple[str, Object]]:
    count = sum(1 for _ in source.items("ttfts.item", quiet=True))
    if not count:
        msg = (
            f"{source.path}: has no time of a single request; run `vllm bench serve` with --save-result --save-detailed"
        )
        raise ImportFileError(msg)
    for export in span_exports(_requests(source, count), service or VLLM_SERVICE, source.digest):
        yield "", export


def _requests(source: ImportFile, count: int) -> Iterator[ImportedRequest]:
    values = {names.MODEL: _text(source, "model_id"), names.ROUTE: _text(source, "backend")}
    known = {key: value for key, value in values.items() if value}
    columns = (
        source.items("ttfts.item"),
        *(_column(source, key) for key in ("itls", "input_lens", "output_lens", "errors")),
    )
    starts, failed = _starts(source, count), 0
    for number, (first, gaps, taken, given, error) in enumerate(zip(*columns, strict=False), 1):
        start = next(starts)
        if error:
            failed += 1
        elif not _is_time(first) or not isinstance(gaps or [], list) or not all(map(_is_time, gaps or [])):
            source.diagnostics.skip(f"request {number}", "has invalid times")
        else:
            yield _request(start, first, gaps or [], known | _tokens(taken, given))
    if failed:
        source.diagnostics.note(f"{failed} failed requests are skipped: the file does not have their latency")


def _request(start: int, first: float, gaps: list[float], values: dict[str, str | int]) -> ImportedRequest:
    came = [start + round(seconds * _NS) for seconds in accumulate(chain([first], gaps))]
    stages = [StageInterval("prefill", start, came[0]), StageInterval("decode", came[0], came[-1])]
    return ImportedRequest("request", start, came[-1], stages, values | {FIRST_TOKEN: came[0] - start}, came)


def _tokens(taken: Any, given: Any) -> dict[str, str | int]:
    found = {TOKENS_IN: taken, TOKENS_OUT: given}
    return {key: value for key, value in found.items() if type(value) is int and value > 0}


def _column(source: ImportFile, key: str) -> Iterator[Any]:
    """Yield the values at *key*, then None endlessly."""
    return chain(source.items(f"{key}.item", quiet=True), repeat(None))


def _starts(source: ImportFile, count: int) -> Iterator[int]:
    """Yield the start time of each request, in Unix nanoseconds."""
    duration = sum(each for each in source.items("duration", quiet=True) if _is_time(each)) or 1.0
    start = _ended_ns(source) - round(duration * _NS)
    times = list(source.items("start_times.item", quiet=True))
    if len(times) == count and all(map(_is_number, times)) and max(times) - min(times) < _MOST_SECONDS:
        first = min(times)
        yield from (start + round((each - first) * _NS) for each in times)
        return
    source.diagnostics.note("it does not have start times of requests: they are spread evenly over the run")
    yield from (start + round(duration * number / count * _NS) for number in range(count))


def _ended_ns(source: ImportFile) -> int:
    *_, date = chain([None], source.items("date", quiet=True))
    try:
        # Local time of the machine that wrote the file; its unknown time zone is assumed to be that of this machine.
        ended = datetime.strptime(str(date), "%Y%m%d-%H%M%S").astimezone(UTC)
    except ValueError:
        source.note_undated()
        return source.ended_ns
    return int(ended.timestamp()) * _NS


def _text(source: ImportFile, key: str) -> str:
    found: list[Any] = list(source.items(key, quiet=True))
    return found[-1] if found and isinstance(found[-1], str) else ""


def _is_time(value: Any) -> bool:
    return _is_number(value) and 0 <= value < _MOST_SECONDS


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _MOST
