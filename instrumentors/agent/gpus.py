"""GPU metrics of this process's visible GPUs from NVML: utilization, memory, power and PCIe transfers.

A separate thread reads NVML, because its calls take from microseconds to 20 milliseconds (transfers) and never return if the
driver hangs; then no more GPU metrics are exported, and nothing else is affected. Without `nvidia-ml-py` there is no thread.
Values that a GPU does not provide are left out (a MIG slice has no utilization of its own).

Source: https://docs.nvidia.com/deploy/nvml-api/ and, for the visible GPUs, CUDA_VISIBLE_DEVICES in the CUDA C++ Programming Guide
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ...core.hardware import GPU, GPU_MEMORY, GPU_MEMORY_SHARE, GPU_POWER, PCIE_IN, PCIE_OUT, Reading, means
from ..recorder import park_if_inherited

# Together with the agent, which nobody may fork from meanwhile (`recorder._run`).
try:
    import pynvml as _pynvml  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
except Exception:  # whatever stands under that name
    _pynvml = None

logger = logging.getLogger("stagelens")

# The driver itself measures over a sixth of a second to a second.
EVERY_SECONDS: Final = 2.0
# Where there is no driver, no GPU, or it was lost.
RETRY_SECONDS: Final = 300.0
# Two minutes of sixteen GPUs; an export takes them away every ten seconds.
_MAX_READINGS: Final = 6000


class Device(NamedTuple):
    """A GPU or a MIG slice: its name and its NVML handle."""

    name: str
    handle: Any


class Gpus:
    """The GPUs this process can see.

    Args:
        nvml: The module `pynvml`; None where it is not installed.
        visible: Returns CUDA_VISIBLE_DEVICES, None where it is not set.
    """

    def __init__(
        self, nvml: Any = _pynvml, visible: Callable[[], str | None] = lambda: os.environ.get("CUDA_VISIBLE_DEVICES")
    ) -> None:
        self._nvml = nvml
        self._visible = visible
        self._devices: list[Device] = []
        self._readings: deque[Reading] = deque(maxlen=_MAX_READINGS)

    def watch(self) -> None:
        """Start reading them every `EVERY_SECONDS`."""
        if self._nvml is not None:
            threading.Thread(target=self._run, name="stagelens-gpus", daemon=True).start()

    def take(self) -> list[Reading]:
        """Return the means of the readings since the last call, and remove the readings."""
        return means([self._readings.popleft() for _ in range(len(self._readings))])

    def read_once(self) -> float:
        """Read all GPUs once; return the seconds until the next reading. Never raises."""
        try:
            found = self._read()
        except Exception as error:
            # No library, no driver.
            logger.debug("stagelens: GPUs cannot be read: %s", error)
            found = []
        self._readings.extend(found)
        if found:
            return EVERY_SECONDS
        if self._devices:
            logger.warning("stagelens: the GPUs cannot be read any more; that is tried again every 5 minutes")
        self._devices = []
        self._leave()
        return RETRY_SECONDS

    def _read(self) -> list[Reading]:
        if self._devices:
            return _readings(self._nvml, self._devices)
        self._nvml.nvmlInit()
        devices = list(visible_devices(self._nvml, self._visible()))
        found = _readings(self._nvml, devices)
        # Only of those that could be read it is worth saying that they no longer can.
        self._devices = devices if found else []
        return found

    def _run(self) -> None:
        pid = os.getpid()
        while True:
            time.sleep(self.read_once())
            park_if_inherited(pid)

    def _leave(self) -> None:
        try:
            self._nvml.nvmlShutdown()
        except Exception as error:
            # Not begun, or gone with its driver.
            logger.debug("stagelens: NVML does not end: %s", error)


def visible_devices(nvml: Any, visible: str | None) -> Iterator[Device]:
    """Yield the GPUs and slices that a process with CUDA_VISIBLE_DEVICES=*visible* may use; all of them for None.

    Numbers are taken as NVML counts, which CUDA does too where all GPUs are alike, or with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    found = [
        Device(f"gpu{index}", handle)
        for index in range(nvml.nvmlDeviceGetCount())
        if (handle := _told(nvml, nvml.nvmlDeviceGetHandleByIndex, index)) is not None
    ]
    chosen = found if visible is None else _chosen(nvml, found, [each.strip() for each in visible.split(",")])
    for device in chosen:
        yield from _slices(nvml, device)


def _chosen(nvml: Any, found: Sequence[Device], entries: Sequence[str]) -> Iterator[Device]:
    """Yield the devices of *entries*, up to the first unknown entry, as CUDA does."""
    for entry in entries:
        if entry.startswith("MIG-"):
            handle = _told(nvml, nvml.nvmlDeviceGetHandleByUUID, entry)
            named = [] if handle is None else [Device(entry[:12].lower(), handle)]
        elif entry.startswith("GPU-"):
            named = [each for each in found if str(_told(nvml, nvml.nvmlDeviceGetUUID, each.handle)).startswith(entry)]
        else:
            named = [each for each in found if each.name == f"gpu{entry}"]
        if not named:
            return
        yield named[0]


def _slices(nvml: Any, device: Device) -> Iterator[Device]:
    """Yield the slices of a GPU that is cut up (MIG), or itself."""
    mode = _told(nvml, nvml.nvmlDeviceGetMigMode, device.handle)
    if not mode or not mode[0]:
        yield device
        return
    for index in range(_told(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, device.handle) or 0):
        handle = _told(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, device.handle, index)
        if handle is not None:
            yield Device(f"{device.name}.{index}", handle)


def _readings(nvml: Any, devices: Iterable[Device]) -> list[Reading]:
    return [reading for device in devices for reading in _of_device(nvml, *device)]


def _of_device(nvml: Any, name: str, handle: Any) -> Iterator[Reading]:
    rates = _told(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    if rates is not None:
        yield Reading(GPU, rates.gpu / 100, name)
    memory = _told(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    if memory is not None and memory.total:
        yield Reading(GPU_MEMORY, float(memory.used), name)
        yield Reading(GPU_MEMORY_SHARE, memory.used / memory.total, name)
    milliwatts = _told(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    if milliwatts is not None:
        yield Reading(GPU_POWER, milliwatts / 1000, name)
    for measure, counter in ((PCIE_IN, nvml.NVML_PCIE_UTIL_RX_BYTES), (PCIE_OUT, nvml.NVML_PCIE_UTIL_TX_BYTES)):
        kilobytes = _told(nvml, nvml.nvmlDeviceGetPcieThroughput, handle, counter)
        if kilobytes is not None:
            yield Reading(measure, kilobytes * 1000.0, name)


def _told(nvml: Any, ask: Callable[..., Any], *about: Any) -> Any:
    """Return the result of an NVML call; None if this GPU does not support it, does not permit it, or was lost."""
    try:
        return ask(*about)
    except nvml.NVMLError:
        return None
