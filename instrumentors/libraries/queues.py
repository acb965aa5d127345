"""Queues: attributes the work of your own worker or batcher to the requests whose jobs it took from a queue.

A job is followed if it holds the object that its request waits for: a future, a `threading.Event` or a queue for the
result. From `get` until that object is set, the code that took the job works for the request:

- `queue` is the time in the queue, and the time in which the worker waits for further jobs of the batch.
- Stages of a batch count in full for each of its requests.
- A worker may use executors, tasks and threads, process several batches at once, or put the job into another queue.

A job without such an object is ambiguous, so its work is not recorded. Use `stagelens.ticket` for it.

A job with a `contextvars.Context` runs in the context of its request, as those of anyio's threads do: nothing is to be added.
"""
# The object that a request waits for identifies its job: neither the queue nor the job is changed, and a job that passes through
# several queues stays the same job. A worker records into a `QueueRun`, which each further `get` continues or replaces.

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from contextvars import Context
from functools import partial
from pathlib import Path
from threading import get_ident
from types import MappingProxyType, ModuleType
from typing import Any, Final
from weakref import ref

from .. import recorder
from ..instrumentor import Hook, Instrumentor, log_failure
from ..records import CLOSED, MAX_MARKS, OPEN, SHARED, Marks, clock, current
from ..tickets import BatchRun, Ticket, Triple, request_tickets
from .executors import hide_caller

# Types of the objects that a request waits for. A job with a future may also refer to a stop event, so futures come first.
# Types of modules that the process has not imported are missing.
FUTURES: Final[list[type]] = []
QUEUES: Final[list[type]] = [queue.Queue]
# Objects of one item; a larger one is data.
MAX_ITEMS: Final = 256
_DATA: Final = frozenset(
    {str, bytes, int, float, bool, complex, type(None), bytearray, memoryview, type, logging.LogRecord}
)
_FUTURE, _EVENT, _QUEUE, _NOTHING, _CONTEXT, _DICT, _SEQUENCE, _OBJECT = range(8)
# What each type of object in an item is, so that a job costs one lookup for each object.
_kinds: dict[type, int] = {}
MAX_KINDS: Final = 1024
# Coroutines of asyncio, or ours around them, that wait and do no work.
_WAITS: Final = ("get", "wait", "sleep", "acquire", "join")
_HERE: Final = Path(__file__).parent

_logger = logging.getLogger("stagelens")


class QueueInstrumentor(Instrumentor):
    """Instrumentor of `asyncio.Queue`, `queue.Queue` and janus."""

    library = "queue"
    title = "Queues and your own batchers"
    stages = MappingProxyType(
        {
            "queue": "the time from `put` to `get`, and the wait of a worker for further jobs while it forms a batch, also in `asyncio.sleep`; from the result until the request continues"
        }
    )
    facts = ("batch",)
    not_timed = (
        "jobs without a future, a `threading.Event` or a queue for the result. Use `stagelens.ticket` and `stagelens.batch` for them.",
        "jobs whose future or event is shared by several requests",
        "jobs in lists, `collections.deque`, `multiprocessing` queues and `queue.SimpleQueue`, whose type cannot be instrumented. Use `stagelens.ticket` in the same way.",
        "requests that use `stagelens.ticket` themselves: only their tickets count",
    )

    def hooks(self) -> Mapping[str, Hook]:
        """Return the patch functions by module."""
        return {
            "queue": self._queue,
            "threading": lambda module: self.replace(module.Event, "wait", _wait),
            "concurrent.futures._base": self._futures,
            "asyncio.futures": lambda module: _add_type(FUTURES, module.Future),
            "asyncio.queues": self._asyncio,
            "asyncio": self._asyncio_package,
            "janus": self._janus,
            "asyncio.base_events": self._loop,
            "uvloop": self._uvloop,
        }

    def _futures(self, module: ModuleType) -> None:
        _add_type(FUTURES, module.Future)
        self.replace(module.Future, "result", _result)

    def _queue(self, module: ModuleType) -> None:
        self.replace(module.Queue, "put", _put)
        self.replace(module.Queue, "get", _get)

    def _janus(self, module: ModuleType) -> None:
        self.replace(module.Queue, "_put_internal", _put_nowait)
        self.replace(module._SyncQueueProxy, "get", _get)  # noqa: SLF001 - the type of `Queue.sync_q`
        self.replace(module._AsyncQueueProxy, "get", _get_janus)  # noqa: SLF001 - the type of `Queue.async_q`
        self.replace(module._AsyncQueueProxy, "get_nowait", _get_nowait)  # noqa: SLF001 - as above

    def _asyncio(self, module: ModuleType) -> None:
        _add_type(QUEUES, module.Queue)
        self.replace(module.Queue, "put_nowait", _put_nowait)
        self.replace(module.Queue, "get", _get_later)
        self.replace(module.Queue, "get_nowait", _get_nowait)

    def _asyncio_package(self, module: ModuleType) -> None:
        self.replace(module.tasks, "sleep", _sleep)
        # The same function under another name.
        self.replace(module, "sleep", lambda _: module.tasks.sleep)

    def _loop(self, module: ModuleType) -> None:
        for name, patch in _LOOP.items():
            self.replace(module.BaseEventLoop, name, patch)

    def _uvloop(self, module: ModuleType) -> None:
        for name, patch in _LOOP.items():
            self.override(module.Loop, name, patch)


class QueueRun(BatchRun):
    """Record of a worker from the `get` of its first job until it has no job that a request waits for."""

    __slots__ = ("children", "completed", "jobs", "mixed", "owner", "size", "waits")

    def __init__(self, owner: int) -> None:
        # The start is 0 until the first job.
        super().__init__([CLOSED, 0, 0, SHARED, self, 0])
        self.owner = owner
        # Emptied at the end, because each job refers to the run.
        self.jobs: list[Job] = []
        self.size = 0
        # Tasks, jobs of executors and threads that the worker started, by their ids.
        self.children: dict[int, ref[Any]] = {}
        # Whether a result was set: the forming of the batch is over.
        self.completed = False
        # Whether the worker also took jobs of no request: the size of the batch is uncertain.
        self.mixed = False
        # Whether the worker waits for a further job. If all of its jobs are cancelled meanwhile, it continues with the next one.
        self.waits = False

    def take(self, job: Job, now: int) -> None:
        """Add a job to the batch."""
        if self.marks[0] != OPEN:
            self.marks[0], self.marks[1] = OPEN, self.marks[1] or now
            self.ended, self._completed, self.size = 0, False, 0
            if recorder.opened is not None:
                recorder.opened(self.marks, "")
        if job not in self.jobs:
            self.jobs.append(job)
            self.size += 1
        job.parts.append([self, now, 0])

    def forms(self, now: int) -> bool:
        """Return whether the worker, which calls `get`, adds to this batch; if not, end its work on the jobs."""
        if self.ended:
            return False
        waiting = [job for job in self.jobs if job.waits_for(self)]
        busy = any(map(_is_running, self.alive()))
        if waiting and not self.completed and not busy:
            return True
        if not busy:
            for job in waiting:
                job.leave(self, now)
            self.close(now)
        return False

    def add_child(self, child: Any) -> None:
        """Add a task, a job of an executor or a thread of the worker, which keeps itself alive while it runs."""
        with suppress(TypeError):
            self.children[id(child)] = ref(child)

    def alive(self) -> list[Any]:
        """Return the children that still exist."""
        return [child for known in [*self.children.values()] if (child := known()) is not None]

    def is_idle(self) -> bool:
        """Return whether the worker has jobs and has not started to work on them: a `sleep` lets the batch grow."""
        return (
            bool(self.jobs)
            and not self.completed
            and not self.children
            and self.owner == _thread_or_task()
            and all(key == "queue" for key in self.marks[6::3])
        )

    def close(self, now: int) -> None:
        """End the work."""
        if not self.ended:
            self.marks[0] = CLOSED
            if not self.waits:
                self.marks[4] = 0
            self.ended = now
            self.children.clear()
            self.jobs = []


class Job(Ticket):
    """Ticket of a job that was put into a queue, known by the object that its request waits for.

    Args:
        request: Marks of the request.
        reply: The object that the request waits for.
        length: Number of jobs that waited in the queue, None if unknown.
    """

    __slots__ = ("_key", "_length", "_reply", "confirmed", "owner", "parts", "released", "request", "resumed", "shared")
    automatic = True

    def __init__(self, request: Marks, reply: Any, length: int | None = None) -> None:
        self.since = clock()
        self._length = length
        self.gone = 0
        self.request: Marks | None = request
        # A cycle, which `release` breaks.
        self._reply: Any = ref(reply, self.release)
        self._key = id(reply)
        self.owner = _thread_or_task()
        # Run, start and end (0 while it lasts) of each part of the work.
        self.parts: list[list[Any]] = []
        # Result set, and its request continued after that by the event loop or its thread; 0 before.
        self.released = self.resumed = 0
        self.shared = False
        # An event or a queue may have another purpose until the request waits for it.
        self.confirmed = _kind(reply) == _FUTURE

    def waits_for(self, run: QueueRun) -> bool:
        """Return whether the request still waits for the work of *run* on this job."""
        if not self.released:
            reply = self._reply()
            if reply is None or self.request is None or self.request[0] != OPEN or _is_set(reply):
                self.release(reply)
        return not self.released and any(part[0] is run and not part[2] for part in self.parts)

    def leave(self, run: QueueRun | None, now: int) -> None:
        """End the work of *run*, or of all runs for None."""
        for part in self.parts:
            if not part[2] and run in {None, part[0]}:
                part[2] = now

    def working(self) -> list[Marks]:
        """Return the marks of the runs that work for the request now, as far as their own thread or task does the work."""
        return [
            run.marks
            for run, _, ended in self.parts
            if not ended and not run.ended and not any(hasattr(child, "get_coro") for child in run.alive())
        ]

    def release(self, reply: Any = None) -> None:
        """End all work, because the request continues; callback of a future and of its weak reference."""
        if self.released:
            self.resumed = self.resumed or clock()
            return
        now = clock()
        # The event loop continues this request first; the others of the batch that have a result wait for their turn.
        for run, _, ended in self.parts if hasattr(reply, "get_loop") else ():
            # Another thread may close the run meanwhile, which gives it another list.
            jobs = run.jobs
            for job in jobs[jobs.index(self) + 1 :] if not ended and self in jobs else ():
                answered = job.answered()
                if answered is None:
                    break
                job.end(answered, now)
        self.end(reply, now)

    def answered(self) -> Any:
        """Return the future for which the request still waits if it has a result, else None."""
        known = self._reply
        reply = None if known is None else known()
        return reply if reply is not None and _kind(reply) == _FUTURE and reply.done() else None

    def end(self, reply: Any, now: int) -> None:
        """End all work at *now*, when *reply* is set."""
        self.released = now
        self._reply = None
        _jobs.pop(self._key, None)
        request, self.request = self.request, None
        # A cancelled request or a request that gave up says nothing about the rest of the batch.
        completed = request is not None and request[0] == OPEN and not (_kind(reply) == _FUTURE and reply.cancelled())
        for run, _, ended in self.parts:
            if completed and not ended:
                run.completed = True
                # A `get` that was cancelled before it started, as by `asyncio.wait_for` with a timeout of 0, has not said so.
                run.waits = False
            # Backwards, because results are usually set in the order of the jobs.
            for job in reversed(run.jobs):
                if not job.released:
                    break
            else:
                run.close(now)

    def ready(self) -> bool:
        """Return whether all work is known; do not block."""
        self._discard_unknown()
        return all(run.ready() for run, _, _ in self.parts)

    def runs(self) -> list[BatchRun]:
        """Return the parts of the runs in which the request waited for them."""
        self._discard_unknown()
        last = self.released or clock()
        parts: list[BatchRun] = [
            _RunPart(run, start, min(end or last, last), self._length) for run, start, end in self.parts if start < last
        ]
        if parts and self.resumed:
            parts.append(BatchRun([CLOSED, last, 0, "queue@loop", last, self.resumed], self.resumed))
        return parts

    def _discard_unknown(self) -> None:
        if not self.parts or self.shared or not self.confirmed:
            # No `queue`: what happened to the job is unknown.
            self.gone = self.since
            self.parts = []


class _RunPart(BatchRun):
    """The part of a run from *start* to *end*, for a job that waited behind *length* others."""

    __slots__ = ("_length", "_run")

    def __init__(self, run: QueueRun, start: int, end: int, length: int | None) -> None:
        super().__init__([CLOSED, start, 0], end)
        self._run = run
        self._length = length

    def stage_facts(self) -> list[Triple]:
        """Return the triples of the run in this part."""
        start, end = self.marks[1], self.ended
        found: list[Triple] = [] if self._run.mixed else [("@batch", self._run.size, 0)]
        if self._length is not None:
            found.append(("@queue_length", self._length, 0))
        for triple in self._run.stage_facts():
            key, first, second = triple
            if key[0] == "@" or (start <= first and second <= end):
                found.append(triple)
            elif first < end and start < second:
                found.append((key, max(first, start), min(second, end)))
        return found


# Jobs by the id of the object that their request waits for, until it is set.
_jobs: dict[int, Job] = {}


def _add_type(types: list[type], kind: type) -> None:
    types.append(kind)
    _kinds.clear()


def _kind(item: Any) -> int:
    kind = type(item)
    known = _kinds.get(kind)
    if known is None:
        if len(_kinds) >= MAX_KINDS:
            _kinds.clear()
        known = _kinds[kind] = _classify(kind)
    return known


def _classify(kind: type) -> int:
    if kind in _DATA:
        return _NOTHING
    for known, types in (
        (_FUTURE, FUTURES),
        (_EVENT, [threading.Event]),
        (_QUEUE, QUEUES),
        (_CONTEXT, [Context]),
        (_DICT, [dict]),
        (_SEQUENCE, [tuple, list]),
    ):
        if issubclass(kind, tuple(types)):
            return known
    return _OBJECT


def replies(item: Any) -> list[Any]:
    """Return the objects in *item* for which a request may wait; futures before events before queues."""
    level: Collection[Any] = item if type(item) is tuple else (item,)
    found: list[list[Any]] = [[], [], []]
    known = _kinds.get
    left = MAX_ITEMS
    for depth in (0, 1, 2) if level is item else (-1, 0, 1, 2):
        left -= len(level)
        if left < 0:
            break
        below: list[Any] = []
        for inner in level:
            kind = known(type(inner), -1)
            if kind < 0:
                kind = _kind(inner)
            if kind == _NOTHING:
                continue
            if kind <= _QUEUE:
                found[kind].append(inner)
            elif kind == _CONTEXT:
                return []
            elif depth < 1:
                below += _contents(inner, kind)
        if found[_FUTURE] or not below:
            break
        level = below
    return found[_FUTURE] or found[_EVENT] or found[_QUEUE]


def _contents(item: Any, kind: int) -> Collection[Any]:
    # Not the methods of a subclass, because no code of the user may run.
    if kind == _SEQUENCE:
        size = tuple.__len__(item) if isinstance(item, tuple) else list.__len__(item)
        if size > MAX_ITEMS:
            return ()
        return [*(tuple.__iter__(item) if isinstance(item, tuple) else list.__iter__(item))]
    if kind == _OBJECT:
        # Neither `__getattr__` nor a property of the user runs.
        try:
            item = object.__getattribute__(item, "__dict__")
        except AttributeError:
            slots: list[Any] = [vars(base).get(name) for base in type(item).__mro__ for name in _slots(base)]
            return [slot.__get__(item) for slot in slots if type(slot) is _Slot and _has(slot, item)]
    return () if dict.__len__(item) > MAX_ITEMS else [*dict.values(item)]


_Slot: Final[Any] = type(vars(Ticket)["since"])


def _slots(base: type) -> tuple[str, ...]:
    slots = vars(base).get("__slots__", ())
    return slots if type(slots) is tuple else ()


def _has(slot: Any, item: Any) -> bool:
    try:
        slot.__get__(item)
    except AttributeError:
        return False
    return True


def _is_set(reply: Any) -> bool:
    kind = _kind(reply)
    if kind == _FUTURE:
        return reply.done()
    return reply.is_set() if kind == _EVENT else not reply.empty()


def _is_running(child: Any) -> bool:
    return child.is_alive() if isinstance(child, threading.Thread) else not child.done()


def _thread_or_task() -> int:
    asyncio = sys.modules.get("_asyncio")
    loop = None if asyncio is None else asyncio._get_running_loop()  # noqa: SLF001 - asyncio's own way, which never raises
    return get_ident() if loop is None else id(_current_task(loop))


def _current_task(loop: Any) -> Any:
    return sys.modules["asyncio.tasks"].current_task(loop)


def _is_get() -> bool:
    """Return whether this task is only a `get` that another task, whose run it has, waits for."""
    asyncio = sys.modules.get("_asyncio")
    loop = None if asyncio is None else asyncio._get_running_loop()  # noqa: SLF001 - as above
    task = None if loop is None else _current_task(loop)
    return task is not None and _only_waits(task.get_coro())


def _run_of(marks: Marks | None) -> QueueRun | None:
    if marks is not None and marks[3:4] == [SHARED] and type(marks[4]) is QueueRun:
        return marks[4]
    return None


def _is_own_work(marks: Marks) -> bool:
    """Return whether this task or thread is that of the running request *marks*, and not a worker that the request started."""
    tickets = request_tickets(marks)
    jobs = tickets.jobs() if tickets is not None else ()
    return not jobs or _thread_or_task() in {job.owner for job in jobs if isinstance(job, Job)}


def _next_run() -> tuple[QueueRun | None, bool]:
    """Return the run of this worker for a `get` that starts now, and whether it already has jobs; None in a request."""
    marks = current.get()
    owner = _thread_or_task()
    run = _run_of(marks)
    if run is None:
        if marks is not None and marks[0] == OPEN:
            return None, False
    elif run.jobs or run.ended:
        if run.forms(clock()):
            return run, True
        if run.waits:
            return run, False
    elif run.owner == owner or _is_get():
        # Without work so far.
        return run, False
    run = QueueRun(owner)
    current.set(run.marks)
    return run, False


def _run_for(jobs: Collection[Job]) -> QueueRun | None:
    """Return the run of a worker that a request has started and that took the *jobs* of others while it lasts; else None."""
    marks = current.get()
    if marks is None or marks[3:4] == [SHARED] or all(job.request is marks for job in jobs) or _is_own_work(marks):
        return None
    run = QueueRun(_thread_or_task())
    # A job of the request that started the worker was not counted.
    run.mixed = True
    current.set(run.marks)
    return run


def _take(item: Any, run: QueueRun | None = None, *, is_known: bool = False) -> None:
    """Note that the worker of *run*, None in a request, has got *item*; if it is not known, that of this context."""
    try:
        run = run if is_known else _next_run()[0]
        now = clock()
        jobs = [job for reply in replies(item) if (job := _jobs.get(id(reply))) is not None]
        if run is None and (run := _run_for(jobs)) is None:
            return
        run.waits = False
        for job in jobs:
            run.take(job, now)
        run.mixed = run.mixed or not jobs
    except Exception:
        log_failure("following a job from a queue")


def _put(original: Any) -> Any:
    def put(self: Any, item: Any, block: Any = True, timeout: Any = None) -> Any:
        marks = current.get()
        if _jobs or (marks is not None and marks[0] == OPEN):
            _send(marks, item, self)
        return original(self, item, block, timeout)

    return put


def _put_nowait(original: Any) -> Any:
    def put_nowait(self: Any, item: Any) -> Any:
        marks = current.get()
        if _jobs or (marks is not None and marks[0] == OPEN):
            _send(marks, item, self)
        return original(self, item)

    return put_nowait


def _send(marks: Marks | None, item: Any, into: Any) -> None:
    try:
        in_request = marks is not None and marks[0] == OPEN and marks[3:4] != [SHARED]
        for reply in replies(item):
            job = _jobs.get(id(reply))
            if job is not None:
                # Put into another queue, or again; or the job of several requests.
                job.leave(None, clock())
                job.shared = job.shared or (in_request and job.request is not None and job.request is not marks)
            elif in_request and marks is not None and not _is_set(reply):
                _start(marks, reply, into)
    except Exception:
        log_failure("following a job in a queue")


def _start(marks: Marks, reply: Any, into: Any) -> None:
    tickets = request_tickets(marks, create=True)
    if tickets is not None:
        job = _jobs[id(reply)] = Job(marks, reply, _length(into))
        tickets.add(job)
        if job.confirmed:
            # A future may retain its callbacks.
            reply.add_done_callback(partial(_release, ref(job)))


def _release(job: ref[Job], reply: Any) -> None:
    known = job()
    if known is not None:
        known.release(reply)


def _length(waiting: Any) -> int | None:
    """Return the number of items in a queue, without its lock if it has one; None if it is not known."""
    size = getattr(waiting, "_qsize", None) or getattr(waiting, "qsize", None)
    return None if size is None else size()


def _get(original: Any) -> Any:
    def get(self: Any, block: Any = True, timeout: Any = None) -> Any:
        marks = current.get()
        if not _jobs and (marks is None or marks[3:4] != [SHARED] or not marks[1]):
            started, run, forms, awaited = 0, None, False, None
        else:
            started = clock()
            run, forms, awaited = _before(self)
        try:
            item = original(self, block, timeout)
        finally:
            if started:
                _after(run if forms else None, awaited, started)
        if _jobs:
            _take(item, run, is_known=started > 0)
        return item

    return get


def _before(waited: Any) -> tuple[QueueRun | None, bool, Job | None]:
    try:
        awaited = _confirm(waited)
        if awaited is not None:
            return None, False, awaited
        run = _run_of(current.get()) if _is_get() else None
        if run is not None:
            return run, run.waits, None
        run, forms = _next_run()
        if run is not None:
            run.waits = forms
    except Exception:
        log_failure("following a worker")
        return None, False, None
    return run, forms, None


def _confirm(waited: Any) -> Job | None:
    """Return the job whose request, which is the current one, starts to wait for *waited*."""
    marks = current.get()
    job = _jobs.get(id(waited)) if marks is not None and marks[0] == OPEN else None
    if job is None or job.request is not marks:
        return None
    job.confirmed = True
    return job


def _after(forming: QueueRun | None, awaited: Job | None, started: int) -> None:
    if awaited is not None:
        awaited.release()
    if forming is not None:
        forming.waits = False
        if len(forming.marks) < MAX_MARKS:
            forming.marks.extend(("queue", started, clock()))


def _get_later(original: Any) -> Any:
    async def get(self: Any) -> Any:
        marks = current.get()
        if marks is not None and (
            # A run without jobs, or a request.
            marks[4].owner == _thread_or_task()
            if not marks[1]
            else not _jobs and marks[0] == OPEN and _run_of(marks) is None
        ):
            return await original(self)
        run, forms, awaited = _before(self)
        if (forms or awaited is not None) and self.empty():
            return await _forming(original(self), run, awaited)
        if awaited is not None:
            awaited.release()
        return await original(self)

    return get


def _get_janus(original: Any) -> Any:
    # It does not call `get_nowait`.
    async def get(self: Any) -> Any:
        run, forms, awaited = _before(self)
        item = await _forming(original(self), run if forms else None, awaited)
        if _jobs:
            _take(item, run, is_known=True)
        return item

    return get


async def _forming(waiting: Any, run: QueueRun | None, awaited: Job | None) -> Any:
    started = clock()
    try:
        return await waiting
    finally:
        _after(run, awaited, started)


def _sleep(original: Any) -> Any:
    async def sleep(*args: Any, **options: Any) -> Any:
        marks = current.get()
        run = None if marks is None else _run_of(marks)
        waiting = original(*args, **options)
        return await (waiting if run is None or not run.is_idle() else _forming(waiting, run, None))

    return sleep


def _get_nowait(original: Any) -> Any:
    def get_nowait(self: Any) -> Any:
        item = original(self)
        if _jobs:
            _take(item)
        return item

    return get_nowait


def _wait(original: Any) -> Any:
    def wait(self: Any, *args: Any, **options: Any) -> Any:
        awaited = _confirm(self) if _jobs else None
        try:
            return original(self, *args, **options)
        finally:
            if awaited is not None and self.is_set():
                awaited.release()

    return wait


def _result(original: Any) -> Any:
    def result(self: Any, timeout: Any = None) -> Any:
        job = _jobs.get(id(self)) if _jobs else None
        if job is not None and job.request is not current.get():
            job = None
        try:
            return original(self, timeout)
        finally:
            # Set by the worker before; this thread had to wake up.
            if job is not None and job.released:
                job.release()
            # As the original does, because the exception of the future refers to this frame.
            del self, job

    return result


def _create_task(original: Any) -> Any:
    def create_task(self: Any, coro: Any, *args: Any, **options: Any) -> Any:
        if _only_waits(coro, ("get",)) and options.get("context") is None:
            # It runs in a copy of this context, as by `asyncio.wait_for` in Python 3.11, and the worker continues in this one.
            _before(None)
        marks = current.get()
        run = None if marks is None or _only_waits(coro) else _run_of(marks)
        follows = run is not None and len(run.jobs) > 0
        # The worker may get a job while this task works for nobody.
        token = None if run is None or follows else current.set(None)
        try:
            task = original(self, coro, *args, **options)
        finally:
            if token is not None:
                current.reset(token)
            del token
        try:
            if run is not None and follows:
                run.add_child(task)
            return hide_caller(self, task, __file__)
        finally:
            # As the original does, because the exception of an eager task refers to this frame.
            del task

    return create_task


def _only_waits(coro: Any, names: tuple[str, ...] = _WAITS) -> bool:
    code = getattr(coro, "cr_code", None)
    if code is None or code.co_name not in names:
        return False
    folder = Path(code.co_filename).parent
    return folder == _HERE or folder.name == "asyncio"


def _call_soon_threadsafe(original: Any) -> Any:
    def call_soon_threadsafe(self: Any, callback: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if _jobs and marks is not None and marks[3:4] == [SHARED]:
            try:
                _answer(marks, callback, args)
            except Exception:
                log_failure("following the result of a job")
        return hide_caller(self, original(self, callback, *args, **options), __file__)

    return call_soon_threadsafe


def _answer(marks: Marks, callback: Any, args: tuple[Any, ...]) -> None:
    """Note that a worker thread asks the event loop to set results: it may `get` the next job before the loop does so."""
    run = _run_of(marks)
    if run is None or not run.jobs:
        return
    run.completed = True
    known = [getattr(callback, "__self__", None), *args]
    # The variables of a lambda; one that is not set yet raises.
    for cell in getattr(callback, "__closure__", None) or ():
        with suppress(ValueError):
            known.append(cell.cell_contents)
    for reply in replies((*known,)):
        job = _jobs.get(id(reply))
        if job is not None:
            job.release(reply)


_LOOP: Final = {"create_task": _create_task, "call_soon_threadsafe": _call_soon_threadsafe}
