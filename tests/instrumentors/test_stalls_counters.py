"""Process counters around a request: the difference of two readings that enclose it, on its trace."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core import names
from stagelens.instrumentors import stalls
from stagelens.instrumentors.agent.aggregate import dimensions_of
from stagelens.instrumentors.agent.spans import RetainedRequest
from stagelens.instrumentors.agent.worker import Agent
from stagelens.instrumentors.config import AgentConfig
from stagelens.instrumentors.records import CLOSED
from stagelens.instrumentors.stalls import ProcessCounters

SWITCHES = "stagelens.around.switches"
increments = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=8)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[ProcessCounters, int, int], None]:
    def read_at(ours: ProcessCounters, at: int, switches: int) -> None:
        monkeypatch.setattr(stalls, "clock", lambda: at)
        used = SimpleNamespace(ru_nivcsw=switches, ru_majflt=0)
        monkeypatch.setattr(resource, "getrusage", lambda _: used)
        ours.read(again=True)

    return read_at


@given(increments, st.integers(0, 45), st.integers(0, 10))
def test_counters_are_read_around_the_request(steps: list[tuple[int, int]], start: int, length: int) -> None:
    samples = [(0, 0)]
    for later, more in steps:
        samples.append((samples[-1][0] + later, samples[-1][1] + more))
    ours = ProcessCounters()
    with pytest.MonkeyPatch.context() as patch:
        for at, switches in samples:
            patch.setattr(stalls, "clock", lambda at=at: at)
            patch.setattr(resource, "getrusage", lambda _, n=switches: SimpleNamespace(ru_nivcsw=n, ru_majflt=0))
            ours.read(again=True)
    before = max(sample for sample in samples if sample[0] <= start)
    after = min((sample for sample in samples if sample[0] >= start + length), default=before)
    happened = after[1] - before[1]

    assert ours.increase_around(start, start + length) == (
        {"stagelens.around": after[0] - before[0], SWITCHES: happened} if happened else {}
    )


def test_readings_are_rate_limited(
    read: Callable[[ProcessCounters, int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ProcessCounters()
    read(ours, 0, 0)
    for at in (1, stalls.READ_EVERY_NS - 1):
        monkeypatch.setattr(stalls, "clock", lambda at=at: at)
        ours.read()

    assert ours.increase_around(0, 1) == {}

    read(ours, 2, 7)

    assert ours.increase_around(0, 1) == {"stagelens.around": 2, SWITCHES: 7}


def test_allocator_retries_of_all_devices_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    retries = [0, 2]
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: len(retries),
        memory_stats=lambda device: {"num_alloc_retries": retries[device]},
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    used = resource.getrusage(resource.RUSAGE_SELF)
    monkeypatch.setattr(resource, "getrusage", lambda _: used)
    ours = ProcessCounters()
    ours.read()
    started = stalls.clock()
    retries[0] += 3
    ended = stalls.clock()
    ours.read(again=True)
    monkeypatch.setattr(cuda, "is_initialized", lambda: False)
    idle = ProcessCounters()
    idle.read()

    assert ours.increase_around(started, ended)["stagelens.around.allocator_retries"] == 3
    assert set(ours.increase_around(started, ended)) <= {*names.AROUND}
    assert idle.increase_around(0, stalls.clock()) == {}


def test_a_retained_trace_has_the_counters_around_it(read: Callable[[ProcessCounters, int, int], None]) -> None:
    agent = Agent(AgentConfig())
    record = ([CLOSED, 10, 0, "forward", 12, 15], 10, 20, "/predict", "", 200, "server")
    exports = agent._exports  # pyright: ignore[reportPrivateUsage] - else the whole agent would have to run by a clock
    read(exports.counters, 5, 100)
    read(exports.counters, 25, 109)
    retained = RetainedRequest(record, "slow", dimensions_of({}, "/predict"), set())
    (trace,) = exports.build_traces([retained])
    root, forward = trace.spans

    assert (root.attributes["stagelens.around"], root.attributes[SWITCHES]) == (20, 9)
    assert SWITCHES not in forward.attributes
