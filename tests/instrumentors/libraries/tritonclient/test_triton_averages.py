"""The server's own part of a call, from planted readings of its statistics."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.instrumentors.libraries.tritonclient import statistics
from stagelens.instrumentors.libraries.tritonclient.statistics import (
    Averaged,
    CallWindow,
    KnownModels,
    Server,
    Totals,
    spread,
)
from tests.instrumentors.libraries.tritonclient.averaged_calls import SECOND, ready, spent

SERVER = Server("http", "planted:8000", {})


class Planted:
    """Server whose statistics the test sets, and a clock whose time the test sets."""

    def __init__(self) -> None:
        self.now = 100 * SECOND
        self.totals = Totals(0, 0, 0, 0, 0)
        self.error: Exception | None = None
        self.asked = 0

    def ask(self, _server: Server, _model: str, _version: str) -> Totals:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.totals

    def serve(self, seconds: float, *added: int) -> Averaged:
        """Let a call of so many seconds pass, of which the server counts so much."""
        started = self.now
        self.now += round(seconds * SECOND)
        self.totals = Totals(*(before + more for before, more in zip(self.totals, added, strict=True)))
        late = Averaged(SERVER, "m", "", started, self.now)
        self.now += 1
        return late


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    planted = Planted()
    monkeypatch.setattr(statistics, "fetch_totals", planted.ask)
    monkeypatch.setattr(statistics, "clock", lambda: planted.now)
    monkeypatch.setattr(statistics, "known", KnownModels())
    return planted


def test_a_call_between_two_readings_gets_their_average(planted: Planted) -> None:
    planted.serve(1, 7, 10**12, 0, 10**12, 0).ready()
    planted.now += SECOND
    call = planted.serve(1, 4, 4 * 600, 4 * 20, 4 * 500, 4 * 30)

    assert ready(call)
    assert spent(call.marks()) == {
        "queue@averaged": 50,
        "h2d@averaged": 20,
        "forward@averaged": 500,
        "d2h@averaged": 30,
    }


def test_a_call_waits_for_the_reading_after_it(planted: Planted) -> None:
    planted.serve(0.1, 1, 9, 0, 9, 0).ready()
    call = planted.serve(0.1, 0, 0, 0, 0, 0)

    assert not ready(call)
    planted.now += SECOND
    assert not ready(call)
    planted.now += SECOND
    planted.totals = Totals(2, 12, 0, 12, 0)
    assert not ready(call) or planted.asked == 3
    planted.now += SECOND
    assert ready(call)
    assert spent(call.marks()) == {"forward@averaged": 3}


def test_a_model_is_read_at_most_once_a_second(planted: Planted) -> None:
    for _ in range(100):
        planted.serve(0.01, 1, 5, 0, 5, 0).ready()

    assert planted.asked <= 2


def test_a_call_without_a_new_reading_gets_the_previous_average(planted: Planted) -> None:
    planted.serve(0.1, 1, 9, 0, 9, 0).ready()
    planted.now += SECOND
    planted.serve(0.1, 1, 7, 0, 7, 0).ready()
    call = planted.serve(0.1, 1, 5, 0, 5, 0)

    assert not ready(call)
    assert spent(call.marks()) == {"forward@averaged": 7}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1000, 9000, 0, 9000, 0), (1, 5, 0, 5, 0)),
        # With more calls than before.
        ((10, 10 * SECOND, 0, 9 * SECOND, 0), (12, 12 * 900, 0, 12 * 800, 0)),
    ],
)
def test_a_restarted_server_counts_from_zero(planted: Planted, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    planted.serve(0.1, *before).ready()
    planted.now += SECOND
    planted.totals = Totals(0, 0, 0, 0, 0)
    call = planted.serve(0.1, *after)

    assert ready(call)
    assert call.marks() == []


def test_readings_of_a_slow_server_take_at_most_a_tenth_of_the_time(
    planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(*_: object) -> Totals:
        planted.asked += 1
        planted.now += SECOND // 2
        return planted.totals

    monkeypatch.setattr(statistics, "fetch_totals", slowly)
    began = planted.now
    while planted.now < began + 60 * SECOND:
        for model in range(10):
            Averaged(SERVER, str(model), "", planted.now, planted.now).ready()
        planted.now += SECOND

    assert 8 <= planted.asked <= 13


def test_a_server_without_statistics_is_queried_less_and_less(
    planted: Planted, caplog: pytest.LogCaptureFixture
) -> None:
    planted.error = ConnectionRefusedError()
    with caplog.at_level(logging.WARNING, "stagelens"):
        for _ in range(200):
            call = planted.serve(0.5, 1, 5, 0, 5, 0)
            assert ready(call)
            assert call.marks() == []
    asked = planted.asked
    planted.error = None
    planted.now += 64 * SECOND
    planted.serve(0.1, 1, 5, 0, 5, 0).ready()
    planted.now += SECOND
    call = planted.serve(0.1, 1, 5, 0, 5, 0)

    assert asked <= 7
    (logged,) = caplog.records
    assert "planted:8000 does not report statistics (ConnectionRefusedError)" in logged.getMessage()
    assert ready(call)
    assert spent(call.marks()) == {"forward@averaged": 5}


def test_the_number_of_models_read_is_limited(planted: Planted) -> None:
    def call(number: int) -> Averaged:
        return Averaged(SERVER, f"m{number}", "", planted.now - 1, planted.now)

    assert all(ready(call(number)) for number in range(1000))
    assert planted.asked == statistics.MAX_MODELS
    assert call(999).marks() == []
    planted.now += statistics.IDLE_NS + 1
    assert ready(call(999))
    assert planted.asked == statistics.MAX_MODELS + 1


amounts = st.integers(0, 10**12)


@given(count=st.integers(1, 10**6), parts=st.tuples(*[amounts] * 4), wall=st.integers(0, 10**12), mean=amounts)
def test_the_servers_stages_lie_inside_the_call(
    count: int, parts: tuple[int, int, int, int], wall: int, mean: int
) -> None:
    marks = spread(CallWindow(Totals(count, *parts), mean), 1000, 1000 + wall)
    edges = [edge for at in range(0, len(marks), 3) for edge in marks[at + 1 : at + 3]]

    assert [1000, *edges, 1000 + wall] == sorted([1000, *edges, 1000 + wall])
    assert all(key.endswith("@averaged") for key in marks[::3])


def test_parallel_steps_share_their_time() -> None:
    marks = spread(CallWindow(Totals(calls=1, whole=100, h2d=20, forward=180, d2h=0), 200), 0, 200)

    assert marks == ["h2d@averaged", 50, 60, "forward@averaged", 60, 150]


@given(st.lists(st.integers(1_000, 10**9), min_size=1, max_size=50), st.floats(0, 1))
def test_the_sum_of_all_calls_equals_the_server_totals(walls: list[int], share: float) -> None:
    whole = int(sum(walls) * share)
    window = CallWindow(Totals(len(walls), whole, 0, whole, 0), sum(walls) / len(walls))
    marks = [spread(window, 0, wall) for wall in walls]
    reported = sum(end - start for mark in marks for start, end in zip(mark[1::3], mark[2::3], strict=True))

    assert whole - 2 * len(walls) <= reported <= whole + 1
