"""The request path: what a running request writes down, from any thread or task, and how it is handed over."""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.core import stages
from stagelens.core.partition import Interval, partition
from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.api import request, stage
from stagelens.instrumentors.request_marks import read_marks
from tests.instrumentors.conftest import Finished, own_times


def test_a_request_that_ends_during_the_last_report_is_reported(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = request("last")
    last.__enter__()
    reported: list[str] = []

    def flush() -> None:
        reported.extend(record[3] for record in finished)
        finished.clear()
        if not reported:
            last.__exit__(None, None, None)

    monkeypatch.setattr(recorder, "flush", flush)
    recorder.flush_at_end()

    assert reported == ["last"]


def test_records_over_the_limit_are_counted_as_dropped(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_PENDING", 3)
    # An agent of a later test would record less because of them.
    monkeypatch.setattr(recorder, "dropped", recorder.Counter())
    for _ in range(5):
        with request("busy"):
            pass

    assert len(finished) == 3
    assert [recorder.dropped.read(), recorder.dropped.read()] == [2, 2]


@pytest.mark.usefixtures("finished")
def test_every_request_is_open_until_it_ends() -> None:
    before = records.clock()
    with request("outer"):
        contextvars.Context().run(lambda: ThreadPoolExecutor(1).submit(_open_one).result())
        abandoned = contextvars.Context().run(recorder.begin)
        assert abandoned is not None
        recorder.discard(abandoned[0])
        contextvars.Context().run(recorder.begin)
        recorder.forget_finished()

        (opened, inner) = recorder.open_requests()
        assert (opened.route, inner.route) == ("outer", "/predict")
        assert before < opened.start < inner.start < records.clock()
    assert [opened.route for opened in recorder.open_requests()] == ["/predict"]


_held: list[records.Marks] = []


def _open_one() -> None:
    marks, _ = contextvars.Context().run(recorder.begin_untimed, records.untimed)
    marks[records.ROUTE] = lambda: "/predict"
    _held.append(marks)


def test_the_background_thread_starts_with_the_first_record_and_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, queues = threading.Semaphore(0), list[object]()
    monkeypatch.setattr(queue, "SimpleQueue", lambda: queues.append(object()))
    background = recorder.Background(runs.release)

    # Under gevent, a queue from before its patches would block all greenlets.
    assert not background.started
    assert queues == []

    end = time.monotonic() + 60
    for _ in range(2):
        # A thread that is about to end still counts as alive.
        while not runs.acquire(timeout=0.05):
            assert time.monotonic() < end
            background.wake()

    assert len(queues) == 2


def test_an_overloaded_thread_is_signalled_once() -> None:
    asked, signalled = threading.Event(), queue.SimpleQueue[bool]()

    def run() -> None:
        asked.wait(60)
        signalled.put(background.wait(60))
        signalled.put(background.wait(0.01))

    background = recorder.Background(run)
    for _ in range(100):
        background.wake()
    asked.set()

    assert [signalled.get(timeout=60), signalled.get(timeout=60)] == [True, False]


def test_facts_of_a_compacted_record_are_the_same() -> None:
    marks: records.Marks = [records.OPEN, 0, 0]
    for number in range(records.MAX_MARKS // 9):
        marks += ("@model", "gpt", 0, "@device", "cpu", 0, "@tokens_in", 5, 0, "@per_token", number, (3, "engine"))
        marks += ("@gap", number, "engine", "@first_token", 9 - number, "engine", "@queue_length", number, 0)
        marks += ("@attribute", (f"name{number % 3}", str(number)), 0)
    marks.extend(("@failed", "triton:timeout", 7) * 2)
    facts, _ = read_marks(marks[:])

    assert records.has_capacity(marks)
    assert read_marks(marks).facts == facts
    assert facts["@tokens_in"] == 5 * (records.MAX_MARKS // 9)
    assert len(facts["@failed"]) == 2


def test_stages_beyond_the_limit_of_a_record_are_counted(finished: Finished) -> None:
    with request("tokens"):
        for _ in range(5000):
            for key in ("decode", "postprocess"):
                with stage(key):
                    pass
        with stage("serialize"):
            pass
    marks = finished[0][0]

    assert len(marks) < records.MAX_MARKS
    assert marks[-3] == "serialize"
    assert own_times(finished[0])["serialize"] == marks[-1] - marks[-2]


def compacted_times(intervals: Iterable[Interval], end: int) -> dict[str, int]:
    return partition(read_marks(written(intervals)).intervals, 0, end)


def written(intervals: Iterable[Interval]) -> records.Marks:
    marks: records.Marks = [records.OPEN, 0, 0]
    for interval in intervals:
        assert records.has_capacity(marks)
        marks.extend(interval)
    return marks


STAGES = ["own", *(stage.key for stage in stages.STAGES if stage.key != stages.OVERHEAD)]


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.sampled_from(STAGES), st.integers(0, 9), st.integers(0, 9)), min_size=1), st.integers(1, 10)
)
def test_totals_of_a_long_sequence_are_exact(some: list[tuple[str, int, int]], threads: int) -> None:
    unlimited: list[Interval] = []
    together: list[Interval] = []
    now = 0
    while len(unlimited) < records.MAX_MARKS // 2:
        for key, gap, length in some:
            unlimited.append((key, now + gap, now + gap + length))
            together.append((key, now - threads * length, now + gap + length))
            now += gap + length

    assert len(written(unlimited)) <= records.MAX_MARKS + 3
    assert compacted_times(unlimited, now) == partition(unlimited, 0, now)
    assert sum(compacted_times(together, now).values()) == now


def test_a_stage_around_a_whole_stream_and_what_came_before_its_first_token_are_exact() -> None:
    unlimited: list[Interval] = [("queue", 0, 50), ("tokenize", 60, 90)]
    for number in range(9000):
        unlimited += [("decode", 100 + 10 * number, 104 + 10 * number), ("own", 105 + 10 * number, 108 + 10 * number)]
    unlimited += [("handler", 55, 90_110), ("serialize", 90_110, 95_000), ("framework", 0, 96_000)]

    for end in (100, 150, 96_000):
        assert compacted_times(unlimited, end) == partition(unlimited, 0, end)


def test_a_stage_around_compacted_ones_keeps_its_share() -> None:
    unlimited: list[Interval] = []
    for number in range(20_000):
        at = 10 * number
        unlimited += [("tokenize", at + 1, at + 2), ("forward", at, at + 6)]
        if number % 700 == 699:
            unlimited.append(("preprocess", at - 6000, at + 10))
    exact = partition(unlimited, 0, 200_000)
    compacted = compacted_times(unlimited, 200_000)

    assert compacted == pytest.approx(exact, abs=28 * 2 * 200_000 / 256)
    assert sum(compacted.values()) == 200_000


def test_hundreds_of_own_stages_are_one_other_stage_in_a_full_record() -> None:
    names = ((f"item {number}" if number % 2 else "forward", number, number + 1) for number in range(30_000))
    own = compacted_times(names, 30_000)

    assert own["forward"] == 15_000
    assert own[stages.OTHER] > 14_000
    assert sum(own.values()) == 30_000


def test_a_record_full_of_facts_says_so(caplog: pytest.LogCaptureFixture) -> None:
    records.report_limit.cache_clear()
    marks: records.Marks = [records.OPEN, 0, 0]
    while records.has_capacity(marks):
        marks.extend(("@failed", "api:timeout", len(marks)))
    before = list(marks)

    assert not records.has_capacity(marks)
    assert marks == before
    assert "its further stages are unattributed" in caplog.text


def test_threads_that_write_while_a_record_is_compacted_lose_nothing() -> None:
    marks: records.Marks = [records.OPEN, 0, 0]

    def write() -> None:
        for number in range(10_000):
            assert records.has_capacity(marks)
            marks.extend(("@tokens_in", 1, 0, "forward", number, number + 1))

    with ThreadPoolExecutor(4) as pool:
        for writing in [pool.submit(write) for _ in range(4)]:
            writing.result()

    assert read_marks(marks).facts["@tokens_in"] == 40_000
