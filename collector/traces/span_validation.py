"""Validation of decoded spans, their measurements (intervals, first token, tokens), and their conversion into columns."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..ingest.validation import IngestResult, Reason, TimeWindow
from ..otlp.model import Attributes, Scalar, SpanEvent
from .columns import ROW, Flag, Label, Rows, Spans, SpanSource, StreamMeasurements, streams_of
from .rule_config import TEXT, UNITS, IntervalRule, Rule, StreamRule
from .rules import SpanMeaning

_DURATION = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(ns|us|µs|μs|ms|s)\s*")
_MAX_NS = 2**62
_MAX_TOKENS = 2**40


# Stage after the first token.
_AFTER = "decode"
# Later times are invalid, as in `inbox`. [Unix nanoseconds]
_LATEST_NS = 2**62


class SpanInterval(NamedTuple):
    stage: str  # stage of the interval
    start: int  # start time [Unix nanoseconds]
    end: int  # end time [Unix nanoseconds, >= start]


class MeasuredSpan(NamedTuple):
    start: int  # start of the span, from the start event of the rule if present [Unix nanoseconds]
    intervals: list[SpanInterval]  # intervals within the span
    stream: StreamMeasurements | None  # measurements of a streamed response; None without any


def measure_span(found: SpanMeasurements, start: int, end: int) -> MeasuredSpan:
    """Return the measurements that a rule defines for a span; invalid values are ignored."""
    rule, numbers, events = found.rule, found.numbers, found.events
    if events:
        start = next((at for name, at in events if name == rule.start_event and 0 < at <= (end or _LATEST_NS)), start)
    if not end:
        return MeasuredSpan(start, [], None)
    stream = _stream(rule.stream, start, end, numbers, events)
    intervals: list[SpanInterval] = []
    cursor = start
    for part in found.parts:
        for begin, stop in _where(part, start, cursor, numbers, events):
            if part.lasts and part.stage == _AFTER and stream:
                # The front end of an engine takes its time before the first token, too, and reports no position.
                late = max(0, min(start + stream.first_token_ns, end - (stop - begin)) - begin)
                begin, stop = begin + late, stop + late  # noqa: PLW2901
            # An interval is cut to its span.
            inside = SpanInterval(part.stage, max(begin, start), min(stop, end))
            if inside.start < inside.end:
                intervals.append(inside)
                cursor = inside.end
    return MeasuredSpan(start, intervals, stream)


def _where(
    part: IntervalRule, start: int, cursor: int, numbers: Mapping[str, Scalar], events: Sequence[SpanEvent]
) -> Iterator[tuple[int, int]]:
    if part.from_event:
        yield from _between(part.from_event, part.to_event, events)
        return
    if part.to_event:
        yield from ((cursor, at) for at in _times((part.to_event,), events)[:1])
        return
    if part.begins:
        begin, stop = (_nanoseconds(keys, part.unit, numbers) for keys in (part.begins, part.ends))
        if begin is not None and stop is not None:
            yield begin, stop
        return
    length = _nanoseconds(part.lasts or part.until, part.unit, numbers)
    if length is not None:
        yield cursor, (cursor if part.lasts else start) + length


def _between(first: str, second: str, events: Sequence[SpanEvent]) -> Iterator[tuple[int, int]]:
    started: int | None = None
    for name, at in events:
        if name == first:
            started = at
        elif name == second and started is not None:
            yield started, at
            started = None


def _stream(
    stream: StreamRule, start: int, end: int, numbers: Mapping[str, Scalar], events: Sequence[SpanEvent]
) -> StreamMeasurements | None:
    first, gap = _nanoseconds(stream.first_token, stream.unit, numbers) or 0, 0
    if events:
        if not first and stream.first_token_event:
            first = next((at - start for at in _times((stream.first_token_event,), events)), 0)
        parts = sorted(at for at in _times(stream.answers, events) if start < at <= end)
        if len(parts) > 1:  # a single event is not a stream
            first, gap = parts[0] - start, max(later - earlier for earlier, later in pairwise(parts))
    if not 0 < first <= end - start:
        first = 0
    tokens_in, tokens_out = _tokens(stream.tokens_in, numbers), _tokens(stream.tokens_out, numbers)
    return StreamMeasurements(first, tokens_in, tokens_out, gap) if first or tokens_in or tokens_out or gap else None


def _times(wanted: Sequence[str], events: Sequence[SpanEvent]) -> list[int]:
    return [at for name, at in events if name in wanted]


def _nanoseconds(keys: Sequence[str], unit: str, numbers: Mapping[str, Scalar]) -> int | None:
    value = _first(keys, numbers)
    if value is None:
        return None
    if unit == TEXT:
        match = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return None
        value, unit = match[1], match[2].replace("µ", "u").replace("μ", "u")
    if isinstance(value, int) and not isinstance(value, bool):
        found = value * UNITS[unit]
    else:
        number = _number(value)
        if number is None or not abs(number) < _MAX_NS / UNITS[unit]:
            return None
        found = round(number * UNITS[unit])
    return found if 0 <= found < _MAX_NS else None


def _tokens(keys: Sequence[str], numbers: Mapping[str, Scalar]) -> int:
    number = _number(_first(keys, numbers))
    return int(number) if number is not None and 0 < number < _MAX_TOKENS else 0


def _first(keys: Sequence[str], numbers: Mapping[str, Scalar]) -> Scalar | None:
    for key in keys:
        if key in numbers:
            return numbers[key]
    return None


def _number(value: Scalar | None) -> float | None:
    """Return *value*, a number or numeric text, as a finite number; None for anything else."""
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


_TRACE_BYTES, _SPAN_BYTES = 16, 8
_SECOND = 1_000_000_000
_ERROR = np.uint16(Flag.ERROR)
# Values of a missing parent.
NO_SPAN = bytes(_SPAN_BYTES)
# Maximum number of processes that the columns can number.
MAX_SOURCES = 2**16 - 1
# Maximum number of distinct labels in an export, each up to a few kilobytes.
MAX_LABELS = 20_000

_Mask: TypeAlias = NDArray[np.bool_]


@dataclass(slots=True)
class SpanMeasurements:
    row: int
    rule: Rule
    parts: Sequence[IntervalRule]
    numbers: Attributes
    events: list[SpanEvent]


class RawSpans(NamedTuple):
    traces: Sequence[bytes] = ()
    spans: Sequence[bytes] = ()
    parents: Sequence[bytes] = ()  # ids of the parent spans; `NO_SPAN` for none
    starts: Sequence[int] = ()  # start times [Unix nanoseconds]
    ends: Sequence[int] = ()  # end times; 0 for spans that have not ended [Unix nanoseconds]
    errors: Sequence[bool] = ()  # whether the status is an error

    def part(self, which: slice) -> RawSpans:
        columns = (self.traces[which], self.spans[which], self.parents[which])
        return RawSpans(*columns, self.starts[which], self.ends[which], self.errors[which])


def rows_of(raw: RawSpans) -> Rows:
    """Return *raw* as rows; ids of a wrong size are zero."""
    rows = np.zeros(len(raw.spans), ROW)
    traces = _ids(raw.traces, _TRACE_BYTES).reshape(-1, 2)
    rows["trace_high"], rows["trace_low"] = traces[:, 0], traces[:, 1]
    rows["span"], rows["parent"] = _ids(raw.spans, _SPAN_BYTES), _ids(raw.parents, _SPAN_BYTES)
    rows["start"] = np.array(raw.starts, np.uint64).view(np.int64)
    rows["end"] = np.array(raw.ends, np.uint64).view(np.int64)
    rows["flags"] = np.array(raw.errors, np.bool_) * _ERROR
    return rows


@dataclass(slots=True)
class DecodedSpans:
    # Ids, times and error flags of the spans, in parts; not validated, ids of a wrong size are zero.
    parts: list[Rows] = field(default_factory=list[Rows])
    count: int = 0  # number of spans
    # Trace and span id of the spans with an id of a wrong size, by row number.
    malformed: dict[int, tuple[bytes, bytes]] = field(default_factory=dict[int, tuple[bytes, bytes]])
    meanings: list[SpanMeaning] = field(default_factory=list[SpanMeaning])  # rule result of each span
    # Processes that sent the spans, one for each run of consecutive spans.
    sources: list[SpanSource] = field(default_factory=list[SpanSource])
    counts: list[int] = field(default_factory=list[int])  # number of consecutive spans of each element of *sources*
    # Values of the attributes and events that rules name, one for each span that has any.
    measurements: list[SpanMeasurements] = field(default_factory=list[SpanMeasurements])
    elements: int = 0  # number of attributes and events that were examined one after the other

    def add(self, rows: Rows, which: Sequence[int], raw: RawSpans) -> None:
        if not all(
            {*map(len, ids)} <= {size}
            for ids, size in ((raw.traces, _TRACE_BYTES), (raw.spans, _SPAN_BYTES), (raw.parents, _SPAN_BYTES))
        ):
            for row, trace, span, parent in zip(which, raw.traces, raw.spans, raw.parents, strict=True):
                if (len(trace), len(span), len(parent)) != (_TRACE_BYTES, _SPAN_BYTES, _SPAN_BYTES):
                    self.malformed[self.count + row] = trace, span
        self.parts.append(rows)
        self.count += len(rows)


def validate_spans(read: DecodedSpans, window: TimeWindow, tally: IngestResult) -> Spans:
    """Return the valid spans of *read* as columns; rejected spans are counted in *tally*."""
    if not read.count:
        return Spans(np.zeros(0, ROW), [], [])
    rows = read.parts[0] if len(read.parts) == 1 else np.concatenate(read.parts)
    starts, ends = (np.ascontiguousarray(rows[column]).view(np.uint64) for column in ("start", "end"))
    sources = dict.fromkeys(read.sources)
    numbers = {source: number for number, source in enumerate(sources)}
    of_source = np.repeat([numbers[source] for source in read.sources], read.counts)
    labels, rows["label"], flags = _distinct_labels(read.meanings)
    rows["flags"] |= flags
    invalid = ((rows["trace_high"] == 0) & (rows["trace_low"] == 0)) | (rows["span"] == 0)
    if read.malformed:
        invalid[list(read.malformed)] = True
    judging = _Validation(rows, read.malformed, tally)
    judging.refuse(invalid, Reason.IDS, lambda _: "spanId must be 8 bytes, and traceId 16, not all zero")
    judging.refuse(_outside(starts, window), Reason.TIME, lambda row: _time_fault(int(starts[row]), window))
    ended = ends != 0
    judging.refuse(
        ended & (ends < starts), Reason.DURATION, lambda row: _duration_fault(int(starts[row]), int(ends[row]))
    )
    judging.refuse(ended & _outside(ends, window), Reason.TIME, lambda row: _time_fault(int(ends[row]), window))
    if len(sources) > MAX_SOURCES:
        too_many = f"the export has more than {MAX_SOURCES} processes"
        judging.refuse(of_source > MAX_SOURCES, Reason.SIZE, lambda _: too_many)
        of_source = np.minimum(of_source, MAX_SOURCES)
    if len(labels) > MAX_LABELS:
        many = f"the export has more than {MAX_LABELS} kinds of spans; send fewer attributes or smaller batches"
        judging.refuse(rows["label"] >= MAX_LABELS, Reason.SIZE, lambda _: many)
    rows["source"] = of_source
    return _to_columns(read, rows, judging.valid, list(sources)[: MAX_SOURCES + 1], labels[:MAX_LABELS])


class _Validation:
    def __init__(self, rows: Rows, malformed: Mapping[int, tuple[bytes, bytes]], tally: IngestResult) -> None:
        self._rows, self._malformed, self._tally = rows, malformed, tally
        self.valid: _Mask = np.ones(len(rows), np.bool_)

    def refuse(self, wrong: _Mask, reason: Reason, why: Callable[[int], str]) -> None:
        refused = wrong & self.valid
        count = int(np.count_nonzero(refused))
        if not count:
            return
        self.valid &= ~wrong
        first = int(refused.argmax())
        more = "" if count == 1 else f" (and {count - 1} more)"
        trace, span = self._ids(first)
        self._tally.reject(reason, f"trace {trace[:40]}, span {span[:20]}: {why(first)}{more}", count)

    def _ids(self, row: int) -> tuple[str, str]:
        if row in self._malformed:
            trace, own = self._malformed[row]
            return trace.hex(), own.hex()
        high, low, span = (int(self._rows[column][row]) for column in ("trace_high", "trace_low", "span"))
        return f"{high:016x}{low:016x}", f"{span:016x}"


def _to_columns(
    read: DecodedSpans, rows: Rows, valid: _Mask, sources: Sequence[SpanSource], labels: list[Label]
) -> Spans:
    number_of = np.cumsum(valid) - 1
    streams: dict[int, StreamMeasurements] = {}
    intervals: list[tuple[int, SpanInterval]] = []
    is_valid = valid.tolist()
    chosen = [found for found in read.measurements if is_valid[found.row]]
    measured = np.array([found.row for found in chosen], np.intp)
    columns = (column[measured].tolist() for column in (rows["start"], rows["end"], number_of))
    for found, start, end, number in zip(chosen, *columns, strict=True):
        result = measure_span(found, start, end)
        if result.start != start:
            rows["start"][found.row] = result.start
        intervals += [(number, interval) for interval in result.intervals]
        if result.stream is not None:
            streams[number] = result.stream
    which = np.flatnonzero(valid)
    if not intervals:
        return Spans(rows[which], sources, labels, streams_of(streams))
    # All intervals of a stage share a label.
    stages = dict.fromkeys(interval.stage for _, interval in intervals)
    at = {stage: len(labels) + number for number, stage in enumerate(stages)}
    # One selection, because concatenating rows takes three times as long.
    rows = rows[np.append(which, which[[number for number, _ in intervals]])]
    derived = rows[len(which) :]
    derived["parent"], derived["span"] = derived["span"], 0
    derived["start"] = [interval.start for _, interval in intervals]
    derived["end"] = [interval.end for _, interval in intervals]
    derived["label"] = [at[interval.stage] for _, interval in intervals]
    derived["flags"] = Flag.DERIVED
    return Spans(rows, sources, [*labels, *map(_interval_label, at)], streams_of(streams))


@cache
def _interval_label(stage: str) -> Label:
    return Label(stage, stage=stage)


def _distinct_labels(meanings: Sequence[SpanMeaning]) -> tuple[list[Label], NDArray[np.uint32], NDArray[np.uint16]]:
    distinct = {meaning: number for number, meaning in enumerate(dict.fromkeys(meanings))}
    numbers: dict[Label, int] = {}
    of_distinct = np.array([numbers.setdefault(meaning.label, len(numbers)) for meaning in distinct], np.uint32)
    flags = np.array([meaning.flags for meaning in distinct], np.uint16)
    which = np.fromiter(map(distinct.__getitem__, meanings), np.intp, len(meanings))
    return list(numbers), of_distinct[which], flags[which]


def _ids(found: Sequence[bytes], size: int) -> NDArray[np.uint64]:
    """Return the ids *found* as 8-byte numbers; ids that do not have *size* bytes become zero."""
    if set(map(len, found)) != {size}:
        found = [each if len(each) == size else bytes(size) for each in found]
    return np.frombuffer(b"".join(found), ">u8").astype(np.uint64)


def _outside(times: NDArray[np.uint64], window: TimeWindow) -> _Mask:
    seconds = times // np.uint64(_SECOND)
    return (seconds < max(window.oldest, 0)) | (seconds > window.newest)


def _time_fault(time_ns: int, window: TimeWindow) -> str:
    at = time_ns // _SECOND
    if at > window.newest:
        return f"its time, {at} s after 1970, is more than a day ahead ({window.newest}); check the sender's clock"
    return f"its time, {at} s after 1970, is too long ago, before {window.oldest}; check the sender's clock"


def _duration_fault(start: int, end: int) -> str:
    return f"it ends {start - end} ns before it begins"
