"""Calls each wrapper around a function that stands in for the original, and tells what a caller would notice.

Its arguments, result and exception are objects whose end can be watched: without a garbage collection they have to end when
the last variable of the caller ends.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from calls import ways

import stagelens


class Anything:
    """An argument with every attribute and method, each of which is another one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
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
    """A function with the kind and the signature of *function*, which returns or raises what is in its place.

    Args:
        function: The original.
        raises: Whether it raises.
    """

    def __init__(self, function: Any, *, raises: bool) -> None:
        self.place: list[Any] = [StandInError("stand-in") if raises else Anything()]
        place = self.place

        def stand_in(*_: Any, **__: Any) -> Any:
            if raises:
                raise place[0]
            return place[0]

        async def stand_in_async(*_: Any, **__: Any) -> Any:
            return stand_in()

        chosen = stand_in_async if inspect.iscoroutinefunction(function) else stand_in
        self.function: Any = functools.update_wrapper(chosen, function)
        del self.function.__wrapped__
        with contextlib.suppress(ValueError, TypeError):
            self.function.__signature__ = inspect.signature(function)


def noticed(function: Any, make: Callable[[Any], Any]) -> Iterator[str]:
    """Yield what is another with the wrapper that *make* makes for *function*, outside of requests and in one."""
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
                    yield from _noticed(wrapper, original.place, len(args), list(options))


def _noticed(wrapper: Any, place: list[Any], count: int, names: list[str]) -> Iterator[str]:
    given: list[Any] = [Anything() for _ in range(count + len(names))]
    ends = [weakref.ref(each) for each in (*given, place[0])]
    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            if inspect.iscoroutinefunction(wrapper):
                wrapper(*given[:count], **dict(zip(names, given[count:], strict=True))).close()
            what = _outcome(wrapper, place, given[:count], dict(zip(names, given[count:], strict=True)))
        given.clear()
        place.clear()
        if what:
            yield what
        if any(end() is not None for end in ends):
            yield "keeps what it was given, its result or its exception"
        yield from (str(each.message) for each in warned)
    finally:
        gc.enable()


def _outcome(wrapper: Any, place: list[Any], args: list[Any], options: dict[str, Any]) -> str:
    """Return what is wrong with the result or the exception of a call, "" for nothing."""
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
    except Exception as error:  # noqa: BLE001 - whatever it is, the original did not raise it
        return f"raises {error!r} of its own"
    if isinstance(place[0], StandInError):
        return "hides an exception"
    return "" if result is place[0] else "returns another object"
