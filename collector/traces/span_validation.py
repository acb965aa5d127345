"""Spans as they were read, judged one by one and put into columns.

What is malformed or at an impossible time is refused and told of; the rest of the export is not touched by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..ingest.points import Window
from ..ingest.validation import Reason, Tally
from ..otlp.model import Attributes, Event
from .columns import ROW, Flag, Label, Rows, Source, Spans, Stream, streams_of
from .measuring import Interval, Told, measure
from .rules import Meaning, Rule

_TRACE_BYTES, _SPAN_BYTES = 16, 8
_SECOND = 1_000_000_000
# What stands for no parent.
NO_SPAN = bytes(_SPAN_BYTES)
# As many processes as the columns can number.
MAX_SOURCES = 2**16 - 1
# Kinds of spans an export may have, each up to a few kilobytes.
MAX_LABELS = 20_000

_Mask: TypeAlias = NDArray[np.bool_]


@dataclass(slots=True)
class Tells:
    """A span that tells more of itself.

    Args:
        row: The number of its span, in the order they were read.
        rule: How to read it.
        numbers: The attributes that the rule measures.
        events: Those that it looks for.
    """

    row: int
    rule: Rule
    numbers: Attributes
    events: list[Event]


@dataclass(slots=True)
class Read:
    """The spans of an export in the order they were read.

    Args:
        traces: Their trace ids, as they came.
        spans: Their own ids, as they came.
        parents: Of the spans around them; `NO_SPAN` for none.
        starts: When they began. [Unix nanoseconds]
        ends: When they ended, 0 for not yet. [Unix nanoseconds]
        meanings: What they are.
        errors: The numbers of those whose status is an error.
        sources: The processes they came from.
        counts: How many of them came from each, one after the other.
        tells: What some of them tell.
        elements: How many attributes and events were looked at.
    """

    traces: list[bytes] = field(default_factory=list[bytes])
    spans: list[bytes] = field(default_factory=list[bytes])
    parents: list[bytes] = field(default_factory=list[bytes])
    starts: list[int] = field(default_factory=list[int])
    ends: list[int] = field(default_factory=list[int])
    meanings: list[Meaning] = field(default_factory=list[Meaning])
    errors: list[int] = field(default_factory=list[int])
    sources: list[Source] = field(default_factory=list[Source])
    counts: list[int] = field(default_factory=list[int])
    tells: list[Tells] = field(default_factory=list[Tells])
    elements: int = 0


def assemble(read: Read, window: Window, tally: Tally) -> Spans:
    """Return what of *read* can be believed, as columns; what is refused is in *tally*.

    Args:
        read: The spans.
        window: Which times are plausible.
        tally: Counts what is refused, with the reasons.
    """
    if not read.spans:
        return Spans(np.zeros(0, ROW), [], [])
    rows = np.zeros(len(read.spans), ROW)
    traces = _ids(read.traces, _TRACE_BYTES).reshape(-1, 2)
    rows["trace_high"], rows["trace_low"] = traces[:, 0], traces[:, 1]
    rows["span"] = _ids(read.spans, _SPAN_BYTES)
    rows["parent"] = _ids(read.parents, _SPAN_BYTES)
    starts, ends = np.array(read.starts, np.uint64), np.array(read.ends, np.uint64)
    sources = dict.fromkeys(read.sources)
    numbers = {source: number for number, source in enumerate(sources)}
    of_source = np.repeat([numbers[source] for source in read.sources], read.counts)
    labels, rows["label"], rows["flags"] = _meant(read.meanings)
    rows["flags"][read.errors] |= np.uint16(Flag.ERROR)
    judging = _Judging(read, tally)
    judging.refuse(
        ((rows["trace_high"] == 0) & (rows["trace_low"] == 0)) | (rows["span"] == 0) | _odd(read.parents),
        Reason.IDS,
        lambda _: "spanId must be 8 bytes, and traceId 16, not all zero",
    )
    judging.refuse(_outside(starts, window), Reason.TIME, lambda row: _implausible(read.starts[row], window))
    ended = ends != 0
    judging.refuse(ended & (ends < starts), Reason.DURATION, lambda row: _backwards(read, row))
    judging.refuse(ended & _outside(ends, window), Reason.TIME, lambda row: _implausible(read.ends[row], window))
    judging.refuse(of_source > MAX_SOURCES, Reason.SIZE, lambda _: f"the export has more than {MAX_SOURCES} processes")
    judging.refuse(
        rows["label"] >= MAX_LABELS,
        Reason.SIZE,
        lambda _: (
            f"the export has more than {MAX_LABELS} kinds of spans; show fewer attributes, or send smaller batches"
        ),
    )
    rows["start"], rows["end"] = starts.view(np.int64), ends.view(np.int64)
    rows["source"] = np.minimum(of_source, MAX_SOURCES)
    return _told(read, rows, judging.believed, list(sources)[: MAX_SOURCES + 1], labels[:MAX_LABELS])


class _Judging:
    """Which spans are believed.

    Attributes:
        believed: A mask of them.
    """

    def __init__(self, read: Read, tally: Tally) -> None:
        self._read, self._tally = read, tally
        self.believed: _Mask = np.ones(len(read.spans), np.bool_)

    def refuse(self, wrong: _Mask, reason: Reason, why: Callable[[int], str]) -> None:
        """Refuse those of which *wrong* is true and that are believed yet; *why* says it of the first."""
        refused = wrong & self.believed
        count = int(refused.sum())
        if not count:
            return
        self.believed &= ~wrong
        first = int(refused.argmax())
        more = "" if count == 1 else f" (and {count - 1} more)"
        where = f"trace {self._read.traces[first].hex()[:40]}, span {self._read.spans[first].hex()[:20]}"
        self._tally.reject(reason, f"{where}: {why(first)}{more}", count)


def _told(read: Read, rows: Rows, believed: _Mask, sources: Sequence[Source], labels: list[Label]) -> Spans:
    """Return the rows that are believed, with what their spans tell."""
    number_of = np.cumsum(believed) - 1
    streams: dict[int, Stream] = {}
    intervals: list[tuple[int, Interval]] = []
    for tells in read.tells:
        if believed[tells.row]:
            told = _measured(read, tells)
            # Else it stays as it was judged: one that no row can hold is there as such.
            if told.start != read.starts[tells.row]:
                rows["start"][tells.row] = told.start
            number = int(number_of[tells.row])
            intervals += [(number, interval) for interval in told.intervals]
            if told.stream is not None:
                streams[number] = told.stream
    rows = rows[believed]
    if not intervals:
        return Spans(rows, sources, labels, streams_of(streams))
    # All intervals of a stage are alike.
    stages = dict.fromkeys(interval.stage for _, interval in intervals)
    at = {stage: len(labels) + number for number, stage in enumerate(stages)}
    derived = rows[[number for number, _ in intervals]]
    derived["parent"], derived["span"] = derived["span"], 0
    derived["start"] = [interval.start for _, interval in intervals]
    derived["end"] = [interval.end for _, interval in intervals]
    derived["label"] = [at[interval.stage] for _, interval in intervals]
    derived["flags"] = Flag.DERIVED
    return Spans(np.concatenate((rows, derived)), sources, [*labels, *map(_interval_label, at)], streams_of(streams))


def _measured(read: Read, tells: Tells) -> Told:
    return measure(tells.rule, read.starts[tells.row], read.ends[tells.row], tells.numbers, tells.events)


@cache
def _interval_label(stage: str) -> Label:
    return Label(stage, stage=stage)


def _meant(meanings: Sequence[Meaning]) -> tuple[list[Label], NDArray[np.uint32], NDArray[np.uint16]]:
    """Return the labels of *meanings*, each once, and for each of them the number of its label and its flags."""
    distinct = {meaning: number for number, meaning in enumerate(dict.fromkeys(meanings))}
    numbers: dict[Label, int] = {}
    of_distinct = np.array([numbers.setdefault(meaning.label, len(numbers)) for meaning in distinct], np.uint32)
    flags = np.array([meaning.flags for meaning in distinct], np.uint16)
    which = np.fromiter(map(distinct.__getitem__, meanings), np.intp, len(meanings))
    return list(numbers), of_distinct[which], flags[which]


def _ids(found: Sequence[bytes], size: int) -> NDArray[np.uint64]:
    """Return *found* as numbers of 8 bytes; zero for what has not *size* bytes."""
    if set(map(len, found)) != {size}:
        found = [each if len(each) == size else bytes(size) for each in found]
    return np.frombuffer(b"".join(found), ">u8").astype(np.uint64)


def _odd(parents: Sequence[bytes]) -> _Mask:
    """Return which of *parents* are no ids."""
    if set(map(len, parents)) == {_SPAN_BYTES}:
        return np.zeros(len(parents), np.bool_)
    return np.array([len(parent) != _SPAN_BYTES for parent in parents])


def _outside(times: NDArray[np.uint64], window: Window) -> _Mask:
    seconds = times // np.uint64(_SECOND)
    return (seconds < max(window.oldest, 0)) | (seconds > window.newest)


def _implausible(time_ns: int, window: Window) -> str:
    at = time_ns // _SECOND
    if at > window.newest:
        return f"its time, {at} s after 1970, is more than a day ahead ({window.newest}); check the sender's clock"
    return f"its time, {at} s after 1970, is too long ago, before {window.oldest}; check the sender's clock"


def _backwards(read: Read, row: int) -> str:
    return f"it ends {read.starts[row] - read.ends[row]} ns before it begins"
