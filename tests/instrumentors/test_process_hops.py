"""A `multiprocessing` process with a ticket, as in docs/batches.md: its run returns to the request."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

import pytest

from stagelens.core.partition import partition
from stagelens.instrumentors.api import request
from stagelens.instrumentors.request_marks import DeferredRecords, read_marks
from stagelens.instrumentors.tickets import ticket
from tests.instrumentors import process_hops

if TYPE_CHECKING:
    from conftest import Finished

# Python 3.12 says so of every fork of a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
processes = multiprocessing.get_context("fork")


def check(finished: Finished) -> None:
    for record in finished:
        assert not DeferredRecords().holds(record, 0.0), "all is known when the result is there"

        intervals = read_marks(record[0]).intervals

        assert sorted(stage for stage, _, _ in intervals) == ["forward", "queue"]
        assert sum(partition(intervals, record[1], record[2]).values()) == record[2] - record[1]


def test_a_process_pool_passes_tickets(finished: Finished) -> None:
    with processes.Pool(1) as pool:
        for number in range(3):
            with request("asks"):
                drawn = ticket()
                squared, run = pool.apply(process_hops.square, (number, drawn))
                drawn.done(run)

            assert squared == number**2
    check(finished)


def test_a_multiprocessing_queue_passes_tickets(finished: Finished) -> None:
    jobs, results = processes.Queue(), processes.Queue()
    worker = processes.Process(target=process_hops.work, args=(jobs, results))
    worker.start()
    waiting = [request("first"), request("second")]
    drawn = []
    for number, running in enumerate(waiting):
        running.__enter__()
        drawn.append(ticket())
        jobs.put((number, drawn[-1]))
        running.detach()
    for number, running in enumerate(waiting):
        squared, run = results.get(timeout=60)
        drawn[number].done(run)
        running.__exit__(None)

        assert squared == number**2
    jobs.put(None)
    worker.join(60)
    check(finished)
