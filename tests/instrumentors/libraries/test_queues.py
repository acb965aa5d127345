"""Workers and batchers with a queue: each request records the work on its own jobs, without a line in the service."""

from __future__ import annotations

import asyncio
import gc
import queue
import subprocess
import sys
import threading
import time
from abc import ABC
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from enum import Enum
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import anyio
import anyio.to_thread
import janus
import pytest
import uvloop

from stagelens.instrumentors import tickets
from stagelens.instrumentors.api import request, stage
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries import queue_jobs, queue_replies, queues
from stagelens.instrumentors.libraries.executors import ExecutorInstrumentor
from stagelens.instrumentors.libraries.queues import QueueInstrumentor
from stagelens.instrumentors.request_marks import complete, is_ready, read_marks
from tests.instrumentors.libraries.drivers import instrumenting

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = QueueInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented", "executors")


@pytest.fixture
def executors() -> Iterator[None]:
    """Instrument executors, which pass the work of a worker on."""
    with instrumenting(ExecutorInstrumentor()):
        yield


def work(*names: str) -> None:
    """Work in a stage of each request's own name, so that the stage says for whom the work is."""
    with stage("_".join(("for", *names))):
        time.sleep(0.001)


def found(finished: Finished) -> dict[str, tuple[set[str], Any]]:
    """Return the stages and the batch size of each request by its name."""
    results: dict[str, tuple[set[str], Any]] = {}
    for marks, start, end, route, *_ in finished:
        assert is_ready(marks)
        complete(marks)
        facts, intervals = read_marks(marks)
        assert all(start <= t0 <= t1 for _, t0, t1 in intervals)
        results[route] = {key for key, t0, _ in intervals if t0 < end}, facts.get("@batch")
    return results


async def ask(jobs: asyncio.Queue[Any] | janus.AsyncQueue[Any], name: str) -> None:
    with request(name):
        future = asyncio.get_running_loop().create_future()
        await jobs.put((name, future))
        await future


@asynccontextmanager
async def working(*workers: Coroutine[Any, Any, Any]) -> AsyncGenerator[None]:
    """Run the workers in tasks until the block ends."""
    tasks = [asyncio.create_task(worker) for worker in workers]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def in_a_thread(target: Callable[..., object], *args: Any) -> Generator[None]:
    """Run a worker, which somebody asks to end before the block ends."""
    worker = threading.Thread(target=target, args=args)
    worker.start()
    yield
    worker.join(30)


async def serve(worker: Callable[[asyncio.Queue[Any]], Any], *names: str) -> None:
    jobs: asyncio.Queue[Any] = asyncio.Queue()
    async with working(worker(jobs)):
        await asyncio.gather(*(ask(jobs, name) for name in names))
    await asyncio.sleep(0)


def resolve(batch: list[Any]) -> None:
    for _, future in batch:
        if not future.done():
            future.set_result(None)


async def one_by_one(jobs: asyncio.Queue[Any]) -> None:
    while True:
        job = await jobs.get()
        work(job[0])
        resolve([job])


async def drained(jobs: asyncio.Queue[Any]) -> None:
    while True:
        batch = [await jobs.get()]
        await asyncio.sleep(0.01)
        while len(batch) < 2 and not jobs.empty():
            batch.append(jobs.get_nowait())
        work(*[name for name, _ in batch])
        resolve(batch)


async def pipelined(jobs: asyncio.Queue[Any]) -> None:
    async def process(batch: list[Any]) -> None:
        await asyncio.sleep(0.02)
        work(*[name for name, _ in batch])
        resolve(batch)

    running: list[Any] = []
    while True:
        batch = [await jobs.get()]
        if not jobs.empty():
            batch.append(jobs.get_nowait())
        running.append(asyncio.create_task(process(batch)))


SCENARIOS: dict[str, tuple[Callable[[], Coroutine[Any, Any, None]], Any]] = {}
Scenario = Callable[[], Coroutine[Any, Any, None]]


def expects(results: dict[str, tuple[set[str], Any]]) -> Callable[[Scenario], Scenario]:
    """Expect that after the function each request has these stages and this size of its batch."""

    def decorate(scenario: Scenario) -> Scenario:
        SCENARIOS[scenario.__name__] = scenario, results
        return scenario

    return decorate


def alone(names: str) -> dict[str, tuple[set[str], Any]]:
    """Return the results of requests whose jobs are worked on one by one."""
    return {name: ({"queue", f"for_{name}"}, 1) for name in names}


@expects(alone("ab"))
async def a_thread_that_takes_from_janus_works_for_the_requests_of_the_loop() -> None:
    loop = asyncio.get_running_loop()
    jobs: janus.Queue[Any] = janus.Queue()

    def serve() -> None:
        while (job := jobs.sync_q.get()) is not None:
            work(job[0])
            loop.call_soon_threadsafe(job[1].set_result, None)

    worker = threading.Thread(target=serve)
    worker.start()
    await asyncio.gather(*(ask(jobs.async_q, name) for name in "ab"))
    await jobs.async_q.put(None)
    await asyncio.to_thread(worker.join, 30)
    await jobs.aclose()


async def slow_to_answer(jobs: asyncio.Queue[Any]) -> None:
    while True:
        job = await jobs.get()
        work(job[0])
        await asyncio.sleep(0.01)
        resolve([job])


async def asking_again_and_again(jobs: asyncio.Queue[Any]) -> None:
    while True:
        job = await jobs.get()
        with stage(f"for_{job[0]}"):
            await asyncio.sleep(0.01)
        resolve([job])


def test_the_jobs_that_wait_in_a_queue_are_counted(finished: Finished) -> None:
    async def serve_three() -> None:
        jobs: asyncio.Queue[Any] = asyncio.Queue()
        requests = [asyncio.create_task(ask(jobs, name)) for name in "abc"]
        await asyncio.sleep(0)
        async with working(one_by_one(jobs)):
            await asyncio.gather(*requests)
        await asyncio.sleep(0)

    asyncio.run(serve_three())
    found(finished)

    lengths = {route: read_marks(marks).facts.get("@queue_length") for marks, _, _, route, *_ in finished}
    assert lengths == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        (drained, ["queue", "queue", "for_a"]),
        (slow_to_answer, ["queue", "for_a"]),
        (asking_again_and_again, ["queue", "for_a"]),
    ],
)
def test_a_sleep_before_the_work_belongs_to_the_forming_of_the_batch(
    finished: Finished, worker: Any, expected: list[str]
) -> None:
    asyncio.run(serve(worker, "a"))
    ((marks, *_),) = finished
    complete(marks)

    # The wait for the event loop at the end is no wait for the worker.
    assert [key for key in marks[::3] if key in {"queue", "for_a"}] == expected


@pytest.mark.parametrize(
    ("worker", "waits"),
    [
        (one_by_one, {"a": True, "b": True}),
        # For its turn, after the batch is answered.
        (pipelined, {"a": False, "b": True}),
    ],
)
def test_a_request_waits_for_the_loop_after_its_result_is_set(
    finished: Finished, worker: Any, waits: dict[str, bool]
) -> None:
    asyncio.run(serve(worker, "a", "b"))
    found(finished)

    assert {route: "queue@loop" in marks[::3] for marks, _, _, route, *_ in finished} == waits


@expects({name: ({"queue", f"for_{name}", "for_a_b"}, 2) for name in "ab"})
async def the_largest_batch_of_a_chain_of_workers_counts() -> None:
    queues: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in range(3)]

    async def pass_on(source: asyncio.Queue[Any], at_once: int, into: asyncio.Queue[Any] | None) -> None:
        while True:
            batch = [await source.get() for _ in range(at_once)]
            work(*[name for name, _ in batch])
            for job in batch:
                into.put_nowait(job) if into else resolve([job])

    async with working(*map(pass_on, queues, (1, 2, 1), (*queues[1:], None))):
        await asyncio.gather(ask(queues[0], "a"), ask(queues[0], "b"))


# The worker has the context of the first request, which needs no job for that.
@expects({"a": ({"for_a"}, None), "b": ({"queue", "for_b"}, None)})
async def a_worker_that_the_first_request_starts_works_for_all() -> None:
    jobs: asyncio.Queue[Any] = asyncio.Queue()
    workers: list[Any] = []

    async def lazy(name: str, *, waits: bool) -> None:
        with request(name):
            if not workers:
                workers.append(asyncio.create_task(one_by_one(jobs)))
            future = asyncio.get_running_loop().create_future()
            jobs.put_nowait((name, future))
            await future
            if waits:
                await asyncio.sleep(0.02)

    await asyncio.gather(lazy("a", waits=True), lazy("b", waits=False))
    workers[0].cancel()


@expects({"a": ({"queue", "for_a", "for_a_too"}, 1)})
async def a_task_of_a_request_that_takes_from_another_queue_stays_with_it() -> None:
    jobs: asyncio.Queue[Any] = asyncio.Queue()
    others: asyncio.Queue[Any] = asyncio.Queue()
    others.put_nowait("data")

    async def take() -> None:
        await others.get()
        work("a", "too")

    async with working(one_by_one(jobs)):
        with request("a"):
            future = asyncio.get_running_loop().create_future()
            jobs.put_nowait(("a", future))
            await asyncio.create_task(take())
            await future


@expects({name: ({f"for_{name}"}, None) for name in "abcd"})
async def a_thread_that_runs_a_job_in_the_context_of_its_request_needs_no_job() -> None:
    async def handle(name: str) -> None:
        with request(name):
            await anyio.to_thread.run_sync(work, name)

    await asyncio.gather(*map(handle, "ab"))
    await asyncio.gather(*map(handle, "cd"))


@expects({"a": (set(), None)})
async def a_job_without_a_future_claims_nothing() -> None:
    jobs: asyncio.Queue[Any] = asyncio.Queue()
    with request("a"):
        jobs.put_nowait({"event": "log"})
        await asyncio.sleep(0)

    async def log() -> None:
        await jobs.get()
        work("nobody")

    await asyncio.create_task(log())


@expects(alone("a"))
async def tickets_of_the_user_win() -> None:
    jobs: asyncio.Queue[Any] = asyncio.Queue()

    async def work_with_tickets() -> None:
        name, future, ticket = await jobs.get()
        work("outside")
        with tickets.batch([ticket]):
            work(name)
        future.set_result(None)

    task = asyncio.create_task(work_with_tickets())
    with request("a"):
        future = asyncio.get_running_loop().create_future()
        jobs.put_nowait(("a", future, tickets.ticket()))
        await future
    await task


@expects({"a": (set(), None), "b": (set(), None)})
async def a_future_of_two_requests_claims_nothing() -> None:
    jobs: asyncio.Queue[Any] = asyncio.Queue()
    future = asyncio.get_running_loop().create_future()

    async def share(name: str) -> None:
        with request(name):
            jobs.put_nowait((name, future))
            await future

    async with working(one_by_one(jobs)):
        await asyncio.gather(share("a"), share("b"))


@expects({**alone("a"), "b": (set(), None)})
async def a_job_that_its_request_does_not_wait_for_claims_nothing() -> None:
    loop = asyncio.get_running_loop()
    entries, notes, jobs = asyncio.Queue[Any](), asyncio.Queue[Any](), asyncio.Queue[Any]()
    pending: dict[int, asyncio.Future[None]] = {}
    noted = asyncio.Event()

    async def log() -> None:
        while True:
            await entries.get()
            work("nobody")

    async def note() -> None:
        await notes.get()
        await noted.wait()

    async def serve_jobs() -> None:
        number, _ = await jobs.get()
        await asyncio.sleep(0.001)
        work("a")
        pending.pop(number).set_result(None)

    async def handle(name: str, *, notes_too: bool) -> None:
        with request(name):
            future = pending[id(name)] = loop.create_future()
            entries.put_nowait({"request": name})
            if notes_too:
                notes.put_nowait({"request": name})
            jobs.put_nowait((id(name), name))
            await future

    async with working(log(), note()):
        for name in "ab":
            await asyncio.gather(serve_jobs(), handle(name, notes_too=name == "b"))
        noted.set()


@pytest.mark.parametrize("name", SCENARIOS)
def test_work_belongs_to(finished: Finished, name: str) -> None:
    scenario, results = SCENARIOS[name]
    asyncio.run(scenario())

    assert found(finished) == results


def set_directly(loop: Any, future: Any) -> None:
    loop.call_soon_threadsafe(future.set_result, None)


def set_in_a_function(loop: Any, future: Any) -> None:
    loop.call_soon_threadsafe(lambda: future.set_result(None))


def set_as_argument(loop: Any, future: Any) -> None:
    loop.call_soon_threadsafe(asyncio.Future.set_result, future, None)


@pytest.mark.parametrize("answer_later", [set_directly, set_in_a_function, set_as_argument])
def test_a_thread_answers_the_requests_of_an_event_loop(finished: Finished, answer_later: Any) -> None:
    jobs: queue.Queue[Any] = queue.Queue()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def serve() -> None:
            while (job := jobs.get()) is not None:
                work(job[0])
                answer_later(loop, job[1])

        async def handle(name: str) -> None:
            with request(name):
                future = loop.create_future()
                jobs.put((name, future))
                await future

        with in_a_thread(serve):
            tasks = [asyncio.create_task(handle(name)) for name in "abc"]
            await asyncio.sleep(0)
            # All jobs are in the queue. The loop is busy while the thread works on all of them.
            jobs.put(None)
        await asyncio.gather(*tasks)

    asyncio.run(main())

    assert found(finished) == alone("abc")


class Job:
    def __init__(self, name: str, reply: Any) -> None:
        self.name = name
        self.reply = reply


class SlottedJob:
    __slots__ = ("name", "nothing", "reply")

    def __init__(self, name: str, reply: Any) -> None:
        self.name, self.reply = name, reply


def wait_for(reply: Any) -> None:
    if isinstance(reply, threading.Event):
        assert reply.wait(30)
    elif isinstance(reply, Future):
        reply.result(30)
    else:
        reply.get(timeout=30)


def answer(reply: Any) -> None:
    if isinstance(reply, threading.Event):
        reply.set()
    elif isinstance(reply, Future):
        reply.set_result(None)
    else:
        reply.put(None)


@pytest.mark.parametrize("make", [threading.Event, Future, queue.Queue])
@pytest.mark.parametrize("kind", [Job, SlottedJob])
@pytest.mark.parametrize("size", [1, 2])
def test_a_thread_works_for_the_requests_of_its_batch(finished: Finished, make: Any, kind: Any, size: int) -> None:
    jobs: queue.Queue[Any] = queue.Queue()

    def loop() -> None:
        while (job := jobs.get()) is not None:
            batch = [job]
            while len(batch) < size:
                batch.append(jobs.get(timeout=30))
            work(*sorted(job.name for job in batch))
            for job in batch:
                answer(job.reply)

    def handle(name: str) -> None:
        with request(name):
            job = kind(name, make())
            jobs.put(job)
            wait_for(job.reply)

    with in_a_thread(loop), ThreadPoolExecutor(2) as pool:
        list(pool.map(handle, "ab"))
        jobs.put(None)

    assert found(finished) == {name: ({"queue", "for_a_b" if size == 2 else f"for_{name}"}, size) for name in "ab"}


def test_an_event_that_the_request_does_not_wait_for_claims_nothing(finished: Finished) -> None:
    jobs: queue.Queue[Any] = queue.Queue()
    stop = threading.Event()
    with request("a"):
        jobs.put(("a", stop))
        worker = threading.Thread(target=lambda: work(jobs.get()[0] + "_other"))
        token = tickets.current.set(None)
        worker.start()
        tickets.current.reset(token)
        worker.join(30)

    assert found(finished) == {"a": (set(), None)}


@pytest.mark.parametrize("order", [1, -1])
def test_each_of_many_jobs_is_looked_at_a_few_times(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    looked, waits_for = list[queue_jobs.Job](), queue_jobs.Job.waits_for
    monkeypatch.setattr(queue_jobs.Job, "waits_for", lambda job, run: looked.append(job) or waits_for(job, run))
    jobs, number = queue.Queue[Future[int]](), 300

    def work_on_all() -> None:
        taken = [jobs.get() for _ in range(number)]
        for future in taken[::order]:
            future.set_result(1)

    with in_a_thread(work_on_all), request("many"):
        futures = [Future[int]() for _ in range(number)]
        for future in futures:
            jobs.put(future)
        assert [future.result() for future in futures] == [1] * number

    assert found(finished)["many"][1] == number
    assert number / 2 < len(looked) < 3 * number


def test_an_item_without_attributes_of_its_own_is_passed_on() -> None:
    class Hostile:
        def __getattr__(self, name: str) -> Any:
            raise SystemExit(name)

        def __bool__(self) -> bool:
            raise SystemExit

    class Empty:
        __slots__ = ()
        __dict__ = property(lambda _: {"a": Future()})  # pyright: ignore[reportAssignmentType]

    items = [Hostile(), object(), 1, {"a": Hostile()}, ([Hostile()],), Empty(), Enum, (ABC, 1)]

    assert [queue_replies.replies(item) for item in items] == [[]] * 8


def hostile(kind: type, *names: str) -> Any:
    """Return a subclass of *kind* with methods of its own."""

    def fail(*_: Any) -> None:
        raise SystemExit

    return type("Hostile", (kind,), dict.fromkeys(names, fail))


FUTURE = "done", "cancelled", "get_loop", "add_done_callback"
REPLIES = [
    hostile(threading.Event, "is_set"),
    hostile(Future, *FUTURE),
    hostile(asyncio.Future, *FUTURE),
    hostile(queue.Queue, "empty", "qsize", "_qsize"),
    # Around another one.
    type("Uninitialized", (Future,), {"__init__": object.__init__}),
]


@pytest.mark.parametrize("make", REPLIES)
def test_no_method_of_a_reply_runs(finished: Finished, reported: set[str], make: Any) -> None:
    async def main() -> None:
        jobs: queue.Queue[Any] = queue.Queue()
        with request("a"):
            reply = make()
            # The caller of `put` or `get` may hold the lock of a queue.
            reply.mutex = None
            jobs.put(reply)
            jobs.put("next")
            token = tickets.current.set(None)
            assert [jobs.get(), jobs.get()] == [reply, "next"]
            tickets.current.reset(token)

    asyncio.run(main())

    assert len(finished) == 1
    assert not reported


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.usefixtures("finished")
def test_a_future_that_nobody_awaits_needs_no_loop(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    jobs: queue.Queue[Any] = queue.Queue()

    async def put() -> None:
        jobs.put(asyncio.get_running_loop().create_future())

    async def give_up() -> Any:
        with request("gives up"):
            await put()
        jobs.put("next")
        taken, _ = jobs.get(), jobs.get()
        return taken

    async def poll() -> None:
        await put()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(jobs.get().set_result, None).result(30)

    with asyncio.Runner(loop_factory=factory) as runner:
        taken = runner.run(give_up())
    assert taken.cancel()
    with request("waits"):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(put())
        assert jobs.get().cancel()
        with asyncio.Runner(loop_factory=factory, debug=True) as runner:
            runner.run(poll())


def test_an_interrupted_put_leaves_nothing(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    future: Future[None] = Future()
    monkeypatch.setattr(queue_jobs, "thread_or_task", Mock(side_effect=KeyboardInterrupt))
    with request("a"), pytest.raises(KeyboardInterrupt):
        queue.Queue[Any]().put(future)
    del future

    assert len(finished) == 1


def test_a_thread_waits_to_wake_up_after_its_result_is_set(finished: Finished) -> None:
    jobs: queue.Queue[Any] = queue.Queue()

    def serve_jobs() -> None:
        while (future := jobs.get()) is not None:
            while not future._condition._waiters:
                time.sleep(0)
            future.set_result(None)

    with in_a_thread(serve_jobs):
        with request("a"):
            future: Future[None] = Future()
            jobs.put(future)
            future.result()
        jobs.put(None)
    ((marks, *_),) = finished
    complete(marks)

    assert "queue@loop" in marks[::3]


def created_in_debug_mode(factory: Callable[[], asyncio.AbstractEventLoop], context: Any) -> list[Any]:
    """Return where asyncio says that a task, a handle and a future of an executor were created, and what it reports."""
    entries: list[Any] = []

    def note(thing: Any) -> None:
        found = getattr(thing, "_source_traceback", None)
        entries.append([tuple(entry)[:3] for entry in found] if found else repr(thing).rpartition("created at ")[2])

    def depth(levels: int, make: Callable[[], Any]) -> Any:
        return depth(levels - 1, make) if levels else make()

    async def main(levels: int) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: entries.append(str(context["source_traceback"])))
        with context():
            for make in (
                lambda: loop.create_task(asyncio.sleep(0)),
                lambda: asyncio.ensure_future(asyncio.sleep(0)),
                lambda: loop.call_soon_threadsafe(int),
                lambda: loop.run_in_executor(None, int),
            ):
                made = depth(levels, make)
                note(made)
                if asyncio.isfuture(made):
                    await made
            pending = loop.create_task(asyncio.Event().wait())
            await asyncio.sleep(0)
            # It is destroyed while it waits.
            del pending
            gc.collect()

    for levels in (0, 12):
        with asyncio.Runner(debug=True, loop_factory=factory) as runner:
            runner.run(main(levels))
    return entries


@contextmanager
def as_a_worker_with_a_job() -> Generator[None]:
    jobs, future = queue.Queue[Any](), Future[None]()
    with request("any"):
        jobs.put(future)
        token = tickets.current.set(None)
        jobs.get()
        yield
        tickets.current.reset(token)
        future.set_result(None)


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("context", [nullcontext, lambda: request("any"), as_a_worker_with_a_job])
@pytest.mark.usefixtures("finished")
def test_the_debug_mode_of_asyncio_names_the_code_of_the_user(
    factory: Callable[[], asyncio.AbstractEventLoop], context: Any, instrumented: Instrumentor
) -> None:
    entries: list[list[Any]] = []
    for with_us in (True, False):
        if not with_us:
            instrumented.uninstrument()
            ExecutorInstrumentor().uninstrument()
        entries.append(created_in_debug_mode(factory, context if with_us else nullcontext))

    assert len(entries[0]) == 10, entries
    assert entries[0] == entries[1]


async def take_tokens(replies: Any) -> None:
    while await (replies.receive() if hasattr(replies, "receive") else replies.get()) is not None:
        pass


def generate(live: list[Any], number: int) -> list[tuple[Any, int | None]]:
    """Work on a step for all jobs, and return the token of each, None for the last one."""
    with stage(f"step_{number}"):
        time.sleep(0.0005)
    for job in live:
        job.steps.append(f"step_{number}")
    tokens = [(job, len(job.steps) if len(job.steps) < job.size else None) for job in live]
    live[:] = [job for job, token in tokens if token is not None]
    return tokens


class Generation:
    def __init__(self, reply: Any, size: int = 4) -> None:
        self.reply, self.size = reply, size
        self.steps: list[str] = []


def expect_all_steps(finished: Finished, generations: list[Generation]) -> None:
    """Expect that each request has all of its steps, and none from before its own first one."""
    # The work of a batch is known when all of its requests have ended.
    for marks, *_ in finished:
        is_ready(marks)
    results = found(finished)
    for number, generation in enumerate(generations):
        steps = {key for key in results[f"request_{number}"][0] if key.startswith("step")}
        assert steps >= {*generation.steps}
        assert min(int(key[5:]) for key in steps) == int(generation.steps[0][5:])


def run_engine_thread(jobs: queue.Queue[Any], send: Callable[[Any, Any], None]) -> None:
    """Batch continuously: a job joins at any step and leaves after its last token; None ends the thread."""
    live: list[Any] = []
    number, open_ = 0, True
    while open_ or live:
        with suppress(queue.Empty):
            while open_:
                job = jobs.get(block=not live)
                open_ = job is not None
                live += [job] if job else []
        number += 1
        for job, token in generate(live, number):
            send(job.reply, token)


@pytest.mark.parametrize("renew_after", [0, queue_jobs.RENEW_AFTER])
def test_a_thread_streams_to_requests_in_threads(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, renew_after: int
) -> None:
    monkeypatch.setattr(queue_jobs, "RENEW_AFTER", renew_after)
    jobs: queue.Queue[Any] = queue.Queue()
    generations = [Generation(queue.Queue(), size) for size in (20, 3, 40, 5)]

    def handle(number: int) -> None:
        with request(f"request_{number}"):
            jobs.put(generations[number])
            while generations[number].reply.get(timeout=30) is not None:
                pass

    engine = in_a_thread(run_engine_thread, jobs, lambda reply, token: reply.put(token))
    with engine, ThreadPoolExecutor(2) as pool:
        list(pool.map(handle, range(4)))
        jobs.put(None)

    expect_all_steps(finished, generations)


def make_anyio() -> tuple[Any, Any]:
    return anyio.create_memory_object_stream[Any](100)


def make_janus() -> tuple[Any, Any]:
    both = janus.Queue[Any]().async_q
    return both, both


def make_asyncio() -> tuple[Any, Any]:
    both = asyncio.Queue[Any]()
    return both, both


async def put(into: Any, item: Any) -> None:
    await (into.send(item) if hasattr(into, "send") else into.put(item))


async def generate_alone(jobs: Any) -> None:
    """Take a job at a time and stream its tokens."""
    number = 0
    while True:
        live = [await (jobs.receive() if hasattr(jobs, "receive") else jobs.get())]
        while live:
            number += 1
            await asyncio.sleep(0)
            for job, token in generate(live, number):
                await put(job.reply, token)


async def stream(make: Any, send_job: Callable[[Generation], Any]) -> list[Generation]:
    """Run two requests at a time, each with a stream of its own."""
    generations: list[Generation] = []

    async def handle(number: int) -> None:
        with request(f"request_{number}"):
            send, receive = make()
            generations.append(Generation(send, 3 + number))
            await send_job(generations[-1])
            await take_tokens(receive)

    for batch in (range(2), range(2, 4)):
        await asyncio.gather(*map(handle, batch))
    return generations


# A stream of anyio that nobody closes.
@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")
@pytest.mark.parametrize("make", [make_asyncio, make_anyio, make_janus])
def test_a_task_streams_to_the_requests_of_its_loop(finished: Finished, make: Any) -> None:
    async def main() -> list[Generation]:
        sender, receiver = make()
        async with working(generate_alone(receiver)):
            return await stream(make, lambda job: put(sender, job))

    expect_all_steps(finished, asyncio.run(main()))


@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")
@pytest.mark.parametrize("make", [make_asyncio, make_anyio, make_janus])
def test_a_thread_streams_to_the_requests_of_a_loop(finished: Finished, make: Any) -> None:
    jobs: queue.Queue[Any] = queue.Queue()

    async def main() -> list[Generation]:
        loop = asyncio.get_running_loop()

        def send(reply: Any, token: Any) -> None:
            loop.call_soon_threadsafe(getattr(reply, "put_nowait", None) or reply.send_nowait, token)

        async def send_job(job: Generation) -> None:
            jobs.put(job)

        engine = loop.run_in_executor(None, run_engine_thread, jobs, send)
        generations = await stream(make, send_job)
        jobs.put(None)
        await engine
        return generations

    expect_all_steps(finished, asyncio.run(main()))


@pytest.mark.parametrize("make", [asyncio.Event, anyio.Event])
@pytest.mark.parametrize("size", [0, 10])
def test_a_job_has_an_event_of_its_loop(finished: Finished, make: Any, size: int) -> None:
    async def main() -> None:
        send, receive = anyio.create_memory_object_stream[Any](size)

        async def serve() -> None:
            async for name, event in receive:
                await asyncio.sleep(0.001)
                work(name)
                event.set()

        async def handle(name: str) -> None:
            with request(name):
                event = make()
                await send.send((name, event))
                await event.wait()

        worker = asyncio.create_task(serve())
        await asyncio.gather(*map(handle, "abc"))
        send.close()
        await worker
        receive.close()

    asyncio.run(main())

    assert found(finished) == alone("abc")


async def await_future(future: asyncio.Future[Any]) -> None:
    await future


async def await_with_timeout(future: asyncio.Future[Any]) -> None:
    await asyncio.wait_for(future, 30)


async def await_with_time(future: asyncio.Future[Any]) -> None:
    async with asyncio.timeout(30):
        await future


async def ask_by_number(jobs: Any, pending: dict[str, Any], wait: Callable[[Any], Any]) -> None:
    """Run four requests, two at once, whose jobs have the numbers of their futures."""

    async def handle(name: str) -> None:
        with request(name):
            future = pending[name] = asyncio.get_running_loop().create_future()
            jobs.put_nowait((name, "data"))
            await wait(future)

    for names in ("ab", "cd"):
        await asyncio.gather(*map(handle, names))


def set_by_number(pending: dict[str, Any], names: list[str]) -> None:
    for name in names:
        pending.pop(name).set_result(None)


async def numbered_for_a_task(pending: dict[str, Any], wait: Any, size: int) -> None:
    jobs: asyncio.Queue[Any] = asyncio.Queue()

    async def serve_jobs() -> None:
        while True:
            names = [(await jobs.get())[0] for _ in range(size)]
            await asyncio.sleep(0.001)
            work(*names)
            set_by_number(pending, names)

    async with working(serve_jobs()):
        await ask_by_number(jobs, pending, wait)


async def numbered_for_a_thread(pending: dict[str, Any], wait: Any, size: int) -> None:
    jobs: queue.Queue[Any] = queue.Queue()
    loop = asyncio.get_running_loop()

    def run_jobs() -> None:
        while (job := jobs.get()) is not None:
            names = [job[0], *(jobs.get()[0] for _ in range(size - 1))]
            work(*names)
            loop.call_soon_threadsafe(set_by_number, pending, names)

    worker = loop.run_in_executor(None, run_jobs)
    await ask_by_number(jobs, pending, wait)
    jobs.put_nowait(None)
    await worker


@pytest.mark.parametrize("run", [numbered_for_a_task, numbered_for_a_thread])
@pytest.mark.parametrize("wait", [await_future, await_with_timeout, await_with_time])
@pytest.mark.parametrize("size", [1, 2])
def test_a_job_has_the_number_of_a_future(finished: Finished, run: Any, wait: Any, size: int) -> None:
    asyncio.run(run({}, wait, size))

    batches = {name: names for names in (("ab", "cd") if size == 2 else "abcd") for name in names}
    assert found(finished) == {name: ({"queue", "for_" + "_".join(names)}, size) for name, names in batches.items()}


@pytest.mark.parametrize("make", [threading.Event, Future, queue.Queue])
def test_a_job_has_the_number_of_what_a_thread_waits_for(finished: Finished, make: Any) -> None:
    pending: dict[str, Any] = {}
    jobs: queue.Queue[Any] = queue.PriorityQueue()

    def loop() -> None:
        while (job := jobs.get()) != ("stop",):
            work(*job)
            answer(pending.pop(job[0]))

    def handle(name: str) -> None:
        with request(name):
            reply = pending[name] = make()
            jobs.put((name,))
            wait_for(reply)

    with in_a_thread(loop), ThreadPoolExecutor(2) as pool:
        list(pool.map(handle, "abcd"))
        jobs.put(("stop",))

    assert found(finished) == alone("abcd")


def test_a_pool_of_connections_is_no_queue_of_jobs(finished: Finished) -> None:
    pool: queue.LifoQueue[Any] = queue.LifoQueue()
    for name in "abc":
        with request(name):
            pool.put(["connection"])
        with request(name + "_takes"):
            pool.get()
    assert queues._pools[id(pool)]() is pool  # pyright: ignore[reportPrivateUsage]
    with request("later"):
        pool.put(["connection"])

    assert all(stages == set() for stages, _ in found(finished).values())
    assert "@late" not in finished[-1][0]


UNDER_GEVENT = """
from stagelens.instrumentors import recorder
from stagelens.instrumentors.libraries.queues import QueueInstrumentor
QueueInstrumentor().instrument()
from gevent import monkey
monkey.patch_all()
import pickle, queue, threading
import gevent.event, gevent.queue
from stagelens.instrumentors.api import request, stage
from stagelens.instrumentors.tickets import request_tickets
from tests.instrumentors.libraries.drivers import instrumenting
recorder.background.wake_at = 1000
ours = gevent.queue.PriorityQueue
assert isinstance(ours(), gevent.queue.Queue)
assert not hasattr(ours(), "__dict__")
assert pickle.loads(pickle.dumps(ours)) is ours

def answer(reply):
    reply.put(1) if hasattr(reply, "put") else reply.set()

def work(jobs):
    while True:
        _, name, reply = jobs.get()
        with stage(f"for_{name}"):
            gevent.sleep(0.001)
        answer(reply)

def run(jobs, name, reply):
    with request(name):
        jobs.put((1, name, reply))
        reply.wait() if hasattr(reply, "wait") else reply.get()

# Recent versions replace those of `queue` by their own.
for jobs in (queue.PriorityQueue(), ours()):
    gevent.spawn(work, jobs)
    for make in (threading.Event, gevent.event.AsyncResult, queue.Queue):
        gevent.joinall([gevent.spawn(run, jobs, name, make()) for name in "ab"])
# A request does not wait for this one.
with request("c"):
    jobs.put((1, "c", threading.Event()))
gevent.sleep(0.01)
for marks, *_, route, _, _, _ in recorder.pending:
    keys = request_tickets(marks).marks()[::3]
    print(route, *sorted({key for key in keys if "@" not in key}))
QueueInstrumentor().uninstrument()
assert gevent.queue.PriorityQueue is ours.__base__
"""


def test_a_queue_of_gevent_is_followed_although_it_is_written_in_c() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", UNDER_GEVENT], check=True, capture_output=True, text=True
    )

    assert done.stdout.splitlines() == ["a for_a queue", "b for_b queue"] * 6 + ["c"]
