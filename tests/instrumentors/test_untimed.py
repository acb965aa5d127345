"""Requests without stages: each is counted, once, by whatever thread or task a part of it runs."""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from stagelens.core import names
from stagelens.core.stages import OVERHEAD, UNTIMED
from stagelens.instrumentors import recorder, recorder_state, records
from stagelens.instrumentors.agent.aggregate import ALL, NO_FACTS, NO_TRACES, REQUESTS_ONLY, Aggregator, Dimensions
from stagelens.instrumentors.api import request, stage
from stagelens.instrumentors.config import SamplingLimits
from stagelens.instrumentors.libraries.executors import ExecutorInstrumentor
from stagelens.instrumentors.recorder_state import state
from tests.instrumentors.conftest import Finished, record, using


@pytest.fixture
def spared(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> Finished:
    """The records of requests without stages, none of them a scout."""
    monkeypatch.setattr(state, "mode", recorder_state.WITHOUT_STAGES)
    monkeypatch.setattr(recorder, "_turns", iter([1] * 1000))
    return finished


@pytest.fixture
def carried() -> Generator[None]:
    with using(ExecutorInstrumentor()):
        yield


def keys(record: records.Record) -> list[str]:
    return [key for key in record[0][3::3] if key != records.ARRIVAL]


@pytest.mark.usefixtures("carried")
def test_a_request_inside_an_untimed_one_is_not_counted(spared: Finished) -> None:
    async def inner() -> None:
        async with request("inner"):
            pass

    with ThreadPoolExecutor(1) as pool, request("outer"):
        with request("inner", model="m"):
            pass
        asyncio.run(inner())
        pool.submit(request("inner")(lambda: None)).result()
        for call in (request("inner")(lambda: None), partial(contextvars.copy_context().run, request("inner")(int))):
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()

    assert [record[3] for record in spared] == ["outer"]


@pytest.mark.parametrize("mode", [recorder_state.WITH_STAGES, recorder_state.WITHOUT_STAGES])
def test_a_worker_outliving_its_request_starts_new_requests(
    spared: Finished, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setattr(state, "mode", mode)
    with request("first"):
        context = contextvars.copy_context()
    context.run(request("second")(lambda: None))

    assert [record[3] for record in spared] == ["first", "second"]


def test_requests_end_as_they_started_and_untimed_ones_record_no_stages(
    spared: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = (recorder_state.TIMED_AGAIN, recorder_state.WITHOUT_STAGES)
    for name, mode in zip(("untimed", "timed"), modes, strict=True):
        with request(name, model="m", batch=3), stage("load"):
            assert (records.current.get() is None) == (name == "untimed")
            monkeypatch.setattr(state, "mode", mode)
            with request("inner"), stage("forward"):
                pass
    untimed, timed = spared

    assert (untimed[3], timed[3]) == ("untimed", "timed")
    assert keys(untimed) == [records.UNTIMED, "@model", "@batch"]
    assert {"load", "forward"} < set(keys(timed))
    assert records.UNTIMED not in keys(timed)
    assert untimed[2] > untimed[1]


def test_an_untimed_generator_is_one_request(spared: Finished) -> None:
    @request("stream")
    def stream() -> Generator[int]:
        with stage("forward"):
            yield 1
        yield 2

    for _ in stream():
        assert records.untimed.get() is None
        assert records.current.get() is None

    assert [record[3] for record in spared] == ["stream"]


def test_sampled_untimed_requests_do_not_count_as_timed(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "mode", recorder_state.WITHOUT_STAGES)
    fold = Aggregator(SamplingLimits(), random.Random(1))
    for _ in range(2 * recorder.SCOUTS):
        with request("predict"), stage("forward"):
            pass
    for each in finished:
        fold.add(each)
    (delta,) = fold.take().values()

    assert [sum(key == "forward" for key in record[0][::3]) for record in fold.samples] == [1, 1]
    assert {key for metric, key, _ in delta.counts.histograms() if metric == names.STAGE_DURATION} == {UNTIMED}
    assert delta.counts.requests == 2 * recorder.SCOUTS


def served(fold: Aggregator) -> dict[tuple[str, str], int]:
    facts = ("@tokens_in", 5, 0), ("@batch", 2, 0), ("@failed", "timeout", 9), ("@model", "m", 0)
    fold.add(record(("forward", 10, 60), *facts, end=100))
    (delta,) = fold.take().values()

    assert len(delta.sampler.retained()) == (fold.level == ALL)

    return {(metric, key): histogram.count for metric, key, histogram in delta.counts.histograms()}


def test_each_level_drops_more_detail_and_no_request() -> None:
    fold = Aggregator(SamplingLimits(), random.Random(1))
    by_level: list[dict[tuple[str, str], int]] = []
    for level in (ALL, NO_TRACES, NO_FACTS):
        fold.level = level
        by_level.append(served(fold))
    everything, no_traces, no_facts = by_level

    assert everything == no_traces
    assert {metric for metric, _ in set(everything) - set(no_facts)} == {
        names.TOKENS,
        names.BATCH_DURATION,
        names.FAILED_CALL,
    }
    assert no_facts[names.REQUEST_DURATION, "forward"] == 1

    fold.add(record((records.UNTIMED, 0, 0), end=5_000_000))
    delta = fold.take()[Dimensions("", "", "/predict", "", "ok")]
    untimed = {(metric, key): histogram for metric, key, histogram in delta.counts.histograms()}

    assert set(untimed) == {
        (metric, UNTIMED) for metric in (names.REQUEST_DURATION, names.STAGE_DURATION, names.STAGE_TIME)
    }
    assert untimed[names.STAGE_DURATION, UNTIMED].sum == 0.005
    assert sum(untimed[names.STAGE_TIME, UNTIMED].buckets.values()) == 5000
    assert OVERHEAD not in {key for _, key in untimed}
    assert list(delta.loads) == [REQUESTS_ONLY]
