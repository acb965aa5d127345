"""Public API for manual timing: `stagelens.request()`, `stagelens.stage()` and `stagelens.attribute()`.

A decorated generator is timed step by step. While it is suspended, no request is attached to the context of the consumer, which may
resume it in another task, thread or context, late, or never. A request around a `yield` is therefore a decorator, not a `with`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from contextvars import Token
from typing import Any, TypeAlias, TypeVar, cast

from ..core.text import to_text
from . import scripts
from .instrumentor import log_failure
from .named_attributes import attribute_name, record_attribute
from .recorder import begin, end, finish
from .records import MAX_MARKS, ROUTE, START, Marks, clock, current, has_capacity

# Returns the context manager of one step.
Step: TypeAlias = Callable[[], AbstractContextManager[object]]
# Entered when the generator first runs, exited when it ends for any reason.
Opened: TypeAlias = Callable[[], AbstractContextManager[Step]]
F = TypeVar("F", bound=Callable[..., Any])


def stepped(function: Callable[..., Generator[Any, Any, Any]], opened: Opened) -> Callable[..., Any]:
    """Return *function*, whose generators run inside of *opened*; each step of them enters what it returns."""

    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with opened() as step:
            steps = _Steps(function(*args, **kwargs), step)
            del args, kwargs
            return (yield from steps)

    return call


class _Steps(Generator[Any, Any, Any]):
    def __init__(self, inner: Generator[Any, Any, Any], step: Step) -> None:
        self._inner = inner
        self._step = step

    # Not that of the base class, whose frame a recursive generator would have once more at each level.
    def __next__(self) -> Any:
        with self._step():
            return next(self._inner)

    def send(self, value: Any, /) -> Any:
        with self._step():
            return self._inner.send(value)

    def throw(self, error: Any, value: Any = None, traceback: Any = None, /) -> Any:
        # `yield from` passes an exception object; callers may still use the older signature with three arguments.
        if value is None and traceback is None:
            with self._step():
                return self._inner.throw(error)
        with self._step():
            return self._inner.throw(error, value, traceback)

    def close(self) -> None:
        with self._step():
            self._inner.close()


def async_stepped(function: Callable[..., AsyncGenerator[Any, Any]], opened: Opened) -> Callable[..., Any]:
    """Return *function*, like `stepped`, for asynchronous generators."""

    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with opened() as step:
            inner = function(*args, **kwargs)
            # While it is suspended, this frame keeps nothing of what goes in and out.
            del args, kwargs
            advance, items = [inner.asend(None)], list[Any]()
            while True:
                try:
                    with step():
                        items.append(await advance.pop())
                except StopAsyncIteration:
                    return
                try:
                    advance.append(inner.asend((yield items.pop())))
                except GeneratorExit:
                    with step():
                        await inner.aclose()
                    raise
                except BaseException as error:
                    advance.append(inner.athrow(error))

    return call


def stage(name: str) -> StageTimer:
    """Time one stage of the current request, as a context manager or a decorator.

    A stage outside of any request is not recorded. In a decorated generator, Stagelens times the steps, but not the pauses between them.

    Args:
        name: Key of a built-in stage, such as "preprocess", or the name of a custom stage. Each time series reports its
            first three custom stages by name, and all further custom stages together as "__other__".

    Example:
        with stagelens.stage("preprocess"):
            pixels = image.resize((224, 224))
    """
    # "@" marks a fact about the request.
    return StageTimer(str(name).lstrip("@") or "stage")


def request(
    name: str, *, model: str = "", model_version: str = "", device: str = "", batch: int = 0, traceparent: str = ""
) -> Request:
    """Count and time one request, as a context manager or a decorator.

    Requests to a supported web server are counted automatically. A `request` inside a running request is not counted
    again: it adds its arguments to the running request. For a generator, use the decorator. Do not put `yield` inside `with`.

    Args:
        name: Name of the request, reported in place of a route. Use a fixed name, not a new name for each call.
        model: Name of the model that serves the request.
        model_version: Version of the model.
        device: Device of the model, such as "cpu" or "cuda:0".
        batch: Number of items in the request, or 0 if the number is unknown.
        traceparent: W3C `traceparent` header of the incoming message. A retained trace then continues the trace of the caller.

    Example:
        with stagelens.request("classify", model="resnet50"):
            handle(message)
    """
    scripts.turn_off()
    facts: Marks = []
    if model:
        facts += ("@model", model, 0)
    if model_version:
        facts += ("@model_version", model_version, 0)
    if device:
        facts += ("@device", device, 0)
    if batch:
        facts += ("@batch", batch, 0)
    if traceparent:
        facts += ("@traceparent", traceparent, 0)
    return Request(name, facts)


def attribute(name: str, value: object) -> None:
    """Count the current request by the value of an attribute. Outside of a request, the call has no effect.

    Args:
        name: At most 40 letters, digits, `_`, `.` and `-`.
        value: Counts as text. The last value of a request counts.

    Example:
        stagelens.attribute("tenant", account.name)
    """
    marks = current.get()
    if marks is None:
        return
    try:
        accepted_name = attribute_name(name)
        if accepted_name:
            record_attribute(marks, accepted_name, to_text(value))
    except Exception:
        log_failure("recording an attribute")


class StageTimer:
    """Timer of a stage. Each `with` needs its own instance; a decorator may time concurrent calls."""

    __slots__ = ("_key", "_marks", "_t0")

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        self._marks = current.get()
        self._t0 = clock()

    # Written out: packing three arguments into one costs a tenth of the stage.
    def __exit__(self, error_class: object = None, error: object = None, traceback: object = None) -> None:
        marks = self._marks
        if marks is not None and (len(marks) < MAX_MARKS or has_capacity(marks)):
            marks.extend((self._key, self._t0, clock()))

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    def __call__(self, function: F) -> F:
        """Return *function* with every call timed; of a generator, every step."""
        timer = functools.partial(StageTimer, self._key)
        return _decorated(function, lambda: contextlib.nullcontext(timer), timer, lambda: _timed(function, self._key))


class Request:
    """Timer of a request. Each `with` needs its own instance; a decorator may time concurrent calls."""

    __slots__ = ("_facts", "_marks", "_name", "_outer", "_t0", "_token")

    def __init__(self, name: str, facts: Marks) -> None:
        self._name = name
        self._facts = facts
        self._outer: Marks | None = None
        self._t0 = 0
        self._marks: Marks | None = None
        self._token: Token[Marks | None] | None = None

    def __enter__(self) -> None:
        scope = begin()
        if scope is not None:
            self._marks, self._token = scope
            self._marks[ROUTE] = self._name
        else:
            self._outer, self._t0 = current.get(), clock()
        if self._facts:
            marks = self._marks or self._outer
            if marks is not None and has_capacity(marks):
                marks.extend(self._facts)

    def __exit__(self, error_class: type[BaseException] | None, *_: object) -> None:
        marks = self._marks
        if marks is None:
            self._end_inside()
            return
        t1 = clock()
        self._marks = None
        self.detach()
        # A consumer that stops iterating a generator is no error.
        error_type = "" if error_class is None or issubclass(error_class, GeneratorExit) else error_class.__qualname__
        finish(marks, marks[START], t1, self._name, error_type, 0, "internal")

    def _end_inside(self) -> None:
        """Record a nested request: a span in the trace of the outer request, not counted separately."""
        # The context in which the request started: a generator may end in another one.
        outer, self._outer = self._outer, None
        if outer is not None and has_capacity(outer):
            outer.extend((f"@child {self._name}", self._t0, clock()))

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, error_class: type[BaseException] | None, *_: object) -> None:
        self.__exit__(error_class)

    def __call__(self, function: F) -> F:
        """Return *function* with every call counted as a request; of a generator, from its first step to its end."""
        return _decorated(function, lambda: _Detached(self.again()), self.again, lambda: _counted(function, self.again))

    def again(self) -> Request:
        """Return a request of the same name and attributes that has not started."""
        return Request(self._name, self._facts)

    def detach(self) -> Marks | None:
        """End the request for this context; return its stage records, which another context continues."""
        token, self._token = self._token, None
        if token is not None:
            end(token)
        return self._marks


class _Detached:
    """Request around a generator, attached to the context only during each step."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def __enter__(self) -> Step:
        self._request.__enter__()
        marks = self._request.detach()
        return contextlib.nullcontext if marks is None else lambda: _Attached(marks)

    def __exit__(self, error_class: type[BaseException] | None, *_: object) -> None:
        self._request.__exit__(error_class)


class _Attached:
    __slots__ = ("_marks", "_token")

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def __enter__(self) -> None:
        self._token = current.set(self._marks)

    def __exit__(self, *_: object) -> None:
        end(self._token)


def _decorated(function: F, opened: Opened, around: Step, plain: Callable[[], Callable[..., Any]]) -> F:
    if inspect.isasyncgenfunction(function):
        call = async_stepped(function, opened)
    elif inspect.isgeneratorfunction(function):
        call = stepped(function, opened)
    else:
        call = _awaited(function, around) if inspect.iscoroutinefunction(function) else plain()
    return cast("F", functools.wraps(function)(call))


def _timed(function: Callable[..., Any], key: str) -> Callable[..., Any]:
    # Written out with local names: a `with` would cost the request twice as much.
    running, now = current.get, clock

    def call(*args: Any, **kwargs: Any) -> Any:
        marks = running()
        if marks is None:
            return function(*args, **kwargs)
        t0 = now()
        try:
            # Passing an empty ** would unpack and rebuild it, which is an eighth of the cost.
            return function(*args, **kwargs) if kwargs else function(*args)
        finally:
            if len(marks) < MAX_MARKS or has_capacity(marks):
                marks.extend((key, t0, now()))

    return call


def _counted(function: Callable[..., Any], around: Step) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with around():
            return function(*args, **kwargs)

    return call


def _awaited(function: Callable[..., Any], around: Step) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with around():
            return await function(*args, **kwargs)

    return call
