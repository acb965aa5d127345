"""Marks: the record of one running request, as a flat list that its threads share.

The list is held by the context variable `current` and consists of triples `key, first, second`.

- A stage: `"forward", start, end`, both times from `clock`. One atomic `extend` in a `finally`, so that several threads may
  write to the same list:

      marks = current.get()
      if marks is None:
          return original(*args)
      t0 = clock()
      try:
          return original(*args)
      finally:
          if has_capacity(marks):
              marks.extend(("forward", t0, clock()))

- A stage that was not timed by the clock of this thread has its source after an "@": `"forward@gpu", start, end` (see
  `TIMINGS`). Any other word after the "@" is a part of the stage: `"dependency@body"` is the response body after the
  headers; `"network@rest"` is the rest of a call whose server reported its own stages.
- A fact about the request: `"@model", "resnet50", 0`. The two values after each key:

      @model, @model_version, @device, @provider, @method  text, 0; the last one wins
      @batch            number of items, 0; the last one wins
      @arrival          number of the request in the order in which the requests of the process started, and its route as far as
                        known, or what returns it, else 0; the first fact of a request, from which the aggregation counts the
                        requests that ran at its arrival (`agent/attributes.py`)
      @user_agent       header `User-Agent` of a known prober, 0
      @request_size     size of the request body in bytes, or the text of the header with it, 0
      @response_size    size of the response body in bytes, 0
      @queue_length     number of jobs that waited in a queue before a job of the request was added, 0; the largest one wins
      @caller           W3C header `tracestate` with the service that sent the request (`trace_context.caller_of`), 0
      @attribute        name and value of an attribute that the user named, 0; the last one of a name wins
      @traceparent      W3C header that came with the request, 0; the first one wins
      @trace            trace id and span id of the request, 0: created for the first outgoing call; the first one wins
      @parent           span of the user's own OpenTelemetry SDK around the request (`trace_context.Parent`), 0; the first one wins
      @force            1, 0: retain the trace
      @cancelled        1, 0: the client had gone before the response was complete
      @profile          time by key of the sampled stacks, 0; added by the aggregation
      @child <name>     start, end of a request inside the request
      @first_token      time by `clock`, and the definition it was measured by; the earliest one wins
      @tokens_in, @tokens_out  number of tokens, 0; summed
      @per_token        nanoseconds, and the number of tokens after the first, or that number with the definition; summed
      @gap              nanoseconds between two chunks of a stream, and the definition, or 0 for that of the first token; the
                        longest one per definition wins
      @suspect          name of the server whose report about a call cannot be true (`libraries/server_reports.py`), and the
                        duration of the call in nanoseconds; every one counts
      @called           host or address that the call before it was made to, 0; every one counts
      @failed           outcome of an outgoing call, such as "triton:timeout", and its duration in nanoseconds; every one counts
      @late             a `Late`, 0
      @untimed          1 if the stages were still recorded, else 0, and 0: only the request is counted (`RecorderState.mode`)
      @shared           0 or the run of a worker with a queue (`libraries/queue_jobs.py`), 0: the marks of a batch, not of one request
      @full             0, 0: the list accepts no more marks, because it has thousands of facts that each count

- The first triple holds the state of the request: `OPEN, start, 0`, later `CLOSED, start, 0`. Its last position belongs to
  `libraries/executors.py`: the jobs of the request in thread pools.

Measured: a list subclass or an object per stage costs 3 to 10 times as much once a model has run and the caches are cold.
"""

from __future__ import annotations

import functools
import itertools
import logging
import operator
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Final, Literal, Protocol, TypeAlias

from ..core.partition import Interval, segments
from ..core.stages import BY_KEY, OTHER, OVERHEAD

# Monotonic nanoseconds; the agent converts them to wall-clock time.
clock: Final = time.perf_counter_ns

Marks: TypeAlias = list[Any]
Kind: TypeAlias = Literal["server", "internal"]
# marks, start, end, route, error type, HTTP status, kind: a tuple, because it is the cheapest object to build.
Record: TypeAlias = tuple[Marks, int, int, str, str, int, Kind]

OPEN: Final = "@open"
CLOSED: Final = "@closed"
FULL: Final = "@full"
ARRIVAL: Final = "@arrival"
ATTRIBUTE: Final = "@attribute"
CALLED: Final = "@called"
UNTIMED: Final = "@untimed"
# Fact of marks that belong to several requests at once, or to none (`tickets.py`).
SHARED: Final = "@shared"
# Positions in marks: the triple of the state, and the first fact, which is `ARRIVAL` for a request and `SHARED` for a batch.
STATE: Final = 0
START: Final = 1
JOBS: Final = 2
FIRST_FACT: Final = 3
NUMBER: Final = 4
RUN: Final = 4
ROUTE: Final = 5
# Facts whose repetition adds no information; that are added up; and of which one counts. Of all others each occurrence counts.
_LAST_WINS: Final = frozenset({"@model", "@model_version", "@device", "@provider", "@method", "@batch", ATTRIBUTE})
_ADDED: Final = frozenset({"@tokens_in", "@tokens_out", "@per_token"})
_CHOSEN: Final[dict[str, Any]] = {"@gap": max, "@queue_length": max, "@first_token": min}
# How a stage was timed, if not by a clock around the call: from device events; only its launch, because the device reported
# nothing; reported by the server for this call; the average of the server over its current calls; samples every few milliseconds.
TIMINGS: Final = ("@gpu", "@launch", "@reported", "@averaged", "@sampled")
# Words after the "@" of a stage: body of a response; stage reported by the server; rest of such a call.
BODY: Final = "body"
REPORTED: Final = "reported"
REST: Final = "rest"

# 4096 triples. A task that outlives its request, or a loop inside one, must not grow the list without limit: a full one is
# compacted.
MAX_MARKS: Final = 3 * 4096
# Intervals that stay unchanged, the first and the newest; of those between, how many are left, and of how many stages.
FIRST, RECENT, MERGED, MAX_STAGES = 128, 256, 1024, 32
_compacting = threading.Lock()
_logger = logging.getLogger("stagelens")

current: ContextVar[Marks | None] = ContextVar("stagelens_request", default=None)
# A request that is counted without stages: no stage finds it, so a stage costs what it costs outside of requests. Code that
# has to find such a request uses `current.get() or untimed.get()`.
untimed: ContextVar[Marks | None] = ContextVar("stagelens_untimed", default=None)


class Late(Protocol):
    """Marks that are known only after the end of the request; the background thread polls them for a few seconds."""

    def ready(self) -> bool: ...

    def marks(self) -> Marks:
        """Return the triples that are known so far; called once."""
        ...


def is_shared(marks: Marks) -> bool:
    """Return whether *marks* are those of a batch, not of one request."""
    return len(marks) > FIRST_FACT and marks[FIRST_FACT] == SHARED


def run_of(marks: Marks | None) -> Any:
    """Return the run of a worker with a queue (`libraries/queue_jobs.py`) to which *marks* belong, None for those of a request."""
    return marks[RUN] or None if marks is not None and is_shared(marks) else None


def triples_of(marks: Marks) -> Iterator[tuple[str, Any, Any]]:
    """Return the state, stages and facts of *marks*, of which another thread may write the last one meanwhile."""
    return zip(marks[::3], marks[1::3], marks[2::3], strict=False)


def has_capacity(marks: Marks) -> bool:
    """Return whether another stage can be recorded. Called for stages that a request may run thousands of times."""
    return len(marks) < MAX_MARKS or _compact(marks)


def _compact(marks: Marks) -> bool:
    """Replace a full record by a shorter one with the same total of each stage; return whether more can be recorded."""
    if marks[STATE] == CLOSED or marks[-3] == FULL:
        return False
    # Another thread compacts it, or the code that a signal handler interrupts: a few more do no harm.
    if not _compacting.acquire(blocking=False):
        return True
    try:
        size = len(marks)
        shorter = marks[:3] + compacted(marks[3:size])
        if len(shorter) <= MAX_MARKS * 3 // 4:
            # Not all of it: other threads may have recorded more meanwhile.
            marks[:size] = shorter
            return True
        report_limit("has thousands of facts; its further stages are unattributed")
    except Exception:
        _logger.warning("stagelens: the records of a request could not be merged", exc_info=True)
    finally:
        _compacting.release()
    # Do not compact again for every further mark.
    marks.extend((FULL, 0, 0))
    return False


@functools.cache
def report_limit(consequence: str) -> None:
    """Log once in the process that a limit was reached, and what that means for the request."""
    _logger.warning("stagelens: a request %s", consequence)


def compacted(triples: Marks) -> Marks:
    """Return shorter *triples*: facts that add up are added up, and old intervals are merged by stage within short periods.

    The exclusive time of each stage stays the same, also where intervals overlap. Only the share of a stage around them that
    began within such a period may change, by less than that period. It is longer, the more stages there are.
    """
    intervals: list[Interval] = []
    facts: list[tuple[str, Any, Any]] = []
    for triple in zip(triples[::3], triples[1::3], triples[2::3], strict=True):
        if triple[0][0] != "@":
            intervals.append(triple)
        # A merged interval may have several hosts.
        elif triple[0] != CALLED:
            facts.append(triple)
    shorter = [value for fact in _merged_facts(facts) for value in fact]
    if intervals:
        shorter += (value for part in _merged_parts(_parts(intervals)) for value in part)
    return shorter


def _parts(intervals: list[Interval]) -> list[Interval]:
    _, starts, ends = zip(*intervals, strict=True)
    # Most follow each other, and need no sweep.
    if all(map(operator.le, ends, starts[1:])) and all(map(operator.le, starts, ends)):
        return intervals
    return [part for part in segments(intervals, min(starts), max(ends)) if part[0] != OVERHEAD]


def _merged_parts(parts: list[Interval]) -> Iterator[Interval]:
    """Yield the first and the newest of *parts*, which do not overlap, and between them one interval by stage and period."""
    old, recent = parts[FIRST:-RECENT], parts[max(FIRST, len(parts) - RECENT) :]
    # What came before the first token, and the start of a stage around all others.
    yield from parts[:FIRST]
    stages = len({stage for stage, *_ in old})
    if stages > MAX_STAGES:
        old = [(key if key.partition("@")[0] in BY_KEY else OTHER, start, end) for key, start, end in old]
    if old:
        first = old[0][1]
        period = max(1, (old[-1][2] - first) * min(stages, MAX_STAGES) // MERGED)
        for _, same in itertools.groupby(old, lambda part: (part[1] - first) // period):
            yield from _joined(list(same))
    yield from recent


def _joined(parts: list[Interval]) -> Iterator[Interval]:
    # At the end of the period: what began before them stays around them.
    spent: dict[str, int] = {}
    for stage, start, end in parts:
        spent[stage] = spent.get(stage, 0) + end - start
    now = parts[-1][2] - sum(spent.values())
    for stage, duration in spent.items():
        if duration:
            yield stage, now, now + duration
            now += duration


def _merged_facts(facts: list[tuple[str, Any, Any]]) -> Iterable[tuple[str, Any, Any]]:
    merged: dict[Any, tuple[str, Any, Any]] = {}
    for fact in facts:
        key, first, second = fact
        slot: Any = len(merged)
        if key in _LAST_WINS:
            slot = (key, first[0]) if key == ATTRIBUTE else key
        elif key in _ADDED or key in _CHOSEN:
            slot = (key, _definition(second))
        before = merged.get(slot)
        if before is None or key in _LAST_WINS:
            merged[slot] = fact
        elif key in _CHOSEN:
            merged[slot] = _CHOSEN[key](before, fact, key=operator.itemgetter(1))
        else:
            merged[slot] = (key, before[1] + first, _sum_tokens(before[2], second))
    return merged.values()


def _definition(second: Any) -> str:
    definition = second[1] if isinstance(second, tuple) else second
    return definition if type(definition) is str else ""


def _sum_tokens(before: Any, second: Any) -> Any:
    if isinstance(second, tuple) and isinstance(before, tuple):
        return before[0] + second[0], second[1]
    return before + second


def _reset_lock() -> None:
    global _compacting  # noqa: PLW0603 - a thread of the parent may have held it
    _compacting = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock)
