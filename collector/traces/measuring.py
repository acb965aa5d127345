"""What a span tells of itself beyond its start and end: intervals within it, its first token, its tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..otlp.model import Event, Scalar
from .columns import Stream
from .rules import Part, Rule, Streaming

# To nanoseconds. `text` is a number with its unit, as Rust and Go write durations: 1.5ms.
UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
TEXT = "text"
_DURATION = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(ns|us|µs|μs|ms|s)\s*")
_MAX_NS = 2**62
_MAX_TOKENS = 2**40


# Where a span has not ended: times that are past it are none, as in `folding`. [Unix nanoseconds]
_LATEST_NS = 2**62


class Interval(NamedTuple):
    """A part of a span.

    Args:
        stage: Which stage.
        start: When it began. [Unix nanoseconds]
        end: When it ended. [Unix nanoseconds, >= start]
    """

    stage: str
    start: int
    end: int


class Told(NamedTuple):
    """What a span told.

    Args:
        start: When it began, by the event that says so, or else by itself. [Unix nanoseconds]
        intervals: Within it.
        stream: What it says of its answer; None for nothing.
    """

    start: int
    intervals: list[Interval]
    stream: Stream | None


def measure(rule: Rule, start: int, end: int, numbers: Mapping[str, Scalar], events: Sequence[Event]) -> Told:
    """Read what *rule* says a span tells of itself; what makes no sense is passed over.

    Args:
        rule: What the span is.
        start: When it began. [Unix nanoseconds]
        end: When it ended, 0 for not yet. [Unix nanoseconds]
        numbers: Those of its attributes that the rule measures.
        events: What happened in it.
    """
    if events:
        start = next((at for name, at in events if name == rule.start and 0 < at <= (end or _LATEST_NS)), start)
    if not end:
        return Told(start, [], None)
    found: list[Interval] = []
    cursor = start
    for part in rule.parts:
        for begin, stop in _where(part, start, cursor, numbers, events):
            # A part cannot reach beyond its span.
            inside = Interval(part.stage, max(begin, start), min(stop, end))
            if inside.start < inside.end:
                found.append(inside)
                cursor = inside.end
    return Told(start, found, _stream(rule.stream, start, end, numbers, events))


def _where(
    part: Part, start: int, cursor: int, numbers: Mapping[str, Scalar], events: Sequence[Event]
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


def _between(first: str, second: str, events: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """Yield the times from each event *first* to the next *second*."""
    begun: int | None = None
    for name, at in events:
        if name == first:
            begun = at
        elif name == second and begun is not None:
            yield begun, at
            begun = None


def _stream(
    stream: Streaming, start: int, end: int, numbers: Mapping[str, Scalar], events: Sequence[Event]
) -> Stream | None:
    first, gap = _nanoseconds(stream.first_token, stream.unit, numbers) or 0, 0
    if events:
        if not first and stream.first_token_event:
            first = next((at - start for at in _times((stream.first_token_event,), events)), 0)
        answers = sorted(at for at in _times(stream.answers, events) if start < at <= end)
        if len(answers) > 1:  # one answer is no stream
            first, gap = answers[0] - start, max(later - earlier for earlier, later in pairwise(answers))
    if not 0 < first <= end - start:
        first = 0
    tokens_in, tokens_out = _tokens(stream.tokens_in, numbers), _tokens(stream.tokens_out, numbers)
    return Stream(first, tokens_in, tokens_out, gap) if first or tokens_in or tokens_out or gap else None


def _times(wanted: Sequence[str], events: Sequence[Event]) -> list[int]:
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
    """Return *value* as a finite number, texts of one included; None for anything else."""
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
