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

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import BuiltinMethodType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, Final
from weakref import ref

from ..import_hooks import was_watched
from ..instrumentor import Hook, Instrumentor, Probed, Target, log_failure
from ..probes import Probe
from ..records import OPEN, RUN, START, STATE, Marks, clock, current, has_capacity, is_shared, run_of
from ..tickets import request_tickets
from .executors import SIMPLE_QUEUES, hide_caller, length
from .queue_jobs import Job, Loose, QueueRun, Stream, any_loose, jobs_by_reply, last_awaited, loose_jobs
from .queue_replies import (
    DICT,
    EVENTS,
    FUTURES,
    MAX_KINDS,
    NOTHING,
    PARTS,
    QUEUE,
    QUEUES,
    add_part,
    add_type,
    is_get,
    is_set,
    kind_of,
    only_waits,
    replies,
    thread_or_task,
    whole,
)

# Queues from which requests themselves take, such as the connections of a pool, by their id.
_pools: dict[int, ref[Any]] = {}
# Py_TPFLAGS_BASETYPE: the class can have subclasses.
_BASETYPE: Final = 1 << 10
# Of the classes of gevent, by the original.
_subclasses: Final[dict[Any, Any]] = {}
# Jobs of a request that do not hold what it waits for: more are data.
MAX_LOOSE: Final = 16


class QueueInstrumentor(Instrumentor):
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
        "jobs in lists, `collections.deque`, `multiprocessing` queues and `queue.SimpleQueue`, whose types cannot be instrumented. Use `stagelens.ticket` in the same way.",
        "queues of gevent in a program that imports gevent before Stagelens. `stagelens run` imports it later.",
        "requests that use `stagelens.ticket` themselves: only their tickets count",
    )

    def targets(self) -> Iterable[Target]:
        queues = (
            ("queue:Queue", _PUT, "put"),
            ("queue:Queue", _GET, "get"),
            ("threading:Event", _AWAIT, "wait"),
            ("asyncio.tasks", Probed.until_end(_sleep), "sleep"),
        )
        return (*queues, *(("asyncio.base_events:BaseEventLoop", make, name) for name, make in _LOOP.items()))

    def hooks(self) -> Mapping[str, Hook]:
        return {
            **super().hooks(),
            "concurrent.futures._base": self._futures,
            "asyncio.futures": lambda module: add_type(FUTURES, module.Future),
            "asyncio.locks": self._events,
            "asyncio.queues": self._asyncio,
            "anyio._backends._asyncio": lambda module: add_part(EVENTS, module.Event, "_event"),
            "anyio.streams.memory": self._anyio,
            "janus": self._janus,
            "gevent.event": self._gevent_events,
            "gevent.queue": self._gevent,
            "uvloop": self._uvloop,
        }

    def _futures(self, module: ModuleType) -> None:
        add_type(FUTURES, module.Future)
        self.replace(module.Future, "result", _AWAIT)

    def _events(self, module: ModuleType) -> None:
        add_type(EVENTS, module.Event)
        self.replace(module.Event, "wait", _AWAIT)

    def _anyio(self, module: ModuleType) -> None:
        # What both ends have; older versions name it without the underscore.
        state = getattr(module, "_MemoryObjectStreamState", None) or module.MemoryObjectStreamState
        add_type(QUEUES, state)
        for owner in (module.MemoryObjectSendStream, module.MemoryObjectReceiveStream):
            add_part(QUEUES, owner, "_state")
        # A stream without a buffer has its item while the sender waits.
        self.replace(module.MemoryObjectSendStream, "send", _PUT)
        self.replace(module.MemoryObjectSendStream, "send_nowait", _PUT)
        self.replace(module.MemoryObjectReceiveStream, "receive", _GET_LATER)
        self.replace(module.MemoryObjectReceiveStream, "receive_nowait", _GET_NOWAIT)

    def _janus(self, module: ModuleType) -> None:
        threads, tasks = module._SyncQueueProxy, module._AsyncQueueProxy  # noqa: SLF001 - the types of `Queue.sync_q` and `async_q`
        for owner in (threads, tasks):
            add_part(QUEUES, owner, "_parent")
        add_type(QUEUES, module.Queue)
        self.replace(module.Queue, "_put_internal", _PUT)
        self.replace(threads, "get", _GET)
        # It does not call `get_nowait`.
        self.replace(tasks, "get", _GET_LATER)
        self.replace(tasks, "get_nowait", _GET_NOWAIT)

    def _gevent_events(self, module: ModuleType) -> None:
        for kind in (module.Event, module.AsyncResult):
            add_type(EVENTS, kind)

    def _gevent(self, module: ModuleType) -> None:
        base = module.Queue
        add_type(QUEUES, base)
        SIMPLE_QUEUES.append(base)
        # Written in C. A subclass takes the place of each class before anyone else has it.
        for name, kind in list(vars(module).items()) if was_watched("gevent.queue") else ():
            if isinstance(kind, type) and issubclass(kind, base) and kind.__flags__ & _BASETYPE:
                self.replace(module, name, partial(self._subclass, base))

    def _subclass(self, base: Any, kind: Any) -> Any:
        if kind not in _subclasses:
            above = () if kind is base else (self._subclass(base, kind.__base__),)
            # In the module where `pickle` finds it.
            namespace = {"__doc__": kind.__doc__, "__module__": "gevent.queue", "__slots__": ()}
            _subclasses[kind] = type(kind)(kind.__name__, (kind, *above), namespace)
        for name, patch in (("put", _PUT), ("get", _GET)):
            if kind is base or name in vars(kind):
                self.override(_subclasses[kind], name, patch)
        return _subclasses[kind]

    def _asyncio(self, module: ModuleType) -> None:
        add_type(QUEUES, module.Queue)
        self.replace(module.Queue, "put_nowait", _PUT)
        self.replace(module.Queue, "get", Probed.until_end(_get_later, 1))
        self.replace(module.Queue, "get_nowait", _GET_NOWAIT)

    def _uvloop(self, module: ModuleType) -> None:
        for name, patch in _LOOP.items():
            self.override(module.Loop, name, patch)


def _is_own_work(marks: Marks) -> bool:
    """Return whether this task or thread is that of the running request *marks*, and not a worker that the request started."""
    tickets = request_tickets(marks)
    jobs = tickets.jobs() if tickets is not None else ()
    return not jobs or thread_or_task() in {job.owner for job in jobs if isinstance(job, Job)}


def _next_run() -> tuple[QueueRun | None, bool]:
    """Return the run of this worker for a `get` that starts now, and whether it already has jobs; None in a request."""
    marks = current.get()
    owner = thread_or_task()
    run = run_of(marks)
    if run is None:
        if marks is not None and marks[STATE] == OPEN:
            return None, False
    elif run.jobs or run.ended:
        if run.forms(clock()):
            return run, True
        if run.waits or (run.streams() and not run.is_busy()):
            return run, False
    elif run.owner == owner or is_get():
        # Without work so far.
        return run, False
    run = QueueRun(owner)
    current.set(run.marks)
    return run, False


def _run_for(jobs: Collection[Job]) -> QueueRun | None:
    """Return the run of a worker that a request has started and that took the *jobs* of others while it lasts; else None."""
    marks = current.get()
    if marks is None or is_shared(marks) or all(job.request is marks for job in jobs) or _is_own_work(marks):
        return None
    run = QueueRun(thread_or_task())
    # A job of the request that started the worker was not counted.
    run.mixed = True
    current.set(run.marks)
    return run


def _take(item: Any, run: QueueRun | None = None, *, is_known: bool = False) -> None:
    """Note that the worker of *run*, None in a request, has got *item*; if it is not known, that of this context."""
    try:
        run = run if is_known else _next_run()[0]
        now = clock()
        jobs = [job for reply in replies(item) or () if (job := jobs_by_reply.get(id(reply))) is not None]
        if jobs and all(job.parts and not job.parts[-1][2] for job in jobs):
            # By a method that this one has called.
            return
        loose = loose_jobs.pop(id(item), None) if any_loose else None
        if run is None and (run := _run_for(jobs)) is None:
            if loose is not None and len(_pools) < MAX_KINDS:
                _pools[id(loose.into())] = loose.into
            return
        if loose is not None and not jobs and loose.request is not None and loose.request[0] == OPEN:
            jobs.append(loose)
            loose_jobs[-id(loose)] = loose
        run.waits = False
        if run.completed and not jobs:
            return
        if run.streams() or (run.completed and run.ended):
            # In a task of its own it cannot change the run of the worker.
            run, run.mixed = (run, True) if is_get() else (run.renewed(now), run.mixed)
        for job in jobs:
            run.take(job, now)
        if loose is not None and loose in jobs:
            loose.waits_for(run)
        run.mixed = run.mixed or not jobs
    except Exception:
        log_failure("following a job from a queue")


def _put(into: Any, item: Any) -> None:
    marks = current.get()
    if jobs_by_reply or any_loose or (marks is not None and marks[STATE] == OPEN):
        _send(marks, item, into)


def _send(marks: Marks | None, item: Any, into: Any) -> None:
    try:
        if not jobs_by_reply and not any_loose and kind_of(item) == NOTHING:
            return
        answered = jobs_by_reply.get(id(whole(into))) if jobs_by_reply else None
        if answered is not None and answered.request is not marks:
            answered.answer(run_of(marks))
            if answered.confirmed:
                return
        request = marks if marks is not None and marks[STATE] == OPEN and not is_shared(marks) else None
        item_replies = replies(item)
        if any_loose:
            # Of an item that was dropped, or that this one is again.
            loose_jobs.pop(id(item), None)
        if not item_replies:
            # The connections of a pool are put often.
            pool = _pools.get(id(into))
            if request is not None and item_replies is not None and (pool is None or pool() is not into):
                _start_loose(request, item, into)
            return
        for reply in item_replies:
            _send_reply(request, reply, into)
    except Exception:
        log_failure("following a job in a queue")


def _send_reply(request: Marks | None, reply: Any, into: Any) -> None:
    job = jobs_by_reply.get(id(reply))
    if job is not None:
        # Put into another queue, or again; or the job of several requests.
        job.leave(None, clock())
        job.shared = job.shared or (request is not None and job.request is not None and job.request is not request)
    elif request is not None and not is_set(reply):
        _start(request, reply, into)


def _start(marks: Marks, reply: Any, into: Any) -> None:
    tickets = request_tickets(marks, create=True)
    if tickets is not None:
        kind = Stream if kind_of(reply) == QUEUE else Job
        job = jobs_by_reply[id(reply)] = kind(marks, reply, length(whole(into)))
        tickets.add(job)
        if job.confirmed:
            job.observe(reply)


def _start_loose(marks: Marks, item: Any, into: Any) -> None:
    if kind_of(item) < DICT or type(into) in PARTS:
        return
    tickets = request_tickets(marks, create=True)
    if tickets is not None and len(tickets.jobs()) < MAX_LOOSE:
        job = loose_jobs[id(item)] = Loose(marks, into)
        last_awaited.pop(job.owner, None)
        tickets.add(job)


def _close(loop: Any) -> None:
    """Leave the futures of a loop that closes: one with a callback could no longer be set or cancelled."""
    try:
        for job in [*jobs_by_reply.values()]:
            job.ignore(loop)
    except Exception:
        log_failure("following jobs at the end of an event loop")


class _Get:
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
    if not jobs_by_reply and not any_loose and (marks is None or not is_shared(marks) or not marks[START]):
        # The call is observed, but its item determines for which request the worker works.
        return False
    return _start_get(waited)


def _start_get(waited: Any) -> _Get:
    return _Get(*_before(waited))


def _got(call: Any, item: Any) -> None:
    if jobs_by_reply or any_loose:
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
        marks[RUN].owner == thread_or_task()
        if not marks[START]
        else not jobs_by_reply and not any_loose and marks[STATE] == OPEN and run_of(marks) is None
    ):
        return None
    run, forms, awaited = _before(waited)
    if (forms or awaited is not None) and not length(whole(waited)):
        return _Get(run, forms, awaited)
    if awaited is not None:
        awaited.receive()
    return None


def _before(waited: Any) -> tuple[QueueRun | None, bool, Job | None]:
    try:
        awaited = _confirm(waited)
        if awaited is not None:
            return None, False, awaited
        run = run_of(current.get()) if is_get() else None
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
    if marks is None or marks[STATE] != OPEN:
        return None
    reply = whole(waited)
    job = jobs_by_reply.get(id(reply))
    if job is None and any_loose and (tickets := request_tickets(marks)) is not None:
        owner = thread_or_task()
        last_awaited[owner] = reply
        for candidate in tickets.jobs():
            if type(candidate) is Loose and candidate.owner == owner:
                job = candidate.find(reply) or job
    if job is None or job.request is not marks:
        return None
    job.ask()
    return job


def _sleep() -> _Get | None:
    marks = current.get()
    run = None if marks is None else run_of(marks)
    return None if run is None or not run.is_idle() else _Get(run, forms=True, awaited=None)


class _Awaited:
    """Call in which a request waits for the reply of *job*: a thread has to wake up after the worker has set it."""

    __slots__ = ("_job",)

    def __init__(self, job: Job) -> None:
        self._job = job

    def end(self) -> None:
        if self._job.released or is_set(self._job.reply()):
            self._job.release()


def _await(reply: Any) -> _Awaited | None:
    job = _confirm(reply) if jobs_by_reply or any_loose else None
    return None if job is None else _Awaited(job)


_AWAIT: Final = Probed.until_end(_await, 1)
_GET: Final = Probed(Probe(_get, _got, _failed, parameters=1))
_PUT: Final = Probed(Probe(_put, parameters=2))
# Of a queue whose `get` is a coroutine.
_GET_LATER: Final = Probed(Probe(_start_get, _got, _failed, parameters=1))
_GET_NOWAIT: Final = Probed(Probe(bool, _got))


def _create_task(original: Any) -> Any:
    def create_task(self: Any, coro: Any, *args: Any, **options: Any) -> Any:
        if only_waits(coro, ("get", "receive")) and options.get("context") is None:
            # It runs in a copy of this context, as by `asyncio.wait_for` in Python 3.11, and the worker continues in this one.
            _before(None)
        marks = current.get()
        run = None if marks is None or only_waits(coro) else run_of(marks)
        follows = run is not None and len(run.jobs) > 0
        # The worker may get a job while this task works for no request.
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


def _call_soon_threadsafe(original: Any) -> Any:
    def call_soon_threadsafe(self: Any, callback: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if jobs_by_reply and marks is not None and is_shared(marks):
            try:
                _answer(marks, callback, args)
            except Exception:
                log_failure("following the result of a job")
        return hide_caller(self, original(self, callback, *args, **options), __file__)

    return call_soon_threadsafe


def _answer(marks: Marks, callback: Any, args: tuple[Any, ...]) -> None:
    """Note that a worker thread asks the event loop to set results: it may `get` the next job before the loop does so."""
    run = run_of(marks)
    if run is None or not run.jobs:
        return
    run.completed = True
    for job in [*run.jobs]:
        if type(job) is Loose:
            job.waits_for(run)
    reachable = [*args]
    if isinstance(callback, (MethodType, BuiltinMethodType)):
        reachable.append(callback.__self__)
    elif isinstance(callback, FunctionType):
        # The variables of a lambda; one that is not set yet raises.
        for cell in callback.__closure__ or ():
            with suppress(ValueError):
                reachable.append(cell.cell_contents)
    for reply in replies((*reachable,)) or ():
        job = jobs_by_reply.get(id(reply))
        if job is not None:
            job.answer(run)


_LOOP: Final = {
    "create_task": _create_task,
    "call_soon_threadsafe": _call_soon_threadsafe,
    "close": Probed(Probe(_close, parameters=1)),
}
