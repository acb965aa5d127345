"""The request path: starts and finishes requests, and hands finished ones to the background thread.

      scope = begin()
      if scope is None:  # inside of another request, to which stages and facts are added
          return await app(...)
      marks, token = scope
      t0 = marks[START]
      try:
          ...
      finally:
          end(token)
          finish(marks, t0, clock(), route="/predict", http_status=200)

`finish` appends one tuple to a bounded queue; all else happens on a background thread that the first request starts. Where the
context variable does not reach, pass the list: `marks = current.get()` there, `token = current.set(marks)` here.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Final, NamedTuple

from . import exits, records
from .recorder_state import CALIBRATION, NOTHING, WITHOUT_STAGES, state
from .records import ARRIVAL, CLOSED, OPEN, ROUTE, START, STATE, UNTIMED, Kind, Marks, Record, clock

# Assigned, not imported: CPython compiles a method call on an imported name without its fast path, which costs the request
# path 90 ns.
current, untimed = records.current, records.untimed
# Bound once: each request calls it.
_running = current.get

# About 6 MB of requests with six stages.
MAX_PENDING: Final = 8192
# Marks of running requests; beyond this limit the oldest are forgotten.
MAX_STARTED: Final = 2 * MAX_PENDING
# A backlog of at most this many lists causes no garbage collection of an older generation.
WAKE_AT: Final = 256

# Time for the first request of a process before the agent is loaded. [seconds]
FIRST_WAIT_SECONDS: Final = 2.0
# One in this many requests without stages records its stages, only to estimate what they would cost.
SCOUTS: Final = 64
_turns = itertools.count()
# Number of the next request: the cheapest way to count on the request path, and the counter stays exact with any number of threads.
arrivals = itertools.count()
pending: deque[Record] = deque()
# Marks in the order of their start, of which the background thread removes those of finished requests: the cheapest list of the
# running ones. A dictionary costs a request 200 ns, one more `append` 30 ns.
started: deque[Marks] = deque(maxlen=MAX_STARTED)
# Marks of the request for which a thread of a pool works now, by `threading.get_ident`.
working: dict[int, Marks] = {}
# When this process was forked, 0 if it was not. The parent reports the requests from before, even if the child also runs
# through their end. [nanoseconds by `clock`]
forked_at = 0
# Error type of the requests that were open when their process ended.
ENDED: Final = "ProcessEnded"


class Counter:
    """Lock-free counter for any number of writers and one reader: `next` of a C iterator is atomic."""

    def __init__(self) -> None:
        self.add: Callable[[], int] = itertools.count().__next__
        self._reads = 0

    def read(self) -> int:
        value = self.add() - self._reads
        self._reads += 1
        return value


dropped = Counter()
# Requests that began and will not be finished.
abandoned = Counter()


def begin() -> tuple[Marks, Token[Marks | None]] | None:
    """Start a request in this context and return its marks, or None inside a running request.

    A finished request does not count as running: a worker that an early request started opens its own requests.
    """
    outer = _running()
    if outer is not None and outer[STATE] == OPEN:
        return None
    if state.mode:
        if state.mode >= CALIBRATION:
            _calibrate()
        outer = untimed.get()
        if state.mode == NOTHING or (outer is not None and outer[STATE] == OPEN):
            return None
        if state.mode == WITHOUT_STAGES:
            return begin_untimed(untimed if next(_turns) % SCOUTS else current)
    marks: Marks = [OPEN, clock(), 0, ARRIVAL, next(arrivals), 0]
    started.append(marks)
    if state.user_span is not None:
        _join(marks, state.user_span)
    if state.register is not None:
        state.register(marks, "")
    return marks, current.set(marks)


def started_count() -> int:
    # The next number, without drawing it.
    return int(repr(arrivals)[len("count(") : -1])


def _calibrate() -> None:
    try:
        if background.wake_at == 1:
            background.wake()
        for call in state.take_calls():
            call()
    except Exception:
        logging.getLogger("stagelens").debug("the overhead of a request could not be measured", exc_info=True)


def begin_untimed(variable: ContextVar[Marks | None]) -> tuple[Marks, Token[Marks | None]]:
    """Start a request that is counted without stages; they are still recorded if *variable* is `current`, not if `untimed`."""
    marks: Marks = [OPEN, clock(), 0, ARRIVAL, next(arrivals), 0, UNTIMED, int(variable is current), 0]
    started.append(marks)
    if state.user_span is not None:
        _join(marks, state.user_span)
    return marks, variable.set(marks)


def _join(marks: Marks, user_span: Callable[[], object]) -> None:
    try:
        parent = user_span()
    except Exception:
        logging.getLogger("stagelens").debug("the span around a request is not known", exc_info=True)
        return
    if parent is not None:
        marks.extend(("@parent", parent, 0))


def end(token: Token[Marks | None]) -> None:
    """Remove the running request from this context; a token of another context has no effect."""
    try:  # `contextlib.suppress` would cost the request path ten times as much
        current.reset(token)
    except ValueError:
        # A request without stages, or a generator that was closed in another context.
        try:  # noqa: SIM105 - as above
            untimed.reset(token)
        except ValueError:
            pass


def abandon(token: Token[Marks | None]) -> None:
    """Remove a request from this context that will not be finished, because its record failed."""
    marks = token.var.get()
    end(token)
    if marks is not None:
        discard(marks)


def discard(marks: Marks) -> None:
    marks[STATE] = CLOSED
    abandoned.add()


class OpenRequest(NamedTuple):
    """A request that has not finished: its start in nanoseconds by `clock`, and its route, "" while unknown."""

    start: int
    route: str


def open_requests() -> list[OpenRequest]:
    """Return the running requests of this process, oldest first; takes no lock, so that a signal handler may call it."""
    return sorted(OpenRequest(marks[START], route_of(marks)) for marks in open_marks())


def open_marks() -> list[Marks]:
    # A calibration request starts at -1.
    return [marks for marks in started.copy() if marks[STATE] == OPEN and marks[START] > 0]


def route_of(marks: Marks) -> str:
    """Return the route of a running request, "" while unknown; never raises."""
    route = marks[ROUTE]
    try:
        return str(route() if callable(route) else route or "")
    except Exception:
        # A route object of the user may raise for any attribute.
        return ""


def forget_finished() -> None:
    """Remove from `started` what is no longer open, or can never be finished; only the background thread calls this."""
    for _ in range(len(started)):
        # Not popped and appended again: `open_requests` would miss it meanwhile.
        if started[0][STATE] == OPEN and sys.getrefcount(started[0]) > _UNREFERENCED:
            started.rotate(-1)
        else:
            started.popleft()


# Reference count of marks that only `started` refers to.
_UNREFERENCED: Final = sys.getrefcount(deque([[OPEN]])[0]) + 1


def finish(  # noqa: PLR0917 - positional, because keywords cost the request path more
    marks: Marks, t0: int, t1: int, route: str = "", error_type: str = "", http_status: int = 0, kind: Kind = "server"
) -> None:
    """Pass a finished request to the background thread; never blocks, never raises.

    Args:
        marks: The list `begin` returned.
        t0: Start of the request. [nanoseconds by `clock`]
        t1: End of the request: the last byte of the response was handed over. [nanoseconds by `clock`]
        route: Template of the route, never the raw path; the name of a manual request; "" for none.
        error_type: Class of the exception that ended the request, "" for none.
        http_status: HTTP status of the response, 0 for none. From 500 up the request counts as an error.
        kind: "server" for a request from the network, "internal" for a manual one.
    """
    marks[STATE] = CLOSED
    if len(pending) < MAX_PENDING:
        pending.append((marks, t0, t1, route, error_type, http_status, kind))
    else:
        dropped.add()
    if len(pending) >= background.wake_at:
        background.wake()


class Background:
    """Background thread that processes `pending`: started by the first request, and restarted if it has died."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._signal: queue.SimpleQueue[None] | None = None
        # Number of pending records at which the request path calls `wake`; 1 while no thread runs.
        self.wake_at = 1

    @property
    def started(self) -> bool:
        return self._thread is not None

    def wake(self) -> None:
        """Wake the thread; start it if it does not run."""
        # Not again before the thread has run; a full queue wakes every time, so that a dead thread is noticed.
        self.wake_at = MAX_PENDING
        if not self._starting.acquire(blocking=False):
            return
        try:
            if self._thread is None or not self._thread.is_alive():
                _flush_at_exit()
                # Created as late as the thread: if gevent has patched the process since our import, both are gevent's; a
                # real queue would block all greenlets. `put` never blocks, not even in a signal handler.
                self._signal = queue.SimpleQueue()
                self._thread = threading.Thread(target=self._run, name="stagelens", daemon=True)
                self._thread.start()
            elif self._signal is not None and self._signal.empty():
                # One signal is enough: every request that finds the queue full wakes a thread that cannot keep up.
                self._signal.put(None)
        except Exception:
            # No new thread: the interpreter is shutting down (the exit handler processes the rest) or the host has reached
            # its limit (the next request tries again).
            self.wake_at = WAKE_AT
        finally:
            self._starting.release()

    def wait(self, timeout_seconds: float) -> bool:
        """Return True at the next `wake`, False after *timeout_seconds*; only the background thread calls this."""
        if self._signal is None:
            return False
        try:
            self._signal.get(timeout=timeout_seconds)
        except queue.Empty:
            return False
        return True


def _flush_at_exit() -> None:
    exits.watch(flush, flush_at_end)
    if "gevent" in sys.modules:
        # Before gevent 26.9 its name resolution imports this module, which fails during the exit, and so did the last report.
        __import__("concurrent.futures.thread")
        monkey = sys.modules.get("gevent.monkey")
        if monkey is not None and monkey.is_module_patched("socket"):
            # Python 3.12 and later start no thread at exit, and the name resolution needs one.
            sys.modules["gevent"].get_hub().threadpool.spawn(int)


_run_agent: Callable[[], None] | None = None
_flush_agent: Callable[[float], bool] | None = None


def install_agent(run: Callable[[], None], flush_agent: Callable[[float], bool]) -> None:
    global _run_agent, _flush_agent
    _run_agent, _flush_agent = run, flush_agent


def _run() -> None:
    if not pending:
        # The agent is loaded after the first request, or beside one that takes long.
        pid, background.wake_at = os.getpid(), 1
        background.wait(FIRST_WAIT_SECONDS)
        park_if_inherited(pid)
    if _run_agent is not None:
        _run_agent()


background = Background(_run)


def flush(timeout_seconds: float = 1.0) -> bool:
    """Send all requests that have ended so far; return whether the collector has acknowledged all of them in time. Never raises.

    Stagelens sends them every 10 s, and before the process ends. Call this function before what it cannot know: at the end of a
    handler whose process is frozen after the result, or before a `SIGKILL`. It blocks; in a coroutine use
    `await asyncio.to_thread(stagelens.flush)`.

    Args:
        timeout_seconds: Maximum waiting time. [seconds]

    Example:
        def handler(event, context):
            with stagelens.request("predict"):
                result = model.predict(event)
            stagelens.flush()
            return result
    """
    if not background.started or _flush_agent is None:
        return not pending
    try:
        return _flush_agent(timeout_seconds)
    except Exception:
        logging.getLogger("stagelens").exception("the last requests could not be delivered")
        return False


def flush_at_end() -> None:
    """Send everything before this process ends; the requests that are open then count as failed, with their age."""
    flush()
    opened = open_marks()
    # The kernel does not end the first process of a container by a signal without a handler.
    if opened and background.started and os.getpid() != 1:
        for marks in opened:
            finish(marks, marks[START], clock(), route_of(marks), ENDED)
    # Also those that have ended meanwhile: a client may send the signal as soon as it has its response.
    if pending:
        flush()


def _reset() -> None:
    """Clear all state in a forked child, because the parent reports its own requests."""
    global abandoned, arrivals, dropped, background, forked_at  # noqa: PLW0603 - the child may have inherited half-changed objects
    forked_at = clock()
    state.reset()
    current.set(None)
    untimed.set(None)
    pending.clear()
    started.clear()
    working.clear()
    dropped, abandoned = Counter(), Counter()
    arrivals = itertools.count()
    background = Background(_run)


os.register_at_fork(after_in_child=_reset)


def start_work(marks: Marks) -> Marks | None:
    """Note that this thread works for the request of *marks* from now on; return the argument for `end_work`."""
    thread = threading.get_ident()
    before = working.get(thread)
    working[thread] = marks
    return before


def end_work(before: Marks | None) -> None:
    if before is None:
        working.pop(threading.get_ident(), None)
    else:
        working[threading.get_ident()] = before


def disable() -> None:
    global pending, started
    pending, started = deque(maxlen=0), deque(maxlen=0)
    background.wake_at = sys.maxsize


def park_if_inherited(pid: int) -> None:
    """Block forever if the current process is not *pid*, which started this thread; call after each wait of a thread's loop.

    Under gevent threads are greenlets, which continue in a forked child and would export the data of the parent again.
    """
    if os.getpid() != pid:
        # Returning is no option: `threading` no longer knows the thread and prints a KeyError.
        threading.Event().wait()
