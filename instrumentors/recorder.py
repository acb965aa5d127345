"""The request path: what a running request writes down, and nothing else.

A request is one plain list, its *marks*, that travels in a context variable. The list is flat triples `key, start, end`:

- a stage: `"forward", t0, t1`, both from `clock`. One atomic `extend` in a `finally`, so threads may share the list:

      marks = current.get()
      if marks is None:
          return original(*args)
      t0 = clock()
      try:
          return original(*args)
      finally:
          if len(marks) < MAX_MARKS:
              marks.extend(("forward", t0, clock()))

- a stage that was not measured by this thread's clock says by what, after an "@": `"forward@gpu", t0, t1` (see `TIMINGS`).
  Any other word there names a part of the stage: `"dependency@body"` is what came after the headers, and
  `"network@rest"` what is left of a call whose server tells what it did.
- a fact about the request: `"@model", "resnet50", 0`. The two values that follow each key:

      @model, @model_version, @device, @provider, @method  text, 0; of several with one key the last wins
      @batch            how many items, 0; the last wins
      @traceparent      the W3C header that came with it, 0; the first wins
      @trace            trace id and id of the request's own span, 0: made for the first call that hands them on; the first wins
      @parent           the span of the user's own that it was made in (`trace_context.Parent`), 0; the first wins
      @force            1, 0: keep its trace
      @child <name>     start, end of a request inside the request
      @first_token      when, by `clock`, and the definition that was measured by; the earliest wins
      @tokens_in, @tokens_out  how many, 0; they add up
      @per_token        nanoseconds, and over how many tokens after the first, or that with the definition; they add up
      @gap              nanoseconds between two parts of a stream, and the definition, or 0 for that of the first token; the
                        longest of each wins
      @suspect          whose word about a call cannot be true (`libraries/dialects.py`), and the call's nanoseconds; all count
      @failed           what became of a call out of the request, such as "triton:timeout", and its nanoseconds; all count
      @late             a `Late`, 0
      @untimed          1 where its stages are here, else 0, and 0: only the request is counted (see `spare`)
      @shared           0, 0: these are the marks of a batch, not of one request
      @full             0, 0: the list takes no more

- the first triple says whether the request still runs: `OPEN, start, 0`, later `CLOSED, start, 0`. Its last place is for
  `libraries/executors.py`: the jobs of the request that run in thread pools.

A server integration wraps one request so; `begin` answers None inside a running request, which then stays the only one
that is counted (its stages and facts still land on the outer request):

      scope = begin()
      if scope is None:
          return await app(...)
      marks, token = scope
      t0 = marks[1]
      try:
          ...
      finally:
          end(token)
          finish(marks, t0, clock(), route="/predict", http_status=200)

`finish` appends one tuple to a bounded queue and returns: partition, histograms, sampling and export happen on a
background thread that the first finished request starts. Where the context variable does not reach (a thread pool, a
callback), hand the list over: `marks = current.get()` there, `token = current.set(marks)` here. Where work is for several
requests at once, or in another process, `tickets.py` does it.

What is recorded leaves the process every few seconds, and by `flush` when it exits. uvicorn ends by raising SIGTERM once
more, which skips exit handlers: a server integration therefore calls `flush()` at the lifespan's shutdown, on a thread.

Measured: a list subclass, an object per stage or a fold per request cost 3 to 10 times as much once a model has run in
between and the caches are cold; stages of a compiled recorder gain nothing there.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, Final, Literal, Protocol, TypeAlias

from .. import importing
from . import trace_context

# Monotonic nanoseconds; the fold anchors them to the wall clock.
clock: Final = time.perf_counter_ns

Marks: TypeAlias = list[Any]
Kind: TypeAlias = Literal["server", "internal"]
# marks, start, end, route, error type, HTTP status, kind: a tuple, because it is the cheapest thing to build.
Record: TypeAlias = tuple[Marks, int, int, str, str, int, Kind]

OPEN: Final = trace_context.OPEN
CLOSED: Final = "@closed"
FULL: Final = "@full"
UNTIMED: Final = "@untimed"
# Facts that, said again, say nothing new; of the others each counts.
_LAST_WINS: Final = frozenset({"@model", "@model_version", "@device", "@provider", "@method", "@batch"})
# How a stage was timed, if not by a clock around the call: from events on the device; only its launch, since the device
# did not tell; as a server reports it for this very call; as a server's average over the calls of the moment.
TIMINGS: Final = ("@gpu", "@launch", "@reported", "@averaged")

# 4096 triples. A task that outlives its request, or a loop inside one, must not grow the list for ever.
MAX_MARKS: Final = 3 * 4096
# About 6 MB of six-stage requests.
MAX_PENDING: Final = 8192
# A backlog of at most so many lists causes no garbage collection of an older generation.
WAKE_AT: Final = 256

current: ContextVar[Marks | None] = ContextVar("stagelens_request", default=None)
# A request without stages: no stage finds it, and so each costs what it costs outside of requests. What must find it asks
# for `current.get() or untimed.get()`.
untimed: ContextVar[Marks | None] = ContextVar("stagelens_untimed", default=None)
# What `governor.py` has `begin` do. Until it first acts it costs the request path one look at a zero; from then on a request
# that began without stages may still be running, whatever holds by now.
NEVER, TIMED_AGAIN, WITHOUT_STAGES, NOTHING = range(4)
# Besides: before the next request begins, `rehearse` is called on its thread.
REHEARSAL = 4
spare = NEVER
rehearse: Callable[[], object] = bool
_before_first: Callable[[], object] | None = None
# Of requests without stages, one of so many writes them down all the same: not to be counted, but to know what they would
# cost.
SCOUTS: Final = 64
_turns = itertools.count()
pending: deque[Record] = deque()
# When this process was forked, 0 for one that was not: a request from before is the parent's to report, also where the
# child runs through the end of it. By `clock`. [nanoseconds]
forked_at = 0


def has_room(marks: Marks) -> bool:
    """Say whether another stage may be written down: for those that a request may run thousands of times."""
    return len(marks) < MAX_MARKS or _shortened(marks)


def _shortened(marks: Marks) -> bool:
    """Make one of each run of a stage that follows itself, and say whether that made room.

    It begins where the first began and is as long as all of them together: how much time belongs to the stage, and how
    much to nobody, does not change. A mark that another thread writes at the same moment may be lost.
    """
    if marks[-3] == FULL or marks[0] == CLOSED:
        return False
    shorter: Marks = marks[:3]
    latest: dict[str, Any] = {}
    ended = 0
    triples = zip(marks[3::3], marks[4::3], marks[5::3], strict=False)
    for key, first, second in triples:
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
        # Not worth to be tried for every mark from here on.
        marks.extend((FULL, 0, 0))
        return False
    marks[:] = shorter
    return True


class Late(Protocol):
    """Marks that are known only after the request: asked by the background thread until they are, or for a few seconds."""

    def ready(self) -> bool:
        """Say, without waiting, whether all is known."""
        ...

    def marks(self) -> Marks:
        """Return the triples to add; called once, with what is known by then."""
        ...


class Tally:
    """A counter that any thread may add to without a lock, with one reader: `next` of a C iterator is atomic."""

    def __init__(self) -> None:
        self.add: Callable[[], int] = itertools.count().__next__
        self._reads = 0

    def read(self) -> int:
        """Return how often `add` was called since the counter was made."""
        value = self.add() - self._reads
        self._reads += 1
        return value


dropped = Tally()


def begin() -> tuple[Marks, Token[Marks | None]] | None:
    """Start a request in this context and return its marks, or None inside a request that still runs.

    A request that is over does not count as running: a worker that was started by an early request opens its own.
    """
    outer = current.get()
    if outer is not None and outer[0] == OPEN:
        return None
    if spare:
        if spare >= REHEARSAL:
            _rehearse()
        outer = untimed.get()
        if spare == NOTHING or (outer is not None and outer[0] == OPEN):
            return None
        if spare == WITHOUT_STAGES:
            return begin_untimed(untimed if next(_turns) % SCOUTS else current)
    marks: Marks = [OPEN, clock(), 0]
    span_of_theirs = trace_context.span_of_theirs
    if span_of_theirs is not None:
        _join(marks, span_of_theirs)
    return marks, current.set(marks)


def before_first_request(call: Callable[[], object]) -> None:
    """Have *call* called once on the thread of the first request, before that begins; it takes the place of an earlier one."""
    global spare, _before_first  # noqa: PLW0603 - like `rehearse`
    _before_first = call
    spare |= REHEARSAL


def _rehearse() -> None:
    global spare, _before_first  # noqa: PLW0603 - whoever comes first does it
    # What `overhead.py` says at this very moment it says again a second later.
    spare &= REHEARSAL - 1
    first, _before_first = _before_first, None
    try:
        if first is not None:
            first()
        rehearse()
    except Exception:
        logging.getLogger("stagelens").debug("what a request costs could not be found out", exc_info=True)


def begin_untimed(variable: ContextVar[Marks | None]) -> tuple[Marks, Token[Marks | None]]:
    """Start a request without stages and return its marks; in `untimed`, or in `current`, where its stages are written down."""
    marks: Marks = [OPEN, clock(), 0, UNTIMED, int(variable is current), 0]
    span_of_theirs = trace_context.span_of_theirs
    if span_of_theirs is not None:
        _join(marks, span_of_theirs)
    return marks, variable.set(marks)


def _join(marks: Marks, span_of_theirs: Callable[[], trace_context.Parent | None]) -> None:
    try:
        theirs = span_of_theirs()
    except Exception:
        logging.getLogger("stagelens").debug("the span around a request is not known", exc_info=True)
        return
    if theirs is not None:
        marks.extend(("@parent", theirs, 0))


def end(token: Token[Marks | None]) -> None:
    """Take the request out of this context; a token of another context does nothing."""
    try:  # a context manager to suppress it would cost the request path ten times as much
        current.reset(token)
    except ValueError:
        # A request without stages, or a generator that was closed elsewhere.
        try:  # noqa: SIM105 - as above
            untimed.reset(token)
        except ValueError:
            pass


def finish(  # noqa: PLR0917 - by position, because keywords cost the request path more
    marks: Marks,
    t0: int,
    t1: int,
    route: str = "",
    error_type: str = "",
    http_status: int = 0,
    kind: Kind = "server",
) -> None:
    """Hand a finished request to the background thread; never blocks, never raises.

    Args:
        marks: The list `begin` returned.
        t0: When the request started, by `clock`. [nanoseconds]
        t1: When it ended: the last byte of the response was handed over. [nanoseconds]
        route: The route's template, never the raw path; for a manual request its name. "" when there is none.
        error_type: The class of the exception that ended it, "" when none did.
        http_status: The status sent, 0 when there is none. From 500 up the request counts as an error.
        kind: "server" for a request off the network, "internal" for a manual one.
    """
    marks[0] = CLOSED
    if len(pending) < MAX_PENDING:
        pending.append((marks, t0, t1, route, error_type, http_status, kind))
    else:
        dropped.add()
    if len(pending) >= background.wake_at:
        background.wake()


class Background:
    """The thread that works off `pending`: started by the first record, started again should it have died.

    Args:
        run: What the thread runs.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._signal: queue.SimpleQueue[None] | None = None
        # One comparison on the request path decides everything: 1 = nothing runs yet.
        self.wake_at = 1

    @property
    def started(self) -> bool:
        """Whether the thread was ever started."""
        return self._thread is not None

    def wake(self) -> None:
        """Have the thread look now; start it first where it does not run."""
        # Not again until the thread has looked; a full queue asks every time, so that a dead thread is noticed.
        self.wake_at = MAX_PENDING
        if not self._starting.acquire(blocking=False):
            return
        try:
            if self._thread is None or not self._thread.is_alive():
                _flush_at_exit()
                # Made as late as the thread: both are gevent's where it has patched the process since we were imported,
                # and a real queue would hold up all its greenlets. `put` never blocks, also in a signal handler.
                self._signal = queue.SimpleQueue()
                self._thread = threading.Thread(target=self._run, name="stagelens", daemon=True)
                self._thread.start()
            elif self._signal is not None and self._signal.empty():
                # One is enough: a thread that cannot keep up is called by every request that finds no room.
                self._signal.put(None)
        except Exception:
            # No new thread: the interpreter is shutting down (the exit handler folds what is left) or the host is at
            # its limit (the next request asks again).
            self.wake_at = WAKE_AT
        finally:
            self._starting.release()

    def wait(self, timeout_seconds: float) -> bool:
        """Return True as soon as `wake` asks, False after *timeout_seconds*; for the thread itself."""
        if self._signal is None:
            return False
        try:
            self._signal.get(timeout=timeout_seconds)
        except queue.Empty:
            return False
        return True


def _flush_at_exit() -> None:
    atexit.unregister(flush)
    atexit.register(flush)
    # The children of multiprocessing leave by os._exit, past every exit handler but these.
    processes = sys.modules.get("multiprocessing.process")
    finalizers = sys.modules.get("multiprocessing.util")
    if processes is not None and finalizers is not None and processes.parent_process() is not None:
        finalizers.Finalize(None, flush, exitpriority=0)


def _run() -> None:
    with importing:
        # On this thread: HTTP, gzip and JSON are not loaded at the expense of the first request.
        from . import agent  # noqa: PLC0415

    agent.run()


background = Background(_run)


def flush(timeout_seconds: float = 2.0) -> None:
    """Fold and deliver what was recorded so far, as far as that goes in *timeout_seconds*; never raises."""
    if not background.started:
        return
    try:
        with importing:
            from . import agent  # noqa: PLC0415 - see _run

        agent.flush(timeout_seconds)
    except Exception:
        logging.getLogger("stagelens").exception("the last requests could not be delivered")


def _reset() -> None:
    """Start empty, without a thread: what a forked child does, whose parent reports the parent's requests."""
    global dropped, background, forked_at, spare  # noqa: PLW0603 - a child replaces what it may have inherited half changed
    forked_at = clock()
    spare = NEVER if _before_first is None else REHEARSAL
    current.set(None)
    untimed.set(None)
    pending.clear()
    dropped = Tally()
    background = Background(_run)


os.register_at_fork(after_in_child=_reset)


def disable() -> None:
    """Keep nothing of any request from here on."""
    global pending  # noqa: PLW0603 - a queue that takes nothing costs the request path no further test
    pending = deque(maxlen=0)
    background.wake_at = sys.maxsize
