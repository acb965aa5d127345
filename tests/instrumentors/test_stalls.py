"""Stalls of requests: recorded at their end, each instant with one cause and one stage; and counters around a request."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import resource
import sys
from collections import Counter, deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import stagelens
from stagelens.core.partition import Interval, partition
from stagelens.core.stages import STALL_CAUSES, holds_up
from stagelens.instrumentors import recorder, records, stalls
from stagelens.instrumentors.agent.aggregate import dimensions_of
from stagelens.instrumentors.agent.spans import RetainedRequest, Span
from stagelens.instrumentors.agent.worker import Agent
from stagelens.instrumentors.config import AgentConfig
from stagelens.instrumentors.libraries.aiohttp_server import AioHttpServerInstrumentor
from stagelens.instrumentors.libraries.starlette import StarletteInstrumentor
from stagelens.instrumentors.libraries.uvicorn import UvicornInstrumentor
from stagelens.instrumentors.stalls import LoopLag, ProcessCounters, Stall, Stalls, ThreadStatistics, by_stage
from tests.instrumentors.conftest import Finished, record, trace_of, using

MS = 1_000_000
T0, T1 = 10, 40
times = st.integers(0, 50)
noted = st.lists(st.tuples(st.sampled_from([*STALL_CAUSES]), times, times.filter(bool)), max_size=8)
intervals = st.lists(st.tuples(st.sampled_from(["forward", "queue", "preprocess", "rerank"]), times, times), max_size=8)


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Generator[Stalls]:
    """Separate ring that records the shortest stalls; only the test collects garbage."""
    ours = Stalls()
    monkeypatch.setattr(stalls, "stalls", ours)
    monkeypatch.setattr("stagelens.instrumentors.agent.spans.stalls", ours)
    monkeypatch.setattr(stalls, "MIN_STALL_NS", 1)
    callbacks = len(gc.callbacks)
    gc.disable()
    yield ours
    gc.enable()
    gc.callbacks[:] = gc.callbacks[:callbacks]


def met_by(found: list[tuple[str, int, int]]) -> list[Stall]:
    ring = Stalls()
    for cause, start, length in found:
        ring.note(cause, start * MS, (start + length) * MS)
    return list(ring.during(T0 * MS, T1 * MS))


def root_of(record: records.Record) -> Span:
    return trace_of(record).spans[0]


@given(noted)
def test_overlapping_stalls_are_assigned_to_the_cause_that_ended_first(found: list[tuple[str, int, int]]) -> None:
    expected: dict[int, str] = {}
    for cause, start, length in found:
        for instant in range(start, start + length):
            expected.setdefault(instant, cause)
    met = met_by(found)
    seen = {instant: cause for cause, start, end in met for instant in range(start // MS, end // MS)}

    assert {instant: seen.get(instant) for instant in range(T0, T1)} == {
        instant: expected.get(instant) for instant in range(T0, T1)
    }
    assert all(before.end <= after.start for before, after in itertools.pairwise(met))


@given(noted, intervals)
def test_stalls_by_stage_add_up_to_the_stall_of_the_request(
    found: list[tuple[str, int, int]], request: list[Interval]
) -> None:
    met = met_by(found)
    scaled = [(stage, start * MS, end * MS) for stage, start, end in request]
    shares = by_stage(met, scaled, T0 * MS, T1 * MS)
    own = partition(scaled, T0 * MS, T1 * MS)
    by_cause: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for (cause, stage), spent in shares.items():
        by_cause[cause] += spent
        held[stage] += spent
    overlap: Counter[str] = Counter()
    for cause, start, end in met:
        overlap[cause] += min(end, T1 * MS) - max(start, T0 * MS)

    assert all(spent > 0 for spent in shares.values())
    assert all(held[stage] <= own[stage] for stage in held)
    assert all(by_cause[cause] <= overlap[cause] for cause in by_cause)
    assert (by_cause["gc"], by_cause["compile"]) == (overlap["gc"], overlap["compile"])
    assert all(holds_up(cause, stage) for cause, stage in shares)


def test_the_ring_is_bounded(ring: Stalls) -> None:
    ring.watch()
    ring.watch()
    started = records.clock()
    for _ in range(stalls.MAX_STALLS + 9):
        gc.collect(0)
    ended = records.clock()
    met = ring.during(started, ended)

    assert len(met) == stalls.MAX_STALLS
    assert 0 < sum(end - start for _, start, end in met) <= ended - started
    assert not ring.during(ended, ended + 10**9)


@pytest.mark.usefixtures("ring")
def test_a_blocked_event_loop_stalls_waiting_requests(finished: Finished) -> None:
    blocked: list[int] = []

    async def go() -> None:
        started, done = asyncio.Event(), asyncio.Event()

        async def wait(_: Request) -> PlainTextResponse:
            started.set()
            await done.wait()
            return PlainTextResponse("")

        async def block(_: Request) -> PlainTextResponse:
            blocked.append(records.clock())
            with stagelens.stage("forward"):
                while records.clock() < blocked[0] + 200 * MS:
                    pass
            blocked.append(records.clock())
            done.set()
            return PlainTextResponse("")

        app = Starlette(routes=[Route("/wait", wait), Route("/block", block)])
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup()
        host, port = server.servers[0].sockets[0].getsockname()
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60) as client:
            waiting = asyncio.create_task(client.get("/wait"))
            await started.wait()
            await client.get("/block")
            await waiting
        await server.shutdown()

    with using(StarletteInstrumentor(), UvicornInstrumentor()):
        asyncio.run(go())
    roots: dict[str, Any] = {record[3]: root_of(record) for record in finished}
    waited, computed = (roots[route].attributes for route in ("/wait", "/block"))

    # Where others had the CPU meanwhile, that is said instead.
    both = [
        sum(waited.get(f"stagelens.stall.{cause}{stage}", 0) for cause in ("loop", "cpu"))
        for stage in ("", ".overhead")
    ]

    assert both[0] >= blocked[1] - blocked[0] - stalls.IDLE_SECONDS * 1e9
    assert both[1] <= both[0] <= roots["/wait"].end - roots["/wait"].start
    assert "stagelens.stall.loop.forward" not in computed


@pytest.mark.parametrize(
    ("ran", "waited", "expected"),
    [
        (30, 0, {"loop": 30}),
        (0, 0, {"loop": 30}),
        (1, 29, {"cpu": 29, "loop": 1}),
        # More than since the beat was due: of the time awake, the same share.
        (30, 15, {"cpu": 10, "loop": 20}),
        (0, 50, {"cpu": 30}),
        (-3, -7, {"loop": 30}),
    ],
    ids=["computed", "slept in a callback", "no cpu", "some of both", "never a cpu", "another thread"],
)
def test_a_late_timer_is_split_into_cpu_wait_and_callback_time(
    ring: Stalls, monkeypatch: pytest.MonkeyPatch, ran: int, waited: int, expected: dict[str, int]
) -> None:
    loop = asyncio.new_event_loop()
    monkeypatch.setattr(stalls, "clock", lambda: 130 * MS)
    statistics = ThreadStatistics()
    monkeypatch.setattr(statistics, "read", lambda: ((3 + ran) * MS, (7 + waited) * MS))
    stalls._heartbeat(loop, 100 * MS, statistics, (3 * MS, 7 * MS))  # pyright: ignore[reportPrivateUsage] - how late it is is given
    loop.close()

    assert {cause: (end - start) / MS for cause, start, end in ring.during(0, 200 * MS)} == expected


def test_the_loop_of_an_aiohttp_server_is_monitored(ring: Stalls) -> None:
    async def go() -> tuple[int, int]:
        runner = web.AppRunner(web.Application())
        await runner.setup()
        started = records.clock()
        while records.clock() < started + 200 * MS:
            pass
        ended = records.clock()
        await asyncio.sleep(stalls.HEARTBEAT_SECONDS)
        await runner.cleanup()
        return started, ended

    with using(AioHttpServerInstrumentor()):
        started, ended = asyncio.run(go())
    held_up = sum(min(end, ended) - max(start, started) for _, start, end in ring.during(started, ended))

    assert held_up >= ended - started - stalls.IDLE_SECONDS * 1e9


@pytest.mark.parametrize("is_reused", [False, True])
def test_the_statistics_of_a_thread_outlive_a_closed_file(is_reused: bool, tmp_path: Path) -> None:
    statistics = ThreadStatistics()
    before = statistics.read()
    file = statistics._file  # pyright: ignore[reportPrivateUsage] - whose number is taken
    (tmp_path / "own").write_bytes(b"text")
    with (tmp_path / "own").open("rb") as own:
        os.dup2(own.fileno(), file) if is_reused else os.close(file)
    for _ in range(2):
        again = statistics.read()
        assert again[0] >= before[0] > 0
        assert again[1] >= before[1]
    del statistics
    if is_reused:
        assert os.pread(file, 4, 0) == b"text"
        os.close(file)


def test_the_statistics_are_those_of_the_reading_thread() -> None:
    statistics = ThreadStatistics()
    ran, _ = statistics.read()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(statistics.read).result()[0] < ran
    assert statistics.read()[0] >= ran


def test_beats_are_frequent_for_some_time_after_a_sign_of_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    lag, now = LoopLag(), 0
    monkeypatch.setattr(stalls, "clock", lambda: now)
    monkeypatch.setattr(recorder, "pending", deque([([], 0, 0, "", "", 0, "server")]))
    assert lag.seconds() == stalls.IDLE_SECONDS
    lag.watch_closely()
    now = stalls.CLOSELY_NS - 1
    assert lag.seconds() == stalls.HEARTBEAT_SECONDS
    recorder.pending.clear()
    assert lag.seconds() == stalls.IDLE_SECONDS
    recorder.pending.append(([], 0, 0, "", "", 0, "server"))
    now = stalls.CLOSELY_NS
    assert lag.seconds() == stalls.IDLE_SECONDS


SWITCHES = "stagelens.around.switches"
increments = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=8)


def read_at(patch: pytest.MonkeyPatch, ours: ProcessCounters, at: int, switches: int) -> None:
    patch.setattr(stalls, "clock", lambda: at)
    patch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_nivcsw=switches, ru_majflt=0))
    ours.read(again=True)


@given(increments, st.integers(0, 45), st.integers(0, 10))
def test_counters_are_read_around_the_request(steps: list[tuple[int, int]], start: int, length: int) -> None:
    samples = [(0, 0)]
    for later, more in steps:
        samples.append((samples[-1][0] + later, samples[-1][1] + more))
    ours = ProcessCounters()
    with pytest.MonkeyPatch.context() as patch:
        for sample in samples:
            read_at(patch, ours, *sample)
    before = max(sample for sample in samples if sample[0] <= start)
    after = min((sample for sample in samples if sample[0] >= start + length), default=before)
    happened = after[1] - before[1]

    assert ours.increase_around(start, start + length) == (
        {"stagelens.around": after[0] - before[0], SWITCHES: happened} if happened else {}
    )


def test_readings_are_rate_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ProcessCounters()
    read_at(monkeypatch, ours, 0, 0)
    for at in (1, stalls.READ_EVERY_NS - 1):
        monkeypatch.setattr(stalls, "clock", lambda at=at: at)
        ours.read()

    assert ours.increase_around(0, 1) == {}

    read_at(monkeypatch, ours, 2, 7)

    assert ours.increase_around(0, 1) == {"stagelens.around": 2, SWITCHES: 7}


def test_allocator_retries_of_all_devices_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    retries = [0, 2]
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: len(retries),
        memory_stats=lambda device: {"num_alloc_retries": retries[device]},
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    ours, idle = ProcessCounters(), ProcessCounters()
    read_at(monkeypatch, ours, 0, 0)
    retries[0] += 3
    read_at(monkeypatch, ours, 9, 0)
    monkeypatch.setattr(cuda, "is_initialized", lambda: False)
    read_at(monkeypatch, idle, 0, 0)
    read_at(monkeypatch, idle, 9, 0)

    assert ours.increase_around(1, 2) == {"stagelens.around": 9, "stagelens.around.allocator_retries": 3}
    assert idle.increase_around(1, 2) == {}


def test_a_retained_trace_has_the_counters_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Agent(AgentConfig())._exports  # pyright: ignore[reportPrivateUsage] - else the agent would have to run by a clock
    read_at(monkeypatch, exports.counters, 5, 100)
    read_at(monkeypatch, exports.counters, 25, 109)
    request = record(("forward", 12, 15), start=10, end=20)
    (trace,) = exports.build_traces([RetainedRequest(request, "slow", dimensions_of({}, "/predict"), set())])
    root, forward = trace.spans

    assert (root.attributes["stagelens.around"], root.attributes[SWITCHES]) == (20, 9)
    assert SWITCHES not in forward.attributes
