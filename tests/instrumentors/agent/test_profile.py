"""The tail profiler: which requests it samples, whose stack it takes, and how the samples become time."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import queue
import random
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core import names
from stagelens.core.code_stack import CodeFrame, split_stack_key
from stagelens.core.partition import partition
from stagelens.instrumentors import libraries, recorder, records, tickets
from stagelens.instrumentors.agent import profile, recent_durations, stacks
from stagelens.instrumentors.agent.aggregate import Aggregator
from stagelens.instrumentors.agent.frames import current_frames
from stagelens.instrumentors.agent.profile import Profiler
from stagelens.instrumentors.agent.recent_durations import MIN_REQUESTS, RecentDurations
from stagelens.instrumentors.agent.spans import RetainedRequest, build_trace
from stagelens.instrumentors.agent.stacks import profile_text
from stagelens.instrumentors.config import SamplingLimits
from stagelens.instrumentors.libraries.executors import ExecutorInstrumentor
from stagelens.instrumentors.libraries.queues import QueueInstrumentor
from stagelens.instrumentors.recorder_state import state
from tests.instrumentors.conftest import record, using

LATER = 3600 * 10**9


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Profiler]:
    monkeypatch.setattr(profile, "unpatched", _without_thread(profile.unpatched))
    profiler = Profiler(random.Random(1))
    for _ in range(MIN_REQUESTS):
        profiler.recent.add("/fast", 10**9)
    profiler.allow(1.0)
    with using(ExecutorInstrumentor()):
        yield profiler
    profiler.allow(0.0)


def _without_thread(original: Any) -> Any:
    return lambda module, name: (lambda *_: None) if name == "start_new_thread" else original(module, name)


def test_a_profiler_whose_thread_cannot_start_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []

    def refuse(*_: object) -> None:
        msg = "can't create new thread at interpreter shutdown"
        raise RuntimeError(msg)

    profiler = Profiler(random.Random(1))
    for start in (refuse, lambda run, _: started.append(run)):
        monkeypatch.setattr(profile, "unpatched", lambda *_, start=start: start)
        monkeypatch.setattr(profile, "_registrar", lambda *_: bool)
        profiler.allow(1.0)

        assert (state.register is not None) == bool(started)

    profiler.allow(0.0)

    assert len(started) == 1
    assert state.register is None


def functions(profiler: Profiler, marks: records.Marks) -> list[str]:
    now = records.clock() + 2 * LATER
    (key,) = profiler.take(marks, {"overhead": now}, [], marks[records.START], now)
    stage, frames = split_stack_key(key)
    assert stage == "overhead"
    return [frame.function.rpartition(".")[2] for frame in frames]


def open_request() -> tuple[records.Marks, Any]:
    scope = recorder.begin()
    assert scope is not None
    return scope


def look(profiler: Profiler) -> bool:
    return profiler.sample(records.clock() + LATER)


def guilty(started: threading.Event, release: threading.Event) -> None:
    number = "4111111111111111"  # a value that must not appear anywhere
    started.set()
    release.wait()
    assert number


Work = Callable[[threading.Event, threading.Event], object]


@contextmanager
def served_by(work: Work) -> Generator[records.Marks]:
    started, release, opened = threading.Event(), threading.Event(), list[records.Marks]()

    def serve() -> None:
        marks, token = open_request()
        opened.append(marks)
        work(started, release)
        recorder.end(token)

    thread = threading.Thread(target=serve)
    thread.start()
    started.wait()
    try:
        yield opened[0]
    finally:
        release.set()
        thread.join()


def waits_in_c(started: threading.Event, release: threading.Event) -> None:
    items: queue.SimpleQueue[None] = queue.SimpleQueue()
    threading.Thread(target=lambda: release.wait() and items.put(None)).start()
    started.set()
    items.get()


def in_pool(work: Callable[..., object]) -> Callable[..., None]:
    def serve(*arguments: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work, *arguments).result()

    return serve


def in_batch(work: Callable[..., object]) -> Callable[..., None]:
    def serve(*arguments: Any) -> None:
        drawn = tickets.ticket()

        def work_in_batch() -> None:
            with tickets.batch([drawn]):
                work(*arguments)

        worker = threading.Thread(target=work_in_batch)
        worker.start()
        worker.join()

    return serve


@pytest.mark.parametrize(
    ("work", "named"),
    [(guilty, "guilty"), (waits_in_c, "waits_in_c"), (in_pool(guilty), "guilty"), (in_batch(guilty), "guilty")],
)
def test_what_works_for_a_request_is_named(profiler: Profiler, work: Work, named: str) -> None:
    with served_by(work) as marks:
        assert look(profiler)
    now = records.clock() + 2 * LATER
    (key,) = profiler.take(marks, {"overhead": now}, [], marks[records.START], now)
    frames = [frame for frame in split_stack_key(key)[1] if "test_profile" in frame.module]

    assert frames[-1].function == named
    assert (frames[-1].line == guilty.__code__.co_firstlineno + 3) == (named == "guilty")
    assert "4111" not in key
    assert not recorder.working


def test_the_worker_of_a_queue_counts_as_the_work_of_the_waiting_request(profiler: Profiler) -> None:
    jobs: queue.Queue[Any] = queue.Queue()

    class Job:
        def __init__(self, *events: threading.Event) -> None:
            self.events, self.future = events, Future[None]()

        def set(self) -> None:
            self.future.set_result(None)

    def loop() -> None:
        while (job := jobs.get()) is not None:
            guilty(*job.events)
            job.set()

    def ask(*events: threading.Event) -> None:
        jobs.put(job := Job(*events))
        job.future.result()

    with using(QueueInstrumentor()):
        worker = threading.Thread(target=loop)
        worker.start()
        with served_by(ask) as marks:
            assert look(profiler)
        jobs.put(None)
        worker.join()
    assert functions(profiler, marks)[:2] == ["loop", "guilty"]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 collects between two instructions only")
def test_no_garbage_is_collected_while_the_frames_of_a_thread_are_read(profiler: Profiler) -> None:
    collected: list[bool] = []

    def note(phase: str, _: dict[str, int]) -> None:
        callers = {frame.name for frame in traceback.extract_stack()}
        if phase == "start" and "look" in callers:
            collected.append("_sample_stacks" in callers)

    def deep(started: threading.Event, release: threading.Event, depth: int = 100) -> None:
        if depth:
            deep(started, release, depth - 1)
        else:
            guilty(started, release)

    threshold = gc.get_threshold()
    with served_by(deep):
        gc.callbacks.append(note)
        gc.set_threshold(1)
        try:
            assert look(profiler)
        finally:
            gc.set_threshold(*threshold)
            gc.callbacks.remove(note)
    assert gc.isenabled()
    assert collected
    assert not any(collected)


async def served_in_task(profiler: Profiler, work: Callable[[asyncio.Event], Awaitable[object]]) -> list[str]:
    opened: list[records.Marks] = []
    release = asyncio.Event()

    async def request() -> None:
        marks, token = open_request()
        opened.append(marks)
        await work(release)
        recorder.end(token)

    tasks = [asyncio.create_task(child_work(release)), asyncio.create_task(request())]
    for _ in range(9):
        await asyncio.sleep(0)
    look(profiler)
    release.set()
    await asyncio.gather(*tasks)
    return functions(profiler, opened[0])


def test_a_task_that_runs(profiler: Profiler) -> None:
    async def request() -> list[str]:
        marks, token = open_request()
        look(profiler)
        recorder.end(token)
        return functions(profiler, marks)

    assert asyncio.run(request())[:2] == ["request", "look"]


async def child_work(release: asyncio.Event) -> None:
    await release.wait()


async def grouping(release: asyncio.Event) -> None:
    async def gathering() -> None:
        await asyncio.gather(child_work(release), asyncio.sleep(0))

    async with asyncio.TaskGroup() as group:
        group.create_task(gathering())


async def grouping_by_anyio(release: asyncio.Event) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(child_work, release)


async def waiting(release: asyncio.Event) -> None:
    await asyncio.wait([asyncio.create_task(child_work(release))])


async def shielding(release: asyncio.Event) -> None:
    await asyncio.shield(asyncio.wait_for(child_work(release), 30))


async def collecting(release: asyncio.Event) -> None:
    for completed in asyncio.as_completed([child_work(release)]):
        await completed


async def consuming(release: asyncio.Event) -> None:
    items: asyncio.Queue[None] = asyncio.Queue()

    async def produce() -> None:
        await child_work(release)
        items.put_nowait(None)

    producer = asyncio.create_task(produce())
    await items.get()
    await producer


async def threaded(release: asyncio.Event) -> None:
    started, ended = threading.Event(), threading.Event()
    job = asyncio.create_task(asyncio.to_thread(guilty, started, ended))
    await asyncio.sleep(0)
    started.wait()
    await release.wait()
    ended.set()
    await job


async def own_wait(release: asyncio.Event) -> None:
    async def wait_alone() -> None:
        await release.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(child_work(release))
        await wait_alone()


@pytest.mark.parametrize(
    ("work", "named"),
    [
        *((child_work, "wait"), (own_wait, "wait_alone"), (threaded, "guilty")),
        *((shape, "child_work") for shape in (grouping, grouping_by_anyio, waiting, shielding, collecting, consuming)),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_a_task_waits_for_is_named(profiler: Profiler, work: Any, named: str) -> None:
    found = asyncio.run(served_in_task(profiler, work))

    assert found[0] == "request" or work is threaded
    assert named in found


def test_an_event_loop_that_a_thread_runs_for_its_request(profiler: Profiler) -> None:
    loops: list[tuple[Any, asyncio.Event]] = []

    async def work_of_loop(started: threading.Event) -> None:
        loops.append((asyncio.get_running_loop(), asyncio.Event()))
        asyncio.get_running_loop().call_soon(started.set)
        await child_work(loops[0][1])

    with served_by(lambda started, _: asyncio.run(work_of_loop(started))) as marks:
        selecting = threading.Event()
        loops[0][0].call_soon_threadsafe(selecting.set)
        assert selecting.wait(30)
        while not any(frame.f_code.co_name == "select" for frame in current_frames().values()):
            pass
        assert look(profiler)
        loops[0][0].call_soon_threadsafe(loops[0][1].set)
    named = functions(profiler, marks)
    assert named[0] == "serve"
    assert named.index("work_of_loop") < named.index("child_work")


def test_the_thread_of_a_finished_request_is_not_sampled(profiler: Profiler) -> None:
    first, token = open_request()
    recorder.end(token)
    second, token = open_request()
    look(profiler)
    recorder.end(token)
    # Both are open on this thread: only the later one can be what the thread does.
    assert not profiler.take(first, {"overhead": 1}, [], 0, LATER * 2)
    assert "look" in functions(profiler, second)


def test_only_requests_above_the_p90_of_their_route_are_slow() -> None:
    recent = RecentDurations()
    assert (recent.threshold("/a"), recent.shortest) == (None, None)
    for duration in range(100):
        recent.add("/a", duration)
    assert (recent.threshold("/a"), recent.threshold("/b")) == (90, 90)
    for duration in range(1000, 2000, 50):
        recent.add("/b", duration)
    assert (recent.threshold("/a"), recent.threshold("/b"), recent.shortest) == (90, 1900, 90)


def test_where_all_take_the_same_time_none_is_slow() -> None:
    recent = RecentDurations()
    for _ in range(3 * MIN_REQUESTS):
        recent.add("/a", 1000)
    assert (recent.threshold("/a"), recent.slow_at) == (1200, 0)
    recent.add("/a", 1201)
    assert recent.slow_at > 0


@pytest.mark.parametrize("in_task", [False, True])
def test_a_look_without_a_baseline_samples_slow_requests_only(profiler: Profiler, in_task: bool) -> None:
    async def serve() -> tuple[records.Marks, Any]:
        return open_request()

    marks, token = asyncio.run(serve()) if in_task else open_request()
    shortest = profiler.recent.shortest or 0
    sampled = [profiler.sample(marks[records.START] + after, baseline=False) for after in (shortest, shortest + 1)]
    recorder.end(token)
    assert sampled == [False, True]
    marks[0] = records.CLOSED
    assert not profiler.sample(marks[records.START] + LATER, baseline=False)


class Enough(BaseException):
    """The sampler has run for long enough."""


class Look(NamedTuple):
    """Time of a look, and CPU time of the sampler up to its end, in nanoseconds."""

    at: int
    spent: int
    is_baseline: bool


def looks_of(
    monkeypatch: pytest.MonkeyPatch, seconds: int, *, share: float, look_ns: int, shortest: int | None = None
) -> list[Look]:
    """Run the loop of the sampler by a clock that only its sleeps advance; no look finds a slow request.

    Baselines take 400 µs of CPU time, other looks *look_ns*. The rest of the agent leaves *share* of a core. If *shortest* is
    given, slow requests keep the sampler alert all the time.
    """
    started: list[Any] = []
    looks: list[Look] = []
    began = now = records.clock()
    spent = 0

    def sleep(seconds_: float) -> None:
        nonlocal now
        now += int(seconds_ * 1e9)
        if now - began > seconds * 10**9:
            raise Enough

    def sample(_: Profiler, _now: int, *, baseline: bool) -> bool:
        nonlocal spent
        spent += 400_000 if baseline else look_ns
        looks.append(Look(now - began, spent, baseline))
        return False

    fakes: dict[str, Any] = {"sleep": sleep, "start_new_thread": lambda run, _: started.append(run)}
    unpatched = profile.unpatched
    monkeypatch.setattr(profile, "unpatched", lambda module, name: fakes.get(name) or unpatched(module, name))
    for module in (profile, recent_durations):
        monkeypatch.setattr(module, "clock", lambda: now)
    monkeypatch.setattr(time, "thread_time_ns", lambda: spent)
    monkeypatch.setattr(Profiler, "sample", sample)
    profiler = Profiler(random.Random(1))
    profiler.recent.shortest = shortest
    if shortest is not None:
        profiler.recent.slow_at = began + seconds * 10**9
    profiler.allow(share)
    with pytest.raises(Enough):
        started[0]()
    profiler.allow(0.0)
    return looks


def test_a_baseline_does_not_delay_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = looks_of(monkeypatch, 10, share=1.0, look_ns=10_000)

    assert max(after.at - before.at for before, after in itertools.pairwise(looks)) == profile.IDLE_SECONDS * 1e9
    assert 1 < sum(look.is_baseline for look in looks) < len(looks)
    assert looks[-1].spent < profile.IDLE_SHARE * looks[-1].at


def test_a_new_process_looks_more_often_for_slow_requests_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = looks_of(monkeypatch, 70, share=0.003, look_ns=150_000, shortest=9_000_000)
    first, later = (sum(start <= look.at / 1e9 < start + 5 for look in looks) for start in (0, 60))

    assert first > 4 * later > 0
    assert all(look.spent < profile.SLOW_SHARE * look.at + profile.MAX_CREDIT_NS for look in looks)
    assert profile.FIRST_NS < looks[-1].spent < 0.003 * looks[-1].at + profile.FIRST_NS


@pytest.mark.parametrize(("elapsed_ns", "pauses"), [(0, 0), (profile.PAUSE_AFTER_NS, 2)])
def test_only_a_long_look_lets_other_threads_run(
    monkeypatch: pytest.MonkeyPatch, profiler: Profiler, elapsed_ns: int, pauses: int
) -> None:
    times = itertools.count(records.clock() + LATER, elapsed_ns)
    slept: list[float] = []
    marks, token = open_request()
    monkeypatch.setattr(profile, "clock", lambda: next(times))
    monkeypatch.setattr(profiler, "_sleep", slept.append)
    assert profiler.sample(marks[records.START] + LATER)
    recorder.end(token)
    assert slept == [profile.PAUSE_SECONDS] * pauses


def test_a_request_that_is_not_slow_is_the_baseline(profiler: Profiler) -> None:
    marks, token = open_request()
    assert not profiler.sample(marks[records.START] + 1)
    recorder.end(token)
    end = records.clock()
    assert len(profiler.take(marks, {"overhead": 5}, [], marks[records.START], end)) == 1


def a_code(name: str) -> Any:
    return stacks.Code(CodeFrame("serve", name, "serve.py", 1), is_user=True, is_ours=False)


stages = st.lists(
    st.tuples(st.sampled_from(["preprocess", "forward", "mine"]), st.integers(0, 100), st.integers(0, 100)), max_size=6
)


@given(stages, st.lists(st.tuples(st.integers(0, 120), st.integers(0, 3)), max_size=40))
def test_the_keys_of_a_stage_add_up_to_its_time(intervals: list[Any], samples: list[tuple[int, int]]) -> None:
    profiler, marks = Profiler(random.Random(1)), [records.OPEN, 0, 0]
    for now, which in samples:
        profiler.samples_of(marks).add(now, (a_code(f"f{which}"), 1))
    own = partition(intervals, 0, 100)
    totals: Counter[str] = Counter()
    for key, spent in profiler.take(marks, own, intervals, 0, 100).items():
        totals[split_stack_key(key)[0]] += spent
    assert all(spent == own[stage] for stage, spent in totals.items())
    assert not profiler.take(marks, own, intervals, 0, 100)


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "MAX_SAMPLED", 2)
    monkeypatch.setattr(stacks, "MAX_PROCESS_KEYS", 3)
    profiler = Profiler(random.Random(1))
    requests = [[records.OPEN, 0, 0] for _ in range(3)]
    for marks in requests:
        for now in range(3 * profile.MAX_SAMPLES):
            profiler.samples_of(marks).add(now, (a_code(f"f{now}"), 1))
    assert not profiler.take(requests[0], {"overhead": 9}, [], 0, LATER)
    assert len(profiler.samples_of(requests[1]).stacks) < profile.MAX_SAMPLES
    time_by_key = profiler.take(requests[1], {"overhead": 10**9}, [], 0, LATER)
    assert len(time_by_key) == 4
    assert time_by_key["overhead;:__other__"] > 0


def test_the_series_and_the_trace_get_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagelens.instrumentors.agent.aggregate.MAX_KEYS", 1)
    profiler = Profiler(random.Random(1))
    fold = Aggregator(SamplingLimits(), random.Random(1), profiler=profiler)
    request = record(("forward", 0, 8_000_000))
    for now in range(8):
        profiler.samples_of(request[0]).add(now, (a_code(f"f{now // 6}"), 1))
    fold.add(request)
    ((dimensions, delta),) = fold.take().items()
    counted = {
        key: sum(h.buckets.values()) for metric, key, h in delta.counts.histograms() if metric == names.PROFILE_TIME
    }
    assert counted == {"forward;serve:f0@serve.py:1": 6000, "forward;:__other__": 2000}
    ((retained, because),) = delta.sampler.retained()
    root = build_trace(RetainedRequest(retained, because, dimensions, delta.own_stages)).spans[0]
    assert root.attributes[names.PROFILE] == "6000 forward;serve:f0@serve.py:1\n2000 forward;serve:f1@serve.py:1"


def hold(lock: threading.Lock) -> None:
    with lock:
        pass


@pytest.mark.parametrize("work", [hold, in_pool(hold), in_batch(hold)])
def test_the_wait_for_a_lock_in_c_is_seen(profiler: Profiler, work: Callable[[threading.Lock], None]) -> None:
    lock = threading.Lock()
    lock.acquire()

    def wait(started: threading.Event, _: threading.Event) -> None:
        started.set()
        work(lock)

    looks: list[int] = []
    until = time.monotonic() + 30
    with served_by(wait) as marks:
        while len(looks) < 2 and time.monotonic() < until:
            now = records.clock()
            profiler.sample_locks(now)
            if profiler.lock_waits(marks, [], 0, LATER * 10**6):
                looks.append(now)
        lock.release()
    profiler.sample_locks(records.clock())
    ((start, end),) = profiler.lock_waits(marks, [], marks[records.START], records.clock() + LATER)

    first, last = looks
    assert start <= first < last <= end


def test_a_request_with_another_job_that_works_does_not_wait(profiler: Profiler) -> None:
    lock, started, release = threading.Lock(), threading.Event(), threading.Event()
    lock.acquire()
    marks, token = open_request()
    with ThreadPoolExecutor(2) as pool:
        pool.submit(hold, lock)
        pool.submit(guilty, started, release)
        started.wait()
        profiler.sample_locks(records.clock())
        lock.release()
        release.set()
    recorder.end(token)

    assert not profiler.lock_waits(marks, [], marks[records.START], records.clock())


waits = st.lists(st.integers(0, 120), max_size=16, unique=True).map(sorted)


@given(stages, waits)
def test_a_wait_for_a_lock_takes_time_of_no_other_stage(intervals: list[Any], looks: list[int]) -> None:
    profiler, marks = Profiler(random.Random(1)), [records.OPEN, 0, 0]
    profiler.samples_of(marks).waits.extend(
        [*looks[at : at + 2], looks[at + 2] % 20] for at in range(0, len(looks) - 2, 3)
    )
    before = partition(intervals, 0, 100)

    after = partition(
        [*intervals, *(("queue", *wait) for wait in profiler.lock_waits(marks, intervals, 0, 100))], 0, 100
    )

    assert sum(after.values()) == 100
    assert after.pop("queue", 0) + after.pop("overhead") == before.pop("overhead")
    assert after == before


def test_a_wait_for_a_lock_ends_where_the_model_begins() -> None:
    profiler = Profiler(random.Random(1))
    fold = Aggregator(SamplingLimits(), random.Random(1), profiler=profiler)
    stages = ("deserialize", 0, 9_000_000), ("forward", 52_000_000, 60_000_000), ("handler", 0, 60_000_000)
    request = record(*stages, end=60_000_000)
    samples = profiler.samples_of(request[0])
    samples.waits.append([15_000_000, 50_000_000, 5_000_000])
    samples.add(30_000_000, (a_code("predict"), 1))

    fold.add(request)

    ((dimensions, delta),) = fold.take().items()
    ((retained, because),) = delta.sampler.retained()
    root, *spans = build_trace(RetainedRequest(retained, because, dimensions, delta.own_stages)).spans
    own = {key.removeprefix(names.STAGE_SELF_PREFIX): spent for key, spent in root.attributes.items()}
    assert (own["queue"], own["deserialize"], own["forward"]) == (37_000_000, 9_000_000, 8_000_000)
    assert own["handler"] == 6_000_000
    assert root.attributes[names.PROFILE] == "37000 queue;serve:predict@serve.py:1"
    assert root.attributes[f"{names.TIMING}.queue"] == "sampled"
    assert [(span.start, span.end) for span in spans if span.name == "queue"] == [(15_000_000, 52_000_000)]


@pytest.mark.parametrize(("look_ns", "share"), [(20_000, 1.0), (200_000, 1.0), (200_000, 0.004)])
def test_looks_at_locks_are_frequent_only_while_requests_wait(
    monkeypatch: pytest.MonkeyPatch, look_ns: int, share: float
) -> None:
    now, spent, looks = 10**9, 0, list[int]()
    profiler = Profiler(random.Random(1))

    def sleep(seconds: float) -> None:
        nonlocal now
        now += int(seconds * 1e9)

    def sample_locks(at: int) -> None:
        nonlocal spent
        looks.append(at)
        spent += look_ns
        # A request waits in the second second.
        if 2 * 10**9 < at < 3 * 10**9:
            profiler._locks_until = at + profile.LOCKED_NS  # pyright: ignore[reportPrivateUsage]

    for module in (profile, recent_durations):
        monkeypatch.setattr(module, "clock", lambda: now)
    monkeypatch.setattr(time, "thread_time_ns", lambda: spent)
    monkeypatch.setattr(profiler, "_sleep", sleep)
    monkeypatch.setattr(profiler, "sample_locks", sample_locks)
    monkeypatch.setattr(profile, "unpatched", lambda *_: lambda *_: None)
    profiler.allow(share)
    while now < 20 * 10**9:
        profiler.rest(profile.IDLE_SECONDS)
    profiler.allow(0.0)

    before, during, after = (sum(a < at / 1e9 <= b for at in looks) for a, b in ((0, 2), (4, 9), (14, 19)))
    limit = min(max(share / 2, profile.MIN_SHARE), profile.LOCK_SHARE)
    assert 0 < before <= 20
    assert 0.8 < during / (5e9 / max(profile.LOCK_NS, look_ns / limit)) < 1.2
    assert after < during / 2


def test_the_text_is_limited() -> None:
    lines = profile_text({f"forward;{'x' * 1000}{number}": number * 1000 for number in range(100)}).split("\n")
    assert (len(lines), lines[0][:3]) == (8, "99 ")


GEVENT = """
from gevent import monkey
monkey.patch_all()
import random, gevent
from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.agent import profile
profiler = profile.Profiler(random.Random(1))
for _ in range(20):
    profiler.recent.add("", 10**9)
profiler._started = True
recorder.background.wake_at = 99
profiler.allow(1.0)
def slow():
    marks, token = recorder.begin()
    opened.append(marks)
    gevent.sleep(0)
    recorder.end(token)
opened = []
greenlet = gevent.spawn(slow)
gevent.sleep(0)
profiler.sample(records.clock() + 3600 * 10**9)
greenlet.join()
(key,) = profiler.take(opened[0], {"overhead": 7}, [], opened[0][1], records.clock() + 7200 * 10**9)
print(*(part.partition("@")[0] for part in key.split(";")[:2]))
"""


# `sys._current_frames` of two interpreters may crash; Python 3.13.0 does at the next thread of a library in C.
INTERPRETERS = """
import sys
from stagelens.instrumentors.agent.frames import current_frames
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
else:
    import _xxsubinterpreters as interpreters
other = interpreters.create()
during = current_frames()
interpreters.destroy(other)
del sys.modules[interpreters.__name__]
print(len(during), len(current_frames()))
"""


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        (GEVENT, "overhead <string>:slow"),
        pytest.param(INTERPRETERS, "0 1", marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="one lock")),
    ],
    ids=["greenlets", "another interpreter"],
)
def test_other_processes(script: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == printed, done.stderr


@pytest.mark.usefixtures("profiler")
def test_a_forked_child_does_not_register_requests() -> None:
    assert state.register is not None
    child = os.fork()
    if child == 0:
        os._exit(state.register is not None or bool(recorder.working))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_each_module_that_hands_work_to_a_thread_is_known() -> None:
    openers = vars(stacks)["_OPENERS"]
    folder = Path(libraries.__file__ or "").parent
    starters = {
        f"{libraries.__name__}.{path.stem}" for path in folder.glob("*.py") if "start_work(" in path.read_text()
    }

    assert starters <= openers
    assert all(find_spec(name) for name in openers)
