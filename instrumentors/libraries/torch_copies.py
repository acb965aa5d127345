"""Copies of tensors between host and device: `h2d` and `d2h`.

Only what really crosses is a stage: not a change of type, not a copy within a device, and nothing inside a module.
No value is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ..recorder import MAX_MARKS, Marks, clock, current
from .torch_device import Capture, devices
from .torch_methods import Method
from .torch_models import busy

# Dynamo never traces these: while it compiles they are away. Exporting runs them, and must not see a thing.


def to_host(original: Any) -> Method:
    """Wrap a method whose answer is on the host: `cpu`, `item`, `numpy`, `tolist`."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or busy.inside or is_on_host(self):
            return original(self, *args, **options)
        return _copy(original, "d2h", self.device, marks, (self, *args), options)

    return Method(method, original)


def to_device(original: Any) -> Method:
    """Wrap a method that brings a tensor to one kind of device: `cuda`, `xpu`."""
    kind = original.__name__

    def method(self: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or busy.inside or not is_on_host(self):
            return original(self, *args, **options)
        device = _target(args, options) or devices.torch.device(kind)
        return _copy(original, "h2d", device, marks, (self, *args), options)

    return Method(method, original)


def to(original: Any) -> Method:
    """Wrap `to`, which may bring a tensor anywhere, change its type, or do nothing."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or busy.inside:
            return original(self, *args, **options)
        if devices.in_use:
            return _to(original, marks, self, args, options)
        # No device was seen yet: there is none to record an event on, and to look afterwards costs less.
        begun = clock()
        out = original(self, *args, **options)
        if out is not self and not devices.in_use and not _alike(self, out):
            devices.in_use = True
            _mark(marks, _crossing(self, out.device), begun)
        return out

    return Method(method, original)


def copy_(original: Any) -> Method:
    """Wrap `copy_`, which fills a tensor where it is, such as the input of a CUDA graph."""

    def method(self: Any, src: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or busy.inside or _alike(self, src):
            return original(self, src, *args, **options)
        stage = _crossing(src, self.device)
        device = self.device if stage == "h2d" else src.device
        return _copy(original, stage, device, marks, (self, src, *args), options)

    return Method(method, original)


def _to(original: Any, marks: Marks, tensor: Any, args: Any, options: Any) -> Any:
    target = _target(args, options)
    stage = "" if target is None else _crossing(tensor, target)
    device = target if stage == "h2d" else tensor.device
    return _copy(original, stage, device, marks, (tensor, *args), options)


def _copy(  # noqa: PLR0917 - by position, because keywords cost the request path more
    original: Any, stage: str, device: Any, marks: Marks, args: Any, options: Any
) -> Any:
    """Call *original*, which copies for *stage* unless that is "", on the current stream of *device*."""
    if not stage or devices.torch.compiler.is_compiling():
        return original(*args, **options)
    work = devices.begin(device, marks)
    if work is Capture.RUNNING:
        return original(*args, **options)
    begun = clock()
    # A tensor subclass is handed the method, ours, and calls it once more.
    busy.inside = True
    try:
        out = original(*args, **options)
    finally:
        busy.inside = False
    if work is None:
        _mark(marks, stage, begun)
    else:
        devices.finish(work, stage, marks)
    return out


def _mark(marks: Marks, stage: str, begun: int) -> None:
    if stage and len(marks) < MAX_MARKS:
        marks.extend((f"{stage}@launch", begun, clock()))


# A tensor subclass may run code of its own where it is asked where it is: it may fail.


def is_on_host(tensor: Any) -> bool:
    """Say whether *tensor* is on the host."""
    try:
        return tensor.is_cpu
    except Exception:
        return True


def _alike(tensor: Any, other: Any) -> bool:
    """Say whether both are on the host, or both on a device."""
    try:
        return tensor.is_cpu is other.is_cpu
    except Exception:
        return True


def _crossing(tensor: Any, target: Any) -> str:
    """Return the stage of copying *tensor* to device *target*, "" when it does not cross."""
    try:
        kinds = tensor.device.type, target.type
    except Exception:
        return ""
    if "meta" in kinds or kinds.count("cpu") != 1:
        return ""
    return "h2d" if kinds[0] == "cpu" else "d2h"


def _target(args: Any, options: Any) -> Any:
    """Return the device that the arguments of `to` name, None where they name none."""
    try:
        named = options.get("device")
        if named is None:
            named = args[0] if args else options["tensor"]
        if isinstance(named, str | int):
            return devices.torch.device(named)
        # Itself a device, or a tensor to be like.
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
