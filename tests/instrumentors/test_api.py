"""`stagelens.request()` and `stagelens.stage()` in everything they can be put around."""

from __future__ import annotations

import asyncio
import inspect
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any

import pytest

import stagelens
from stagelens.core.stages import OVERHEAD
from stagelens.instrumentors import records
from tests.instrumentors.conftest import Finished, own_times


def test_facts_of_an_inner_request_are_recorded_on_the_outer_one(finished: Finished) -> None:
    with (
        stagelens.request("outer", device="cpu"),
        stagelens.request("inner", model="resnet50", model_version="2", batch=8),
        stagelens.stage("forward"),
    ):
        pass

    assert [record[3] for record in finished] == ["outer"]
    facts = finished.facts()

    assert facts.pop("@child inner")
    assert facts == {"@device": "cpu", "@model": "resnet50", "@model_version": "2", "@batch": 8}
    assert finished.stages() == ["forward"]


def test_a_stage_outside_any_request_records_nothing(finished: Finished) -> None:
    with stagelens.stage("forward"):
        pass

    assert stagelens.stage("forward")(lambda: 7)() == 7
    assert not finished


def test_a_manual_request_has_its_stages_traceparent_kind_and_error(finished: Finished) -> None:
    # No name of a stage is a fact.
    stages = [stagelens.stage(name) for name in ("forward", "@model", "@")]
    with pytest.raises(KeyError), stagelens.request("job", traceparent="00-a-b-01"), stages[0], stages[1], stages[2]:
        raise KeyError

    assert finished.stages() == ["stage", "model", "forward"]
    assert finished.facts() == {"@traceparent": "00-a-b-01"}
    assert finished[0][4:] == ("KeyError", 0, "internal")


@stagelens.stage("forward")
def plain(value: int) -> int:
    """Double."""
    return 2 * value


@stagelens.stage("forward")
async def coroutine(value: int) -> int:
    """Double, later."""
    await asyncio.sleep(0)
    return 2 * value


@stagelens.stage("forward")
def generator(count: int) -> Generator[int, int, str]:
    """Yield what is sent, *count* times."""
    sent = 0
    for _ in range(count):
        sent = yield sent
    return "done"


@stagelens.stage("forward")
async def async_generator(count: int) -> AsyncGenerator[int, int]:
    """Yield what is sent, *count* times."""
    sent = 0
    for _ in range(count):
        sent = yield sent


def test_decorated_functions_preserve_their_metadata() -> None:
    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isgeneratorfunction(generator)
    assert inspect.isasyncgenfunction(async_generator)
    assert (plain.__name__, plain.__doc__) == ("plain", "Double.")
    assert str(inspect.signature(generator)) == "(count: 'int') -> 'Generator[int, int, str]'"


def test_a_decorated_generator_is_timed_step_by_step(finished: Finished) -> None:
    @stagelens.request("stream")
    def handle() -> Generator[int, int, str]:
        return (yield from generator(2))

    stream = handle()

    assert next(stream) == 0
    assert records.current.get() is None

    time.sleep(0.01)

    assert stream.send(5) == 5

    with pytest.raises(StopIteration) as stopped:
        stream.send(6)

    assert stopped.value.value == "done"
    assert finished.stages() == ["forward"] * 3
    assert own_times(finished[0])[OVERHEAD] >= 10_000_000


def test_a_timed_generator_keeps_nothing_of_what_goes_through() -> None:
    @stagelens.stage("decode")
    def one_by_one(first: set[int]) -> Iterator[set[int]]:
        yield first
        del first
        yield set()

    @stagelens.stage("decode")
    async def later(first: set[int]) -> AsyncIterator[set[int]]:
        yield first
        del first
        yield set()

    async def consume(end: weakref.ref[set[int]], items: AsyncIterator[set[int]]) -> bool:
        await anext(items)
        await anext(items)
        return end() is None

    with stagelens.request("generate"):
        for timed in (one_by_one, later):
            item = set[int]()
            end, items = weakref.ref(item), timed(item)
            del item
            if isinstance(items, AsyncIterator):
                assert asyncio.run(consume(end, items))
            else:
                next(items)
                next(items)
                assert end() is None


def test_an_exception_thrown_into_a_generator_reaches_it(finished: Finished) -> None:
    @stagelens.request("stream")
    @stagelens.stage("forward")
    def stream() -> Generator[int]:
        with pytest.raises(LookupError):
            yield 1
        yield 2
        yield 3

    running = stream()
    next(running)

    assert running.throw(LookupError()) == 2
    with pytest.raises(KeyError):
        running.throw(KeyError())
    assert finished[0][4] == "KeyError"


def test_an_async_generator_is_timed_step_by_step(finished: Finished) -> None:
    async def consume() -> list[Any]:
        stream = stagelens.request("stream")(async_generator)(2)
        items: list[Any] = [await anext(stream), records.current.get(), await stream.asend(4)]
        items += [item async for item in stream]
        return items

    assert asyncio.run(consume()) == [0, None, 4]
    assert finished.stages() == ["forward"] * 3


@pytest.mark.parametrize("ending", ["closed", "thrown", "cancelled"])
def test_an_async_generator_that_is_stopped_runs_its_cleanup_and_is_recorded_once(
    finished: Finished, ending: str
) -> None:
    cleaned: list[str] = []

    @stagelens.request("stream")
    @stagelens.stage("forward")
    async def stream() -> AsyncGenerator[int]:
        try:
            yield 1
            await asyncio.sleep(60)
        finally:
            cleaned.append(ending)

    async def consume() -> None:
        running = stream()
        await anext(running)
        if ending == "closed":
            await running.aclose()
        elif ending == "thrown":
            with pytest.raises(LookupError):
                await running.athrow(LookupError())
        else:
            step = asyncio.ensure_future(anext(running))
            await asyncio.sleep(0)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step

    asyncio.run(consume())

    assert cleaned == [ending]
    assert [record[4] for record in finished] == [
        {"closed": "", "thrown": "LookupError", "cancelled": "CancelledError"}[ending]
    ]


def test_an_inner_request_is_part_of_its_starting_outer_request(finished: Finished) -> None:
    @stagelens.request("inner")
    def inner() -> Generator[int]:
        yield 1
        yield 2

    with stagelens.request("first"):
        steps = inner()
        next(steps)
    with stagelens.request("second"):
        assert list(steps) == [2]
    children = {record[3]: [key for key in record[0][::3] if key.startswith("@child")] for record in finished}

    assert children == {"first": ["@child inner"], "second": []}
