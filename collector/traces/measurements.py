"""Measurements of a span that its rule defines: intervals within the span, the first token, and numbers of tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ..otlp.model import Attributes, Scalar, SpanEvent
from .columns import StreamMeasurements
from .rule_config import TEXT, UNITS, IntervalRule, Rule, StreamRule

_DURATION = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(ns|us|µs|μs|ms|s)\s*")
_MAX_NS = 2**62
_MAX_TOKENS = 2**40
# Stage after the first token.
_AFTER = "decode"
# Later times are invalid, as in `inbox`. [Unix nanoseconds]
_LATEST_NS = 2**62


@dataclass(slots=True)
class SpanMeasurements:
    row: int
    rule: Rule
    parts: Sequence[IntervalRule]
    numbers: Attributes
    events: list[SpanEvent]


class SpanInterval(NamedTuple):
    stage: str  # stage of the interval
    start: int  # start time [Unix nanoseconds]
    end: int  # end time [Unix nanoseconds, >= start]


class MeasuredSpan(NamedTuple):
    start: int  # start of the span, from the start event of the rule if present [Unix nanoseconds]
    intervals: list[SpanInterval]  # intervals within the span
    stream: StreamMeasurements | None  # measurements of a streamed response; None without any


def measure_span(measurements: SpanMeasurements, start: int, end: int) -> MeasuredSpan:
    """Return the measurements that a rule defines for a span; invalid values are ignored."""
    rule, numbers, events = measurements.rule, measurements.numbers, measurements.events
    if events:
        start = next((at for name, at in events if name == rule.start_event and 0 < at <= (end or _LATEST_NS)), start)
    if not end:
        return MeasuredSpan(start, [], None)
    stream = _stream(rule.stream, start, end, numbers, events)
    intervals: list[SpanInterval] = []
    cursor = start
    for part in measurements.parts:
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
        ns = value * UNITS[unit]
    else:
        number = _number(value)
        if number is None or not abs(number) < _MAX_NS / UNITS[unit]:
            return None
        ns = round(number * UNITS[unit])
    return ns if 0 <= ns < _MAX_NS else None


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
