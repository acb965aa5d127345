"""Decorating generators: each step runs inside a context manager of its own, and none is open while it is suspended.

Whoever consumes a generator may resume it in another task, thread or context, late, or never: a context variable that is
set across a `yield` leaks into the consumer, and a clock that runs across it times the consumer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

# Makes the context manager of one step.
Step: TypeAlias = Callable[[], AbstractContextManager[object]]
# Opened when the generator first runs, closed when it ends in whatever way.
Opened: TypeAlias = Callable[[], AbstractContextManager[Step]]


def stepped(function: Callable[..., Generator[Any, Any, Any]], opened: Opened) -> Callable[..., Any]:
    """Return a generator function like *function*; `send`, `throw`, `close` and the return value pass through."""

    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with opened() as step:
            return (yield from _Steps(function(*args, **kwargs), step))

    return call


class _Steps(Generator[Any, Any, Any]):
    def __init__(self, inner: Generator[Any, Any, Any], step: Step) -> None:
        self._inner = inner
        self._step = step

    def send(self, value: Any, /) -> Any:
        with self._step():
            return self._inner.send(value)

    def throw(self, error: Any, value: Any = None, traceback: Any = None, /) -> Any:
        # `yield from` hands over an exception, the older signature of three arguments is what it once was.
        if value is None and traceback is None:
            with self._step():
                return self._inner.throw(error)
        with self._step():
            return self._inner.throw(error, value, traceback)

    def close(self) -> None:
        with self._step():
            self._inner.close()


def async_stepped(function: Callable[..., AsyncGenerator[Any, Any]], opened: Opened) -> Callable[..., Any]:
    """Return an async generator function like *function*; `asend`, `athrow` and `aclose` pass through."""

    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with opened() as step:
            inner = function(*args, **kwargs)
            advance = inner.asend(None)
            while True:
                try:
                    with step():
                        item = await advance
                except StopAsyncIteration:
                    return
                try:
                    sent = yield item
                except GeneratorExit:
                    with step():
                        await inner.aclose()
                    raise
                except BaseException as error:
                    advance = inner.athrow(error)
                else:
                    advance = inner.asend(sent)

    return call
