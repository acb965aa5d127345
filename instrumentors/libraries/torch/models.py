"""Models of the process (name, device, warm-up), the state of each thread, and the replaced methods of `torch.Tensor`.

A model is a module that is called from outside of any other module. It is identified by its id while it lives; nothing
is written to it, so that copies, pickles and state dicts stay unchanged. The replaced methods equal the originals in
every respect but their time.
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


class Method:
    """Replacement of a method of `torch.Tensor`.

    Torch hands the method itself to `__torch_function__`, where tensor subclasses look it up in sets and dicts of their
    own: ours equals the original, whichever of the two they were built with. As with the original, an attribute that is
    set on a tensor itself comes before it.
    """

    def __init__(self, function: Callable[..., Any], original: Any) -> None:
        # What it is bound to shows the names of the original, and is pickled by them.
        self._function = functools.update_wrapper(function, original)
        self.original = original
        # Whether Dynamo is tracing: whoever has kept `torch.Tensor.to` may call it where it does.
        self.is_traced: Callable[[], bool] = bool

    def __get__(self, tensor: Any, owner: type | None = None) -> Any:
        """Bind as a method does."""
        return self if tensor is None else types.MethodType(self._function, tensor)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Work unbound: `torch.Tensor.to(x, "cpu")`."""
        # Without a tensor the original says so.
        return (self.original if self.is_traced() or not args else self._function)(*args, **options)

    def __eq__(self, other: object) -> bool:
        """Be equal to the original, and to whatever else stood in its place."""
        return other is self.original or (isinstance(other, Method) and other.original is self.original)

    def __hash__(self) -> int:
        """Be found where the original is."""
        return hash(self.original)

    def __repr__(self) -> str:
        """Look like the original."""
        return repr(self.original)

    def __reduce__(self) -> Any:
        """Pickle as the original does: by name."""
        return self.original.__reduce__()


class Methods:
    """The methods of `torch.Tensor` that copy, replaced; away while anything is compiled.

    Dynamo knows a tensor's method by being the one in C, and cannot trace another: what it compiles must find the
    originals. Copies of other threads are not timed meanwhile.

    Attributes:
        compiling: How many compilations are going on.
    """

    def __init__(self) -> None:
        self._ours: dict[str, Method] = {}
        self._owner: Any = None
        self._lock = threading.Lock()
        self.compiling = 0

    def put(self, owner: Any, makers: Mapping[str, Callable[[Any], Method]], is_traced: Callable[[], bool]) -> None:
        """Replace the methods of *owner*, `torch.Tensor`, except those that it does not inherit (patched by others)."""
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
        """Leave them to the base class again."""
        with self._lock:
            self._unset()
            self._ours = {}

    def hide(self, attributes: dict[str, Any]) -> None:
        """Restore the originals in a table of attributes."""
        for name, method in self._ours.items():
            if attributes.get(name) is method:
                attributes[name] = method.original

    @contextmanager
    def away(self) -> Generator[None]:
        """Have the originals in place for as long as the context lasts."""
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


# Classes of scripted and traced modules, which remember the name of the class they were made from.
SCRIPTED = ("RecursiveScriptModule", "TopLevelTracedModule", "TracedModule")
# TorchScript watches the first call and compiles in the second.
SCRIPTED_COLD_CALLS = 2
# Where cuDNN, asked for by `torch.backends.cudnn.benchmark`, tries all its convolutions at the first input of a shape.
BENCHMARKED = ("cuda",)
# A model that has seen as many has inputs of any shape: what a new one costs is its everyday, no cold start.
MAX_SHAPES: Final = 32
# Devices whose work is done when the call returns.
SYNCHRONOUS: Final = ("", "cpu", "meta")


class ThreadState(threading.local):
    """Where this thread is.

    Attributes:
        inside: In a module, or in something that is timed as a whole: modules and copies below are part of it.
        compiling: How many compilations of torch.compile it is in the middle of.
        marks: Which request has last heard of a model here, and
        model: of which.
    """

    inside = False
    compiling = 0
    marks: Marks | None = None
    model: TorchModel | None = None


class TorchModel:
    """One model.

    Attributes:
        module: The module, or None when it is gone: `module()`.
        name: The class it was written as.
        device: The kind of device of its first parameter, "" when it has none.
        at: That device, None unless it works on after the call has returned.
        cold: How many calls will still warm it up, if positive.
        shapes: Of the first inputs it has seen where each is tried anew.
    """

    __slots__ = ("_visited", "at", "cold", "device", "module", "name", "shapes")

    def __init__(self, module: Any) -> None:
        key = id(module)
        self.module = weakref.ref(module, lambda _: known_models.pop(key, None))
        self._visited: set[str] = set()
        self.at: Any = None
        self.cold = 0
        self.shapes: set[Any] = set()
        self.device = ""
        self.name = ""

    def locate(self, module: Any) -> None:
        """Update the device; on a kind of device that is new to the model, it is cold."""
        self.name, at = describe(module)
        self.device = "" if at is None else at.type
        self.at = None if self.device in SYNCHRONOUS else at
        if self.device not in self._visited:
            self._visited.add(self.device)
            self.cold = _cold_calls(module, self.device)

    def unseen(self, args: Any) -> Any:
        """Return the shape of the first of *args* where its device must try it first; None where that is nothing new."""
        if self.device not in BENCHMARKED or len(self.shapes) >= MAX_SHAPES or not args:
            return None
        shape = getattr(args[0], "shape", None)
        return None if shape in self.shapes else shape


thread_state = ThreadState()
# By identity of the module. A dict that hashes modules would run code of theirs.
known_models: dict[int, TorchModel] = {}


def register_model(module: Any) -> TorchModel:
    """Return the model of a module that is called for the first time; one that nothing is known of if that fails."""
    model = TorchModel(module)
    try:
        model.locate(module)
        known_models[id(module)] = model
    except Exception:
        log_failure("naming a model of torch")
    return model


def update_devices() -> None:
    """Update the devices of all models, after something was moved that may be part of any of them."""
    try:
        for model in list(known_models.values()):
            module = model.module()
            if module is not None:
                model.locate(module)
    except Exception:
        log_failure("finding the models of torch")


def describe(module: Any) -> tuple[str, Any]:
    """Return the class *module* was written as, and the device of its first parameter, None when it has none."""
    kind = type(module).__name__
    if kind == "OptimizedModule":
        # What torch.compile wrapped.
        module = module._modules["_orig_mod"]  # noqa: SLF001 - there is no public name for it
        kind = type(module).__name__
    if kind in SCRIPTED:
        kind = module.original_name
    return kind, first_device(module)


def first_device(module: Any) -> Any:
    """Return the device of the first parameter of *module*, None when it has none."""
    # `parameters()` walks the same tree at eight times the price, for it must not name a shared one twice.
    for parameter in module._parameters.values():  # noqa: SLF001 - there is no public name for it
        if parameter is not None:
            return parameter.device
    for child in module._modules.values():  # noqa: SLF001 - there is no public name for it
        device = None if child is None else first_device(child)
        if device is not None:
            return device
    return None


def device_of_module(module: Any) -> Any:
    """Return `first_device(module)`, None if that fails."""
    try:
        return first_device(module)
    except Exception:
        log_failure("finding a model of torch")
        return None


def _cold_calls(module: Any, device: str) -> int:
    # What `nn.DataParallel` makes of a warm model for every call.
    if getattr(module, "_is_replica", False):
        return 0
    if type(module).__name__ in SCRIPTED:
        return SCRIPTED_COLD_CALLS
    # An activation or a transform, often made anew for each request, has nothing to warm up.
    return 1 if device else 0
