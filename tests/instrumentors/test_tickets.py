"""Batches: each request records its own work in them, and nothing of other requests."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagelens.core.partition import partition
from stagelens.instrumentors import recorder, records, tickets, trace_context
from stagelens.instrumentors.api import Request, request, stage
from stagelens.instrumentors.records import Record, clock
from stagelens.instrumentors.request_marks import DeferredRecords, read_marks
from stagelens.instrumentors.tickets import BatchRun, Ticket, batch, ticket

if TYPE_CHECKING:
    from conftest import Finished


class Clock:
    def __init__(self) -> None:
        self.now = 1

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    time = Clock()
    for module in (tickets, recorder):
        monkeypatch.setattr(module, "clock", time)
    monkeypatch.setattr("stagelens.instrumentors.api.clock", time)
    return time


def requests_by_name(finished: Finished) -> dict[str, Record]:
    waiting = DeferredRecords()
    for record in finished:
        waiting.holds(record, 0.0)
    list(waiting.due(float("inf")))
    return {record[3]: record for record in finished}


def own_times(record: Record) -> dict[str, int]:
    return partition(read_marks(record[0]).intervals, record[1], record[2])


def opened(name: str, jobs: int = 1) -> tuple[Request, list[Ticket]]:
    running = request(name)
    running.__enter__()
    drawn = [ticket() for _ in range(jobs)]
    running.detach()
    return running, drawn


# Who has a job in each batch, what the batch's stages take, and when the worker starts it.
batches = st.lists(
    st.tuples(st.sets(st.integers(0, 4), min_size=1), st.lists(st.integers(0, 9), max_size=3), st.integers(0, 9)),
    max_size=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=batches, leaves=st.sets(st.tuples(st.integers(0, 4), st.integers(0, 5))))
def test_each_request_has_the_stages_of_its_batches(
    finished: Finished, time: Clock, plan: list[tuple[set[int], list[int], int]], leaves: set[tuple[int, int]]
) -> None:
    finished.clear()
    requests = [opened(f"r{number}", len(plan)) for number in range(5)]
    expected: dict[int, set[str]] = {number: set() for number in range(5)}
    left: set[int] = set()

    for position, (members, stages, pause) in enumerate(plan):
        time.now += pause
        with batch(requests[number][1][position] for number in members):
            for number in {number for number, when in leaves if when == position} - left:
                requests[number][0].__exit__(None)
                left.add(number)
            for order, length in enumerate(stages):
                with stage(f"b{position}-{order}"):
                    time.now += length
                for number in members - left if length else ():
                    expected[number].add(f"b{position}-{order}")
            time.now += 1
    for number in set(range(5)) - left:
        requests[number][0].__exit__(None)

    for name, record in requests_by_name(finished).items():
        shares = own_times(record)
        assert sum(shares.values()) == record[2] - record[1]
        assert {key for key, spent in shares.items() if spent} - {"queue", "overhead"} == expected[int(name[1:])]
    assert records.current.get() is None


def test_a_batch_gives_each_request_its_queue_and_stages(finished: Finished, time: Clock) -> None:
    first, of_first = opened("first")
    time.now += 10
    second, of_second = opened("second")
    time.now += 5
    with batch(of_first + of_second), stage("forward"):
        time.now += 20
    time.now += 3
    first.__exit__(None)
    second.__exit__(None)
    finished_records = requests_by_name(finished)

    assert own_times(finished_records["first"]) == {"queue": 15, "forward": 20, "overhead": 3}
    assert own_times(finished_records["second"]) == {"queue": 5, "forward": 20, "overhead": 3}
    assert read_marks(finished_records["second"][0]).facts["@batch"] == 2


def test_a_request_that_timed_out_in_its_batch_has_its_stages_until_then(finished: Finished, time: Clock) -> None:
    impatient, drawn = opened("impatient")
    time.now += 10
    with batch(drawn), stage("forward"):
        time.now += 20
        impatient.__exit__(TimeoutError)
        time.now += 20

    assert own_times(requests_by_name(finished)["impatient"]) == {"queue": 10, "forward": 20, "overhead": 0}


def test_an_untaken_job_is_queue(finished: Finished, time: Clock) -> None:
    with request("never"):
        ticket()
        time.now += 10
    with request("dropped"):
        drawn = ticket()
        time.now += 4
        drawn.drop(time.now)
        time.now += 6

    finished_records = requests_by_name(finished)

    assert own_times(finished_records["never"]) == {"queue": 10, "overhead": 0}
    assert own_times(finished_records["dropped"]) == {"queue": 4, "overhead": 6}


def test_a_request_does_not_queue_behind_its_own_job(finished: Finished, time: Clock) -> None:
    with request("four"):
        drawn = [ticket() for _ in range(4)]
        time.now += 7
        for one in drawn:
            with batch([one]):
                time.now += 10

    assert own_times(requests_by_name(finished)["four"]) == {"queue": 7, "overhead": 40}


def fail(time: Clock) -> None:
    time.now += 3
    raise LookupError


def test_failed_and_repeated_batches_are_recorded(finished: Finished, time: Clock) -> None:
    with request("retried"):
        drawn = ticket()
        time.now += 2
        with pytest.raises(LookupError), batch([drawn]), stage("forward"):
            fail(time)
        time.now += 4
        with batch([drawn]), stage("forward"):
            time.now += 5

    assert own_times(requests_by_name(finished)["retried"]) == {"queue": 6, "forward": 8, "overhead": 0}


def test_facts_of_a_whole_batch_are_on_no_request(finished: Finished) -> None:
    with request("one"):
        drawn = ticket()
        with batch([drawn, Ticket(clock())]):
            marks = records.current.get()
            assert marks is not None
            marks.extend(("@tokens_in", 100, 0, "@tokens_out", 7, 0, "@model", "tiny", 0))
            header = trace_context.traceparent(marks)
    facts = read_marks(requests_by_name(finished)["one"][0]).facts

    assert header == ""
    assert facts["@model"] == "tiny"
    assert not {"@tokens_in", "@tokens_out", "@trace", "@shared"} & facts.keys()


class DeferredMark:
    def __init__(self) -> None:
        self.known = False
        self.prepared = False
        self.asked = 0

    def ready(self) -> bool:
        self.prepared = True
        return self.known

    def marks(self) -> list[Any]:
        self.asked += 1
        return ["forward@gpu", self.asked, self.asked + 1]


def test_deferred_marks_of_a_batch_are_queried_once_for_all_requests(finished: Finished) -> None:
    deferred = DeferredMark()
    (first, of_first), (second, of_second) = opened("a"), opened("b")
    with batch(of_first + of_second):
        marks = records.current.get()
        assert marks is not None
        marks.extend(("@late", deferred, 0))
    first.__exit__(None)
    second.__exit__(None)
    waiting = DeferredRecords()
    held = [waiting.holds(record, 0.0) for record in finished]
    deferred.known = True
    complete = list(waiting.due(0.0))

    assert held == [True, True]
    assert [("forward@gpu", 1, 2) in triples(record) for record in complete] == [True, True]
    assert deferred.asked == 1


def triples(record: Record) -> list[tuple[Any, ...]]:
    marks = record[0]
    return list(zip(marks[::3], marks[1::3], marks[2::3], strict=True))


def test_a_batcher_task_of_an_earlier_request_serves_all(finished: Finished) -> None:
    async def work(jobs: asyncio.Queue[tuple[asyncio.Future[str], Ticket]]) -> None:
        while True:
            taken = [await jobs.get()]
            while not jobs.empty():
                taken.append(jobs.get_nowait())
            async with batch([drawn for _, drawn in taken]):
                with stage("forward"):
                    await asyncio.sleep(0)
            for future, _ in taken:
                if not future.done():
                    future.set_result("done")

    async def handle(name: str, jobs: asyncio.Queue[Any], started: list[Any]) -> None:
        async with request(name):
            if not started:
                started.append(asyncio.create_task(work(jobs)))
            future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            jobs.put_nowait((future, ticket()))
            await future

    async def serve() -> None:
        jobs: asyncio.Queue[Any] = asyncio.Queue()
        started: list[asyncio.Task[None]] = []
        tasks = [asyncio.create_task(handle(f"r{number}", jobs, started)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        started[0].cancel()

    asyncio.run(serve())
    finished_records = requests_by_name(finished)

    assert {name: record[4] for name, record in finished_records.items()} == {
        "r0": "",
        "r1": "CancelledError",
        "r2": "",
    }
    assert all([key for key, _, _ in triples(record)].count("forward") == 1 for record in finished_records.values())


def test_a_custom_thread_processes_jobs_of_many_requests(finished: Finished) -> None:
    jobs: SimpleQueue[tuple[Callable[[], None], Ticket] | None] = SimpleQueue()
    seen: list[object] = []

    def work() -> None:
        while (job := jobs.get()) is not None:
            try:
                with batch([job[1]]), stage("forward"):
                    job[0]()
            except ArithmeticError:
                pass
            seen.append(records.current.get())

    thread = threading.Thread(target=work)
    thread.start()
    for name in ("a", "b"):
        done = threading.Event()

        def job(done: threading.Event = done) -> None:
            done.set()
            raise ArithmeticError

        with request(name):
            jobs.put((job, ticket()))
            assert done.wait(30)
    jobs.put(None)
    thread.join(30)
    finished_records = requests_by_name(finished)

    assert seen == [None, None]
    assert all([key for key, _, _ in triples(record)].count("forward") == 1 for record in finished_records.values())


def test_a_ticket_and_a_run_cross_to_another_process_and_back(finished: Finished) -> None:
    with request("here"):
        drawn = ticket()
        arrived = pickle.loads(pickle.dumps(drawn))  # noqa: S301 - our own
        with batch([arrived]) as run, stage("forward"):
            device = DeferredMark()
            run.marks.extend(("@odd", object(), 0, "@late", device, 0))
        back = pickle.loads(pickle.dumps(run))  # noqa: S301 - our own
        drawn.done(back)
    keys = [key for key, _, _ in triples(requests_by_name(finished)["here"])]

    assert arrived.since == drawn.since
    # As a device wants it: it is asked whether it is ready before it is asked for its times.
    assert device.prepared
    assert "forward@gpu" in keys
    assert "queue" in keys
    assert "forward" in keys
    assert "@odd" not in keys


@pytest.mark.parametrize(
    "nonsense", [None, 7, "run", BatchRun(["@closed", 0, 0], 5), BatchRun(["@closed", 2**62, 0], 2**62 + 1)]
)
def test_runs_of_another_clock_and_invalid_runs_are_ignored(finished: Finished, nonsense: Any) -> None:
    with request("here"):
        drawn = ticket()
        drawn.done(nonsense)

    assert not drawn.runs()
    assert requests_by_name(finished)["here"][0]


def test_tickets_outside_of_requests_are_harmless() -> None:
    with batch([ticket(), None, "x"]), stage("forward"):
        pass
    with batch([]):
        pass
    Ticket(1).drop(2)

    assert records.current.get() is None


def test_the_tickets_of_a_request_are_bounded(finished: Finished) -> None:
    with request("endless"):
        for _ in range(tickets.MAX_TICKETS * 2):
            with batch([ticket()]), stage("forward"):
                pass
    (record,) = finished
    assert len(record[0]) < 30

    requests_by_name(finished)

    assert [key for key, _, _ in triples(record)].count("forward") <= tickets.MAX_TICKETS
