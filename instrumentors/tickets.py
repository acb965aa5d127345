"""Tickets: work for a request where its context does not reach, in a batch with others or in another process.

A batch records into its own list, the *run*. A ticket refers to its runs, but a run to no request: a worker cannot write to the wrong
request. After its end a request gets from its tickets (`records.Late`):

- `queue`: from the creation of a ticket to the start of its first run, except while another run worked for the same request;
- each stage of a run, in full, however many requests share it;
- facts that hold for each request, which excludes the total number of tokens and the trace.

Times of a pickled run are by `clock` of its process: on Linux CLOCK_MONOTONIC, which all processes of a host share.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import Token
from typing import Any, Final, TypeAlias
from uuid import UUID
from weakref import WeakValueDictionary

from . import records
from .instrumentor import log_failure
from .recorder import end
from .recorder_state import state
from .records import (
    ATTRIBUTE,
    CLOSED,
    FULL,
    MAX_MARKS,
    OPEN,
    SHARED,
    START,
    STATE,
    Marks,
    clock,
    current,
    has_capacity,
    triples_of,
)
from .request_marks import complete, is_ready

# Per request; work for further tickets is not recorded.
MAX_TICKETS: Final = 1024
# Types that every Python can unpickle.
_PLAIN: Final = frozenset({str, int, float})
# Facts of a run that do not hold for each of its requests.
NOT_SHARED: Final = frozenset(
    {
        *(OPEN, CLOSED, FULL, SHARED, ATTRIBUTE),
        *("@late", "@trace", "@traceparent", "@parent", "@force", "@tokens_in", "@tokens_out"),
    }
)


Triple: TypeAlias = tuple[str, Any, Any]


class BatchRun:
    """Record of the work for the requests of one batch: marks as those of a request, and its end, 0 while it runs."""

    __slots__ = ("_completed", "_shared", "_shared_length", "ended", "marks")

    def __init__(self, marks: Marks, ended: int = 0) -> None:
        self.marks = marks
        self.ended = ended
        self._completed = False
        # The triples for each request, and the length of the marks from which they were read.
        self._shared: list[Triple] = []
        self._shared_length = 0

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            # Device times are available only after a query.
            self.ready()
            fact_marks = [mark for triple in self.stage_facts() if {*map(type, triple)} <= _PLAIN for mark in triple]
        except Exception:
            log_failure("serializing a batch for another process")
            fact_marks = []
        return BatchRun, ([CLOSED, self.marks[START], 0, *fact_marks], self.ended or clock())

    def ready(self) -> bool:
        return self.ended > 0 and (self._completed or is_ready(self.marks))

    def stage_facts(self) -> list[Triple]:
        if self.ended and not self._completed:
            self._completed = True
            complete(self.marks)
        # Read once for all requests of a batch.
        if self._shared_length != len(self.marks):
            marks = self.marks[:]
            self._shared_length = len(marks)
            self._shared = [triple for triple in triples_of(marks) if triple[0] not in NOT_SHARED]
        return self._shared


class Ticket:
    """Handle of a request for a job that waits for a worker. A ticket from outside of any request has no effect."""

    __slots__ = ("__weakref__", "_runs", "gone", "since")
    # Whether Stagelens drew the ticket for a job in a queue. It is ignored in a request with other tickets.
    automatic = False

    def __init__(self, since: int) -> None:
        self.since = since
        # End of the wait if no worker took the ticket; 0 while one may take it.
        self.gone = 0
        self._runs: list[BatchRun] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the time of creation, because a worker in another process needs nothing else."""
        return Ticket, (self.since,)

    def done(self, run: Any) -> None:
        """Add a *run* from another process, the value of `with stagelens.batch(…) as run`; other objects are ignored."""
        if isinstance(run, BatchRun) and self.since <= run.marks[START] <= run.ended <= clock():
            self._runs.append(run)

    def enter(self, run: BatchRun) -> None:
        self._runs.append(run)

    def drop(self, now: int) -> None:
        if not self._runs and not self.gone:
            self.gone = now or self.since

    def runs(self) -> list[BatchRun]:
        return self._runs[:]

    def working(self) -> list[Marks]:
        return [run.marks for run in self._runs[:] if not run.ended]

    def ready(self) -> bool:
        return bool(self.gone) or (bool(self._runs) and all(run.ready() for run in self._runs))


class Tickets:
    __slots__ = ("_drawn",)

    def __init__(self) -> None:
        self._drawn: list[Ticket] = []

    def draw(self) -> Ticket:
        ticket = Ticket(clock())
        self.add(ticket)
        return ticket

    def add(self, ticket: Ticket) -> None:
        if len(self._drawn) < MAX_TICKETS:
            self._drawn.append(ticket)
        else:
            records.report_limit("has more than 1,024 jobs; the wait and the work for further ones are unattributed")

    def replace(self, ticket: Ticket, other: Ticket) -> None:
        self._drawn[:] = [other if drawn is ticket else drawn for drawn in self._drawn]

    def jobs(self) -> list[Ticket]:
        """Return the tickets that count: those of the user or of a library, else the automatic ones."""
        drawn = self._drawn
        return drawn if len(drawn) == 1 else [ticket for ticket in drawn if not ticket.automatic] or drawn

    def running(self) -> list[Marks]:
        return [marks for ticket in self._drawn[:] for marks in ticket.working()]

    def ready(self) -> bool:
        return all(ticket.ready() for ticket in self.jobs())

    def marks(self) -> Marks:
        now = clock()
        runs: dict[int, BatchRun] = {}
        waits: list[tuple[int, int]] = []
        for ticket in self.jobs():
            runs_of_ticket = ticket.runs()
            runs.update((id(run), run) for run in runs_of_ticket)
            # From one worker to the next it waits, too. A ticket that no worker has taken still waits.
            started = max((run.marks[START] for run in runs_of_ticket), default=ticket.gone or now)
            waits.append((ticket.since, started))
        if len(waits) == 1 and len(runs) <= 1:
            # No run can work for the request before the only run of its only ticket.
            marks: Marks = ["queue", *waits[0]] if waits[0][0] < waits[0][1] else []
        else:
            marks = _queue(waits, [(run.marks[START], run.ended or now) for run in runs.values()])
        for run in runs.values():
            for triple in run.stage_facts():
                marks += triple
            if len(marks) > MAX_MARKS:
                marks = records.compacted(marks)
        return marks


def ticket() -> Ticket:
    """Return a ticket for a job of the running request. Pass the ticket to `batch` in the worker.

    Call this function when the job enters a queue, because the `queue` stage starts at this call. You can pickle tickets.

    Example:
        jobs.put_nowait((image, future, stagelens.ticket()))
    """
    marks = current.get()
    if marks is None or marks[STATE] != OPEN:
        return Ticket(clock())
    tickets = request_tickets(marks, create=True)
    return Ticket(clock()) if tickets is None else tickets.draw()


def request_tickets(marks: Marks, *, create: bool = False) -> Tickets | None:
    """Return the tickets of a request; None if it has none, and none could be created."""
    for position, key in enumerate(marks[::3]):
        if key == "@late" and type(marks[3 * position + 1]) is Tickets:
            return marks[3 * position + 1]
    if not create or not has_capacity(marks):
        return None
    tickets = Tickets()
    marks.extend(("@late", tickets, 0))
    return tickets


class BatchScope:
    __slots__ = ("_facts", "_run", "_tickets", "_token")

    def __init__(self, tickets: Iterable[Any], facts: Marks | None = None) -> None:
        self._tickets = [ticket for ticket in tickets if isinstance(ticket, Ticket)]
        self._facts = [SHARED, 0, 0, "@batch", len(self._tickets), 0] if facts is None else facts

    def __enter__(self) -> BatchRun:
        run = self._run = BatchRun([OPEN, clock(), 0, *self._facts])
        for ticket in self._tickets:
            ticket.enter(run)
        if state.register is not None:
            state.register(run.marks, "")
        self._token: Token[Marks | None] = current.set(run.marks)
        return run

    def __exit__(self, *_: object) -> None:
        end(self._token)
        self._run.marks[STATE] = CLOSED
        self._run.ended = clock()

    async def __aenter__(self) -> BatchRun:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()


def batch(tickets: Iterable[Any]) -> BatchScope:
    """Return a context manager for the common work on several jobs. Each stage in the `with` block counts in full for each request.

    Args:
        tickets: Tickets from `ticket`. Other objects in the sequence are ignored.

    Returns:
        A context manager for `with` and `async with`. If the worker is another process, write
        `with stagelens.batch(…) as run:`. Return `run` to the process of the request, and call `ticket.done(run)` there.

    Example:
        with stagelens.batch(tickets):
            scores = model(torch.stack(images))
    """
    return BatchScope(tickets)


def _queue(waits: Iterable[tuple[int, int]], runs: Iterable[tuple[int, int]]) -> Marks:
    edges = [edge for t0, t1 in waits if t0 < t1 for edge in ((t0, 1, 0), (t1, -1, 0))]
    edges += [edge for t0, t1 in runs if t0 < t1 for edge in ((t0, 0, 1), (t1, 0, -1))]
    marks: Marks = []
    waiting = running = since = 0
    for when, waits_more, runs_more in sorted(edges):
        if waiting and not running and since < when:
            if marks and marks[-1] == since:
                marks[-1] = when
            else:
                marks += ("queue", since, when)
        waiting += waits_more
        running += runs_more
        since = when
    return marks


class TextWithRun(str):
    __slots__ = ("run",)
    run: BatchRun

    def __reduce__(self) -> tuple[Any, ...]:
        return with_run, (str(self), self.run)


class UuidWithRun(UUID):
    """A UUID id that carries a run; a separate class, because no string is equal to a UUID."""

    __slots__ = ("run",)
    run: BatchRun

    def __reduce__(self) -> tuple[Any, ...]:
        return with_run, (UUID(int=self.int), self.run)


def with_run(uid: Any, run: BatchRun) -> Any:
    """Return an id that equals *uid* and carries *run*; *uid* itself if it is neither a string nor a UUID."""
    if type(uid) is str:
        carrier = TextWithRun(uid)
    elif type(uid) is UUID:
        carrier = UuidWithRun(int=uid.int)
    else:
        return uid
    # UUID is immutable and sets its own attributes in the same way.
    object.__setattr__(carrier, "run", run)
    return carrier


class TicketsById:
    def __init__(self, library: str) -> None:
        self._library = library
        self._tickets: WeakValueDictionary[Any, Ticket] = WeakValueDictionary()

    def add(self, uid: Any, ticket: Ticket) -> None:
        """Store the ticket of the response with id *uid*; never raises."""
        try:
            self._tickets[uid] = ticket
        except Exception:
            log_failure(f"recording the requests that wait for {self._library}")

    def wrap_queueing(self, original: Any) -> Any:
        """Wrap a coroutine method that queues a request and returns its id first, to add a ticket of the request."""

        async def queue_request(owner: Any, *args: Any, **options: Any) -> Any:
            drawn = ticket()
            queued = await original(owner, *args, **options)
            self.add(queued[0], drawn)
            return queued

        return queue_request

    def get(self, uid: Any) -> Ticket | None:
        return self._tickets.get(uid)

    def responded(self, uid: Any) -> None:
        """Add the run that the id of a response carries, if any, to its ticket; never raises."""
        try:
            if isinstance(uid, (TextWithRun, UuidWithRun)):
                drawn = self._tickets.pop(uid, None)
                if drawn is not None:
                    drawn.done(uid.run)
        except Exception:
            log_failure(f"reading the stages that a worker of {self._library} recorded for a request")
