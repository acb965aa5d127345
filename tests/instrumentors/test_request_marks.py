"""Marks of a finished request: stages that its server or device reports, which may be known only later."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.partition import partition
from stagelens.instrumentors.records import CLOSED, OPEN, Marks, Record
from stagelens.instrumentors.request_marks import (
    MAX_WAIT_SECONDS,
    MAX_WAITING,
    DeferredRecords,
    complete,
    read_marks,
    read_request,
)
from tests.instrumentors.conftest import Device, record

WALL = 100
spans = st.tuples(st.integers(0, WALL), st.integers(0, WALL)).map(sorted).map(tuple[int, ...])


def own_times(*triples: Any) -> dict[str, int]:
    marks: Marks = [OPEN, 0, 0, *(value for triple in triples for value in triple)]
    return {stage: spent for stage, spent in partition(read_marks(marks).intervals, 0, WALL).items() if spent}


def test_body_reads_do_not_overlap_reported_server_stages() -> None:
    waits = [("dependency", 0, 10), *(("dependency@body", *times) for times in ((10, 40), (45, 60), (60, 90)))]
    reported = ("network@rest", 0, 12), ("prefill@reported", 12, 20), ("decode@reported", 20, 70)

    expected = {"network": 2, "dependency": 30, "prefill": 8, "decode": 47, "postprocess": 3, "overhead": 10}
    assert own_times(*waits, *reported, ("postprocess", 41, 44)) == expected
    assert own_times(("decode@reported", 0, 100), ("dependency", 20, 30)) == {"decode": 90, "dependency": 10}


@given(bodies=st.lists(spans, max_size=5), reported=st.lists(spans, max_size=3))
def test_a_body_read_without_server_stages_is_a_dependency(
    bodies: list[tuple[int, int]], reported: list[tuple[int, int]]
) -> None:
    decoded = {at for start, end in reported for at in range(start, end)}
    waited = {at for start, end in bodies for at in range(start, end)} - decoded
    expected = {"decode": len(decoded), "dependency": len(waited), "overhead": WALL - len(decoded | waited)}
    triples = [("dependency@body", *body) for body in bodies] + [("decode@reported", *each) for each in reported]

    assert own_times(*triples) == {stage: spent for stage, spent in expected.items() if spent}


def waiting_for(*devices: Device) -> Record:
    return record(*(("@late", device, 0) for device in devices))


def test_available_marks_are_added_immediately_whatever_other_devices_do(reported: set[str]) -> None:
    request = waiting_for(Device(broken=True), Device(known=True))

    assert not DeferredRecords().holds(waiting_for(), 0)
    assert not DeferredRecords().holds(request, 0)
    assert request[0][-3:] == ["forward@gpu", 2, 7]
    assert len(reported) == 2


def test_a_request_waits_for_all_deferred_marks_until_a_timeout() -> None:
    waiting, first, second = DeferredRecords(), Device(known=True), Device()
    request, never = waiting_for(first, second), waiting_for(Device())

    assert waiting.holds(request, 0)
    assert waiting.holds(never, 0)
    assert list(waiting.due(1)) == []

    second.known = True

    assert list(waiting.due(2)) == [request]
    assert (first.asked, second.asked) == (1, 1)
    assert list(waiting.due(MAX_WAIT_SECONDS)) == [never]
    assert never[0][-3:] == ["forward@launch", 2, 3]


def test_the_number_of_waiting_requests_is_limited() -> None:
    waiting = DeferredRecords()
    requests = [waiting_for(Device()) for _ in range(MAX_WAITING + 5)]

    assert all(waiting.holds(request, 0) for request in requests)
    assert list(waiting.due(1)) == requests[:5]
    assert list(waiting.due(MAX_WAIT_SECONDS)) == requests[5:]


def test_a_step_of_the_handler_that_begins_while_a_worker_works_is_what_it_waits_for() -> None:
    class Work(Device):
        def marks(self) -> Marks:
            return ["queue", 2, 10, "forward", 10, 20, "forward", 21, 30]

    marks: Marks = [CLOSED, 0, 0, "handler", 0, 3, "handler", 4, 12, "handler", 13, 35, "@late", Work(known=True), 0]
    complete(marks)
    intervals = read_request((marks, 0, 40, "", "", 0, "server")).intervals

    assert partition(intervals, 0, 40) == {"handler": 8, "queue": 8, "forward": 19, "overhead": 5}
