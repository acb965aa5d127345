"""Copies that ONNX Runtime is asked for by `OrtValue` and `IOBinding`: `h2d` and `d2h` between the CPU and a device.

What stays where it is, on the CPU or on the device, is no stage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..instrumentor import report
from ..records import MAX_MARKS, clock, current
from .onnxruntime_session import device_of_inner, shape_of

# Where an IOBinding keeps what it was given, by name of the input: ONNX Runtime does not tell.
INPUTS: Final = "_stagelens_inputs"


class Bound(NamedTuple):
    """What was bound to an input: nothing of it but the shape."""

    shape: tuple[int, ...]


def between(source: str, target: str) -> str:
    """Return the stage of a copy from device *source* to *target*, "" when it is none.

    >>> between("cpu", "cuda"), between("cuda", "cpu"), between("cpu", "cpu"), between("cuda", "cuda")
    ('h2d', 'd2h', '', '')
    """
    if (source == "cpu") == (target == "cpu"):
        return ""
    return "h2d" if source == "cpu" else "d2h"


def copying(stage_of: Callable[..., str]) -> Callable[[Any], Any]:
    """Return a wrapper that makes a call the stage that *stage_of* answers for its arguments, none for ""."""

    def make(original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            marks = current.get()
            stage = "" if marks is None else _ask(stage_of, args, options)
            if marks is None or not stage:
                return original(*args, **options)
            begun = clock()
            try:
                return original(*args, **options)
            finally:
                if len(marks) < MAX_MARKS:
                    marks.extend((stage, begun, clock()))

        return call

    return make


def _ask(stage_of: Callable[..., str], args: tuple[Any, ...], options: dict[str, Any]) -> str:
    try:
        return stage_of(*args, **options)
    except TypeError:
        # The call is wrong, and will say so.
        return ""
    except Exception:
        report("naming the devices of a copy of onnxruntime")
        return ""


# Each takes what the method does that it is named after.
def update_inplace(value: Any, data: Any) -> str:
    """Copy an array, or another value, into a value."""
    source = data.device_name() if hasattr(data, "device_name") else "cpu"
    return between(source, value.device_name())


def numpy(value: Any) -> str:
    """Copy a value to the CPU."""
    return between(value.device_name(), "cpu")


def synchronize_inputs(binding: Any) -> str:
    """Wait for copies of inputs."""
    return between("cpu", _device(binding))


def synchronize_outputs(binding: Any) -> str:
    """Wait for what runs on the device: a run that was not waited for, and the copies after it."""
    return "" if _device(binding) == "cpu" else "forward"


def copy_outputs_to_cpu(binding: Any) -> str:
    """Copy all outputs to the CPU."""
    return between(_device(binding), "cpu")


def _device(binding: Any) -> str:
    return device_of_inner(binding._session)  # noqa: SLF001 - there is no public name for it


def ortvalue_from_numpy(original: Any) -> Any:
    """Wrap the class method that makes a value on a device of an array."""

    def stage_of(_: Any, numpy_obj: Any, /, device_type: str = "cpu", *__: Any, **___: Any) -> str:  # noqa: ARG001 - its signature
        return between("cpu", device_type.lower())

    return copying(stage_of)(original)


def bind_cpu_input(original: Any) -> Any:
    """Wrap the method that binds an array; for a session on a device that copies it."""
    bind = copying(lambda binding, _, __: between("cpu", _device(binding)))(original)

    def call(self: Any, name: Any, arr_on_cpu: Any) -> Any:
        _note(self, name, arr_on_cpu)
        return bind(self, name, arr_on_cpu)

    return call


def bind_ortvalue_input(original: Any) -> Any:
    """Wrap the method that binds a value; one on the CPU is copied for a session on a device."""
    bind = copying(lambda binding, _, value: between(value.device_name(), _device(binding)))(original)

    def call(self: Any, name: Any, ortvalue: Any) -> Any:
        _note(self, name, ortvalue)
        return bind(self, name, ortvalue)

    return call


def bind_input(original: Any) -> Any:
    """Wrap the method that binds memory, such as a tensor's of torch."""
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
        report("noting the shape of an input of onnxruntime")
