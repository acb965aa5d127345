"""Batches: each request records its own work in them, and nothing of other requests."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Hashable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagelens.instrumentors import recorder, records, tickets, trace_context
from stagelens.instrumentors.api import Request, request, stage
from stagelens.instrumentors.records import Record, clock
from stagelens.instrumentors.request_marks import DeferredRecords, read_marks
from stagelens.instrumentors.tickets import BatchRun, Ticket, TicketsById, batch, ticket, with_run
from tests.instrumentors.conftest import Clock, Device, Finished, own_times


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    time = Clock(1)
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


def triples(record: Record) -> list[tuple[Any, ...]]:
    return list(records.triples_of(record[0]))


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
def test_each_request_has_the_stages_of_its_batches_and_queues_outside_of_them(
    finished: Finished, time: Clock, plan: list[tuple[set[int], list[int], int]], leaves: set[tuple[int, int]]
) -> None:
    finished.clear()
    requests = [opened(f"r{number}", len(plan)) for number in range(5)]
    expected = [Counter[str]() for _ in requests]
    left: set[int] = set()

    for position, (members, stages, pause) in enumerate(plan):
        time.now += pause
        for number in set(range(5)) - left:
            expected[number]["queue"] += pause
        with batch(requests[number][1][position] for number in members):
            for number in {number for number, when in leaves if when == position} - left:
                requests[number][0].__exit__(None)
                left.add(number)
            for order, length in enumerate(stages):
                with stage(f"b{position}-{order}"):
                    time.now += length
            time.now += 1
        for number in set(range(5)) - left:
            spent = {f"b{position}-{order}": length for order, length in enumerate(stages)}
            expected[number].update({**spent, "overhead": 1} if number in members else {"queue": sum(stages) + 1})
    for number in set(range(5)) - left:
        requests[number][0].__exit__(None)

    for name, record in requests_by_name(finished).items():
        assert +Counter(own_times(record)) == +expected[int(name[1:])]
        assert sum(own_times(record).values()) == record[2] - record[1]
    assert records.current.get() is None


def test_a_job_is_queue_until_it_is_dropped(finished: Finished, time: Clock) -> None:
    with request("dropped"):
        drawn = ticket()
        time.now += 4
        drawn.drop(time.now)
        time.now += 6

    assert own_times(requests_by_name(finished)["dropped"]) == {"queue": 4, "overhead": 6}


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


def test_deferred_marks_of_a_batch_are_queried_once_for_all_requests(finished: Finished) -> None:
    deferred = Device()
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
    assert [("forward@gpu", 2, 7) in triples(record) for record in complete] == [True, True]
    assert [read_marks(record[0]).facts["@batch"] for record in complete] == [2, 2]
    assert deferred.asked == 1


def test_a_ticket_and_a_run_are_pickled(finished: Finished) -> None:
    with request("here"):
        drawn = ticket()
        arrived = pickle.loads(pickle.dumps(drawn))  # noqa: S301 - our own
        with batch([arrived]) as run, stage("forward"):
            device = Device()
            run.marks.extend(("@odd", object(), 0, "@late", device, 0))
        drawn.done(pickle.loads(pickle.dumps(run)))  # noqa: S301 - our own
    keys = {key for key, _, _ in triples(requests_by_name(finished)["here"])}

    assert arrived.since == drawn.since
    # As a device wants it: it is asked whether it is ready before it is asked for its times.
    assert device.queried
    assert {"forward@launch", "queue", "forward"} < keys
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
    async def work() -> None:
        async with batch([ticket(), None, "x"]):
            with stage("forward"):
                pass

    asyncio.run(work())
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


UIDS = ["a text", UUID(int=7)]


@pytest.mark.parametrize("uid", [*UIDS, 7, ("a", 7)])
def test_a_uid_with_a_run_is_found_under_the_uid(uid: Hashable) -> None:
    with batch([]) as run:
        pass
    carrier = with_run(uid, run)
    arrived = pickle.loads(pickle.dumps(carrier))  # noqa: S301 - our own

    assert {uid: "found"}[carrier] == {uid: "found"}[arrived] == "found"
    assert str(carrier) == str(arrived) == str(uid)


@pytest.mark.parametrize("uid", UIDS)
def test_a_result_with_a_uid_is_delivered_once_while_its_request_runs(finished: Finished, uid: Any) -> None:
    waiting = TicketsById("a library")
    with request("asks"):
        own, other = ticket(), ticket()
        waiting.add(uid, own)
        waiting.add("another", other)
        with batch([]) as run:
            pass
        waiting.responded(uid)

        assert not own.runs()

        for _ in range(2):
            waiting.responded(pickle.loads(pickle.dumps(with_run(uid, run))))  # noqa: S301 - our own

        assert (len(own.runs()), len(other.runs())) == (1, 0)

    del own, other
    finished.clear()

    assert waiting.get("another") is None
