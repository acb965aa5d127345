"""Admission of bodies for forwarding, and limits of waiting bodies."""

from __future__ import annotations

import pytest
import zstandard

from stagelens.collector.forward.admission import ForwardQueue, LoopError
from stagelens.collector.forward.config import Destination
from stagelens.collector.ingest.writer import UncommittedError
from stagelens.store.collectors import Backlog, Outgoing

MIB = 1024**2
A = Destination(name="a", endpoint="http://a", most_waiting=10 * MIB)
B = Destination(name="b", endpoint="http://b", signals=("traces",), most_waiting=10 * MIB, when_full="drop_oldest")
US, OTHERS = "0123456789abcdef", "fedcba9876543210"


def body(name: str, size: int) -> Outgoing:
    return Outgoing(name, "metrics", "application/json", b"x" * size)


def test_a_body_is_compressed_once_per_signal() -> None:
    queue = ForwardQueue(lambda: (A, B), US, None)
    traces = queue.pack("traces", "application/json", b"{}", OTHERS)

    assert [each.destination for each in traces] == ["a", "b"]
    assert traces[0].body is traces[1].body
    assert zstandard.ZstdDecompressor().decompress(traces[0].body) == b"{}"
    assert traces[0].via == OTHERS
    assert [each.destination for each in queue.pack("logs", "application/json", b"{}", "")] == ["a"]
    assert queue.pack("events", "application/json", b"{}", "") == []


def admit(queue: ForwardQueue, *bodies: Outgoing) -> None:
    """Write *bodies* if the queue has capacity."""
    with queue.admitted(bodies):
        pass


def test_bodies_are_admitted_while_there_is_capacity() -> None:
    queue = ForwardQueue(lambda: (A, B), US, None)
    admit(queue, body("a", 9 * MIB), body("b", 99 * MIB))
    with pytest.raises(UncommittedError, match="9 MiB wait for delivery to a"):
        admit(queue, body("b", 1), body("a", 2 * MIB))
    admit(queue, body("b", 99 * MIB))
    queue.freed("a", 2 * MIB)
    admit(queue, body("a", 2 * MIB))
    with pytest.raises(UncommittedError):
        admit(queue, body("a", 2 * MIB))


def test_a_store_limit_is_added_to_the_local_capacity() -> None:
    queue = ForwardQueue(lambda: (A,), US, None)
    with queue.admitted([body("a", 4 * MIB)]):
        queue.begin_backlog_query()
        admit(queue, body("a", 4 * MIB))
        queue.set_backlogs({})
        with pytest.raises(UncommittedError, match="8 MiB wait"):
            admit(queue, body("a", 3 * MIB))
    queue.begin_backlog_query()
    queue.set_backlogs({"a": Backlog(1, 8 * MIB, 0)})
    with pytest.raises(UncommittedError, match="8 MiB wait"):
        admit(queue, body("a", 3 * MIB))
    queue.begin_backlog_query()
    queue.set_backlogs({})
    admit(queue, body("a", 10 * MIB))


def test_a_single_body_is_always_admitted() -> None:
    admit(ForwardQueue(lambda: (A,), US, None), body("a", 11 * MIB))


def test_destinations_may_use_a_quarter_of_the_store() -> None:
    assert ForwardQueue(lambda: (A,), US, 16 * MIB).most_bytes(A) == 4 * MIB
    assert ForwardQueue(lambda: (A, B), US, 16 * MIB).most_bytes(A) == 2 * MIB
    assert ForwardQueue(lambda: (A, B), US, 1024 * MIB).most_bytes(A) == 10 * MIB


@pytest.mark.parametrize(
    ("via", "expected"), [("", ""), (OTHERS, OTHERS), ("a,b", ""), (f"{OTHERS},\n", ""), ("x" * 99999, "")]
)
def test_a_valid_path_header_is_preserved(via: str, expected: str) -> None:
    assert ForwardQueue(lambda: (), US, None).check_via(via) == expected


def test_a_path_through_this_collector_is_a_loop() -> None:
    for via in (US, f"{OTHERS},{US}", f"{US},{OTHERS}"):
        with pytest.raises(LoopError, match="has already forwarded this body"):
            ForwardQueue(lambda: (), US, None).check_via(via)
