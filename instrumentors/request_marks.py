"""Marks of finished requests: their facts and stage intervals, and the marks that become known only later.

`read_marks` reads facts and intervals. Times reported by a device or by another server are not yet known when the request is
finished: such a request waits in `DeferredRecords` until all of its marks are known, for a few seconds at most; then the known
ones are added to it. The first requests of a script wait there, too (`scripts.py`).
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..core.partition import Interval, segments
from ..core.stages import BY_KEY, FRAMEWORK, HANDLER, OVERHEAD
from ..core.text import to_integer
from . import records
from .instrumentor import log_failure
from .records import ATTRIBUTE, BODY, REPORTED, REST, TIMINGS, Late, Marks, Record

_END = operator.itemgetter(2)
MAX_WAIT_SECONDS = 3.0
# About 2 MB; beyond this limit the oldest record is passed on with the marks that are known.
MAX_WAITING = 2048


class RequestFacts(NamedTuple):
    facts: dict[str, Any]  # Facts by key, combined as `records` describes
    intervals: list[Interval]  # Stage (without the part after the "@"), start, end. [nanoseconds by `clock`]


def read_marks(marks: Marks) -> RequestFacts:
    items = iter(marks)
    facts: dict[str, Any] = {}
    intervals: list[Interval] = []
    bodies: list[Interval] = []
    reported: list[tuple[int, int]] = []
    for triple in zip(items, items, items, strict=True):
        key = triple[0]
        if key in BY_KEY:
            intervals.append(triple)
        elif key[0] != "@":
            stage, _, how = key.partition("@")
            (bodies if how == BODY else intervals).append((stage, triple[1], triple[2]))
            if how in {REPORTED, REST}:
                reported.append(triple[1:])
        elif key in _COMBINED:
            _COMBINED[key](facts, key, triple[1], triple[2])
        else:
            facts[key] = triple[1]
    # The wait for a body belongs to the stages that the server reported, if any.
    return RequestFacts(
        facts, intervals + (list(_subtract_intervals(bodies, reported)) if bodies and reported else bodies)
    )


def read_request(record: Record) -> RequestFacts:
    marks, start, end, *_, kind = record
    parsed = read_marks(marks)
    if "@late" in parsed.facts:
        # A step of the endpoint may begin while a worker does what it waits for.
        parsed.intervals[:] = _without_waiting_steps(parsed.intervals)
        # Like all others in the order of their end, with which `partition` is several times as fast.
        parsed.intervals.sort(key=_END)
    if kind == "internal":
        parsed.intervals.append((HANDLER, start, max(start, end)))
    return parsed


def _without_waiting_steps(intervals: list[Interval]) -> list[Interval]:
    """Return *intervals* with only the rest of those of the handler that begin inside of another stage: it is what they wait for."""
    others = sorted(interval[1:] for interval in intervals if interval[0] not in {HANDLER, FRAMEWORK})
    ends = list(itertools.accumulate((end for _, end in others), max))
    waiting: list[Interval] = []
    rest: list[Interval] = []
    for interval in intervals:
        before = bisect.bisect_left(others, (interval[1],))
        is_waiting = interval[0] == HANDLER and before > 0 and ends[before - 1] > interval[1]
        (waiting if is_waiting else rest).append(interval)
    return [*rest, *_subtract_intervals(waiting, others)] if waiting else intervals


def _subtract_intervals(intervals: Sequence[Interval], others: Iterable[tuple[int, int]]) -> Iterator[Interval]:
    span = min(start for _, start, _ in intervals), max(end for _, _, end in intervals)
    parts = segments([("", *times) for times in others], *span)
    free = [(start, end) for stage, start, end in parts if stage == OVERHEAD]
    ends = [end for _, end in free]
    for stage, start, end in intervals:
        for started, ended in itertools.islice(free, bisect.bisect_right(ends, start), None):
            if started >= end:
                break
            yield stage, max(started, start), min(ended, end)


def _first(facts: dict[str, Any], key: str, first: Any, _second: Any) -> None:
    facts.setdefault(key, first)


def _first_token(facts: dict[str, Any], key: str, when: Any, definition: Any) -> None:
    if isinstance(when, int) and (key not in facts or when < facts[key][0]):
        facts[key] = (when, definition)


def _largest(facts: dict[str, Any], key: str, number: Any, _second: Any) -> None:
    facts[key] = max(facts.get(key, 0), to_integer(number))


def _sum(facts: dict[str, Any], key: str, count: Any, _second: Any) -> None:
    facts[key] = facts.get(key, 0) + to_integer(count)


def _sum_pace(facts: dict[str, Any], key: str, spent: Any, over: Any) -> None:
    tokens, definition = over if isinstance(over, tuple) else (over, "")
    paces = facts.setdefault(key, {})
    before = paces.get(definition, (0, 0))
    paces[definition] = (before[0] + to_integer(spent), before[1] + to_integer(tokens))


def _named(facts: dict[str, Any], key: str, named: Any, _second: Any) -> None:
    name, value = named
    facts.setdefault(key, {})[name] = value


def _longest(facts: dict[str, Any], key: str, length: Any, definition: Any) -> None:
    longest = facts.setdefault(key, {})
    # Only the exact type: the hash of a subclass may raise.
    definition = definition if type(definition) is str else ""
    longest[definition] = max(longest.get(definition, 0), to_integer(length))


def _append(facts: dict[str, Any], key: str, first: Any, second: Any) -> None:
    facts.setdefault(key, []).append((first, second))


_COMBINED = {
    "@failed": _append,
    "@suspect": _append,
    "@trace": _first,
    "@parent": _first,
    "@traceparent": _first,
    "@first_token": _first_token,
    "@queue_length": _largest,
    ATTRIBUTE: _named,
    "@tokens_in": _sum,
    "@tokens_out": _sum,
    "@per_token": _sum_pace,
    "@gap": _longest,
}


def stage_timings(marks: Marks) -> dict[str, str]:
    """Return the timing source of each stage that was not timed by a clock around the call; "mixed" for several sources.

    >>> stage_timings(["@open", 0, 0, "forward@gpu", 1, 2, "queue", 3, 4])
    {'forward': 'gpu'}
    """
    timings: dict[str, str] = {}
    for key in marks[::3]:
        stage, _, timing = key.partition("@")
        if stage and f"@{timing}" in TIMINGS and timings.setdefault(stage, timing) != timing:
            timings[stage] = "mixed"
    return timings


class DeferredRecords:
    def __init__(self) -> None:
        self._held: deque[tuple[float, Record]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._held)

    def holds(self, record: Record, now: float) -> bool:
        """Return whether *record* has to wait, and store the record if so; otherwise complete the record."""
        late = _late_parts(record[0])
        if _are_ready(late):
            _add(record[0], late)
            return False
        self._held.append((now + max(getattr(mark, "wait_seconds", MAX_WAIT_SECONDS) for mark in late), record))
        return True

    def due(self, now: float) -> Iterator[Record]:
        for _ in range(len(self._held)):
            until, record = self._held.popleft()
            if now < until and not is_ready(record[0]):
                if len(self._held) < MAX_WAITING:
                    self._held.append((until, record))
                    continue
                records.report_limit("is counted without times that come later, because 2,048 others wait for theirs")
            complete(record[0])
            yield record


def is_ready(marks: Marks) -> bool:
    """Return whether all late marks of *marks* are known; do not block."""
    return _are_ready(_late_parts(marks))


def complete(marks: Marks) -> None:
    """Add the late marks that are known by now; call once per request."""
    _add(marks, _late_parts(marks))


def _late_parts(marks: Marks) -> list[Late]:
    keys = marks[::3]
    # Most runs of a batch have none.
    return [late for key, late in zip(keys, marks[1::3], strict=False) if key == "@late"] if "@late" in keys else []


def _are_ready(parts: Iterable[Late]) -> bool:
    try:
        for late in parts:
            if not late.ready():
                return False
    except Exception:
        log_failure("requesting timings of a device or server")
    return True


def _add(marks: Marks, parts: Iterable[Late]) -> None:
    for late in parts:
        try:
            marks.extend(late.marks())
        except Exception:
            log_failure("reading timings of a device or server")
