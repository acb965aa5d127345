"""Threads and executors: attributes the work of threads and pools to its request, and times the wait for a thread.

This work belongs to a running request: the work of threads that it starts, jobs that it submits to a pool, and
callbacks that it adds to a future. Stagelens passes only its own context variable to the thread.

The `queue` time of a job ends when the job starts or is cancelled. While another job of the same request runs in a pool, the
wait does not count as `queue`.
"""
# A new thread starts with an empty context, and a thread of a pool with the context of the code that made the pool grow. So
# the threads of a pool, which all requests share, are started outside of any request.

from __future__ import annotations

import gc
import queue
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from threading import Thread
from traceback import StackSummary
from types import GetSetDescriptorType, MappingProxyType, MemberDescriptorType
from typing import Any
from weakref import WeakKeyDictionary

from ..instrumentor import Hook, Instrumentor, Probed, Target, log_failure
from ..probes import Probe, itself
from ..recorder import end_work, start_work
from ..records import JOBS, OPEN, STATE, Marks, clock, current, has_capacity, run_of, untimed

# Modules, and packages with all of their modules, whose threads are shared by requests and set the context of each request.
SERVING_ALL = frozenset(
    {
        "anyio._backends._asyncio",
        "billiard",
        "concurrent",
        "grpc",
        "interpreters_backport",
        "joblib",
        "loky",
        "multiprocessing.pool",
        "multiprocessing.queues",
        "transformers.cli.serving.utils",
        "transformers.generation.continuous_batching.continuous_api",
    }
)
# Whether a thread runs in a context of its own.
OWN_CONTEXT = sys.version_info >= (3, 14)
# Types of queues that are written in C.
SIMPLE_QUEUES: list[Any] = [queue.SimpleQueue]


class ExecutorInstrumentor(Instrumentor):
    library = "concurrent.futures"
    title = "Threads and executors"
    stages = MappingProxyType(
        {
            "queue": "the wait for a thread of a `ThreadPoolExecutor` or a `multiprocessing.pool.ThreadPool`, "
            "including the pools of `loop.run_in_executor` and `asyncio.to_thread`; and their wait for the event loop after "
            "the thread is done"
        }
    )
    not_timed = (
        "work that a thread or job does after its request has ended",
        "work in `multiprocessing.Process` and `multiprocessing.Pool`. To time it, send a `stagelens.ticket()` with the job, and use `with stagelens.batch([ticket])` in the process.",
        "work in threads that `_thread.start_new_thread` or a C extension starts, and in the interpreters of an `InterpreterPoolExecutor`",
    )
    tested = MappingProxyType({"gevent": "26.9.0"})

    def targets(self) -> Iterable[Target]:
        return (
            # The method is inherited if gevent has replaced the original class.
            ("threading:Thread.__mro__", _start, "start"),
            ("threading:Thread.__mro__", _set_ident, "_set_ident"),
            # `Timer` has its own `start` if another library has wrapped it.
            ("threading:Timer", _start, "start"),
            ("concurrent.futures._base:Future", _add_done_callback, "add_done_callback"),
            ("concurrent.futures._base:Future", Probed(Probe(itself, _cancelled, None, 1)), "cancel"),
            ("concurrent.futures.thread:ThreadPoolExecutor", _submit, "submit"),
            # This executor overrides `submit`.
            ("gevent.threadpool:ThreadPoolExecutor", _submit, "submit"),
            # `apply`, `map`, `starmap` and their asynchronous variants call these methods. A process pool has the same ones.
            ("multiprocessing.pool:Pool", _pooled, "apply_async _map_async imap imap_unordered"),
            ("asyncio.base_events:BaseEventLoop", _run_in_executor, "run_in_executor"),
        )

    def hooks(self) -> Mapping[str, Hook]:
        return {
            **super().hooks(),
            "uvloop": lambda module: self.override(module.Loop, "run_in_executor", _run_in_executor),
        }


# Nothing is put on threads and futures, which the user may inspect, copy or pickle.
# Requests that start a thread, by the id of the thread, until it runs.
_starting: dict[int, Marks] = {}
# Marks and start of the wait of a job, by its future; empty after the wait.
_waits: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


def _start(original: Any) -> Any:
    def start(self: Any) -> None:
        marks = current.get() or untimed.get()
        try:
            # A context that the user has passed is that of the thread.
            given = OWN_CONTEXT and getattr(self, "_context", None) is not None
            if marks is not None and marks[STATE] == OPEN and not given and not serves_all(self):
                _starting[id(self)] = marks
                note_child(marks, self)
        except Exception:
            log_failure("passing a request to a thread")
        try:
            original(self)
        finally:
            # It waits until the thread runs; else the thread could not be started.
            _starting.pop(id(self), None)

    return start


def _set_ident(original: Any) -> Any:
    # Called in the new thread, before `run`, so that no frame of ours is below the code of the user.
    def set_ident(self: Any) -> None:
        original(self)
        marks = _starting.pop(id(self), None)
        try:
            if marks is not None and marks[STATE] == OPEN:
                context = getattr(self, "_context", None) if OWN_CONTEXT else None
                current.set(marks) if context is None else context.run(current.set, marks)
        except Exception:
            log_failure("passing a request to a thread")

    return set_ident


def note_child(marks: Marks, child: Any) -> None:
    """Add a thread, task or job to the work of the run (`queue_jobs.py`) that started it, if *marks* are those of a run."""
    run = run_of(marks)
    if run is not None:
        run.add_child(child)


def serves_all(thread: Thread) -> bool:
    """Return whether *thread* belongs to a pool or a connection that is shared by requests."""
    target = getattr(thread, "_target", None)
    module = str(getattr(type(thread) if target is None else target, "__module__", None))
    return module in SERVING_ALL or module.partition(".")[0] in SERVING_ALL


def _add_done_callback(original: Any) -> Any:
    def add_done_callback(self: Any, fn: Any) -> Any:
        marks = current.get() or untimed.get()
        return original(self, fn if marks is None or marks[STATE] != OPEN else _Callback(fn, marks))

    return add_done_callback


def _submit(original: Any) -> Any:
    # The `submit` of gevent also accepts the function by keyword; such a call is passed on unchanged.
    def submit(self: Any, /, *job_and_args: Any, **options: Any) -> Any:
        marks = current.get() or untimed.get()
        if marks is None or marks[STATE] != OPEN or not job_and_args or not _runs_here(self):
            return original(self, *job_and_args, **options)
        fn, *args = job_and_args
        if not marks[JOBS]:
            _record_length(self, marks)
        waiting: list[Any] = [marks, clock()]
        job = _Job(fn, waiting)
        # The pool may start a thread for the job, which must not belong to the request.
        token = current.set(None)
        try:
            future = original(self, job, *args, **options)
        finally:
            current.reset(token)
            del token
        try:
            _waits[future] = waiting
            note_child(marks, future)
        except Exception:
            log_failure("watching a job")
        return future

    return submit


def _runs_here(executor: Any) -> bool:
    """Return whether the threads of *executor* run its jobs; those of `InterpreterPoolExecutor` (Python 3.14) send them away."""
    prepares = getattr(type(executor), "prepare_context", None)
    return prepares is None or prepares.__module__ == "concurrent.futures.thread"


def _record_length(executor: Any, marks: Marks) -> None:
    try:
        jobs = length((attributes(executor) or {}).get("_work_queue"))
        if jobs is not None and has_capacity(marks):
            marks.extend(("@queue_length", jobs, 0))
    except Exception:
        log_failure("reading the length of a queue")


def attributes(item: Any) -> dict[str, Any] | None:
    """Return the attributes in the `__dict__` of an instance, None if it has none; no property or `__getattr__` of the user runs."""
    kind = type(item)
    # A class that is made in a function may be dropped.
    descriptor = _dict_descriptor.__wrapped__(kind) if "<locals>" in kind.__qualname__ else _dict_descriptor(kind)
    namespace = None if descriptor is None else descriptor.__get__(item)
    return namespace if isinstance(namespace, dict) else None


@lru_cache(1024)
def _dict_descriptor(kind: type) -> Any:
    descriptors = [vars(base).get("__dict__") for base in reversed(kind.__mro__)]
    return next(
        (descriptor for descriptor in descriptors if type(descriptor) in {GetSetDescriptorType, MemberDescriptorType}),
        None,
    )


def length(waiting: Any) -> int | None:
    """Return the number of items in a queue, without its lock and without code of the user; None if it is not known."""
    fields = attributes(waiting) or {}
    # In `queue`, in `asyncio`, in a priority queue of janus, and in a stream of anyio.
    for name in ("queue", "_queue", "_heap_queue", "buffer"):
        items: Any = fields.get(name)
        if type(items) is deque or type(items) is list:
            return len(items)
    simple = next((queue_class for queue_class in SIMPLE_QUEUES if issubclass(type(waiting), queue_class)), None)
    return None if simple is None else simple.qsize(waiting)


def _run_in_executor(original: Any) -> Any:
    def run_in_executor(self: Any, executor: Any, func: Any, *args: Any) -> Any:
        marks = current.get()
        submitted = clock()
        future = hide_caller(self, original(self, executor, func, *args), __file__)
        if marks is None or marks[STATE] != OPEN:
            return future
        pools = sys.modules.get("concurrent.futures.thread")
        # Jobs of other executors run in processes.
        if marks[JOBS] and pools is not None and (executor is None or isinstance(executor, pools.ThreadPoolExecutor)):
            # Called just before the task that waits for the job continues.
            future.add_done_callback(partial(_record_way_back, marks, submitted))
        return future

    return run_in_executor


def hide_caller(loop: Any, created: Any, file: str) -> Any:
    """Return a task, future or handle, and in the debug mode of *loop* hide that the caller, a function in *file*, created it."""
    if not loop.get_debug():
        return created
    try:
        # A handle of uvloop has no such attribute for Python.
        referents = [getattr(created, "_source_traceback", None), *gc.get_referents(created)]
        stack: Any = next((referent for referent in referents if isinstance(referent, StackSummary)), [])
        files = [entry.filename for entry in stack]
        if file in files:
            frame: Any = sys._getframe(2)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            depth = len(files) - 1 - files[::-1].index(file)
            for _ in range(depth):
                frame = frame.f_back
            # The number of frames is limited, and there is one less of ours.
            more = [] if frame is None else StackSummary.extract([(frame, frame.f_lineno)], lookup_lines=False)
            stack[: depth + 1] = [*more, *stack[:depth]]
    except Exception:
        log_failure("describing where a task was created")
    return created


def _record_way_back(marks: Marks, submitted: int, future: Any) -> None:
    jobs: list[int] = marks[JOBS]
    is_last = len(jobs) == 1 and jobs[0] > submitted and not future.cancelled()
    if is_last and marks[STATE] == OPEN and has_capacity(marks):
        marks.extend(("queue@loop", jobs[0], clock()))


def _cancelled(future: Any, cancelled: object) -> None:
    try:
        # The wait of the cancelled job still counts.
        waiting = _waits.pop(future, None) if cancelled else None
        if waiting:
            _record_queue(*waiting)
    except Exception:
        log_failure("watching a job")


def _pooled(original: Any) -> Any:
    def call(self: Any, func: Any, *args: Any, **options: Any) -> Any:
        runs_here = isinstance(self, sys.modules["multiprocessing.pool"].ThreadPool)
        return original(self, as_job(func) if runs_here else func, *args, **options)

    return call


def as_job(function: Any) -> Any:
    """Return *function* wrapped for a shared thread, so that it runs in the current request, if any."""
    marks = current.get() or untimed.get()
    return function if marks is None or marks[STATE] != OPEN else _Job(function, [marks, clock()])


class _Wrapped:
    __slots__ = ("_function",)
    _function: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (self._function,)


class _Callback(_Wrapped):
    """A callback that runs in the request of *marks* on its first call, if the request is still running."""

    __slots__ = ("_marks",)

    def __init__(self, function: Any, marks: Marks) -> None:
        self._function = function
        self._marks: Marks | None = marks

    def __call__(self, future: Any) -> Any:
        # A retained future retains its callbacks, which must not retain the request.
        function, marks, self._marks = self._function, self._marks, None
        token = current.set(marks) if marks is not None and marks[STATE] == OPEN else None
        try:
            return function(future)
        finally:
            if token is not None:
                current.reset(token)
            # An exception refers to this frame, and a token to the context of the thread.
            del self, function, future, marks, token


class _Job(_Wrapped):
    """A job for a thread of a pool, which runs in its request, if the request is still running."""

    __slots__ = ("_jobs", "_marks", "_submitted", "_waiting")

    def __init__(self, function: Any, waiting: list[Any]) -> None:
        # Cleared when the job starts, so that a retained future does not retain the request.
        self._function, self._waiting = function, waiting
        self._marks, self._submitted = waiting
        # End of the request's last job, then a 0 for each running job. Stored in the first triple, which has a fixed position and
        # is freed with the request. `append` and `pop` are atomic.
        self._jobs: list[int] = self._marks[JOBS] or [0]
        self._marks[JOBS] = self._jobs

    def __call__(self, /, *args: Any, **options: Any) -> Any:
        function, jobs, marks = self._function, self._jobs, self._marks
        self._waiting.clear()
        token = before = None
        if marks[STATE] == OPEN:
            _record_queue(marks, self._submitted)
            jobs.append(0)
            before = start_work(marks)
            token = current.set(marks)
        try:
            return function(*args, **options)
        finally:
            if token is not None:
                current.reset(token)
                end_work(before)
                jobs[0] = clock()
                jobs.pop()
            del self, function, args, options, marks, before, token


def _record_queue(marks: Marks, submitted: int) -> None:
    try:
        jobs: list[int] = marks[JOBS]
        if len(jobs) == 1 and marks[STATE] == OPEN and has_capacity(marks):
            marks.extend(("queue", max(submitted, jobs[0]), clock()))
    except Exception:
        log_failure("timing the wait for a thread")
