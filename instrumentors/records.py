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
          if len(marks) < MAX_MARKS:
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
      @request_size     size of the request body in bytes, or the text of the header with it, 0
      @response_size    size of the response body in bytes, 0
      @queue_length     number of jobs that waited in a queue before a job of the request was added, 0; the largest one wins
      @caller           W3C header `tracestate` with the service that sent the request (`trace_context.caller_of`), 0
      @attribute        name and value of an attribute that the user named, 0; the last one of a name wins
      @traceparent      W3C header that came with the request, 0; the first one wins
      @trace            trace id and span id of the request, 0: created for the first outgoing call; the first one wins
      @parent           span of the user's own OpenTelemetry SDK around the request (`trace_context.Parent`), 0; the first one wins
      @force            1, 0: retain the trace
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
      @untimed          1 if the stages were still recorded, else 0, and 0: only the request is counted (`recorder.spare`)
      @shared           0 or the run of a worker with a queue (`libraries/queues.py`), 0: the marks of a batch, not of one request
      @full             0, 0: the list accepts no more marks

- The first triple holds the state of the request: `OPEN, start, 0`, later `CLOSED, start, 0`. Its last place belongs to
  `libraries/executors.py`: the jobs of the request in thread pools.

Measured: a list subclass, an object per stage or aggregation per request cost 3 to 10 times as much once a model has run in
between and the caches are cold; compiling the recorder gains nothing there.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Any, Final, Literal, Protocol, TypeAlias

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
# Place of the route of a running request in its marks.
ROUTE: Final = 5
ATTRIBUTE: Final = "@attribute"
CALLED: Final = "@called"
UNTIMED: Final = "@untimed"
# Fact of marks that belong to several requests at once, or to none (`tickets.py`).
SHARED: Final = "@shared"
# Facts whose repetition adds no information; of all other facts each occurrence counts.
_LAST_WINS: Final = frozenset({"@model", "@model_version", "@device", "@provider", "@method", "@batch", ATTRIBUTE})
# How a stage was timed, if not by a clock around the call: from device events; only its launch, because the device reported
# nothing; reported by the server for this call; the average of the server over its current calls.
TIMINGS: Final = ("@gpu", "@launch", "@reported", "@averaged")
# Words after the "@" of a stage: body of a response; stage reported by the server; rest of such a call.
BODY: Final = "body"
REPORTED: Final = "reported"
REST: Final = "rest"

# 4096 triples. A task that outlives its request, or a loop inside one, must not grow the list without limit.
MAX_MARKS: Final = 3 * 4096
# A stream from a thread pool waits for the event loop at each chunk; a long one must not use up the marks.
MAX_WAYS_BACK: Final = MAX_MARKS // 4

current: ContextVar[Marks | None] = ContextVar("stagelens_request", default=None)
# A request that is counted without stages: no stage finds it, so a stage costs what it costs outside of requests. Code that
# has to find such a request uses `current.get() or untimed.get()`.
untimed: ContextVar[Marks | None] = ContextVar("stagelens_untimed", default=None)


class Late(Protocol):
    """Marks that are known only after the end of the request; the background thread polls them for a few seconds."""

    def ready(self) -> bool:
        """Return whether all marks are known; do not block."""
        ...

    def marks(self) -> Marks:
        """Return the triples that are known so far; called once."""
        ...


def has_capacity(marks: Marks) -> bool:
    """Return whether another stage can be recorded. Called for stages that a request may run thousands of times."""
    return len(marks) < MAX_MARKS or _compact(marks)


def _compact(marks: Marks) -> bool:
    """Merge consecutive intervals of the same stage; return whether that freed space.

    A merged interval starts where the first one started and is as long as all of them together, so the total time of each
    stage and the unattributed time do not change. A mark that another thread writes at the same moment may be lost.
    """
    if marks[-3] == FULL or marks[0] == CLOSED:
        return False
    shorter: Marks = marks[:3]
    latest: dict[str, Any] = {}
    ended = 0
    triples = zip(marks[3::3], marks[4::3], marks[5::3], strict=False)
    for key, first, second in triples:
        # A merged interval may have several hosts.
        if key == CALLED:
            continue
        if key[0] == "@":
            if key in _LAST_WINS:
                if latest.get(key) == first:
                    continue
                latest[key] = first
        elif shorter[-3] == key and first >= ended:
            shorter[-1] += second - first
            ended = second
            continue
        else:
            ended = second
        shorter += (key, first, second)
    if len(shorter) > MAX_MARKS // 2:
        # Do not compact again for every further mark.
        marks.extend((FULL, 0, 0))
        return False
    marks[:] = shorter
    return True
