"""State of ONNX Runtime sessions (model, device, batch dimension, shapes), and copies by `OrtValue` and `IOBinding`.

A copy between the CPU and a device is `h2d` or `d2h`; a copy within the CPU or within a device is no stage.
"""

from __future__ import annotations

import functools
import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ..instrumentor import log_failure
from ..records import clock, current, has_capacity

# Generic names that exporters and model repositories give to models and versions, also in the cache of Hugging Face
# (models--org--name/snapshots/<revision>/onnx/model.onnx).
GENERIC_NAME: Final = re.compile(r"model(_(quantized|optimized|fp16|int8|q4|uint8))?|onnx|snapshots|\d+|[0-9a-f]{40}")
# Folders in these are home folders of persons.
HOMES: Final = ("home", "Users")
# Device by provider (without ExecutionProvider), unless it is the lower-case name of the provider.
DEVICES: Final = {
    "ACL": "cpu",
    "ArmNN": "cpu",
    "Dnnl": "cpu",
    "MIGraphX": "rocm",
    "NvTensorRTRTX": "cuda",
    "Tensorrt": "cuda",
    "Xnnpack": "cpu",
}
# A session with this many shapes has variable inputs: the cost of a new shape is normal and no cold start.
MAX_SHAPES: Final = 32
# Names of a first dimension that is no batch dimension; names of one that is, even if it is the only dimension.
NO_BATCH: Final = re.compile(r"seq|len|time|frame|token|height|width|chan", re.IGNORECASE)
BATCH: Final = re.compile(r"batch|^n$", re.IGNORECASE)
# Run option of ONNX Runtime that disables the wait for the device.
ASYNCHRONOUS: Final = "disable_synchronize_execution_providers"
# Inputs of a run with unknown inputs.
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
# Attributes of an IOBinding with the shapes of its inputs by name, and with the device of its session. ONNX Runtime exposes
# neither.
INPUTS: Final = "_stagelens_inputs"
DEVICE: Final = "_stagelens_device"


class KnownSession:
    """Known properties of one session, and the input shapes of its runs.

    Not stored on the session, which the user may compare or pickle, but by the id of its C++ session, because
    `set_providers` replaces the C++ session.
    """

    __slots__ = ("alive", "batched", "device", "facts", "seen", "warm")

    def __init__(self) -> None:
        self.alive: weakref.ref[Any] | None = None
        self.facts: tuple[Any, ...] = ()
        self.device = "cpu"
        self.batched = ""
        self.seen: set[tuple[Any, ...]] = set()
        self.warm = False

    def unseen(self, feed: Mapping[str, Any]) -> tuple[Any, ...] | None:
        if self.warm:
            return None
        try:
            # `tuple` of a list, because a generator takes twice as long.
            shapes = () if self.device == "cpu" else tuple([tuple(shape_of(value)) for value in feed.values()])
        except Exception:
            # Invalid inputs, which ONNX Runtime will reject.
            return None
        return None if shapes in self.seen else shapes

    def learn(self, shapes: tuple[Any, ...]) -> None:
        self.seen.add(shapes)
        self.warm = self.device == "cpu" or len(self.seen) >= MAX_SHAPES

    def stage(self, unseen: tuple[Any, ...] | None, run_options: Any) -> str:
        """Return the stage of a run; for an asynchronous run only the launch is timed."""
        if unseen is not None:
            return "load"
        if run_options is None or self.device == "cpu":
            return "forward"
        try:
            return "forward@launch" if run_options.get_run_config_entry(ASYNCHRONOUS) == "1" else "forward"
        except Exception:
            # ONNX Runtime raises for an entry that is not set.
            return "forward"

    def batch(self, feed: Mapping[str, Any]) -> int:
        shape = shape_of(feed.get(self.batched)) if self.batched else ()
        return shape[0] if shape else 0


def shape_of(value: Any) -> tuple[int, ...]:
    shape: Any = getattr(value, "shape", None)
    if shape is None:
        return _nesting(value)
    if type(shape) is tuple or not callable(shape):
        return shape
    # The method of an OrtValue.
    lengths: Any = shape()
    return tuple(lengths)


def _nesting(value: Any) -> tuple[int, ...]:
    lengths: list[int] = []
    while isinstance(value, list) and value:
        lengths.append(len(value))
        value = value[0]
    return tuple(lengths)


# Known sessions by the id of the C++ session.
sessions: dict[int, KnownSession] = {}


def known_of(session: Any) -> KnownSession:
    inner = getattr(session, "_sess", None)
    return sessions.get(id(inner)) or _register_session(session, inner)


def _register_session(session: Any, inner: Any) -> KnownSession:
    known_session = KnownSession()
    if inner is None:
        # Not created or closed; ONNX Runtime will raise.
        return known_session
    try:
        # Removes the entry before the id can be reused; the dead reference is the default argument of `pop`.
        known_session.alive = weakref.ref(inner, functools.partial(sessions.pop, id(inner)))
        known_session.facts, known_session.device, known_session.batched = describe(session)
    except Exception:
        log_failure("describing a session of onnxruntime")
    return known_session if known_session.alive is None else sessions.setdefault(id(inner), known_session)


def describe(session: Any) -> tuple[tuple[Any, ...], str, str]:
    path = session._model_path  # noqa: SLF001 - there is no public name for it
    model = model_name(path) if path else session.get_modelmeta().graph_name
    provider = session.get_providers()[0]
    device = device_of(provider)
    return ("@model", model, 0, "@device", device, 0, "@provider", provider, 0), device, batched_input(session)


@lru_cache(maxsize=256)
def model_name(path: str) -> str:
    """Return the model name of a path: the file name without suffix, or a folder if that is generic (resnet/1/model.onnx)."""
    folder, file = os.path.split(path)
    stem = name = os.path.splitext(file)[0]  # noqa: PTH122 - importing pathlib would cost the host time
    while GENERIC_NAME.fullmatch(name):
        here = folder
        folder, name = os.path.split(here)
        if not name or os.path.basename(folder) in HOMES or here == os.path.expanduser("~"):  # noqa: PTH111, PTH119 - as above
            return stem
    return name


def path_name(path: Any) -> str:
    try:
        return model_name(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else ""
    except Exception:
        log_failure("naming a file that is loaded")
        return ""


def device_of(provider: str) -> str:
    """Return the kind of device of an execution *provider*.

    >>> device_of("TensorrtExecutionProvider"), device_of("CPUExecutionProvider")
    ('cuda', 'cpu')
    """
    short = provider.removesuffix("ExecutionProvider")
    return DEVICES.get(short, short.lower())


def batched_input(session: Any) -> str:
    """Return the name of the first input if its first dimension is a dynamic batch dimension, else ""."""
    inputs = session.get_inputs()
    shape: Sequence[Any] = inputs[0].shape if inputs else ()
    if not shape or isinstance(shape[0], int):
        return ""
    dimension = shape[0] or ""
    counts = BATCH.search(dimension) if len(shape) == 1 else not NO_BATCH.search(dimension)
    return inputs[0].name if counts else ""


class Bound(NamedTuple):
    shape: tuple[int, ...]


def between(source: str, target: str) -> str:
    """Return the stage of a copy from device *source* to *target*, "" for none.

    >>> between("cpu", "cuda"), between("cuda", "cpu"), between("cpu", "cpu"), between("cuda", "cuda")
    ('h2d', 'd2h', '', '')
    """
    if (source == "cpu") == (target == "cpu"):
        return ""
    return "h2d" if source == "cpu" else "d2h"


def copying(stage_of: Callable[..., str]) -> Callable[[Any], Any]:
    """Return a wrapper that records a call as the stage `stage_of(*args)`; "" records nothing."""

    def make(original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            marks = current.get()
            stage = "" if marks is None else _copy_stage(stage_of, args, options)
            if marks is None or not stage:
                return original(*args, **options)
            started = clock()
            try:
                return original(*args, **options)
            finally:
                if has_capacity(marks):
                    marks.extend((stage, started, clock()))

        return call

    return make


def _copy_stage(stage_of: Callable[..., str], args: tuple[Any, ...], options: dict[str, Any]) -> str:
    try:
        return stage_of(*args, **options)
    except TypeError:
        # The arguments are invalid, and the call will raise.
        return ""
    except Exception:
        log_failure("naming the devices of a copy of onnxruntime")
        return ""


# Each function has the name and the arguments of a method, and returns the stage of its copy.
def update_inplace(value: Any, data: Any) -> str:
    source = data.device_name() if hasattr(data, "device_name") else "cpu"
    return between(source, value.device_name())


def numpy(value: Any) -> str:
    return between(value.device_name(), "cpu")


def synchronize_inputs(binding: Any) -> str:
    return between("cpu", _device(binding))


def synchronize_outputs(binding: Any) -> str:
    return "" if _device(binding) == "cpu" else "forward"


def copy_outputs_to_cpu(binding: Any) -> str:
    return between(_device(binding), "cpu")


def _device(binding: Any) -> str:
    return getattr(binding, DEVICE, "cpu")


def creating_binding(original: Any) -> Any:
    """Wrap the constructor of an `IOBinding`, the only place where every version of ONNX Runtime has the session."""

    def __init__(self: Any, session: Any) -> None:  # noqa: N807 - shown in tracebacks
        original(self, session)
        setattr(self, DEVICE, known_of(session).device)

    return __init__


def ortvalue_from_numpy(original: Any) -> Any:
    """Wrap the method that copies an array to a device; a static method before ONNX Runtime 1.22, then a class method."""

    def stage_of(*args: Any, device_type: str = "cpu", **_: Any) -> str:
        # The device is the only text.
        return between("cpu", next((arg for arg in args if isinstance(arg, str)), device_type).lower())

    return copying(stage_of)(original)


def bind_cpu_input(original: Any) -> Any:
    """Wrap the method that binds an array, and copies it if the session runs on a device."""
    bind = copying(lambda binding, _, __: between("cpu", _device(binding)))(original)

    def call(self: Any, name: Any, arr_on_cpu: Any) -> Any:
        _note(self, name, arr_on_cpu)
        return bind(self, name, arr_on_cpu)

    return call


def bind_ortvalue_input(original: Any) -> Any:
    """Wrap the method that binds a value, and copies it from the CPU if the session runs on a device."""
    bind = copying(lambda binding, _, value: between(value.device_name(), _device(binding)))(original)

    def call(self: Any, name: Any, ortvalue: Any) -> Any:
        _note(self, name, ortvalue)
        return bind(self, name, ortvalue)

    return call


def bind_input(original: Any) -> Any:
    """Wrap the method that binds memory, such as that of a torch tensor."""
    bind = copying(lambda binding, _, device_type, *__: between(device_type.lower(), _device(binding)))(original)

    def call(  # noqa: PLR0917 - ONNX Runtime's signature
        self: Any, name: Any, device_type: Any, device_id: Any, element_type: Any, shape: Any, buffer_ptr: Any
    ) -> Any:
        _note(self, name, Bound(shape))
        return bind(self, name, device_type, device_id, element_type, shape, buffer_ptr)

    return call


def _note(binding: Any, name: str, value: Any) -> None:
    try:
        vars(binding).setdefault(INPUTS, {})[name] = Bound(tuple(shape_of(value)))
    except Exception:
        log_failure("recording the shape of an input of onnxruntime")
