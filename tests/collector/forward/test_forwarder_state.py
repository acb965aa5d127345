"""Log lines about the state of destinations, limited in rate."""

from __future__ import annotations

import sys
import threading

import pytest

from stagelens.collector.forward.forwarder import DestinationStates
from stagelens.store.collectors import Backlog


class Clock:
    """Clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


def test_a_flapping_destination_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    states = DestinationStates(clock)
    for second in range(61):
        clock.now = float(second)
        states.down("tempo", "it answers 503", 1)
        states.up("tempo")

    lines = [record.getMessage() for record in caplog.records]
    assert lines == 2 * [
        "forwarding to tempo: down, it answers 503; received data is buffered",
        "forwarding to tempo: up",
    ]
    assert states.all()[0].retries == 61


def test_losses_are_added_up_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    states = DestinationStates(clock)
    for second in (0, 1, 2, 61):
        clock.now = float(second)
        states.lost("tempo", "refused", 10, f"no at {second}")
    states.lost("tempo", "full", 1, "too much")

    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "tempo did not accept 10 bodies, which were dropped: no at 0",
        "tempo did not accept 30 bodies, which were dropped: no at 61",
        "tempo did not accept 1 bodies, which were dropped: too much",
    ]
    (state,) = states.all()
    assert (state.lost, state.lost_bodies) == ({"refused": 40, "full": 1}, 41)


def test_counts_are_exact_across_threads() -> None:
    states = DestinationStates()
    done = threading.Event()

    def read_states() -> None:
        while not done.is_set():
            states.waiting({"tempo": Backlog()})

    reader = threading.Thread(target=read_states)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        reader.start()
        for _ in range(3000):
            states.sent("tempo", "traces", 1, 0, "")
    finally:
        sys.setswitchinterval(interval)
        done.set()
        reader.join()

    assert (states.all()[0].sent, states.all()[0].sent_bytes) == ({"traces": 3000}, 3000)


def test_a_recovered_destination_loses_nothing() -> None:
    states = DestinationStates()
    states.lost("tempo", "returned", 3, "it was here")
    states.waiting({"tempo": Backlog(2, 100, 5)})
    (state,) = states.all()

    assert (state.lost_bodies, state.backlog.bodies) == (0, 2)
