"""Where a request goes and where it must not: tasks, threads, callbacks, generators, recursion, and whatever order they end in."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import threading
from collections.abc import AsyncGenerator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagelens.instrumentors import records
from stagelens.instrumentors.api import request, stage
from stagelens.instrumentors.libraries.executors import ExecutorInstrumentor
from tests.instrumentors.conftest import Finished

INSTRUMENTOR = ExecutorInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")

# One step of a program: what kind of place its parts run in, its stage, its parts.
Step = tuple[str, int, list[Any]]
PLACES = ("here", "task", "to_thread", "executor", "thread", "callback", "generator", "child", "raise", "cancel")


def stages(finished: Finished) -> dict[str, list[str]]:
    return {
        route: [key for key in marks[3::3] if key[0] != "@" and not key.startswith("queue")]
        for marks, _, _, route, *_ in finished
    }


def program(parts: st.SearchStrategy[list[Step]]) -> st.SearchStrategy[list[Step]]:
    return st.lists(st.tuples(st.sampled_from(PLACES), st.integers(0, 3), parts), min_size=1, max_size=3)


programs = program(st.just([]) | program(st.just([]) | program(st.just([]))))


class Service:
    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    async def run(self, name: str, steps: list[Step]) -> None:
        async with request(name):
            await self._steps(name, steps)

    async def _steps(self, name: str, steps: list[Step]) -> None:
        for place, number, parts in steps:
            with stage(f"{name}-{number}"):
                await asyncio.sleep(0)
                await getattr(self, f"_{place}")(name, parts)

    def _in_thread(self, name: str, parts: list[Step]) -> None:
        asyncio.run(self._steps(name, parts))

    async def _here(self, name: str, parts: list[Step]) -> None:
        await self._steps(name, parts)

    async def _task(self, name: str, parts: list[Step]) -> None:
        await asyncio.gather(self._steps(name, parts), asyncio.create_task(asyncio.sleep(0)))

    async def _to_thread(self, name: str, parts: list[Step]) -> None:
        await asyncio.to_thread(self._in_thread, name, parts)

    async def _executor(self, name: str, parts: list[Step]) -> None:
        # A pool of its own inside the shared one: jobs that wait for jobs of the same pool wait for ever.
        with ThreadPoolExecutor(1) as pool:
            await asyncio.get_running_loop().run_in_executor(pool, self._in_thread, name, parts)
        await asyncio.wrap_future(self._pool.submit(stage(f"{name}-0")(int)))

    async def _thread(self, name: str, parts: list[Step]) -> None:
        thread = threading.Thread(target=self._in_thread, args=(name, parts))
        thread.start()
        while thread.is_alive():  # noqa: ASYNC110 - a thread has no event to await
            await asyncio.sleep(0.001)

    async def _callback(self, name: str, parts: list[Step]) -> None:
        done = asyncio.Event()
        asyncio.get_running_loop().call_soon(stage(f"{name}-0")(done.set))
        await done.wait()
        await self._steps(name, parts)

    async def _generator(self, name: str, parts: list[Step]) -> None:
        @stage(f"{name}-1")
        async def stream() -> AsyncGenerator[int]:
            yield 1
            await self._steps(name, parts)
            yield 2

        running = stream()
        await anext(running)
        await anext(running)
        await running.aclose()

    async def _child(self, name: str, parts: list[Step]) -> None:
        async with request(f"{name}-child"):
            await self._steps(name, parts)

    async def _raise(self, name: str, parts: list[Step]) -> None:
        @stage(f"{name}-2")
        async def fails() -> None:
            await self._steps(name, parts)
            raise LookupError

        with pytest.raises(LookupError):
            await fails()

    async def _cancel(self, name: str, parts: list[Step]) -> None:
        task = asyncio.ensure_future(asyncio.Event().wait())
        await self._steps(name, parts)
        task.cancel()
        with pytest.raises(asyncio.CancelledError), stage(f"{name}-3"):
            await task


def expected(name: str, steps: list[Step]) -> Iterator[str]:
    extra = {"callback": ["0"], "executor": ["0"], "generator": ["1", "1", "1"], "raise": ["2"], "cancel": ["3"]}
    for place, number, parts in steps:
        yield f"{name}-{number}"
        yield from (f"{name}-{more}" for more in extra.get(place, ()))
        yield from expected(name, parts)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(programs, min_size=1, max_size=4))
def test_every_stage_is_recorded_on_its_own_request(finished: Finished, requests: list[list[Step]]) -> None:
    finished.clear()

    async def serve() -> None:
        with ThreadPoolExecutor(2) as pool:
            service = Service(pool)
            await asyncio.gather(*(service.run(f"r{number}", steps) for number, steps in enumerate(requests)))

    asyncio.run(serve())

    assert {name: sorted(set(found)) for name, found in stages(finished).items()} == {
        f"r{number}": sorted(set(expected(f"r{number}", steps))) for number, steps in enumerate(requests)
    }
    for name, found in stages(finished).items():
        assert len(found) == len(list(expected(name, requests[int(name[1:])])))
    assert records.current.get() is None


def test_a_recursive_stage_has_an_interval_per_call(finished: Finished) -> None:
    @stage("forward")
    def factorial(number: int) -> int:
        return 1 if number == 0 else number * factorial(number - 1)

    @stage("rerank")
    async def countdown(number: int) -> int:
        await asyncio.sleep(0)
        return 0 if number == 0 else await countdown(number - 1)

    with request("recursive"):
        assert (factorial(5), asyncio.run(countdown(3))) == (120, 0)
    marks = finished.marks()[2:]

    assert finished.stages() == ["forward"] * 6 + ["rerank"] * 4
    assert all(outer[1] <= inner[1] <= inner[2] <= outer[2] for inner, outer in itertools.pairwise(marks[:6]))


def test_a_stage_may_end_in_another_thread_and_context(finished: Finished) -> None:
    with request("handed over"):
        handed = stage("forward")
        handed.__enter__()
        thread = threading.Thread(target=contextvars.Context().run, args=(handed.__exit__,))
        thread.start()
        thread.join(30)

    assert finished.stages() == ["forward"]


def test_a_generator_consumed_in_many_contexts_is_one_request(finished: Finished) -> None:
    @request("stream")
    def stream() -> Generator[int]:
        for number in range(3):
            with stage("forward"):
                pass
            yield number

    running = stream()
    seen = [contextvars.Context().run(next, running)]
    with ThreadPoolExecutor(1) as pool:
        seen.append(pool.submit(next, running).result())

        assert pool.submit(records.current.get).result() is None

    with request("other"):
        seen += list(running)

    assert seen == [0, 1, 2]
    assert records.current.get() is None
    assert stages(finished) == {"stream": ["forward"] * 3, "other": []}


def test_an_abandoned_generator_ends_its_request_when_freed(finished: Finished) -> None:
    @request("stream")
    def stream() -> Generator[int]:
        yield 1
        yield 2

    running = stream()
    next(running)
    with request("other"):
        del running
        gc.collect()

    assert [record[3:5] for record in finished] == [("stream", ""), ("other", "")]


def test_an_abandoned_async_generator_ends_in_a_task_of_the_loop(finished: Finished) -> None:
    closed: list[object] = []

    @request("stream")
    async def stream() -> AsyncGenerator[int]:
        try:
            yield 1
            yield 2
        finally:
            with stage("postprocess"):
                closed.append(asyncio.current_task())

    async def serve() -> asyncio.Task[Any] | None:
        async for _ in stream():
            break
        gc.collect()
        while not closed:  # noqa: ASYNC110 - nobody awaits what the loop closes
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        return asyncio.current_task()

    consumer = asyncio.run(serve())

    assert closed != [consumer]
    assert [record[3:5] for record in finished] == [("stream", "")]
    assert finished.stages() == ["postprocess"]


def test_a_with_around_a_yield_ending_in_another_context_is_counted(finished: Finished) -> None:
    def stream() -> Generator[int]:
        with request("stream"):
            yield 1

    running = stream()
    contextvars.Context().run(next, running)
    running.close()

    assert [record[3:5] for record in finished] == [("stream", "")]
    assert records.current.get() is None
