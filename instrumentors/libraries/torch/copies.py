"""Copies of tensors between host and device: `h2d` and `d2h`.

Only a copy between host and device is a stage: not a change of type, not a copy within a device, and nothing inside a
module. No value is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ...records import Marks, clock, current, has_capacity
from .device import CAPTURING, devices
from .models import Method, thread_state

# Dynamo never traces these functions, because they are removed while it compiles. `torch.export` runs them, and must not notice.


def to_host(original: Any) -> Method:
    """Wrap a method that copies a tensor to the host: `cpu`, `item`, `numpy`, `tolist`."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        device = None if marks is None or thread_state.inside else off_host(self)
        if marks is None or device is None:
            return original(self, *args, **options)
        return _copy(original, "d2h", device, marks, (self, *args), options)

    return Method(method, original)


def to_device(original: Any) -> Method:
    """Wrap a method that copies a tensor to one kind of device: `cuda`, `xpu`."""
    kind = original.__name__

    def method(self: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or thread_state.inside or off_host(self) is not None:
            return original(self, *args, **options)
        device = _target(args, options) or devices.torch.device(kind)
        return _copy(original, "h2d", device, marks, (self, *args), options)

    return Method(method, original)


def to(original: Any) -> Method:
    """Wrap `Tensor.to`, which may copy a tensor to any device, change its type, or do nothing."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or thread_state.inside:
            return original(self, *args, **options)
        if devices.in_use:
            stage, device = _crossing(self, _target(args, options))
            return _copy(original, stage, device, marks, (self, *args), options)
        # No device was used yet, so no event can be recorded, and a check after the call is cheaper.
        started = clock()
        out = original(self, *args, **options)
        if out is not self and not devices.in_use and not _alike(self, out):
            devices.in_use = True
            _mark(marks, _crossing(self, _device(out))[0], started)
        return out

    return Method(method, original)


def copy_(original: Any) -> Method:
    """Wrap `copy_`, which fills a tensor in place, such as the input of a CUDA graph."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or thread_state.inside:
            return original(self, *args, **options)
        source = args[0] if args else options.get("other")
        if _alike(self, source):
            return original(self, *args, **options)
        stage, device = _crossing(source, _device(self))
        return _copy(original, stage, device, marks, (self, *args), options)

    return Method(method, original)


def _copy(  # noqa: PLR0917 - by position, because keywords cost the request path more
    original: Any, stage: str, device: Any, marks: Marks, args: Any, options: Any
) -> Any:
    """Call *original* and record *stage* with the times of *device*; "" records nothing."""
    if not stage or devices.torch.compiler.is_compiling():
        return original(*args, **options)
    work = devices.begin(device, marks)
    if work is CAPTURING:
        return original(*args, **options)
    started = clock()
    # A tensor subclass receives our method and calls it again.
    thread_state.inside = True
    try:
        out = original(*args, **options)
    finally:
        thread_state.inside = False
    if work is None:
        _mark(marks, stage, started)
    else:
        devices.finish(work, stage, marks)
    return out


def _mark(marks: Marks, stage: str, started: int) -> None:
    if stage and has_capacity(marks):
        marks.extend((f"{stage}@launch", started, clock()))


# A tensor subclass may run its own code when its device is read, and that code may fail.


def off_host(tensor: Any) -> Any:
    try:
        return None if tensor.is_cpu else tensor.device
    except Exception:
        return None


def _device(tensor: Any) -> Any:
    try:
        return tensor.device
    except Exception:
        return None


def _alike(tensor: Any, other: Any) -> bool:
    try:
        return tensor.is_cpu is other.is_cpu
    except Exception:
        return True


def _crossing(tensor: Any, target: Any) -> tuple[str, Any]:
    """Return the stage of a copy of *tensor* to *target* and the device involved; "" and None for no transfer."""
    try:
        source = tensor.device
        kinds = source.type, target.type
    except Exception:
        return "", None
    if "meta" in kinds or kinds.count("cpu") != 1:
        return "", None
    return ("h2d", target) if kinds[0] == "cpu" else ("d2h", source)


def _target(args: Any, options: Any) -> Any:
    try:
        named = options.get("device")
        if named is None:
            named = args[0] if args else options["tensor"]
        if isinstance(named, str | int):
            return devices.torch.device(named)
        # A device, or a tensor whose device is used.
        return named if isinstance(named, devices.torch.device) else getattr(named, "device", None)
    except Exception:
        return None


WRAPPERS: Mapping[str, Callable[[Any], Method]] = MappingProxyType(
    {
        "to": to,
        "cuda": to_device,
        "xpu": to_device,
        "copy_": copy_,
        "cpu": to_host,
        "item": to_host,
        "numpy": to_host,
        "tolist": to_host,
    }
)
