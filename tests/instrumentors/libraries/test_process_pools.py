"""Process pools: work of a process is part of its request, and results of the user are unchanged."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stagelens.core.partition import partition
from stagelens.instrumentors import records
from stagelens.instrumentors.api import request
from stagelens.instrumentors.libraries.process_pools import ProcessPoolInstrumentor
from stagelens.instrumentors.records import Record, clock
from stagelens.instrumentors.request_marks import DeferredRecords, read_marks
from tests.instrumentors.libraries import pool_jobs

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = ProcessPoolInstrumentor
pytestmark = [
    pytest.mark.usefixtures("instrumented"),
    # Python 3.12 says so of every fork of a process with threads.
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


@pytest.fixture(scope="module", params=["fork", "spawn", "forkserver"])
def pool(request: pytest.FixtureRequest) -> Generator[ProcessPoolExecutor]:
    """A pool of one process, made in each way."""
    context = multiprocessing.get_context(request.param)
    with ProcessPoolExecutor(1, context, pool_jobs.prepare, ("prepared",)) as pool:
        yield pool


def finished_request(finished: Finished) -> Record:
    """Return the only finished request, with what came late."""
    (record,) = finished
    waiting = DeferredRecords()
    assert not waiting.holds(record, 0.0), "all is known when the result is there"
    return record


def intervals(record: Record) -> list[tuple[str, int, int]]:
    """Return the stages of a request, by their start."""
    return sorted(read_marks(record[0]).intervals, key=lambda interval: interval[1])


def test_a_job_of_a_request_records_its_wait_and_stages(finished: Finished, pool: ProcessPoolExecutor) -> None:
    with request("squared"):
        assert pool.submit(pool_jobs.square, 3).result(60) == 9
    record = finished_request(finished)
    (queue, forward) = intervals(record)

    assert (queue[0], forward[0]) == ("queue", "forward")
    assert record[1] <= queue[1] <= queue[2] <= forward[1] <= forward[2] <= record[2]
    assert sum(partition([queue, forward], record[1], record[2]).values()) == record[2] - record[1]


def test_the_clock_is_shared_by_all_processes(finished: Finished, pool: ProcessPoolExecutor) -> None:
    with request("looked"):
        before = clock()
        process, there, inside, header, prepared = pool.submit(pool_jobs.describe_process).result(60)
        after = clock()

    assert process != multiprocessing.current_process().pid
    assert before < there < after
    assert inside
    # The trace the request is in, handed on by the process too.
    assert header.split("-")[1] == read_marks(finished_request(finished)[0]).facts["@trace"][0]
    assert prepared == ["prepared"]


def test_a_chunked_map_queues_once(finished: Finished, pool: ProcessPoolExecutor) -> None:
    with request("mapped"):
        assert list(pool.map(pool_jobs.square, range(10), chunksize=3)) == [number**2 for number in range(10)]
    record = finished_request(finished)
    keys = [key for key, _, _ in intervals(record)]

    assert keys.count("forward") == 10
    assert sum(partition(read_marks(record[0]).intervals, record[1], record[2]).values()) == record[2] - record[1]


@pytest.mark.parametrize("kind", [pool_jobs.Failed, pool_jobs.OwnPickle, pool_jobs.OwnState])
def test_an_exception_is_unchanged(finished: Finished, pool: ProcessPoolExecutor, kind: type[Exception]) -> None:
    without_us = pool.submit(pool_jobs.fail, kind).exception(60)
    with request("failed"):
        with_us = pool.submit(pool_jobs.fail, kind).exception(60)

    assert type(with_us) is type(without_us) is kind
    assert vars(with_us) == vars(without_us)
    assert str(getattr(with_us, "__cause__", "")) == str(getattr(without_us, "__cause__", None))
    assert [key for key, _, _ in intervals(finished_request(finished))] == ["queue", "forward"]


def test_a_request_in_the_process_is_part_of_the_outer_one(finished: Finished, pool: ProcessPoolExecutor) -> None:
    with request("outer"):
        pool.submit(pool_jobs.nested).result(60)
    keys = finished_request(finished)[0][::3]

    assert {"@child child", "forward"} <= set(keys)


def intervals_of(record: Record) -> list[tuple[str, int, int]]:
    DeferredRecords().holds(record, 0.0)
    return intervals(record)


@pytest.mark.parametrize(
    ("job", "argument"),
    [
        (lambda number: number, 1),
        (partial(lambda number: number), 1),
        (pool_jobs.square, threading.Lock()),
        (threading.Lock().acquire, False),
    ],
)
def test_unpicklable_jobs_are_refused_as_without_us(
    finished: Finished, pool: ProcessPoolExecutor, job: Any, argument: Any
) -> None:
    with pytest.raises(Exception) as without_us:  # noqa: PT011 - whatever it is
        pool.submit(job, argument).result(60)
    with request("refused"), pytest.raises(type(without_us.value), match=f"^{re.escape(str(without_us.value))}$"):
        pool.submit(job, argument).result(60)

    assert [intervals_of(record) for record in finished] == [[]]


def test_a_partial_function_and_new_processes_are_recorded(finished: Finished) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver"), max_tasks_per_child=1) as pool:
        for number in range(2):
            with request("partial"):
                assert pool.submit(partial(pool_jobs.square, number)).result(60) == number**2

    assert [[key for key, *_ in intervals_of(record)] for record in finished] == [["queue", "forward"]] * 2


def test_a_pool_that_receives_results_in_its_own_way_gets_its_own_jobs(finished: Finished) -> None:
    class Pool(ProcessPoolExecutor):
        def _start_executor_manager_thread(self) -> None:
            pending = vars(self)["_pending_work_items"]
            pending[0].future.set_result(pending[0].fn)

    pool = Pool(1)
    with request("own"):
        assert pool.submit(pool_jobs.square, 3).result(60) is pool_jobs.square

    assert intervals_of(finished[0]) == []


def test_a_cancelled_job_is_queue_until_then(finished: Finished, pool: ProcessPoolExecutor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    # One runs and two are on their way to the process: what comes after can be cancelled.
    before = [pool.submit(pool_jobs.wait_at, str(gate)), *(pool.submit(pool_jobs.describe_process) for _ in range(2))]
    with request("cancelled"):
        cancelled = pool.submit(pool_jobs.describe_process).cancel()
        over = clock()
    gate.write_text("go")
    for future in before:
        future.result(60)
    (queue,) = intervals(finished_request(finished))

    assert cancelled
    assert (queue[0], queue[2] <= over) == ("queue", True)


def test_a_broken_pool_raises_the_original_error(finished: Finished) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        with request("broken"), pytest.raises(BrokenProcessPool):
            pool.submit(pool_jobs.die).result(60)
        with request("after"), pytest.raises(BrokenProcessPool):
            pool.submit(pool_jobs.describe_process)

    assert [intervals_of(record) for record in finished] == [[], []]


@pytest.mark.usefixtures("finished")
def test_another_interpreter_gets_the_job_unchanged(monkeypatch: pytest.MonkeyPatch, pool: ProcessPoolExecutor) -> None:
    monkeypatch.setattr(sys, "executable", "/another/python")
    with request("elsewhere"):
        inside = pool.submit(pool_jobs.describe_process).result(60)[2]

    assert inside == (vars(pool)["_mp_context"].get_start_method() == "fork")
    assert records.current.get() is None


@pytest.mark.usefixtures("finished")
def test_jobs_in_flight_during_uninstrumentation_return_unchanged(pool: ProcessPoolExecutor, instrumented: Any) -> None:
    with request("under way"):
        future = pool.submit(pool_jobs.square, 4)
        instrumented.uninstrument()

        assert future.result(60) == 16
