"""Deferred marks, which are known after the end of a request, with a bounded wait."""

from __future__ import annotations

from typing import Any

from stagelens.core.partition import partition
from stagelens.instrumentors import records
from stagelens.instrumentors.records import CLOSED, Marks
from stagelens.instrumentors.request_marks import MAX_WAIT_SECONDS, MAX_WAITING, DeferredRecords, complete, read_request


class Device:
    def __init__(self, *, known: bool = False) -> None:
        self.known = known
        self.asked = 0

    def ready(self) -> bool:
        return self.known

    def marks(self) -> list[Any]:
        self.asked += 1
        return ["forward@gpu", 2, 7] if self.known else ["forward@launch", 2, 3]


class Broken(Device):
    def ready(self) -> bool:
        raise RuntimeError

    def marks(self) -> list[Any]:
        raise RuntimeError


def record(*devices: Device) -> records.Record:
    marks: list[Any] = [records.CLOSED, 0, 0]
    for device in devices:
        marks += ["@late", device, 0]
    return (marks, 0, 10, "/predict", "", 200, "server")


def test_a_request_without_deferred_marks_does_not_wait() -> None:
    assert not DeferredRecords().holds(record(), 0)


def test_available_marks_are_added_immediately() -> None:
    request = record(Device(known=True))

    assert not DeferredRecords().holds(request, 0)
    assert request[0][-3:] == ["forward@gpu", 2, 7]


def test_a_request_waits_for_all_deferred_marks() -> None:
    waiting, first, second = DeferredRecords(), Device(known=True), Device()
    request = record(first, second)

    assert waiting.holds(request, 0)
    assert list(waiting.due(1)) == []

    second.known = True

    assert list(waiting.due(2)) == [request]
    assert list(waiting.due(3)) == []
    assert (first.asked, second.asked) == (1, 1)


def test_deferred_marks_are_dropped_after_the_timeout() -> None:
    waiting = DeferredRecords()
    request = record(Device())

    assert waiting.holds(request, 0)
    assert list(waiting.due(MAX_WAIT_SECONDS)) == [request]
    assert request[0][-3:] == ["forward@launch", 2, 3]


def test_the_number_of_waiting_requests_is_limited() -> None:
    waiting = DeferredRecords()
    requests = [record(Device()) for _ in range(MAX_WAITING + 5)]
    held = [waiting.holds(request, 0) for request in requests]

    assert all(held)
    assert list(waiting.due(1)) == requests[:5]
    assert list(waiting.due(MAX_WAIT_SECONDS)) == requests[5:]


def test_a_device_that_fails_loses_only_its_own_marks(reported: set[str]) -> None:
    request = record(Broken(), Device(known=True))

    assert not DeferredRecords().holds(request, 0)
    assert request[0][-3:] == ["forward@gpu", 2, 7]
    assert len(reported) == 2


def test_a_step_of_the_handler_that_begins_while_a_worker_works_is_what_it_waits_for() -> None:
    class Work:
        def ready(self) -> bool:
            return True

        def marks(self) -> Marks:
            return ["queue", 2, 10, "forward", 10, 20, "forward", 21, 30]

    marks: Marks = [CLOSED, 0, 0, "handler", 0, 3, "handler", 4, 12, "handler", 13, 35, "@late", Work(), 0]
    complete(marks)
    intervals = read_request((marks, 0, 40, "", "", 0, "server")).intervals

    assert partition(intervals, 0, 40) == {"handler": 8, "queue": 8, "forward": 19, "overhead": 5}
