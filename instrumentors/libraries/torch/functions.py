"""Functions of tensors that are called beside a model: `torch.compile` and `torch.jit.script` see the original ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...instrumentor import CallsInstrumentor
from .models import thread_state


class TensorCallsInstrumentor(CallsInstrumentor):
    """Base class of a library of such functions; calls inside a module belong to the module."""

    def wrapper(self, stage: str, *, is_async: bool) -> Callable[[Any], Any]:
        """Return the wrapper of a function."""
        timed = super().wrapper(stage, is_async=is_async)
        is_traced = sys.modules["torch"].compiler.is_dynamo_compiling

        def make(original: Any) -> Any:
            outside = timed(original)

            def call(*args: Any, **options: Any) -> Any:
                # The test whether Dynamo is tracing comes first: see `torch/__init__.py`.
                if is_traced() or thread_state.inside:
                    return original(*args, **options)
                return outside(*args, **options)

            # https://github.com/pytorch/pytorch/blob/v2.13.0/torch/jit/_recursive.py, `try_compile_fn`
            vars(call)["__prepare_scriptable__"] = lambda: original
            return call

        return make

    def _patch(self, module: ModuleType) -> None:
        super()._patch(module)
        # The package around the module may have the same function; pickle finds it by reference in the module.
        package = sys.modules.get(module.__name__.rpartition(".")[0])
        for patch in list(self._patches):
            if patch.owner is module and getattr(package, patch.name, None) is patch.original:
                self.replace(package, patch.name, lambda _, found=patch.replacement: found)
