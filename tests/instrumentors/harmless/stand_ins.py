"""Calls each wrapper around a function that stands in for the original, and tells what a caller would notice.

Its arguments, result and exception are objects whose end can be watched: without a garbage collection they have to end when
the last variable of the caller ends.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from calls import ways

import stagelens


class Anything:
    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_stagelens", "stagelens")):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return Anything()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __contains__(self, _: object) -> bool:
        return False

    def __getitem__(self, _: object) -> Any:
        return ""

    def __setitem__(self, _: object, __: object) -> None: ...

    def __bool__(self) -> bool:
        return False


class StandInError(Exception):
    """What an original raises."""


class _Original:
    def __init__(self, function: Any, *, raises: bool) -> None:
        self.place: list[Any] = [StandInError("stand-in") if raises else Anything()]
        self.called = False
        place = self.place

        def stand_in(*_: Any, **__: Any) -> Any:
            self.called = True
            if raises:
                raise place[0]
            return place[0]

        async def stand_in_async(*_: Any, **__: Any) -> Any:
            return stand_in()

        chosen = stand_in_async if inspect.iscoroutinefunction(function) else stand_in
        self.function: Any = chosen
        self.function.__name__ = self.function.__qualname__ = getattr(function, "__name__", "stand_in")
        # Such as `cache_clear` of a cached function.
        for name in dir(function):
            if not name.startswith("_"):
                setattr(self.function, name, Anything())
        with contextlib.suppress(ValueError, TypeError):
            self.function.__signature__ = inspect.signature(function)


def noticed(function: Any, make: Callable[[Any], Any]) -> Iterator[str]:
    try:
        args, options = ways(inspect.signature(function))["by position"]
    except (ValueError, TypeError):
        args, options = [None], {}
    for raises in (False, True):
        for where in (contextlib.nullcontext(), stagelens.request("stand-in")):
            original = _Original(function, raises=raises)
            wrapper = make(original.function)
            if inspect.isroutine(wrapper):
                with where:
                    yield from _noticed(wrapper, original, len(args), list(options))


def _noticed(wrapper: Any, original: _Original, count: int, names: list[str]) -> Iterator[str]:
    place = original.place
    given: list[Any] = [Anything() for _ in range(count + len(names))]
    ends = [weakref.ref(each) for each in (*given, place[0])]
    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            if inspect.iscoroutinefunction(wrapper):
                wrapper(*given[:count], **dict(zip(names, given[count:], strict=True))).close()
            what = _outcome(wrapper, original, given[:count], dict(zip(names, given[count:], strict=True)))
        given.clear()
        place.clear()
        if what:
            yield what
        if any(end() is not None for end in ends):
            yield "keeps what it was given, its result or its exception"
        yield from (str(each.message) for each in warned if "never awaited" in str(each.message))
    finally:
        gc.enable()


def _outcome(wrapper: Any, original: _Original, args: list[Any], options: dict[str, Any]) -> str:
    """Return what is wrong with the result or the exception of a call, "" for nothing."""
    place = original.place
    try:
        result = wrapper(*args, **options)
        if inspect.iscoroutine(result):
            try:
                result.send(None)
                result.close()
            except StopIteration as stop:
                result = stop.value
    except StandInError as error:
        changed = error is not place[0] or error.args != ("stand-in",) or error.__cause__ or error.__context__
        return "changes an exception" if changed or hasattr(error, "__notes__") else ""
    except (RuntimeError, TypeError, ValueError):
        # A wrapper may calculate with what a stand-in for an argument is not.
        return ""
    except Exception as error:  # noqa: BLE001 - whatever it is, the original did not raise it
        return f"raises {error!r} of its own"
    # A generator or a context manager calls the original later; an alias of another wrapper does not call it at all.
    later = (AsyncGenerator, Generator, AbstractContextManager, AbstractAsyncContextManager)
    if not original.called or isinstance(result, later):
        return ""
    if isinstance(place[0], StandInError):
        return "hides an exception"
    return "" if result is place[0] or result is None else f"returns a {type(result).__name__}"
