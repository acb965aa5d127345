"""Process pools: times the wait for a process of a `ProcessPoolExecutor`, and the stages in the worker process."""
# The job is wrapped in a function that records in the child and returns the record beside the result or the exception. The
# pool's own thread in the parent removes the record before the user's code gets the result. Both processes use the same
# clock.

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType, TracebackType
from typing import Any, Final, NamedTuple
from weakref import ref

from .. import trace_context
from ..instrumentor import Hook, Instrumentor, Probed, log_failure
from ..probes import Probe, itself
from ..records import OPEN, STATE, Marks, clock, current
from ..supervised import child_ended, record_killed, started_child, starting_child
from ..tickets import BatchRun, BatchScope, Ticket, ticket

RECEIVE: Final = "process_result_item"
_CHILDREN: Final = tuple(f"multiprocessing.popen_{method}" for method in ("fork", "forkserver", "spawn_posix"))


class ProcessPoolInstrumentor(Instrumentor):
    library = "concurrent.futures.process"
    title = "Process pools"
    stages = {
        "queue": "the wait for a process, including the start of the process and the transfer of the "
        "job; also for jobs from `loop.run_in_executor` and `map`"
    }
    not_timed = (
        "jobs that your code submits outside of a request",
        "stages in a process that is not instrumented. To instrument it, use `stagelens run`, or call `stagelens.instrument()` at the top of the main module.",
        "the transfer of the result from the worker process. This time is *Unattributed*.",
        "processes that use another interpreter (`multiprocessing.set_executable`)",
    )

    def hooks(self) -> Mapping[str, Hook]:
        return {"concurrent.futures.process": self._processes, **dict.fromkeys(_CHILDREN, self._children)}

    def _children(self, module: ModuleType) -> None:
        self.replace(module.Popen, "_launch", Probed(Probe(starting_child, started_child, started_child, 1)))
        if "poll" in vars(module.Popen):
            self.replace(module.Popen, "poll", Probed(Probe(itself, _polled, None, 1)))
        if "_send_signal" in vars(module.Popen):
            self.replace(module.Popen, "_send_signal", Probed(Probe(_note_killed, parameters=2)))

    def _processes(self, module: ModuleType) -> None:
        # Location in Python 3.9 to 3.14; skipped in a version without it.
        manager = getattr(module, "_ExecutorManagerThread", None)
        if hasattr(manager, RECEIVE):
            self.replace(manager, RECEIVE, _receive)
            self.replace(module.ProcessPoolExecutor, "submit", _submit)

    def uninstrument(self, **options: Any) -> None:
        if _under_way:
            self._patches[:] = [patch for patch in self._patches if patch.name != RECEIVE]
        super().uninstrument(**options)


def _polled(child: Any, code: int | None) -> None:
    child_ended(child, code)
    record_killed()


def _note_killed(child: Any, number: int) -> None:
    if number == signal.SIGKILL and child.returncode is None:
        child_ended(child, -number, clock())


# Wrapped jobs that have been sent.
_under_way: set[Ticket] = set()


def _submit(original: Any) -> Any:
    def submit(self: Any, /, *job_and_args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or marks[STATE] != OPEN or not job_and_args or not _is_known(self):
            return original(self, *job_and_args, **options)
        drawn = ticket()
        # The ticket stays in this process with the arguments, where `_receive` finds it; the worker gets a copy without requests.
        future = original(self, work, drawn, trace_context.traceparent(marks), *job_and_args, **options)
        _under_way.add(drawn)
        # A future may retain its callbacks.
        future.add_done_callback(partial(_is_over, ref(drawn)))
        return future

    return submit


def _is_over(drawn: ref[Ticket], future: Any) -> None:
    ticket = drawn()
    if ticket is not None:
        ticket.drop(clock() if future.cancelled() else 0)
        _under_way.discard(ticket)


def _is_known(pool: Any) -> bool:
    """Return whether the processes of *pool* have the same packages as this one, and `_receive` gets their results."""
    try:
        # A subclass may start a thread of its own for the results.
        starts = getattr(type(pool), "_start_executor_manager_thread", None)
        if getattr(starts, "__module__", None) != "concurrent.futures.process":
            return False
        spawn = sys.modules.get("multiprocessing.spawn")
        forks = pool._mp_context.get_start_method() == "fork"  # noqa: SLF001 - there is no public name for it
        return forks or spawn is None or os.fsdecode(spawn.get_executable()) == sys.executable
    except Exception:
        log_failure("reading the interpreter of a process pool")
        return False


class Returned(NamedTuple):
    """Result of a job together with its run; or its exception, as the library sends it."""

    value: Any
    run: BatchRun
    error: Any = None


def work(_: Ticket, traceparent: str, function: Callable[..., Any], /, *args: Any, **options: Any) -> Returned:
    """Run a job in the worker process; *traceparent* is the header for its outgoing calls, "" for none."""
    scope = BatchScope((), _facts(traceparent))
    run = scope.__enter__()
    try:
        value = function(*args, **options)
    except BaseException as error:
        scope.__exit__()
        below = error.__traceback__ and error.__traceback__.tb_next
        caller: Any = sys._getframe(1)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        shown = TracebackType(below, caller, caller.f_lasti, caller.f_lineno)
        processes: Any = sys.modules["concurrent.futures.process"]
        return Returned(None, run, processes._ExceptionWithTraceback(error, shown))  # noqa: SLF001 - what the caller would do
    scope.__exit__()
    return Returned(value, run)


def _facts(traceparent: str) -> Marks:
    parent = trace_context.parse(traceparent)
    ids = ("@trace", (parent.trace_id, parent.span_id), 0) if parent else ()
    return ["@traceparent", traceparent, 0, *ids]


def _receive(original: Any) -> Any:
    def process_result_item(self: Any, result_item: Any) -> Any:
        returned = getattr(result_item, "result", None)
        if type(returned) is Returned:
            result_item.result = returned.value
            if returned.error is not None:
                result_item.exception = returned.error
            _attach_run(self, result_item, returned.run)
        return original(self, result_item)

    return process_result_item


def _attach_run(manager: Any, result_item: Any, run: BatchRun | None) -> None:
    try:
        waiting = manager.pending_work_items.get(result_item.work_id)
        if waiting is not None and waiting.fn is work:
            waiting.args[0].done(run)
    except Exception:
        log_failure("reading the stages of a process for a request")
