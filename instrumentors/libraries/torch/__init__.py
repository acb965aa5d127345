"""PyTorch: times `forward` (the outermost module call), `load`, and copies between host and device (`h2d`, `d2h`).

- Stagelens does not synchronize a device, and does not read the values of tensors.
- `torch.compile` works unchanged: Stagelens causes no graph break and no recompilation.
- Stagelens cannot detect a warm-up that runs before `instrument()`. The next call of the model then counts as `load`.
- On CUDA and XPU, Stagelens measures times with events on the stream of the device. [GPU times](../gpu.md) shows the accuracy on
  an NVIDIA H200. The accuracy on XPU was not measured.
"""
# The test whether Dynamo is tracing comes first: Dynamo evaluates it to a constant, so that there is no graph break; any
# other order breaks `fullgraph=True`. A call inside a module is dispatched as `nn.Module` would do it, which halves the
# cost for a net of many small modules, to 0.1 us per module. Our frames are marked to be skipped by Dynamo, like those of
# torch itself.
#
# While Dynamo compiles, the original tensor methods are restored, because Dynamo recognizes them by identity. Tests use a
# stand-in for streams and events; `python benchmarks/gpu.py` compares the times on a real device.

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ....core.stages import LOAD_COMPILE, LOAD_COPY, LOAD_FIRST_RUN, LOAD_READ, STALL_COMPILE, LoadPhase
from ... import instrumentor, scripts
from ...instrumentor import Hook, Instrumentor, Probed, log_failure
from ...loads import loads, shapes_of
from ...probes import unprobed
from ...records import MAX_MARKS, OPEN, STATE, Marks, clock, current, has_capacity
from ...stalls import stalls
from ..onnxruntime_session import path_name
from . import copies as copies
from .device import CAPTURING, DeviceWork, StartedWork, devices
from .models import (
    PREPROCESS,
    TorchModel,
    describe,
    device_of_module,
    known_models,
    methods,
    register_model,
    thread_state,
    update_devices,
)
from .models import thread_state as _busy

PACKAGE = __name__.split(".libraries.", maxsplit=1)[0]
# The only names that `nn.Module.__call__` uses, at least in torch 2.1 to 2.13.
DISPATCH = ("_compiled_call_impl", "_call_impl")
# Up to this number of marks every forward records its model; later ones only a change, because of loops of thousands.
RECORD_ALWAYS = MAX_MARKS // 4


def skip_own_frames(eval_frame: ModuleType) -> None:
    """Mark the code of the instrumentors to be skipped by Dynamo; code inside a trace is still inlined."""
    skip: Callable[[CodeType], None] = eval_frame.skip_code
    for name, module in [*sys.modules.items()]:
        if name.startswith(PACKAGE):
            for code in _codes_of(module):
                skip(code)


def _codes_of(owner: Any) -> Iterator[CodeType]:
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
    """Wrap the context in which Dynamo compiles: records `load`, and restores the original tensor methods."""

    @contextmanager
    def install_callbacks(*args: Any, **options: Any) -> Generator[None]:
        marks = current.get()
        loading = loads.begin()
        started = loading[0]
        thread_state.compiling += 1
        try:
            with methods.away(), original(*args, **options):
                yield
        finally:
            thread_state.compiling -= 1
            loads.end(loading, LOAD_COMPILE.key)
            ended = clock()
            if not thread_state.compiling:
                stalls.note(STALL_COMPILE.key, started, ended)
            if marks is not None and has_capacity(marks):
                marks.extend(("load", started, ended))

    return install_callbacks


def with_originals(original: Any) -> Any:
    """Wrap the cached function that lists the tensor methods for Dynamo, so that it lists the originals."""

    @functools.cache
    def get_tensor_method() -> Any:
        with methods.away():
            original.cache_clear()
            return original()

    return get_tensor_method


class TorchInstrumentor(Instrumentor):
    library = "torch"
    title = "PyTorch"
    stages = {
        "forward": "the outermost call of an `nn.Module`, which can be eager, scripted, traced or compiled",
        "preprocess": "the outermost call of a transform of torchvision or torchaudio, or of an `nn.Sequential` of them, except a scripted one",
        "load": "calls of `torch.load`, `torch.jit.load`, `Module.load_state_dict`; the move of a module to another "
        "device; every compilation by `torch.compile`; the first call of a model on each kind of device "
        "(for a scripted model, the first two calls); with `torch.backends.cudnn.benchmark`, the first call with "
        "each input shape on CUDA",
        "h2d": "calls of `Tensor.to`, `cuda`, `xpu` and `copy_` from host to device, outside of a module",
        "d2h": "calls of `Tensor.to`, `cpu`, `item`, `tolist`, `numpy` and `copy_` from device to host, outside of a module",
        "queue": "the wait of a model or copy on its stream for the work of another request",
    }
    facts = ("model", "device")
    not_timed = (
        "`scripted.forward(x)`, because it bypasses `__call__`",
        'a compiled function that is not a module, except for its compilation. To time the function, wrap it in `stagelens.stage("forward")`.',
        "direct calls of `CUDAGraph.replay()`, and all work during graph capture",
        "AOTInductor packages",
        "the copy from the device in `bool(t)`, in `int(t)` and in the printing of a tensor. The wait for the model counts as `forward`.",
        "copies in other threads while `torch.compile` compiles",
        "the work of a model on any device other than the device of its first parameter",
        "device times on devices without timed events, such as MPS. On these devices, `forward` contains only the launch of the kernels.",
    )
    tested = {"torch": "2.13.0", "silero-vad": "6.2.3"}

    def hooks(self) -> Mapping[str, Hook]:
        return {
            "torch": self._torch,
            "torch._dynamo.callback": self._dynamo,
            "torch._dynamo.eval_frame": skip_own_frames,
            "torch._dynamo.convert_frame": self._dynamo_frames,
            "torch._dynamo.variables.functions": self._dynamo_functions,
            "torch._dynamo.trace_rules": self._dynamo_rules,
            "torch._dynamo.variables.tensor": self._dynamo_tensor,
        }

    def uninstrument(self, **options: Any) -> None:
        super().uninstrument(**options)
        methods.remove()

    def _torch(self, module: ModuleType) -> None:
        devices.torch = module
        is_compiling = module.compiler.is_compiling
        is_traced = module.compiler.is_dynamo_compiling
        self.replace(module.nn.Module, "__call__", lambda original: _call(original, is_traced, is_compiling))
        self.replace(module, "load", _loading(LOAD_READ))
        self.replace(module.jit, "load", _loading(LOAD_READ))
        self.replace(module.nn.Module, "load_state_dict", _loading(LOAD_COPY))
        # What `to`, `cuda`, `cpu` and the others call: they inspect their caller.
        self.replace(module.nn.Module, "_apply", lambda original: _moving(original, is_traced))
        methods.put(module.Tensor, copies.WRAPPERS, is_traced)

    def _dynamo(self, module: ModuleType) -> None:
        # Not by its callbacks, which are shared by all threads and removed by `torch._dynamo.reset`.
        self.replace(module.CompilationCallbackHandler, "install_callbacks", compiling)
        if not hasattr(module.CompilationCallbackHandler, "install_callbacks"):
            # Without this method compilations cannot be noticed.
            methods.remove()

    def _dynamo_rules(self, module: ModuleType) -> None:
        self.replace(module, "get_tensor_method", with_originals)

    # Dynamo sees functions without their probes, whose constants it does not know: those it compiles, and those they call.
    def _dynamo_frames(self, module: ModuleType) -> None:
        self.replace(
            module, "_compile", lambda original: lambda code, *args, **more: original(unprobed(code), *args, **more)
        )

    def _dynamo_functions(self, module: ModuleType) -> None:
        self.replace(module.UserFunctionVariable, "get_code", lambda original: lambda self: unprobed(original(self)))

    def _dynamo_tensor(self, module: ModuleType) -> None:
        methods.hide(module.all_tensor_attrs)


def _call(original: Any, is_traced: Callable[[], bool], is_compiling: Callable[[], bool]) -> Any:
    code = getattr(original, "__code__", None)
    plain = code is not None and code.co_names == DISPATCH

    def __call__(self: Any, *args: Any, **options: Any) -> Any:  # noqa: N807 - shown in tracebacks
        if is_traced():
            return original(self, *args, **options)
        if not _busy.inside:
            # True in all threads while one thread compiles or exports.
            if is_compiling() and (_busy.compiling or not methods.compiling):
                return original(self, *args, **options)
            return _outermost(original, self, args, options)
        if plain and self._compiled_call_impl is None:
            return self._call_impl(*args, **options)
        return original(self, *args, **options)

    return __call__


def _outermost(original: Any, module: Any, args: Any, options: Any) -> Any:
    marks = current.get()
    if marks is None:
        scope = scripts.begin() if scripts.on and _is_inference(module) else None
        if scope is not None:
            return scripts.call(scope, describe(module)[0], _outermost, original, module, args, options)
    elif marks[STATE] != OPEN:
        # A task that outlives its request: its model calls do not count for the request.
        marks = None
    # Also outside of requests: a warm-up at the start avoids cold requests.
    model = known_models.get(id(module)) or register_model(module)
    work = None if marks is None else _begin(model, args, marks)
    if work is CAPTURING:
        return original(module, *args, **options)
    unseen = None if model.at is None else _unseen(model, args)
    stage = model.stage if model.cold <= 0 and unseen is None else "load"
    loading = loads.begin(model.name) if stage == "load" else None
    phase = ""
    _busy.inside = True
    started = clock()
    try:
        result = original(module, *args, **options)
        # Calls that started before the end of the first one waited for it, so they are cold too.
        if model.cold > 0:
            model.cold -= 1
        if unseen is not None:
            model.shapes.add(unseen)
        phase = LOAD_FIRST_RUN.key
        return result
    finally:
        _busy.inside = False
        if loading is not None:
            loads.end(loading, phase, shape=shapes_of([*args, *options.values()]))
        if marks is not None:
            _mark(marks, stage, started, model, work)


def _is_inference(module: Any) -> bool:
    """Return whether a call of *module* is no training step, and no activation, loss or transform, which have no parameters."""
    return not (module.training and devices.torch.is_grad_enabled()) and device_of_module(module) is not None


def _unseen(model: TorchModel, args: Any) -> Any:
    try:
        return model.unseen(args) if devices.torch.backends.cudnn.benchmark else None
    except Exception:
        log_failure("reading the shape of an input")
        return None


def _begin(model: TorchModel, args: Any, marks: Marks) -> StartedWork:
    if model.at is not None:
        return devices.begin(model.at, marks)
    if model.device or not devices.in_use or not args:
        return None
    # A frozen module has no parameters: it runs on the device of its input.
    device = copies.off_host(args[0])
    return None if device is None else devices.begin(device, marks)


def _mark(marks: Marks, stage: str, started: int, model: TorchModel, work: DeviceWork | None) -> None:
    ended = clock()
    if not has_capacity(marks):
        return
    if stage == PREPROCESS and work is None and ended - started < instrumentor.MIN_CALL_NS:
        return
    marks.extend((stage if model.at is None and work is None else f"{stage}@launch", started, ended))
    if len(marks) < RECORD_ALWAYS or _busy.model is not model or _busy.marks is not marks:
        _record_model_facts(marks, model)
    if work is not None:
        devices.finish(work, stage, marks)


def _record_model_facts(marks: Marks, model: TorchModel) -> None:
    _busy.marks, _busy.model = marks, model
    if model.device:
        marks.extend(("@model", model.name, 0, "@device", model.device, 0))
    elif model.name and "@model" not in marks:
        # An activation or a transform alone is no model and does not replace the name of one.
        marks.extend(("@model", model.name, 0))


class _Loading:
    __slots__ = ("_name", "_phase", "_token")

    def __init__(self, phase: LoadPhase, source: Any) -> None:
        self._phase, self._name = phase, _loaded(source)
        _busy.inside = True
        self._token = loads.begin(reading=phase is LOAD_READ)

    def end(self) -> None:
        _busy.inside = False
        loads.end(self._token, self._phase.key, self._name)
        _mark_load(self._token[0])


def _loading(phase: LoadPhase) -> Probed:
    return Probed.until_end(lambda source: None if _busy.inside else _Loading(phase, source), parameters=1)


def _loaded(source: Any) -> str:
    return path_name(source) or (type(source).__name__ if isinstance(source, devices.torch.nn.Module) else "")


def _mark_load(started: int) -> None:
    marks = current.get()
    if marks is not None and has_capacity(marks):
        marks.extend(("load", started, clock()))


def _moving(original: Any, is_traced: Callable[[], bool]) -> Any:
    """Wrap a method that may move a module to another device; other effects are not recorded."""

    def call(self: Any, *args: Any, **options: Any) -> Any:
        if is_traced() or _busy.inside:
            return original(self, *args, **options)
        _busy.inside = True
        before, loading = device_of_module(self), loads.begin()
        try:
            return original(self, *args, **options)
        finally:
            _busy.inside = False
            moved = device_of_module(self) != before
            loads.end(loading, LOAD_COPY.key if moved else "", type(self).__name__)
            if moved:
                _mark_load(loading[0])
                update_devices()

    return call
