"""torch.compile: compiling is `load`, and does not notice us.

- While a compiled function runs, Dynamo looks at every Python frame that starts, ours too: where a graph breaks and
  modules are called one by one, it would compile our bookkeeping. Frames of torch itself it passes over; ours are marked
  the same.
- It knows a tensor's method by being the one in C, and cannot trace another: while it compiles, and where it looks them
  up, the originals are in place.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ....core.loads import COMPILE as COMPILE_PHASE
from ...loads import loads
from ...records import MAX_MARKS, clock, current
from ...stalls import stalls
from .methods import methods
from .models import busy

PACKAGE = __name__.split(".libraries.", maxsplit=1)[0]


def pass_over(eval_frame: ModuleType) -> None:
    """Have Dynamo pass over the frames of the instrumentors; what it meets in a trace it inlines all the same.

    Args:
        eval_frame: `torch._dynamo.eval_frame`.
    """
    skip: Callable[[CodeType], None] = eval_frame.skip_code
    for name, module in [*sys.modules.items()]:
        if name.startswith(PACKAGE):
            for code in _codes_of(module):
                skip(code)


def _codes_of(owner: Any) -> Iterator[CodeType]:
    """Yield the code of every function that a module or class defines, and of those defined inside."""
    for value in [*vars(owner).values()]:
        function = getattr(value, "__func__", value)
        function = getattr(function, "fget", function)
        if isinstance(function, FunctionType):
            yield from _with_inner(function.__code__)
        elif isinstance(value, type) and value.__module__.startswith(PACKAGE) and owner is not value:
            yield from _codes_of(value)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def compiling(original: Any) -> Any:
    """Wrap the context that Dynamo compiles in."""

    @contextmanager
    def install_callbacks(*args: Any, **options: Any) -> Generator[None]:
        marks = current.get()
        loading = loads.begin()
        begun = loading[0]
        busy.compiling += 1
        try:
            with methods.away(), original(*args, **options):
                yield
        finally:
            busy.compiling -= 1
            loads.end(loading, COMPILE_PHASE.key)
            ended = clock()
            if not busy.compiling:
                stalls.note(STALL_COMPILE.key, begun, ended)
            if marks is not None and len(marks) < MAX_MARKS:
                marks.extend(("load", begun, ended))

    return install_callbacks


def with_originals(original: Any) -> Any:
    """Wrap what lists the methods of tensors for Dynamo, and is asked once: the cache is part of it."""

    @functools.cache
    def get_tensor_method() -> Any:
        with methods.away():
            original.cache_clear()
            return original()

    return get_tensor_method
