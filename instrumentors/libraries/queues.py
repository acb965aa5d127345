"""Queues: attributes the work of your own worker or batcher to the requests whose jobs it took from a queue.

A job is followed if it holds the object that its request waits for: a future, an event, or a queue for the result. From `get`
until that object is set, the code that took the job works for the request:

- `queue` is the time in the queue, the time in which the worker waits for further jobs of the batch, and the time in each
  further queue into which a worker puts the job.
- A queue for the result may have many items, such as the tokens of a stream: the worker works for the request until the last
  item that the request waits for.
- Stages of a batch count in full for each of its requests. Jobs may join and leave a batch at any time.
- A worker may use executors, tasks and threads, and process several batches at once.

A job without such an object, such as one with the number of a future in a dict, is followed if its request waits for something
that is set while one worker has the job: an event, a queue, a `concurrent.futures.Future`, or a future that code outside of
installed packages awaits. Any other job is ambiguous, so its work is not recorded. Use `stagelens.ticket` for it.

A job with a `contextvars.Context` runs in the context of its request, as those of anyio's threads do: nothing is to be added.
"""
# The object that a request waits for identifies its job: neither the queue nor the job is changed, and a job that passes through
# several queues stays the same job. A worker records into a `QueueRun`, which each further `get` continues or replaces.

from __future__ import annotations

import gc
import logging
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from contextvars import Context
from functools import lru_cache, partial
from itertools import islice, takewhile
from pathlib import Path
from threading import get_ident
from types import (
    BuiltinMethodType,
    CoroutineType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Final
from weakref import WeakValueDictionary, ref

from .. import recorder
from ..instrumentor import Hook, Instrumentor, Probed, log_failure
from ..probes import Probe
from ..records import CLOSED, OPEN, SHARED, Marks, clock, current, has_capacity
from ..tickets import BatchRun, Ticket, Triple, request_tickets
from .executors import attributes, hide_caller, length

# Types of the objects that a request waits for. A job with a future may also refer to a stop event, so futures come first.
# Types of modules that the process has not imported are missing.
FUTURES: Final[list[type]] = []
EVENTS: Final[list[type]] = [threading.Event]
QUEUES: Final[list[type]] = [queue.Queue]
# Types of one end of a queue, or around an event, and the attribute with the whole.
_PARTS: Final[dict[type, str]] = {}
# Objects of one item; a larger one is data.
MAX_ITEMS: Final = 256
# Times that a job is followed through queues. Of one that is put back again and again nothing is known.
MAX_PARTS: Final = 1000
# Time after which the work on streams goes on as another run, so that a run ends soon and has few stages. [nanoseconds]
RENEW_AFTER: Final = 10**9
_DATA: Final = frozenset(
    {str, bytes, int, float, bool, complex, type(None), bytearray, memoryview, type, logging.LogRecord}
)
_FUTURE, _EVENT, _QUEUE, _NOTHING, _CONTEXT, _DICT, _SEQUENCE, _OBJECT = range(8)
# What each type of object in an item is, so that a job costs one lookup for each object.
_kinds: dict[type, int] = {}
MAX_KINDS: Final = 1024
_STANDARD: Final = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 - a text, as in code
# Coroutines of asyncio, anyio and janus that wait and do no work.
_WAITS: Final = ("get", "receive", "wait", "sleep", "acquire", "join")

_logger = logging.getLogger("stagelens")


class QueueInstrumentor(Instrumentor):
    """Instrumentor of `asyncio.Queue`, `queue.Queue`, the memory object streams of anyio, and janus."""

    library = "queue"
    title = "Queues and your own batchers"
    stages = MappingProxyType(
        {
            "queue": "the time from `put` to `get`, in each queue, and the wait of a worker for further jobs while it forms a batch, also in `asyncio.sleep`; from the result until the request continues"
        }
    )
    facts = ("batch",)
    not_timed = (
        "jobs without a future, an event or a queue for the result that are text, bytes or numbers, or that a worker puts into a further queue in another object. Use `stagelens.ticket` and `stagelens.batch` for them.",
        "results for which a request waits in a condition. *Your code* names the function and its wait.",
        "jobs whose future, event or queue for the result is shared by several requests",
        "the batch size where jobs join and leave a batch of streams",
        "jobs in lists, `collections.deque`, `multiprocessing` queues, `queue.SimpleQueue` and the queues of gevent, whose types cannot be instrumented. Use `stagelens.ticket` in the same way.",
        "requests that use `stagelens.ticket` themselves: only their tickets count",
    )

    def hooks(self) -> Mapping[str, Hook]:
        return {
            "queue": self._queue,
            "threading": lambda module: self.replace(module.Event, "wait", _AWAIT),
            "concurrent.futures._base": self._futures,
            "asyncio.futures": lambda module: _add_type(FUTURES, module.Future),
            "asyncio.locks": self._events,
            "asyncio.queues": self._asyncio,
            "asyncio.tasks": lambda module: self.replace(module, "sleep", Probed.until_end(_sleep)),
            "anyio._backends._asyncio": lambda module: _add_part(EVENTS, module.Event, "_event"),
            "anyio.streams.memory": self._anyio,
            "janus": self._janus,
            "asyncio.base_events": self._loop,
            "uvloop": self._uvloop,
        }

    def _futures(self, module: ModuleType) -> None:
        _add_type(FUTURES, module.Future)
        self.replace(module.Future, "result", _AWAIT)

    def _events(self, module: ModuleType) -> None:
        _add_type(EVENTS, module.Event)
        self.replace(module.Event, "wait", _AWAIT)

    def _queue(self, module: ModuleType) -> None:
        self.replace(module.Queue, "put", _PUT)
        self.replace(module.Queue, "get", _GET)

    def _anyio(self, module: ModuleType) -> None:
        # What both ends have; older versions name it without the underscore.
        state = getattr(module, "_MemoryObjectStreamState", None) or module.MemoryObjectStreamState
        _add_type(QUEUES, state)
        for owner in (module.MemoryObjectSendStream, module.MemoryObjectReceiveStream):
            _add_part(QUEUES, owner, "_state")
        # A stream without a buffer has its item while the sender waits.
        self.replace(module.MemoryObjectSendStream, "send", _PUT)
        self.replace(module.MemoryObjectSendStream, "send_nowait", _PUT)
        self.replace(module.MemoryObjectReceiveStream, "receive", _GET_LATER)
        self.replace(module.MemoryObjectReceiveStream, "receive_nowait", _GET_NOWAIT)

    def _janus(self, module: ModuleType) -> None:
        threads, tasks = module._SyncQueueProxy, module._AsyncQueueProxy  # noqa: SLF001 - the types of `Queue.sync_q` and `async_q`
        for owner in (threads, tasks):
            _add_part(QUEUES, owner, "_parent")
        _add_type(QUEUES, module.Queue)
        self.replace(module.Queue, "_put_internal", _PUT)
        self.replace(threads, "get", _GET)
        # It does not call `get_nowait`.
        self.replace(tasks, "get", _GET_LATER)
        self.replace(tasks, "get_nowait", _GET_NOWAIT)

    def _asyncio(self, module: ModuleType) -> None:
        _add_type(QUEUES, module.Queue)
        self.replace(module.Queue, "put_nowait", _PUT)
        self.replace(module.Queue, "get", Probed.until_end(_get_later, 1))
        self.replace(module.Queue, "get_nowait", _GET_NOWAIT)

    def _loop(self, module: ModuleType) -> None:
        for name, patch in _LOOP.items():
            self.replace(module.BaseEventLoop, name, patch)

    def _uvloop(self, module: ModuleType) -> None:
        for name, patch in _LOOP.items():
            self.override(module.Loop, name, patch)


class QueueRun(BatchRun):
    """Record of a worker from the `get` of its first job until it has no job that a request waits for."""

    __slots__ = ("began", "children", "completed", "jobs", "mixed", "owner", "size", "waits")

    def __init__(self, owner: int) -> None:
        # The start is 0 until the first job.
        super().__init__([CLOSED, 0, 0, SHARED, self, 0])
        self.owner = owner
        # Those of the current batch that may still wait. Emptied at the end, because each job refers to the run.
        self.jobs: deque[Job] = deque()
        self.began = self.size = 0
        # Tasks, jobs of executors and threads that the worker started, by their ids.
        self.children: dict[int, ref[Any]] = {}
        # Whether a result was set: the forming of the batch is over.
        self.completed = False
        # Whether the worker also took jobs of no request: the size of the batch is uncertain.
        self.mixed = False
        # Whether the worker waits for a further job. If all of its jobs are cancelled meanwhile, it continues with the next one.
        self.waits = False

    def take(self, job: Job, now: int) -> None:
        if self.marks[0] != OPEN:
            self.marks[0], self.marks[1] = OPEN, self.marks[1] or now
            self.ended, self._completed, self.size, self.began = 0, False, 0, now
            if recorder.opened is not None:
                recorder.opened(self.marks, "")
        self.size += not any(part[0] is self and part[1] >= self.began for part in job.parts)
        if not self.jobs or self.jobs[-1] is not job:
            self.jobs.append(job)
        job.parts.append([self, now, 0])
        if len(job.parts) > MAX_PARTS:
            job.parts, job.shared = [], True

    # A batch may have thousands of jobs, and each `get` and each result looks for one: those at either end that do not wait are forgotten.

    def any_waits(self) -> bool:
        with suppress(IndexError):
            while not self.jobs[0].waits_for(self):
                self.jobs.popleft()
            return True
        return False

    def is_done(self) -> bool:
        # Results are usually set in the order of the jobs, or in reverse.
        with suppress(IndexError):
            while self.jobs[0].released:
                self.jobs.popleft()
            while self.jobs[-1].released:
                self.jobs.pop()
        return not self.jobs

    def answered_after(self, job: Job) -> list[Job]:
        # Another thread may change what is iterated over.
        with suppress(ValueError, RuntimeError):
            return list(takewhile(Job.answered, islice(self.jobs, self.jobs.index(job) + 1, None)))
        return []

    def forms(self, now: int) -> bool:
        """Return whether the worker, which calls `get`, adds to this batch; if not, end its work on the jobs."""
        if self.ended:
            return False
        if self.is_busy() or self.streams():
            return False
        if self.any_waits() and not self.completed:
            return True
        self.leave(now)
        return False

    def leave(self, now: int) -> None:
        for job in [*self.jobs]:
            job.leave(self, now)
        self.close(now)

    def is_busy(self) -> bool:
        return any(map(_is_running, self.alive()))

    def streams(self) -> bool:
        """Return whether the worker has answered, and a request may wait for more."""
        return self.completed and not self.ended and any(job.is_stream and job.waits_for(self) for job in [*self.jobs])

    def renewed(self, now: int) -> QueueRun:
        """End this run, and return the one in which its worker goes on; a job that is answered again is one of it."""
        self.leave(now)
        run = QueueRun(self.owner)
        run.mixed = self.mixed
        current.set(run.marks)
        return run

    def add_child(self, child: Any) -> None:
        """Add a task, a job of an executor or a thread of the worker, which keeps itself alive while it runs."""
        with suppress(TypeError):
            self.children[id(child)] = ref(child)

    def alive(self) -> Iterator[Any]:
        return (child for known in [*self.children.values()] if (child := known()) is not None)

    def is_idle(self) -> bool:
        """Return whether the worker has jobs and has not started to work on them: a `sleep` lets the batch grow."""
        return (
            bool(self.jobs)
            and not self.completed
            and not self.children
            and self.owner == _thread_or_task()
            and all(key == "queue" for key in self.marks[6::3])
        )

    def stage_facts(self) -> list[Triple]:
        known, found = self._shared, super().stage_facts()
        if found is not known:
            # A `sleep` inside of a stage, such as of one that asks for a result again and again, is no wait for further jobs.
            others = [(start, end) for key, start, end in found if key[0] != "@" and key != "queue"]
            self._shared = found = [
                (key, first, second)
                for key, first, second in found
                if key != "queue" or not any(start <= first and second <= end for start, end in others)
            ]
        return found

    def close(self, now: int) -> None:
        if not self.ended:
            self.marks[0] = CLOSED
            if not self.waits:
                self.marks[4] = 0
            self.ended = now
            self.children.clear()
            self.jobs = deque()


class Job(Ticket):
    """Ticket of a job that was put into a queue behind *length* others, known by the object that its request waits for."""

    __slots__ = (
        "_length",
        "_reply",
        "confirmed",
        "is_found",
        "key",
        "owner",
        "parts",
        "released",
        "request",
        "resumed",
        "shared",
    )
    automatic = True
    # Whether the request may wait for more than one answer.
    is_stream = False

    def __init__(self, request: Marks, reply: Any = None, length: int | None = None) -> None:
        self.since = clock()
        self._length = length
        self.gone = 0
        self.request: Marks | None = request
        self.key = id(reply)
        self.owner = _thread_or_task()
        # Run, start and end (0 while it lasts) of each part of the work.
        self.parts: list[list[Any]] = []
        # Result set, and its request continued after that by the event loop or its thread; 0 before.
        self.released = self.resumed = 0
        self.shared = False
        # Whether the job did not hold the reply: it is that of the worker that has the job when it is set.
        self.is_found = False
        # An event or a queue may have another purpose until the request waits for it.
        self.confirmed = _kind(reply) == _FUTURE
        # A cycle, which `release` breaks. Last, because a signal may interrupt us.
        self._reply: Any = None if reply is None else ref(reply, self.release)

    def ask(self) -> None:
        self.confirmed = True

    def receive(self) -> None:
        self.release()

    def reply(self) -> Any:
        """Return the object that the request waits for, None if it is set or does not exist any more."""
        known = self._reply
        return None if known is None else known()

    def observe(self, future: Any) -> None:
        kind = _base(type(future))
        if not _has_loop(type(future)):
            # A future of a thread retains its callbacks.
            kind.add_done_callback(future, partial(_release, ref(self)))
            return
        # In debug mode, asyncio refuses to set a future in another thread only if it has a callback.
        loop = kind.get_loop(future)
        if loop is _running_loop() and not loop.get_debug():
            # In no context, because the future would keep its variables.
            kind.add_done_callback(future, self.release, context=Context())

    def ignore(self, loop: Any = None) -> None:
        """Remove the callback from a future of *loop*, None for any, which the request may never await."""
        reply = self.reply()
        kind = _base(type(reply))
        if _has_loop(type(reply)) and (loop is None or loop is kind.get_loop(reply)):
            kind.remove_done_callback(reply, self.release)

    def waits_for(self, run: QueueRun) -> bool:
        if not self.released:
            reply = self.reply()
            if self.request is None or self.request[0] != OPEN or (not self.is_stream and _is_set(reply)):
                self.release(reply)
        return not self.released and any(part[0] is run and not part[2] for part in self.parts)

    def leave(self, run: QueueRun | None, now: int) -> None:
        for part in self.parts:
            if not part[2] and run in {None, part[0]}:
                part[2] = now
                self.shared = self.shared or (self.is_found and not self.released)

    def working(self) -> list[Marks]:
        """Return the marks of the runs that work for the request now, as far as their own thread or task does the work."""
        return [
            run.marks
            for run, _, ended in self.parts
            if not ended and not run.ended and not any(hasattr(type(child), "get_coro") for child in run.alive())
        ]

    def release(self, reply: Any = None) -> None:
        """End all work, because the request continues; callback of a future and of its weak reference."""
        if self.released:
            self.resumed = self.resumed or clock()
            return
        now = clock()
        # The event loop continues this request first; the others of the batch that have a result wait for their turn.
        for run, _, ended in self.parts if _has_loop(type(reply)) else ():
            for job in run.answered_after(self) if not ended else ():
                job.end(job.reply(), now)
        self.end(reply, now)

    def answer(self, run: QueueRun | None) -> None:  # noqa: ARG002 - of a stream
        self.release(self.reply())

    def answered(self) -> bool:
        reply = self.reply()
        return _kind(reply) == _FUTURE and _is_set(reply)

    def end(self, reply: Any, now: int) -> None:
        self.released = now
        request, self.request = self.request, None
        if self.is_found and request is not None:
            self.discard_rivals(request)
        # A cancelled request or a request that gave up says nothing about the rest of the batch.
        completed = request is not None and request[0] == OPEN
        if not completed:
            self.ignore()
        elif _kind(reply) == _FUTURE:
            completed = not _base(type(reply)).cancelled(reply)
        self._reply = None
        _jobs.pop(self.key, None)
        for run, _, ended in self.parts:
            if completed and not ended:
                run.completed = True
                # A `get` that was cancelled before it started, as by `asyncio.wait_for` with a timeout of 0, has not said so.
                run.waits = False
            if run.is_done():
                run.close(now)

    def discard_rivals(self, request: Marks) -> None:
        """Discard all jobs that may have this one's reply, if several workers have them."""
        tickets = request_tickets(request)
        jobs = [job for job in (tickets.jobs() if tickets is not None else ()) if isinstance(job, Job)]
        rivals = [job for job in jobs if job.is_found and job.key == self.key and job.parts and not job.shared]
        working = {id(run) for job in rivals if not (run := job.parts[-1][0]).waits}
        for job in rivals:
            job.shared = len(working) > 1 or job.parts[-1][0].waits

    def ready(self) -> bool:
        self._discard_unknown()
        return all(run.ready() for run, _, _ in self.parts)

    def runs(self) -> list[BatchRun]:
        self._discard_unknown()
        last = self.released or clock()
        # One worker may take the jobs one by one for another one, which takes a batch.
        is_known = not any(run.mixed for run, _, _ in self.parts)
        size = max((run.size for run, _, _ in self.parts), default=0) if is_known else 0
        parts: list[BatchRun] = [
            _RunPart(run, start, min(end or last, last), self._length, size)
            for run, start, end in self.parts
            if start < last
        ]
        if parts and self.resumed > last:
            # It takes no time of its own, or the job would wait for it.
            start = parts[0].marks[1]
            parts.append(BatchRun([CLOSED, start, 0, "queue@loop", last, self.resumed], start))
        return parts

    def _discard_unknown(self) -> None:
        if not self.parts or self.shared or not self.confirmed:
            # No `queue`: what happened to the job is unknown.
            self.gone = self.since
            self.parts = []


class Stream(Job):
    """Job whose request waits for the items of a queue, until it ends: the last one that it waits for is the last one that counts."""

    __slots__ = ("_answered", "_asked", "_received")
    is_stream = True

    def __init__(self, request: Marks, reply: Any, length: int | None = None) -> None:
        # Start of the request's wait for an item, the item's `put` meanwhile (0 for none of them), and the last `put` that
        # it waited for.
        self._asked = self._answered = self._received = 0
        super().__init__(request, reply, length)

    def ask(self) -> None:
        self._asked, self.confirmed = clock(), True

    def receive(self) -> None:
        """Note that the request goes on, with an item or without."""
        self.resumed = clock()
        self._received = self._answered or self.resumed
        self._asked = self._answered = 0

    def answer(self, run: QueueRun | None) -> None:
        """Note that the worker of *run* answers with an item: it worked for this job since it left it for the next ones."""
        now = clock()
        if self._asked and not self._answered:
            self._answered = now
        if self.released:
            return
        for part in self.parts:
            if not part[2]:
                part[0].completed = True
                # It is the worker that answers.
                self.is_found = self.is_found and part[0] is not run
        if run is None or not self.parts or run.ended:
            return
        worker, _, since = self.parts[-1]
        if not since and now - run.began > RENEW_AFTER and run.owner == _thread_or_task() and not run.is_busy():
            worker, since, run = run, now, run.renewed(now)
        if since and worker.owner == run.owner:
            # The size of a batch that jobs join and leave is uncertain.
            run.mixed = run.completed = True
            run.take(self, since)

    def release(self, reply: Any = None) -> None:
        if not self.released:
            self.end(reply, self._received or clock())

    def ready(self) -> bool:
        # Its request has ended.
        self.release()
        return super().ready()


class Loose(Job):
    """Job that does not hold what its request waits for, such as a future in a dict by the number in the job.

    While a worker has it, it is replaced by one with the reply: what the request waits for then.
    """

    __slots__ = ("_task", "into")

    def __init__(self, request: Marks, into: Any) -> None:
        super().__init__(request, None, length(into))
        self.into = ref(into)
        loop = _running_loop()
        self._task: Any = None if loop is None else ref(_current_task(loop))

    def waits_for(self, run: QueueRun) -> bool:
        if self.request is None or self.request[0] != OPEN:
            self.end(None, clock())
        found = None if self.released else self.find(_awaited.get(self.owner))
        return super().waits_for(run) if found is None else found.waits_for(run)

    def find(self, waited: Any = None) -> Job | None:
        """Return the job that replaces this one, with *waited* as its reply; None while that is not known."""
        request = self.request
        reply = waited if waited is not None else _future_of(None if self._task is None else self._task())
        tickets = None if request is None or reply is None else request_tickets(request)
        known = _jobs.get(id(reply))
        if request is None or tickets is None or not self.parts or (known is not None and not known.is_found):
            return None
        job = (Stream if _kind(reply) == _QUEUE else Job)(request, reply, self._length)
        job.since, job.owner, job.parts, job.is_found, job.confirmed = self.since, self.owner, self.parts, True, True
        _jobs[id(reply)] = job
        tickets.replace(self, job)
        run = self.parts[-1][0]
        with suppress(ValueError):
            run.jobs[run.jobs.index(self)] = job
        self.request, self.parts, self.released = None, [], job.since
        _loose.pop(-id(self), None)
        if _kind(reply) == _FUTURE:
            job.observe(reply)
        return job

    def ready(self) -> bool:
        self.request = None
        return super().ready()


class _RunPart(BatchRun):
    """The part of a run from *start* to *end*, for a job that waited behind *length* others, in a batch of *size*, 0 if unknown."""

    __slots__ = ("_length", "_run", "_size")

    def __init__(self, run: QueueRun, start: int, end: int, length: int | None, size: int) -> None:
        super().__init__([CLOSED, start, 0], end)
        self._run, self._length, self._size = run, length, size

    def stage_facts(self) -> list[Triple]:
        start, end = self.marks[1], self.ended
        found: list[Triple] = [("@batch", self._size, 0)] if self._size else []
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
# Those that do not hold it: by the id of the item until it is taken, then by the negative of their own.
_loose: WeakValueDictionary[int, Loose] = WeakValueDictionary()
# The same, as a dict without methods of Python.
_any_loose: Final[dict[Any, Any]] = vars(_loose)["data"]
# What a thread or task of a request with such a job waited for last.
_awaited: WeakValueDictionary[int, Any] = WeakValueDictionary()
# Queues from which requests themselves take, such as the connections of a pool, by their id.
_pools: dict[int, ref[Any]] = {}
# Jobs of a request that do not hold what it waits for: more are data.
MAX_LOOSE: Final = 16


def _add_type(types: list[type], kind: type) -> None:
    types.append(kind)
    _kinds.clear()
    _base.cache_clear()
    _has_loop.cache_clear()


def _add_part(types: list[type], kind: type, attribute: str) -> None:
    _PARTS[kind] = attribute
    _add_type(types, kind)


def _whole(part: Any) -> Any:
    """Return the queue of which *part* is one end, or the event in it; else *part* itself."""
    attribute = _PARTS.get(type(part))
    return part if attribute is None else getattr(part, attribute)


def _kind(item: Any) -> int:
    kind = type(item)
    known = _kinds.get(kind)
    if known is None:
        known = _classify(kind)
        # One that is made in a function may be dropped.
        if "<locals>" not in kind.__qualname__:
            if len(_kinds) >= MAX_KINDS:
                _kinds.clear()
            _kinds[kind] = known
    return known


def _classify(kind: type) -> int:
    if kind in _DATA:
        return _NOTHING
    for known, types in (
        (_NOTHING, [type]),
        (_FUTURE, FUTURES),
        (_EVENT, EVENTS),
        (_QUEUE, QUEUES),
        (_CONTEXT, [Context]),
        (_DICT, [dict]),
        (_SEQUENCE, [tuple, list]),
    ):
        if issubclass(kind, tuple(types)):
            return known
    return _OBJECT


def replies(item: Any) -> list[Any] | None:
    """Return the objects in *item* for which a request may wait, futures before events before queues; None with a context."""
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
                found[kind].append(_whole(inner) if kind else inner)
            elif kind == _CONTEXT:
                return None
            elif depth < 1 and len(below) <= left:
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
        known = attributes(item)
        if known is None:
            slots = [each for base in type(item).__mro__ for each in vars(base).values()]
            return [slot.__get__(item) for slot in slots if type(slot) is MemberDescriptorType and _has(slot, item)]
        item = known
    return () if dict.__len__(item) > MAX_ITEMS else [*dict.values(item)]


def _has(slot: Any, item: Any) -> bool:
    try:
        slot.__get__(item)
    except AttributeError:
        return False
    return True


# Only methods of Python's own classes: those of a subclass may do anything, such as wait for a lock that the caller holds.
def _is_set(reply: Any) -> bool:
    kind = _kind(reply)
    try:
        if kind != _FUTURE:
            state = attributes(reply) or {}
            # Of `threading` and of `asyncio`.
            return state.get("_flag", state.get("_value", True)) if kind == _EVENT else length(reply) != 0
        if _has_loop(type(reply)):
            return _base(type(reply)).done(reply)
        return (attributes(reply) or {})["_state"] not in {"PENDING", "RUNNING"}
    except (AttributeError, KeyError, RuntimeError, TypeError):
        # Not initialized, as an object around another one: such a job is not followed.
        return True


@lru_cache(MAX_KINDS)
def _base(kind: type) -> Any:
    return next((known for known in FUTURES if issubclass(kind, known)), None)


@lru_cache(MAX_KINDS)
def _has_loop(kind: type) -> bool:
    return hasattr(_base(kind), "get_loop")


def _is_running(child: Any) -> bool:
    if isinstance(child, threading.Thread):
        return threading.Thread.is_alive(child)
    return _kind(child) == _FUTURE and not _is_set(child)


def _running_loop() -> Any:
    asyncio = sys.modules.get("_asyncio")
    return None if asyncio is None else asyncio._get_running_loop()  # noqa: SLF001 - asyncio's own way, which never raises


def _thread_or_task() -> int:
    loop = _running_loop()
    return get_ident() if loop is None else id(_current_task(loop))


def _current_task(loop: Any) -> Any:
    return sys.modules["asyncio.tasks"].current_task(loop)


def _future_of(task: Any) -> Any:
    """Return the future that *task* awaits in code of the user, None for any other wait."""
    waiter = getattr(task, "_fut_waiter", None)
    if type(waiter) not in FUTURES:
        return None
    coro, innermost = task.get_coro(), None
    while isinstance(coro, CoroutineType):
        coro, innermost = coro.cr_await, coro
    if innermost is None or type(coro).__name__ not in {"FutureIter", "generator"}:
        return None
    file = innermost.cr_code.co_filename
    if innermost.cr_code.co_name == "wait_for" and Path(file).parent.name == "asyncio":
        # In Python 3.11 it awaits a future of its own.
        inner = [each for each in gc.get_referents(innermost) if each is not waiter and _kind(each) == _FUTURE]
        return next((each for each in inner if type(each) in FUTURES), None if inner else waiter)
    return None if file.startswith(_STANDARD) or "/site-packages/" in file else waiter


def _is_get() -> bool:
    """Return whether this task is only a `get` that another task, whose run it has, waits for."""
    loop = _running_loop()
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
        if run.waits or (run.streams() and not run.is_busy()):
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
        jobs = [job for reply in replies(item) or () if (job := _jobs.get(id(reply))) is not None]
        if jobs and all(job.parts and not job.parts[-1][2] for job in jobs):
            # By a method that this one has called.
            return
        loose = _loose.pop(id(item), None) if _any_loose else None
        if run is None and (run := _run_for(jobs)) is None:
            if loose is not None and len(_pools) < MAX_KINDS:
                _pools[id(loose.into())] = loose.into
            return
        if loose is not None and not jobs and loose.request is not None and loose.request[0] == OPEN:
            jobs.append(loose)
            _loose[-id(loose)] = loose
        run.waits = False
        if run.completed and not jobs:
            return
        if run.streams() or (run.completed and run.ended):
            # In a task of its own it cannot change the run of the worker.
            run, run.mixed = (run, True) if _is_get() else (run.renewed(now), run.mixed)
        for job in jobs:
            run.take(job, now)
        if loose is not None and loose in jobs:
            loose.waits_for(run)
        run.mixed = run.mixed or not jobs
    except Exception:
        log_failure("following a job from a queue")


def _put(into: Any, item: Any) -> None:
    marks = current.get()
    if _jobs or _any_loose or (marks is not None and marks[0] == OPEN):
        _send(marks, item, into)


def _send(marks: Marks | None, item: Any, into: Any) -> None:
    try:
        answered = _jobs.get(id(_whole(into))) if _jobs else None
        if answered is not None and answered.request is not marks:
            answered.answer(_run_of(marks))
            if answered.confirmed:
                return
        in_request = marks is not None and marks[0] == OPEN and marks[3:4] != [SHARED]
        found = replies(item)
        if _any_loose:
            # Of an item that was dropped, or that this one is again.
            _loose.pop(id(item), None)
        if not found:
            # The connections of a pool are put often.
            pool = _pools.get(id(into))
            if in_request and marks is not None and found is not None and (pool is None or pool() is not into):
                _start_loose(marks, item, into)
            return
        for reply in found:
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
        kind = Stream if _kind(reply) == _QUEUE else Job
        job = _jobs[id(reply)] = kind(marks, reply, length(_whole(into)))
        tickets.add(job)
        if job.confirmed:
            job.observe(reply)


def _start_loose(marks: Marks, item: Any, into: Any) -> None:
    if _kind(item) < _DICT or type(into) in _PARTS:
        return
    tickets = request_tickets(marks, create=True)
    if tickets is not None and len(tickets.jobs()) < MAX_LOOSE:
        job = _loose[id(item)] = Loose(marks, into)
        _awaited.pop(job.owner, None)
        tickets.add(job)


def _release(job: ref[Job], reply: Any) -> None:
    known = job()
    if known is not None:
        known.release(reply)


def _close(loop: Any) -> None:
    """Leave the futures of a loop that closes: one with a callback could no longer be set or cancelled."""
    try:
        for job in [*_jobs.values()]:
            job.ignore(loop)
    except Exception:
        log_failure("following jobs at the end of an event loop")


class _Get:
    """Call of `get` by a worker, or by a request that waits for its reply."""

    __slots__ = ("_awaited", "_forms", "_started", "run")

    def __init__(self, run: QueueRun | None, forms: bool, awaited: Job | None) -> None:
        self.run, self._forms, self._awaited = run, forms, awaited
        self._started = clock()

    def end(self) -> None:
        if self._awaited is not None:
            self._awaited.receive()
        run = self.run
        if run is not None and self._forms:
            run.waits = False
            if has_capacity(run.marks):
                run.marks.extend(("queue", self._started, clock()))


def _get(waited: Any) -> _Get | bool:
    marks = current.get()
    if not _jobs and not _any_loose and (marks is None or marks[3:4] != [SHARED] or not marks[1]):
        # The call is observed, but its item decides who works for whom.
        return False
    return _start_get(waited)


def _start_get(waited: Any) -> _Get:
    return _Get(*_before(waited))


def _got(call: Any, item: Any) -> None:
    if _jobs or _any_loose:
        _take(item, call.run if call else None, is_known=bool(call))
    if call:
        call.end()


def _failed(call: Any, _: BaseException) -> None:
    if call:
        call.end()


def _get_later(waited: Any) -> _Get | None:
    marks = current.get()
    if marks is not None and (
        # A run without jobs, or a request.
        marks[4].owner == _thread_or_task()
        if not marks[1]
        else not _jobs and not _any_loose and marks[0] == OPEN and _run_of(marks) is None
    ):
        return None
    run, forms, awaited = _before(waited)
    if (forms or awaited is not None) and not length(_whole(waited)):
        return _Get(run, forms, awaited)
    if awaited is not None:
        awaited.receive()
    return None


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
    if marks is None or marks[0] != OPEN:
        return None
    reply = _whole(waited)
    job = _jobs.get(id(reply))
    if job is None and _any_loose and (tickets := request_tickets(marks)) is not None:
        owner = _thread_or_task()
        _awaited[owner] = reply
        for each in tickets.jobs():
            if type(each) is Loose and each.owner == owner:
                job = each.find(reply) or job
    if job is None or job.request is not marks:
        return None
    job.ask()
    return job


def _sleep() -> _Get | None:
    marks = current.get()
    run = None if marks is None else _run_of(marks)
    return None if run is None or not run.is_idle() else _Get(run, forms=True, awaited=None)


class _Awaited:
    """Call in which a request waits for the reply of *job*: a thread has to wake up after the worker has set it."""

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        self._job = job

    def end(self) -> None:
        if self._job.released or _is_set(self._job.reply()):
            self._job.release()


def _await(reply: Any) -> _Awaited | None:
    job = _confirm(reply) if _jobs or _any_loose else None
    return None if job is None else _Awaited(job)


_AWAIT: Final = Probed.until_end(_await, 1)
_GET: Final = Probed(Probe(_get, _got, _failed, parameters=1))
_PUT: Final = Probed(Probe(_put, parameters=2))
# Of a queue whose `get` is a coroutine.
_GET_LATER: Final = Probed(Probe(_start_get, _got, _failed, parameters=1))
_GET_NOWAIT: Final = Probed(Probe(bool, _got))


def _create_task(original: Any) -> Any:
    def create_task(self: Any, coro: Any, *args: Any, **options: Any) -> Any:
        if _only_waits(coro, ("get", "receive")) and options.get("context") is None:
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
    if not isinstance(coro, CoroutineType) or coro.cr_code.co_name not in names:
        return False
    folder = Path(coro.cr_code.co_filename).parent
    return (folder.parent if folder.name == "streams" else folder).name in {"asyncio", "anyio", "janus"}


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
    for job in [*run.jobs]:
        if type(job) is Loose:
            job.waits_for(run)
    known = [*args]
    if isinstance(callback, (MethodType, BuiltinMethodType)):
        known.append(callback.__self__)
    elif isinstance(callback, FunctionType):
        # The variables of a lambda; one that is not set yet raises.
        for cell in callback.__closure__ or ():
            with suppress(ValueError):
                known.append(cell.cell_contents)
    for reply in replies((*known,)) or ():
        job = _jobs.get(id(reply))
        if job is not None:
            job.answer(run)


_LOOP: Final = {
    "create_task": _create_task,
    "call_soon_threadsafe": _call_soon_threadsafe,
    "close": Probed(Probe(_close, parameters=1)),
}
