"""Jobs that requests wait for, and the runs of the workers that have taken them from a queue.

The object that a request waits for identifies its job: neither the queue nor the job is changed, and a job that passes through
several queues stays the same job. A worker records into a `QueueRun`, which each further `get` continues or replaces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from contextvars import Context
from functools import partial
from itertools import islice, takewhile
from typing import Any, Final
from weakref import WeakValueDictionary, ref

from ..recorder_state import state
from ..records import CLOSED, OPEN, RUN, SHARED, START, STATE, Marks, clock, current
from ..tickets import BatchRun, Ticket, Triple, request_tickets
from .executors import length
from .queue_replies import (
    FUTURE,
    QUEUE,
    base_of,
    current_task,
    future_of,
    has_loop,
    has_waiters,
    is_running,
    is_set,
    kind_of,
    running_loop,
    thread_or_task,
)

# Times that a job is followed through queues. Of one that is put back again and again nothing is known.
MAX_PARTS: Final = 1000
# Time after which the work on streams goes on as another run, so that a run ends soon and has few stages. [nanoseconds]
RENEW_AFTER: Final = 10**9


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
        if self.marks[STATE] != OPEN:
            self.marks[STATE], self.marks[START] = OPEN, self.marks[START] or now
            self.ended, self._completed, self.size, self.began = 0, False, 0, now
            if state.register is not None:
                state.register(self.marks, "")
        self.size += not any(part[0] is self and part[1] >= self.began for part in job.parts)
        if not self.jobs or self.jobs[-1] is not job:
            self.jobs.append(job)
        job.confirmed = job.confirmed or has_waiters(job.reply())
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
        return any(map(is_running, self.alive()))

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
        return (child for reference in [*self.children.values()] if (child := reference()) is not None)

    def is_idle(self) -> bool:
        """Return whether the worker has jobs and has not started to work on them: a `sleep` lets the batch grow."""
        return (
            bool(self.jobs)
            and not self.completed
            and not self.children
            and self.owner == thread_or_task()
            and all(key == "queue" for key in self.marks[6::3])
        )

    def stage_facts(self) -> list[Triple]:
        shared, facts = self._shared, super().stage_facts()
        if facts is not shared:
            # A `sleep` inside of a stage, such as of one that asks for a result again and again, is no wait for further jobs.
            others = [(start, end) for key, start, end in facts if key[0] != "@" and key != "queue"]
            self._shared = facts = [
                (key, first, second)
                for key, first, second in facts
                if key != "queue" or not any(start <= first and second <= end for start, end in others)
            ]
        return facts

    def close(self, now: int) -> None:
        if not self.ended:
            self.marks[STATE] = CLOSED
            if not self.waits:
                self.marks[RUN] = 0
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
        self.owner = thread_or_task()
        # Run, start and end (0 while it lasts) of each part of the work.
        self.parts: list[list[Any]] = []
        # Result set, and its request continued after that by the event loop or its thread; 0 before.
        self.released = self.resumed = 0
        self.shared = False
        # Whether the job did not hold the reply: it is that of the worker that has the job when it is set.
        self.is_found = False
        # An event or a queue may have another purpose until the request waits for it.
        self.confirmed = kind_of(reply) == FUTURE
        # A cycle, which `release` breaks. Last, because a signal may interrupt us.
        self._reply: Any = None if reply is None else ref(reply, self.release)

    def ask(self) -> None:
        self.confirmed = True

    def receive(self) -> None:
        self.release()

    def reply(self) -> Any:
        reference = self._reply
        return None if reference is None else reference()

    def observe(self, future: Any) -> None:
        kind = base_of(type(future))
        if not has_loop(type(future)):
            # A future of a thread retains its callbacks.
            kind.add_done_callback(future, partial(_release, ref(self)))
            return
        # In debug mode, asyncio refuses to set a future in another thread only if it has a callback.
        loop = kind.get_loop(future)
        if loop is running_loop() and not loop.get_debug():
            # In no context, because the future would keep its variables.
            kind.add_done_callback(future, self.release, context=Context())

    def ignore(self, loop: Any = None) -> None:
        """Remove the callback from a future of *loop*, None for any, which the request may never await."""
        reply = self.reply()
        kind = base_of(type(reply))
        if has_loop(type(reply)) and (loop is None or loop is kind.get_loop(reply)):
            kind.remove_done_callback(reply, self.release)

    def waits_for(self, run: QueueRun) -> bool:
        if not self.released:
            reply = self.reply()
            if self.request is None or self.request[0] != OPEN or (not self.is_stream and is_set(reply)):
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
        for run, _, ended in self.parts if has_loop(type(reply)) else ():
            for job in run.answered_after(self) if not ended else ():
                job.end(job.reply(), now)
        self.end(reply, now)

    def answer(self, run: QueueRun | None) -> None:  # noqa: ARG002 - of a stream
        self.release(self.reply())

    def answered(self) -> bool:
        reply = self.reply()
        return kind_of(reply) == FUTURE and is_set(reply)

    def end(self, reply: Any, now: int) -> None:
        self.released = now
        request, self.request = self.request, None
        if self.is_found and request is not None:
            self.discard_rivals(request)
        # A cancelled request or a request that gave up says nothing about the rest of the batch.
        completed = request is not None and request[0] == OPEN
        if not completed:
            self.ignore()
        elif kind_of(reply) == FUTURE:
            completed = not base_of(type(reply)).cancelled(reply)
        self._reply = None
        jobs_by_reply.pop(self.key, None)
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
        if not since and now - run.began > RENEW_AFTER and run.owner == thread_or_task() and not run.is_busy():
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
        loop = running_loop()
        self._task: Any = None if loop is None else ref(current_task(loop))

    def waits_for(self, run: QueueRun) -> bool:
        if self.request is None or self.request[0] != OPEN:
            self.end(None, clock())
        job = None if self.released else self.find(last_awaited.get(self.owner))
        return super().waits_for(run) if job is None else job.waits_for(run)

    def find(self, waited: Any = None) -> Job | None:
        """Return the job that replaces this one, with *waited* as its reply; None while that is not known."""
        request = self.request
        reply = waited if waited is not None else future_of(None if self._task is None else self._task())
        tickets = None if request is None or reply is None else request_tickets(request)
        existing_job = jobs_by_reply.get(id(reply))
        if (
            request is None
            or tickets is None
            or not self.parts
            or (existing_job is not None and not existing_job.is_found)
        ):
            return None
        job = (Stream if kind_of(reply) == QUEUE else Job)(request, reply, self._length)
        job.since, job.owner, job.parts, job.is_found, job.confirmed = self.since, self.owner, self.parts, True, True
        jobs_by_reply[id(reply)] = job
        tickets.replace(self, job)
        run = self.parts[-1][0]
        with suppress(ValueError):
            run.jobs[run.jobs.index(self)] = job
        self.request, self.parts, self.released = None, [], job.since
        loose_jobs.pop(-id(self), None)
        if kind_of(reply) == FUTURE:
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
        start, end = self.marks[START], self.ended
        facts: list[Triple] = [("@batch", self._size, 0)] if self._size else []
        if self._length is not None:
            facts.append(("@queue_length", self._length, 0))
        for triple in self._run.stage_facts():
            key, first, second = triple
            if key[0] == "@" or (start <= first and second <= end):
                facts.append(triple)
            elif first < end and start < second:
                facts.append((key, max(first, start), min(second, end)))
        return facts


# Jobs by the id of the object that their request waits for, until it is set.
jobs_by_reply: dict[int, Job] = {}
# Those that do not hold it: by the id of the item until it is taken, then by the negative of their own.
loose_jobs: WeakValueDictionary[int, Loose] = WeakValueDictionary()
# The same, as a dict without methods of Python.
any_loose: Final[dict[Any, Any]] = vars(loose_jobs)["data"]
# What a thread or task of a request with such a job waited for last.
last_awaited: WeakValueDictionary[int, Any] = WeakValueDictionary()


def _release(job: ref[Job], reply: Any) -> None:
    live_job = job()
    if live_job is not None:
        live_job.release(reply)
