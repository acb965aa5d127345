"""Batchers of any kind against a reference: a stage belongs to the requests whose jobs the worker held, unanswered, when it ran."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import janus
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stagelens.instrumentors import recorder
from stagelens.instrumentors.api import request, stage
from stagelens.instrumentors.libraries.executors import ExecutorInstrumentor
from stagelens.instrumentors.libraries.queues import QueueInstrumentor
from stagelens.instrumentors.request_marks import complete, is_ready, read_marks
from tests.instrumentors.libraries.drivers import instrumenting

INSTRUMENTOR = QueueInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented", "executors")
# The same fixtures serve all examples.
SHARED = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def executors() -> Iterator[None]:
    """Instrument executors, which pass the work of a worker on."""
    with instrumenting(ExecutorInstrumentor()):
        yield


Queue = asyncio.Queue[Any] | janus.AsyncQueue[Any]


class Style(NamedTuple):
    """How a worker treats a batch.

    Args:
        size: Maximum size of the batch.
        forms: Whether it waits for the batch to become full, instead of taking what is there.
        elsewhere: Where it works: "here", in a "task" while it takes the next batch, or in an "executor".
        answers: Order in which it answers, as sort keys of the positions in the batch.
        steps_between: Whether it works between two answers.
        passes_on: Whether it puts the jobs into the queue of the last worker, instead of answering.
    """

    size: int
    forms: bool
    elsewhere: str
    answers: tuple[int, ...]
    steps_between: bool
    passes_on: bool


STYLES = st.builds(
    Style,
    size=st.integers(1, 4),
    forms=st.booleans(),
    elsewhere=st.sampled_from(["here", "task", "executor"]),
    answers=st.tuples(*[st.integers(0, 9)] * 4),
    steps_between=st.booleans(),
    passes_on=st.booleans(),
)
# The first line of each request: how often it yields before its job, and whether it is cancelled before its answer.
REQUESTS = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=8)


class Reference:
    """Which steps a worker did for which request, by the code that did them."""

    def __init__(self) -> None:
        self.steps: dict[str, set[str]] = defaultdict(set)
        self.tasks: list[asyncio.Task[None]] = []
        self._count = 0
        self._lock = threading.Lock()

    def step(self, jobs: Sequence[tuple[str, Any]]) -> str:
        """Note a step for the jobs that are not answered, and return the name of its stage."""
        with self._lock:
            self._count += 1
            name = f"step_{self._count}"
        for owner, reply in jobs:
            if not reply.done():
                self.steps[owner].add(name)
        return name


def recorded() -> dict[str, set[str]]:
    results: dict[str, set[str]] = {}
    for marks, _, end, route, *_ in recorder.pending:
        assert is_ready(marks)
        complete(marks)
        results[route] = {key for key, t0, _ in read_marks(marks)[1] if t0 < end and key.startswith("step")}
    recorder.pending.clear()
    return results


async def answer(reference: Reference, batch: list[Any], style: Style) -> None:
    """Answer in the order of the style, with a step before each answer if it says so."""
    left = [job for _, job in sorted(zip(style.answers, batch, strict=False), key=lambda pair: pair[0])]
    while left:
        if style.steps_between:
            with stage(reference.step(left)):
                await asyncio.sleep(0)
        _, future = left.pop(0)
        if not future.done():
            future.set_result(None)
        # Until the worker yields, the request goes on waiting for the event loop.
        await asyncio.sleep(0)


async def process(reference: Reference, batch: list[Any], style: Style, following: Queue | None) -> None:
    """Work on a batch, then pass it on or answer."""
    if style.elsewhere == "executor":

        def compute(name: str) -> None:
            with stage(name):
                pass

        await asyncio.get_running_loop().run_in_executor(None, compute, reference.step(batch))
    else:
        with stage(reference.step(batch)):
            await asyncio.sleep(0)
    if following is None:
        await answer(reference, batch, style)
    else:
        for job in batch:
            following.put_nowait(job)


async def work(reference: Reference, jobs: Queue, style: Style, following: Queue | None) -> None:
    while True:
        batch = [await jobs.get()]
        if style.forms:
            try:
                while len(batch) < style.size:
                    batch.append(await asyncio.wait_for(jobs.get(), 0.002))
            except TimeoutError:
                pass
        else:
            while len(batch) < style.size and not jobs.empty():
                batch.append(jobs.get_nowait())
        if style.elsewhere == "task":
            reference.tasks.append(asyncio.create_task(process(reference, batch, style, following)))
        else:
            await process(reference, batch, style, following)


async def ask(jobs: Queue, name: str, yields: int, *, cancelled: bool) -> None:
    """Be a request, that gives up soon if it is to be cancelled."""
    with request(name):
        for _ in range(yields):
            await asyncio.sleep(0)
        future = asyncio.get_running_loop().create_future()
        await jobs.put((name, future))
        if not cancelled:
            await future
            return
        for _ in range(yields):
            await asyncio.sleep(0)
        future.cancel()


ALONE = Style(1, forms=False, elsewhere="here", answers=(0, 0, 0, 0), steps_between=False, passes_on=False)


@SHARED
@given(styles=st.lists(STYLES, min_size=1, max_size=3), last=STYLES, requests=REQUESTS, of_janus=st.booleans())
# The first request of a batch is cancelled between the next `get` and the start of its task, in Python 3.11.
@example(
    styles=[ALONE, ALONE._replace(size=2, forms=True), ALONE],
    last=ALONE,
    requests=[(0, False), (2, False), (3, False), (1, True)],
    of_janus=False,
)
def test_tasks(styles: list[Style], last: Style, requests: list[tuple[int, bool]], *, of_janus: bool) -> None:
    """Workers that share a queue, and one behind them."""
    reference = Reference()

    async def main() -> None:
        first, second = (janus.Queue[Any]().async_q if of_janus else asyncio.Queue[Any]() for _ in range(2))
        workers = [
            asyncio.create_task(work(reference, first, style, second if style.passes_on else None)) for style in styles
        ]
        workers.append(asyncio.create_task(work(reference, second, last, None)))
        await asyncio.gather(
            *(ask(first, f"request_{n}", each[0], cancelled=each[1]) for n, each in enumerate(requests))
        )
        # Python 3.11 forgets a cancellation where `wait_for` has just got an item.
        while not all(worker.done() for worker in workers):
            for worker in workers:
                worker.cancel()
            await asyncio.sleep(0)
        # The rest of the work on cancelled requests.
        await asyncio.gather(*reference.tasks)

    asyncio.run(main())
    found = recorded()

    assert len(found) == len(requests)
    for number, (_, cancelled) in enumerate(requests):
        name = f"request_{number}"
        assert found[name] <= reference.steps[name]
        # A step may start while the request gives up.
        assert cancelled or found[name] == reference.steps[name]


def take_batch(jobs: queue.Queue[Any], style: Style) -> list[Any]:
    """Take a batch; None in it asks the worker to stop."""
    batch = [jobs.get()]
    try:
        while batch[-1] is not None and len(batch) < style.size:
            batch.append(jobs.get(timeout=0.002) if style.forms else jobs.get_nowait())
    except queue.Empty:
        pass
    return batch


def work_in_a_thread(reference: Reference, jobs: queue.Queue[Any], style: Style, set_result: Any) -> None:
    stopped = False
    while not stopped:
        taken = take_batch(jobs, style)
        stopped = taken[-1] is None
        batch = taken[:-1] if stopped else taken
        with stage(reference.step(batch)):
            pass
        for position, (_, reply) in enumerate(batch):
            if style.steps_between:
                with stage(reference.step(batch[position:])):
                    pass
            set_result(reply)


def handle_in_threads(jobs: queue.Queue[Any], count: int) -> None:
    def handle(number: int) -> None:
        with request(f"request_{number}"):
            future: Future[None] = Future()
            jobs.put((f"request_{number}", future))
            future.result(30)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(handle, range(count)))


async def handle_in_tasks(jobs: queue.Queue[Any], count: int) -> None:
    """Run *count* requests in the tasks of this event loop."""

    async def handle(number: int) -> None:
        with request(f"request_{number}"):
            future = asyncio.get_running_loop().create_future()
            jobs.put((f"request_{number}", future))
            await future

    await asyncio.gather(*map(handle, range(count)))


@SHARED
@given(styles=st.lists(STYLES, min_size=1, max_size=3), count=st.integers(1, 6), in_tasks=st.booleans())
def test_threads(styles: list[Style], count: int, *, in_tasks: bool) -> None:
    """Threads that share a queue, for requests in threads or in an event loop."""
    reference = Reference()
    jobs: queue.Queue[Any] = queue.Queue()
    with asyncio.Runner() as runner:
        loop = runner.get_loop()

        def set_result(reply: Any) -> None:
            if in_tasks:
                loop.call_soon_threadsafe(reply.set_result, None)
            else:
                reply.set_result(None)

        workers = [
            threading.Thread(target=work_in_a_thread, args=(reference, jobs, style, set_result)) for style in styles
        ]
        for worker in workers:
            worker.start()
        if in_tasks:
            runner.run(handle_in_tasks(jobs, count))
        else:
            handle_in_threads(jobs, count)
        for _ in workers:
            jobs.put(None)
        for worker in workers:
            worker.join(30)

    assert recorded() == {f"request_{n}": reference.steps[f"request_{n}"] for n in range(count)}
