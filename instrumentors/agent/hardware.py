"""Hardware metrics of this process: CPU, memory, threads, throttling, torch's device memory, and its visible GPUs.

Files of /proc and of the control group are read once per export, which takes 0.1 ms. A separate thread reads NVML, whose calls take
up to 20 ms and never return if the driver hangs. Values that a GPU does not provide are left out.

Source: https://docs.nvidia.com/deploy/nvml-api/ and, for the visible GPUs, CUDA_VISIBLE_DEVICES in the CUDA C++ Programming Guide
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ...core import hardware
from ..instrumentor import log_failure
from ..recorder import park_if_inherited
from ..stalls import loop_lag

# Imported together with the agent, not later: a fork during a later import would leave a half-imported module in the child.
try:
    import pynvml as _pynvml  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
except Exception:  # any failure of a module with this name
    _pynvml = None

logger = logging.getLogger("stagelens")

# Shares of a shorter time are imprecise: the kernel counts in hundredths of a second.
MIN_SECONDS: Final = 0.05
# https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html: num_threads and rss, counted from the field after the name.
_THREADS, _PAGES = 17, 21
# https://man7.org/linux/man-pages/man5/proc_stat.5.html: idle and iowait; guest times are already included in user and nice.
_IDLE, _COUNTED = slice(3, 5), slice(0, 8)
_CGROUPS: Final = "/sys/fs/cgroup"
# Sampling period of the driver: a sixth of a second to a second.
EVERY_SECONDS: Final = 2.0
# Interval without a driver or a GPU, or after the GPU was lost.
RETRY_SECONDS: Final = 300.0
# Two minutes of sixteen GPUs; an export removes the readings every ten seconds.
_MAX_READINGS: Final = 9000


class _Counters(NamedTuple):
    at_ns: int
    cpu_ns: int
    host: tuple[int, int]
    periods: tuple[int, int]


class ProcessMetrics:
    def __init__(self) -> None:
        self._before = _counters()

    def take(self) -> Iterator[hardware.Reading]:
        before, now = self._before, _counters()
        seconds = (now.at_ns - before.at_ns) / 1e9
        if seconds < MIN_SECONDS:
            return
        self._before = now
        cpus = (now.cpu_ns - before.cpu_ns) / 1e9 / seconds
        yield hardware.Reading(hardware.CPU, cpus)
        yield hardware.Reading(hardware.CPU_SHARE, cpus / available_cpus())
        for measure, then, since in (
            (hardware.HOST_CPU, before.host, now.host),
            (hardware.THROTTLED, before.periods, now.periods),
        ):
            part, whole = (after - earlier for earlier, after in zip(then, since, strict=True))
            if whole > 0:
                # The iowait counter of the kernel may decrease, and the total with it.
                yield hardware.Reading(measure, min(part / whole, 1.0))
        yield from _process_size()
        late_ns = loop_lag.take()
        if late_ns is not None:
            yield hardware.Reading(hardware.LOOP_LAG, late_ns / 1e9)


def available_cpus() -> float:
    affinity = getattr(os, "sched_getaffinity", None)
    mine = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota, _, period = _read_cpu_group("cpu.max").partition(" ")
    if not quota:
        quota, period = _read_cpu_group("cpu.cfs_quota_us").strip(), _read_cpu_group("cpu.cfs_period_us")
    # Without a limit the quota is `max`, or -1 in version 1.
    if not quota.isdigit():
        return mine
    return min(mine, int(quota) / int(period))


def _counters() -> _Counters:
    return _Counters(time.monotonic_ns(), time.process_time_ns(), _host_times(), _throttled_periods())


def _host_times() -> tuple[int, int]:
    words = _read_file("/proc/stat").partition("\n")[0].split()[1:]
    times = [int(word) for word in words[_COUNTED]]
    return sum(times) - sum(times[_IDLE]), sum(times)


def _throttled_periods() -> tuple[int, int]:
    values = dict(line.split(" ", 1) for line in _read_cpu_group("cpu.stat").splitlines())
    return int(values.get("nr_throttled", 0)), int(values.get("nr_periods", 0))


def _process_size() -> Iterator[hardware.Reading]:
    # After the name of the program, which may contain any character.
    words = _read_file("/proc/self/stat").rpartition(")")[2].split()
    if words:
        yield hardware.Reading(hardware.MEMORY, int(words[_PAGES]) * os.sysconf("SC_PAGE_SIZE"))
        yield hardware.Reading(hardware.THREADS, int(words[_THREADS]))


def _read_cpu_group(name: str) -> str:
    return next(filter(None, (_read_file(f"{folder}/{name}") for folder in _cpu_groups())), "")


def _cpu_groups() -> Iterator[str]:
    """Yield the folders of the group, in version 2 and in version 1 (https://docs.kernel.org/admin-guide/cgroup-v1/)."""
    for line in _read_file("/proc/self/cgroup").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            yield f"{_CGROUPS}{group}"
        elif "cpu" in controllers.split(","):
            yield from (f"{_CGROUPS}/{controllers}{group}", f"{_CGROUPS}/cpu{group}")
    yield from (_CGROUPS, f"{_CGROUPS}/cpu")


def _read_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib costs the host its import
            return file.read()
    except OSError:
        return ""


def torch_memory() -> Iterator[hardware.Reading]:
    """Yield the device memory of torch per device; none if CUDA is not initialized, which this function never does."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    for device in range(cuda.device_count()):
        stats = cuda.memory_stats(device)
        if stats.get("reserved_bytes.all.peak"):
            yield hardware.Reading(hardware.TORCH_ALLOCATED, stats["allocated_bytes.all.current"], f"cuda:{device}")
            yield hardware.Reading(hardware.TORCH_RESERVED, stats["reserved_bytes.all.current"], f"cuda:{device}")


# nvmlClocksEventReasons: SwThermalSlowdown, HwThermalSlowdown; and SwPowerCap, HwPowerBrakeSlowdown.
_HEAT, _POWER_LIMIT = 0x20 | 0x40, 0x04 | 0x80


class Device(NamedTuple):
    name: str
    handle: Any


class Gpus:
    def __init__(
        self, nvml: Any = _pynvml, visible: Callable[[], str | None] = lambda: os.environ.get("CUDA_VISIBLE_DEVICES")
    ) -> None:
        self._nvml = nvml
        self._visible = visible
        self._devices: list[Device] = []
        self._readings: deque[hardware.Reading] = deque(maxlen=_MAX_READINGS)

    def watch(self) -> None:
        if self._nvml is None:
            return
        with suppress(RuntimeError):  # since Python 3.12 no thread starts at exit
            threading.Thread(target=self._run, name="stagelens-gpus", daemon=True).start()

    def take(self) -> list[hardware.Reading]:
        return hardware.means([self._readings.popleft() for _ in range(len(self._readings))])

    def read_once(self) -> float:
        try:
            readings = self._read_devices()
        except Exception as error:
            # The library or the driver is missing.
            logger.debug("stagelens: GPUs cannot be read, GPU metrics are missing: %s", error)
            readings = []
        self._readings.extend(readings)
        if readings:
            return EVERY_SECONDS
        if self._devices:
            logger.warning("stagelens: GPUs can no longer be read; GPU metrics are missing; retrying every 5 minutes")
        self._devices = []
        self._shut_down()
        return RETRY_SECONDS

    def _read_devices(self) -> list[hardware.Reading]:
        if self._devices:
            return _readings(self._nvml, self._devices)
        self._nvml.nvmlInit()
        devices = list(visible_devices(self._nvml, self._visible()))
        readings = _readings(self._nvml, devices)
        # Only GPUs that were readable once cause a warning when they can no longer be read.
        self._devices = devices if readings else []
        return readings

    def _run(self) -> None:
        pid = os.getpid()
        while True:
            time.sleep(self.read_once())
            park_if_inherited(pid)

    def _shut_down(self) -> None:
        try:
            self._nvml.nvmlShutdown()
        except Exception as error:
            # NVML was not initialized, or its driver was unloaded.
            logger.debug("stagelens: NVML could not be shut down: %s", error)


def visible_devices(nvml: Any, visible: str | None) -> Iterator[Device]:
    """Yield the GPUs and slices that a process with CUDA_VISIBLE_DEVICES=*visible* may use; all of them for None.

    Indexes are those of NVML. CUDA uses the same ones if all GPUs are of one model, or with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    devices = [
        Device(f"gpu{index}", handle)
        for index in range(nvml.nvmlDeviceGetCount())
        if (handle := _call_nvml(nvml, nvml.nvmlDeviceGetHandleByIndex, index)) is not None
    ]
    chosen = (
        devices
        if visible is None
        else _selected_devices(nvml, devices, [entry.strip() for entry in visible.split(",")])
    )
    for device in chosen:
        yield from _mig_slices(nvml, device)


def _selected_devices(nvml: Any, devices: Sequence[Device], entries: Sequence[str]) -> Iterator[Device]:
    for entry in entries:
        if entry.startswith("MIG-"):
            handle = _call_nvml(nvml, nvml.nvmlDeviceGetHandleByUUID, entry)
            matching = [] if handle is None else [Device(entry[:12].lower(), handle)]
        elif entry.startswith("GPU-"):
            matching = [
                device
                for device in devices
                if str(_call_nvml(nvml, nvml.nvmlDeviceGetUUID, device.handle)).startswith(entry)
            ]
        else:
            matching = [device for device in devices if device.name == f"gpu{entry}"]
        if not matching:
            return
        yield matching[0]


def _mig_slices(nvml: Any, device: Device) -> Iterator[Device]:
    mode = _call_nvml(nvml, nvml.nvmlDeviceGetMigMode, device.handle)
    if not mode or not mode[0]:
        yield device
        return
    for index in range(_call_nvml(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, device.handle) or 0):
        handle = _call_nvml(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, device.handle, index)
        if handle is not None:
            yield Device(f"{device.name}.{index}", handle)


def _readings(nvml: Any, devices: Iterable[Device]) -> list[hardware.Reading]:
    return [reading for device in devices for reading in _device_readings(nvml, *device)]


def _device_readings(nvml: Any, name: str, handle: Any) -> Iterator[hardware.Reading]:
    rates = _call_nvml(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    if rates is not None:
        yield hardware.Reading(hardware.GPU, rates.gpu / 100, name)
    memory = _call_nvml(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    if memory is not None and memory.total:
        yield hardware.Reading(hardware.GPU_MEMORY, float(memory.used), name)
        yield hardware.Reading(hardware.GPU_MEMORY_SHARE, memory.used / memory.total, name)
    # NVIDIA renamed the function from "throttle" to "event" reasons and keeps the old name.
    reasons = _call_nvml(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    if reasons is not None:
        yield hardware.Reading(hardware.GPU_HOT, float(bool(reasons & _HEAT)), name)
        yield hardware.Reading(hardware.GPU_CAPPED, float(bool(reasons & _POWER_LIMIT)), name)
    # In milliwatts, megahertz and kilobytes.
    for measure, unit, ask, *about in (
        (hardware.GPU_POWER, 0.001, nvml.nvmlDeviceGetPowerUsage),
        (hardware.GPU_CLOCK, 1e6, nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
        (hardware.PCIE_IN, 1000.0, nvml.nvmlDeviceGetPcieThroughput, nvml.NVML_PCIE_UTIL_RX_BYTES),
        (hardware.PCIE_OUT, 1000.0, nvml.nvmlDeviceGetPcieThroughput, nvml.NVML_PCIE_UTIL_TX_BYTES),
    ):
        value = _call_nvml(nvml, ask, handle, *about)
        if value is not None:
            yield hardware.Reading(measure, value * unit, name)


def _call_nvml(nvml: Any, ask: Callable[..., Any], *about: Any) -> Any:
    """Return the result of an NVML call; None if this GPU does not support it, does not permit it, or was lost."""
    try:
        return ask(*about)
    except nvml.NVMLError:
        return None


class Hardware:
    def __init__(self) -> None:
        self.gpus = Gpus()
        self._sources: tuple[Callable[[], Iterable[hardware.Reading]], ...] = (
            ProcessMetrics().take,
            self.gpus.take,
            torch_memory,
        )

    def take(self) -> list[hardware.Reading]:
        readings: list[hardware.Reading] = []
        for source in self._sources:
            try:
                readings += source()
            except Exception:
                log_failure("reading host metrics")
        return [reading for reading in readings if 0 <= reading.value < math.inf]
