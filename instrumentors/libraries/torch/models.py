"""Models of the process (name, device, warm-up), thread states, the replaced methods of `torch.Tensor`, and functions beside models.

A model is a module that is called from outside of any other module. It is identified by its id while it lives; nothing
is written to it, so that copies, pickles and state dicts stay unchanged. The replaced methods behave like the originals
except for their timing.
"""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from ...instrumentor import log_failure
from ...records import Marks

# Classes of scripted and traced modules, which have the name of their original class.
SCRIPTED = ("RecursiveScriptModule", "TopLevelTracedModule", "TracedModule")
# TorchScript profiles the first call and compiles in the second.
SCRIPTED_COLD_CALLS = 2
# Devices where cuDNN, with `torch.backends.cudnn.benchmark`, benchmarks all convolutions at each new input shape.
BENCHMARKED = ("cuda",)
# A model with this many shapes has variable inputs: the cost of a new shape is normal and no cold start.
MAX_SHAPES: Final = 32
PREPROCESS: Final = "preprocess"
# Modules of the classes of transforms, and of modules that contain them: `nn.Sequential`, and what `torch.compile` returns.
TRANSFORMS: Final = ("torchvision.transforms.", "torchaudio.transforms.")
CONTAINERS: Final = ("torch.nn.modules.container", "torch._dynamo.eval_frame")
# Devices that finish their work before the call returns.
SYNCHRONOUS: Final = ("", "cpu", "meta")


class Method:
    """Replacement of a method of `torch.Tensor`.

    Torch passes the method itself to `__torch_function__`, where tensor subclasses look it up in their sets and dicts:
    the replacement equals the original, whichever of the two they contain. As with the original, an attribute that is set
    on a tensor instance has precedence.
    """

    def __init__(self, function: Callable[..., Any], original: Any) -> None:
        # Bound methods have the name of the original and are pickled by it.
        self._function = functools.update_wrapper(function, original)
        self.original = original
        # Whether Dynamo is tracing: traced code may call a stored reference to `torch.Tensor.to`.
        self.is_traced: Callable[[], bool] = bool

    def __get__(self, tensor: Any, owner: type | None = None) -> Any:
        return self if tensor is None else types.MethodType(self._function, tensor)

    def __call__(self, *args: Any, **options: Any) -> Any:
        # Without a tensor the original raises.
        return (self.original if self.is_traced() or not args else self._function)(*args, **options)

    def __eq__(self, other: object) -> bool:
        return other is self.original or (isinstance(other, Method) and other.original is self.original)

    def __hash__(self) -> int:
        return hash(self.original)

    def __repr__(self) -> str:
        return repr(self.original)

    def __reduce__(self) -> Any:
        return self.original.__reduce__()


class Methods:
    """Replacements of the copying methods of `torch.Tensor`, which are removed during compilations.

    Dynamo recognizes a tensor method by the identity of the C function, and cannot trace another one, so compiled code
    must find the originals. Copies of other threads are not timed meanwhile.
    """

    def __init__(self) -> None:
        self._ours: dict[str, Method] = {}
        self._owner: Any = None
        self._lock = threading.Lock()
        self.compiling = 0

    def put(self, owner: Any, makers: Mapping[str, Callable[[Any], Method]], is_traced: Callable[[], bool]) -> None:
        """Replace the inherited methods of *owner*, `torch.Tensor`; methods that others have patched are skipped."""
        with self._lock:
            if self._ours:
                return
            self._owner = owner
            for name, make in makers.items():
                if name not in vars(owner) and hasattr(owner, name):
                    original = getattr(owner, name)
                    self._ours[name] = method = make(original)
                    method.is_traced = is_traced
                    functools.update_wrapper(method, original)
            if not self.compiling:
                self._set()

    def remove(self) -> None:
        with self._lock:
            self._unset()
            self._ours = {}

    def hide(self, attributes: dict[str, Any]) -> None:
        for name, method in self._ours.items():
            if attributes.get(name) is method:
                attributes[name] = method.original

    @contextmanager
    def away(self) -> Generator[None]:
        with self._lock:
            self.compiling += 1
            self._unset()
        try:
            yield
        finally:
            with self._lock:
                self.compiling -= 1
                if not self.compiling:
                    self._set()

    def _set(self) -> None:
        for name, method in self._ours.items():
            if name not in vars(self._owner):
                setattr(self._owner, name, method)

    def _unset(self) -> None:
        for name, method in self._ours.items():
            if vars(self._owner).get(name) is method:
                delattr(self._owner, name)


methods = Methods()


class ThreadState(threading.local):
    """State of a thread.

    Attributes:
        inside: Whether the thread is inside a module or another timed call, to which nested modules and copies belong.
        marks: Marks of the request whose model was recorded last in this thread.
    """

    inside = False
    compiling = 0
    marks: Marks | None = None
    model: TorchModel | None = None


class TorchModel:
    """A model of the process: name, device and warm-up.

    Attributes:
        module: Weak reference: `module()` returns the module, or None after it was freed.
        name: Class name of the module.
        device: Kind of device of the first parameter, "" for none.
        at: The device, None if it is synchronous (finishes before the call returns).
        cold: Number of calls that will still warm up the model, if positive. [count]
        shapes: Shapes of first inputs so far, if the device benchmarks each new shape.
        stage: Stage of its calls, once it is warm.
    """

    __slots__ = ("_visited", "at", "cold", "device", "module", "name", "shapes", "stage")

    def __init__(self, module: Any) -> None:
        key = id(module)
        self.module = weakref.ref(module, lambda _: known_models.pop(key, None))
        self._visited: set[str] = set()
        self.at: Any = None
        self.cold = 0
        self.shapes: set[Any] = set()
        self.device = ""
        self.name = ""
        self.stage = "forward"

    def locate(self, module: Any) -> None:
        """Update the name and device; the model is cold on a new kind of device."""
        self.name, at = describe(module)
        self.device = "" if at is None else at.type
        self.at = None if self.device in SYNCHRONOUS else at
        if not self.device and is_transform(module):
            # No model of the request.
            self.stage, self.name = PREPROCESS, ""
        if self.device not in self._visited:
            self._visited.add(self.device)
            self.cold = _cold_calls(module, self.device)

    def unseen(self, args: Any) -> Any:
        """Return the shape of the first of *args* if the device benchmarks this new shape, else None."""
        if self.device not in BENCHMARKED or len(self.shapes) >= MAX_SHAPES or not args:
            return None
        shape = getattr(args[0], "shape", None)
        return None if shape in self.shapes else shape


thread_state = ThreadState()
# Models by id of the module. A dict keyed by modules would call their `__hash__`.
known_models: dict[int, TorchModel] = {}


def register_model(module: Any) -> TorchModel:
    model = TorchModel(module)
    try:
        model.locate(module)
        known_models[id(module)] = model
    except Exception:
        log_failure("naming a model of torch")
    return model


def update_devices() -> None:
    """Update the devices of all models after a module was moved that may be part of any of them."""
    try:
        for model in list(known_models.values()):
            module = model.module()
            if module is not None:
                model.locate(module)
    except Exception:
        log_failure("finding the models of torch")


def describe(module: Any) -> tuple[str, Any]:
    kind = type(module).__name__
    if kind == "OptimizedModule":
        # The module that torch.compile has wrapped.
        module = module._modules["_orig_mod"]  # noqa: SLF001 - there is no public name for it
        kind = type(module).__name__
    if kind in SCRIPTED:
        kind = module.original_name
    return kind, first_device(module)


def first_device(module: Any) -> Any:
    # `parameters()` walks the same tree at eight times the cost, because it removes duplicates.
    for parameter in module._parameters.values():  # noqa: SLF001 - there is no public name for it
        if parameter is not None:
            return parameter.device
    for child in module._modules.values():  # noqa: SLF001 - there is no public name for it
        device = None if child is None else first_device(child)
        if device is not None:
            return device
    return None


def is_transform(module: Any) -> bool:
    """Return whether *module* is a transform of torchvision or torchaudio, or only contains such."""
    kind = type(module)
    if kind.__module__ in CONTAINERS:
        return bool(module._modules) and all(map(is_transform, module._modules.values()))  # noqa: SLF001 - there is no public name for it
    return any(base.__module__.startswith(TRANSFORMS) for base in kind.__mro__)


def device_of_module(module: Any) -> Any:
    try:
        return first_device(module)
    except Exception:
        log_failure("finding a model of torch")
        return None


def _cold_calls(module: Any, device: str) -> int:
    # `nn.DataParallel` creates replicas of a warm model for every call.
    if getattr(module, "_is_replica", False):
        return 0
    if type(module).__name__ in SCRIPTED:
        return SCRIPTED_COLD_CALLS
    # An activation or a transform, often made anew for each request, has nothing to warm up.
    return 1 if device else 0


def outside(enter: Callable[[], object]) -> object:
    """Return `enter()`, None inside of a module: a call there belongs to the module."""
    return None if thread_state.inside else enter()
