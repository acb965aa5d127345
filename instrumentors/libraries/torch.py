"""PyTorch: `forward` (the outermost module call) and `load` (`torch.load`, `torch.jit.load`).

`nn.Module.__call__` is the one place that eager, scripted and compiled modules all come through. Asking `is_compiling`
before anything else is what keeps torch.compile whole: Dynamo folds the question away, so that there is no graph break
and no recompilation; any other order breaks `fullgraph=True`. Nothing is synchronized and no tensor is read.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from ..imports import Hook
from ..instrumentor import Instrumentor, report, timed
from ..recorder import MAX_MARKS, Marks, clock, current

# Classes of scripted and traced modules, which remember the name of the class they were made from.
SCRIPTED = ("RecursiveScriptModule", "TopLevelTracedModule", "TracedModule")


class TorchInstrumentor(Instrumentor):
    """`torch.nn.Module` and the two loaders."""

    library = "torch"
    title = "PyTorch"
    stages = MappingProxyType(
        {
            "forward": "the outermost call of an `nn.Module`: eager, scripted, traced or compiled",
            "load": "`torch.load` and `torch.jit.load`",
        }
    )
    facts = ("model", "device")
    not_timed = ("`scripted.forward(x)`, called past `__call__`",)
    tested = MappingProxyType({"torch": "2.13.0"})

    def hooks(self) -> Mapping[str, Hook]:
        """Return what to patch where."""
        return {"torch": self._torch}

    def _torch(self, module: ModuleType) -> None:
        self.replace(module.nn.Module, "__call__", lambda original: _call(original, module.compiler.is_compiling))
        self.replace(module, "load", timed("load"))
        self.replace(module.jit, "load", timed("load"))


class _Busy(threading.local):
    """Whether this thread is inside a module already."""

    inside = False


_busy = _Busy()


def _call(original: Any, is_compiling: Any) -> Any:
    def __call__(self: Any, *args: Any, **options: Any) -> Any:  # noqa: N807 - shown in tracebacks
        if is_compiling():
            return original(self, *args, **options)
        marks = current.get()
        if marks is None or _busy.inside:
            return original(self, *args, **options)
        _busy.inside = True
        begun = clock()
        try:
            return original(self, *args, **options)
        finally:
            _busy.inside = False
            _mark(marks, begun, self)

    return __call__


def _mark(marks: Marks, begun: int, module: Any) -> None:
    if len(marks) >= MAX_MARKS:
        return
    marks.extend(("forward", begun, clock()))
    try:
        model, device = describe(module)
        if device:
            marks.extend(("@model", model, 0, "@device", device, 0))
        elif "@model" not in marks:
            # An activation or a transform called by itself is no model: it does not take the name of one.
            marks.extend(("@model", model, 0))
    except Exception:
        report("naming a model of torch")


def describe(module: Any) -> tuple[str, str]:
    """Return the class *module* was written as, and the device of its first parameter, "" when it has none."""
    kind = type(module).__name__
    if kind == "OptimizedModule":
        # What torch.compile wrapped.
        module = module._modules["_orig_mod"]  # noqa: SLF001 - there is no public name for it
        kind = type(module).__name__
    elif kind in SCRIPTED:
        kind = module.original_name
    return kind, _device(module)


def _device(module: Any) -> str:
    # `parameters()` walks the same tree at eight times the price, for it must not name a shared one twice.
    for parameter in module._parameters.values():  # noqa: SLF001
        if parameter is not None:
            return parameter.device.type
    for child in module._modules.values():  # noqa: SLF001
        device = "" if child is None else _device(child)
        if device:
            return device
    return ""
