"""Probes: a function with one is the same function, and reports its start and its end."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import json
import subprocess
import sys
import traceback
import types
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest

from stagelens.instrumentors.instrumentor import Probed
from stagelens.instrumentors.probes import Probe, probed

PROGRAM = Path(__file__).parent / "everything_probed.py"


class Log:
    def __init__(self) -> None:
        self.noted: list[Any] = []

    def probe(self, parameters: int = 0) -> Probe:
        return Probe(self._enter, self._leave, self._failed, parameters)

    def _enter(self, *args: Any) -> Token:
        self.noted.append(("enter", *args))
        return Token(self.noted)

    def _leave(self, token: Token, value: Any) -> None:
        self.noted.append(("leave", token.noted is self.noted, value))

    def _failed(self, token: Token, error: BaseException) -> None:
        self.noted.append(("failed", token.noted is self.noted, type(error)))


class Token:
    def __init__(self, noted: list[Any]) -> None:
        self.noted = noted

    def __del__(self) -> None:
        self.noted.append("end")


@pytest.fixture
def log() -> Log:
    return Log()


def with_probe(function: Any, probe: Probe) -> Any:
    function.__code__ = probed(function.__code__, probe)
    return function


def test_what_a_function_takes_returns_and_raises_is_recorded(log: Log) -> None:
    def half(value: float, by: int = 2) -> float:
        while True:
            inner = [value / by for _ in range(1)]
            if inner:
                return inner[0]

    with_probe(half, log.probe(parameters=2))

    assert half(3.0) == 1.5
    with pytest.raises(ZeroDivisionError):
        half(1.0, 0)
    with pytest.raises(TypeError):
        half()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    assert log.noted == [
        *(("enter", 3.0, 2), ("leave", True, 1.5), "end"),
        *(("enter", 1.0, 0), ("failed", True, ZeroDivisionError), "end"),
    ]


@pytest.mark.parametrize("hidden", [False, True])
def test_a_function_that_was_wrapped_before_gives_its_arguments_by_name(log: Log, hidden: bool) -> None:
    def infer(model: str, inputs: int, version: str = "1", outputs: int = 0) -> None: ...

    def wrapper(*args: Any, **options: Any) -> None:
        infer(*args, **options)

    call = Probed(log.probe(parameters=3))(wrapper if hidden else functools.wraps(infer)(wrapper))
    call("m", 2, outputs=3)
    call(inputs=2, model="m", version="4")
    call("m", 2, "4", 3)
    entered = [noted[1:] for noted in log.noted if noted[0] == "enter"]

    assert entered == (
        [("m", 2, None), (None, None, None), ("m", 2, "4")] if hidden else [("m", 2, "1"), ("m", 2, "4"), ("m", 2, "4")]
    )


def test_a_coroutine_is_recorded_from_its_first_step_to_its_end(log: Log) -> None:
    async def work(how: str) -> str:
        if how == "fails at once":
            raise ValueError
        async with asyncio.Lock():
            await asyncio.sleep(3600 if how == "waits" else 0)
            if how == "fails":
                raise ValueError
            return how

    with_probe(work, log.probe())

    async def main() -> None:
        assert await work("returns") == "returns"
        for how in ("fails at once", "fails"):
            with pytest.raises(ValueError):  # noqa: PT011 - it has no message
                await work(how)
        task = asyncio.create_task(work("waits"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())

    assert log.noted == [
        *(("enter",), ("leave", True, "returns"), "end"),
        *(2 * (("enter",), ("failed", True, ValueError), "end")),
        *(("enter",), ("failed", True, asyncio.CancelledError), "end"),
    ]
    log.noted.clear()
    work("never").close()
    assert log.noted == []

    async def waits() -> None:
        await asyncio.sleep(0)

    with_probe(waits, log.probe())
    waiting = waits()
    waiting.send(None)
    waiting.close()
    assert log.noted == [("enter",), ("failed", True, GeneratorExit), "end"]


def test_the_caller_sees_the_same_function_and_no_frame_of_ours() -> None:
    def asks(how: str) -> Any:
        if how == "warn":
            warnings.warn("look here", stacklevel=2)
        return inspect.stack()[1].function if how == "caller" else 1 / int(how == "")

    here = "test_the_caller_sees_the_same_function_and_no_frame_of_ours"
    before = inspect.signature(asks), inspect.getsource(asks), asks.__name__, asks.__qualname__, vars(asks).copy()
    same = with_probe(asks, Log().probe(parameters=1))

    assert same is asks
    assert before == (inspect.signature(asks), inspect.getsource(asks), asks.__name__, asks.__qualname__, vars(asks))
    assert asks("caller") == here
    with pytest.raises(ZeroDivisionError) as raised:
        asks("fail")
    lines = traceback.extract_tb(raised.value.__traceback__)
    assert [line.name for line in lines] == [here, "asks"]
    assert lines[-1].line == 'return inspect.stack()[1].function if how == "caller" else 1 / int(how == "")'
    with pytest.warns(UserWarning, match="look here") as warned, pytest.raises(ZeroDivisionError):
        asks("warn")
    source, first = inspect.getsourcelines(test_the_caller_sees_the_same_function_and_no_frame_of_ours)
    assert warned[0].filename == __file__
    assert source[warned[0].lineno - first].strip() == 'asks("warn")'


def test_a_debugger_stops_at_the_same_lines() -> None:
    def counts(most: int) -> int:
        found = 0
        while found < most:
            found += 1
        return found

    def steps() -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []

        def trace(frame: types.FrameType, event: str, _: Any) -> Any:
            if frame.f_code.co_name == "counts":
                seen.append((event, frame.f_lineno))
            return trace

        outer = sys.gettrace()
        sys.settrace(trace)
        counts(3)
        sys.settrace(outer)
        return seen

    before = steps()
    with_probe(counts, Probe(lambda: None))

    assert steps() == before


def test_a_function_has_a_line_while_its_probe_runs() -> None:
    def lines() -> int | None:
        return sys._getframe(2).f_lineno  # pyright: ignore[reportPrivateUsage]

    found: list[int | None] = []
    probe = Probe(lambda: found.append(lines()), lambda *_: found.append(lines()))

    def double(value: int) -> int:
        return 2 * value

    first = double.__code__.co_firstlineno

    assert with_probe(double, probe)(1) == 2
    assert found == [first + 1, first + 1]


class Big:
    """An argument whose end can be watched."""


def test_arguments_and_exceptions_end_when_they_do_without_a_probe() -> None:
    def deletes(value: Any) -> bool:
        end = weakref.ref(value)
        del value
        return end() is None

    def fails(value: Any) -> None:
        raise ValueError(weakref.ref(value))

    for function in (deletes, fails):
        with_probe(function, Probe(lambda: None, lambda *_: None, lambda *_: None))
    gc.collect()
    gc.disable()
    try:
        deleted = deletes(Big())
        watched: list[Any] = []
        try:
            fails(Big())
        except ValueError as error:
            watched += error.args
        assert (deleted, watched[0]()) == (True, None)
    finally:
        gc.enable()


def test_the_tests_of_python_pass_with_a_probe_in_every_function() -> None:
    pytest.importorskip("test.test_json", reason="this Python came without its tests")
    completed = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=False)

    assert completed.returncode == 0, completed.stderr[-3000:]
    counted = json.loads(completed.stdout)
    assert counted["entered"] == counted["ended"] == counted["left"] + counted["failed"]
    assert counted["entered"] > 500_000
    assert counted["functions"] > 500


LOOKS_AT_ITS_CALLER = """
import io, sys, warnings
import stagelens
stagelens.instrument()
import numpy
from pydantic import BaseModel, TypeAdapter

def local():
    class Outer(BaseModel):
        inner: "Inner"
    class Inner(BaseModel):
        x: int
    return Outer.model_validate({"inner": {"x": 1}}).inner.x, TypeAdapter(Inner).validate_json('{"x": 2}').x

with warnings.catch_warnings(record=True) as warned:
    for read in (numpy.genfromtxt, numpy.loadtxt):
        read(io.StringIO(""))
        read(io.StringIO(""))
print(local(), [(each.filename, each.lineno) for each in warned])
"""


def test_libraries_that_look_at_their_caller_find_it() -> None:
    code = [sys.executable, "-W", "default", "-c", LOOKS_AT_ITS_CALLER]
    completed = subprocess.run(code, capture_output=True, text=True, check=False)

    assert completed.stderr == ""
    assert completed.stdout == f"{(1, 2)} {[('<string>', line) for line in (17, 18, 17, 18)]}\n"
