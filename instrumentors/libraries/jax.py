"""JAX: times calls of jitted functions, and the waits for their results, as `forward`, and the creation of arrays as `preprocess`.

- JAX computes asynchronously. The call only starts the computation; the rest of it counts where your code waits for the result.
- A call that compiles a function counts as `load`.
- Flax and other libraries use `jax.jit`, so Stagelens times them too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from types import MethodType, ModuleType
from typing import Any, cast

from ..instrumentor import Hook, Instrumentor, Target, log_failure, timed_call
from ..records import clock
from .model_common import model_call, note_compilation, preparation

PACKAGE = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - importing pathlib would cost the host time


class JaxInstrumentor(Instrumentor):
    library = "jax"
    title = "JAX"
    stages = {
        "forward": "calls of functions that `jax.jit` returned, and of a `Compiled`; calls of `block_until_ready`, and the "
        "conversion of a `jax.Array` to a NumPy array or a number, both with the wait for its computation; from 20 µs",
        "preprocess": "calls of `jnp.array` and `jnp.asarray` outside of a jitted function, from 20 µs",
        "load": "calls of a jitted function that compile it",
    }
    facts = ("model",)
    not_timed = (
        "on a CPU with Python 3.11, the wait in `np.asarray`, which calls no Python code of JAX. To time it, call `block_until_ready` before.",
        "functions that were jitted before `instrument()`",
        "plain scripts, where the end of a computation is not known. There, use `stagelens.request()`.",
    )
    tested = {"jax": "0.10.2"}

    def targets(self) -> Iterable[Target]:
        return (
            ("jax", _jit, "jit"),
            ("jax", timed_call("forward"), "block_until_ready"),
            # Pickle looks it up in the module that defines it.
            ("jax:_src.api", lambda _: sys.modules["jax"].jit, "jit"),
            ("jax:numpy", preparation("preprocess"), "array asarray"),
            # JAX adds it after the import of the module that defines the class.
            ("jax:_src.array.ArrayImpl", timed_call("forward"), "item"),
            # From Python 3.12 on, NumPy gets the buffer of an array on a CPU by the last one.
            ("jax._src.array:ArrayImpl", timed_call("forward"), "block_until_ready _value __buffer__"),
            ("jax._src.stages:Compiled", model_call(rows=_no_rows, is_request=False), "__call__"),
        )

    def hooks(self) -> Mapping[str, Hook]:
        return {**super().hooks(), "jax": self._jax, "jax._src.stages": self._stages}

    def _jax(self, module: ModuleType) -> None:
        self._patch(module)
        # An operation comes from the code that called `jnp.array`, not from our wrapper.
        module._src.source_info_util.register_exclusion(PACKAGE)  # noqa: SLF001

    def _stages(self, module: ModuleType) -> None:
        self._patch(module)
        # From Python 3.12 on, a protocol does not see what `__getattr__` returns.
        if sys.version_info >= (3, 12):
            module.Wrapped.register(Jitted)


def _jit(original: Any) -> Any:
    def jit(*args: Any, **options: Any) -> Any:
        jitted = original(*args, **options)
        # Without a function, `jit` returns a decorator.
        return _timed(jitted) if args else lambda function: _timed(jitted(function))

    return jit


def _timed(jitted: Any) -> Any:
    try:
        # The functions of JAX itself are no models; those of `jax.numpy` were jitted before this function was replaced.
        return jitted if str(jitted.__module__).startswith("jax.") else Jitted(jitted)
    except Exception:
        log_failure("timing a jitted function")
        return jitted


def _run(function: Any, *args: Any, **options: Any) -> Any:
    count = function.count()
    started = clock()
    try:
        return function.jitted(*args, **options)
    finally:
        if function.count() != count:
            note_compilation(_name(function), started)


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", "")).rpartition("<locals>.")[2] or "jit"


def _no_rows(_: Any) -> int:
    """Return 0: which argument is the input, and which are the weights, is not known."""
    return 0


class Jitted:
    """A jitted function whose calls are timed. In all else it is the function, whose class is written in C++ and cannot be patched."""

    def __init__(self, jitted: Any) -> None:
        self.jitted = jitted
        # There is no public name for the number of compiled signatures.
        self.count = jitted._cache_size  # noqa: SLF001
        self.__doc__, self.__module__ = jitted.__doc__, jitted.__module__

    __call__: Any = model_call(_name, _no_rows, is_request=False)(_run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.jitted, name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return repr(self.jitted)

    def __reduce__(self) -> Any:
        # Another process may not have Stagelens.
        return cast, ("", self.jitted)
