"""Hardware measures of the machine a service runs on: names on the wire and in the store.

Names follow the semantic conventions where these define one, so that measurements of other programs are accepted, too. In the store
each value is one observation in a histogram, which is merged, rolled up and deleted like all others; its mean over time is exact.

Source: https://opentelemetry.io/docs/specs/semconv/hardware/gpu/ and https://opentelemetry.io/docs/specs/semconv/system/process-metrics/
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .text import PairKey

# Kind of a measure: gauge; sum that goes up and down; or increase of a counter, which is stored per second.
Kind = Literal["gauge", "level", "rate"]
# Object a value describes: a process, its machine, a GPU (`hw.id`), or a device by the process's own name.
Of = Literal["process", "host", "gpu", "device"]

HOST, PROCESS_ID, POD = "host.name", "process.pid", "k8s.pod.name"
GPU_ID, GPU_TYPE = "hw.id", "hw.type"
# Engine of a GPU whose values are used, the general one; video encoder and decoder are ignored.
GPU_TASK, GENERAL = "hw.gpu.task", "general"
DIRECTION = "network.io.direction"
_MAX_PLACE_CHARS = 120
# Prefix of the keys of the requests that a process has open (`names.OPEN_TIME`), which are keys of a process, too.
OPEN = "open"


@dataclass(frozen=True, slots=True)
class Measure:
    """A quantity measured on a machine."""

    key: str
    metric: str
    unit: str
    of: Of = "process"
    kind: Kind = "gauge"
    direction: str = ""


# Of a process: number of busy CPUs, and their share of the CPUs that the process may use.
CPU = Measure("cpu", "process.cpu.time", "s", kind="rate")
CPU_SHARE = Measure("cpu_share", "process.cpu.utilization", "1")
MEMORY = Measure("memory", "process.memory.usage", "By", kind="level")
THREADS = Measure("threads", "process.thread.count", "{thread}", kind="level")
# Maximum delay of the event loops of a process.
LOOP_LAG = Measure("loop_lag", "inference.loop.lag", "s")
# Share of the scheduler's periods in which the container was throttled by its CPU quota.
THROTTLED = Measure("throttled", "inference.cpu.throttled", "1")
# Share of the machine's CPUs that are busy with all processes.
HOST_CPU = Measure("host_cpu", "inference.host.cpu.utilization", "1", of="host")

# Of a GPU, for all processes: share of the time in which a kernel was running.
GPU = Measure("gpu", "hw.gpu.utilization", "1", of="gpu")
GPU_MEMORY = Measure("gpu_memory", "hw.gpu.memory.usage", "By", of="gpu", kind="level")
GPU_MEMORY_SHARE = Measure("gpu_memory_share", "hw.gpu.memory.utilization", "1", of="gpu")
GPU_POWER = Measure("gpu_power", "hw.power", "W", of="gpu")
# Clock of the streaming multiprocessors, and share of the readings in which the GPU lowered it because of heat or of its power limit.
GPU_CLOCK = Measure("gpu_clock", "inference.gpu.clock", "Hz", of="gpu")
GPU_HOT = Measure("gpu_hot", "inference.gpu.throttled.thermal", "1", of="gpu")
GPU_CAPPED = Measure("gpu_capped", "inference.gpu.throttled.power", "1", of="gpu")
PCIE_IN = Measure("pcie_in", "hw.gpu.io", "By", of="gpu", kind="rate", direction="receive")
PCIE_OUT = Measure("pcie_out", "hw.gpu.io", "By", of="gpu", kind="rate", direction="transmit")

# Device memory that torch in a process has allocated, and reserved.
TORCH_ALLOCATED = Measure("torch_allocated", "inference.torch.memory.allocated", "By", of="device", kind="level")
TORCH_RESERVED = Measure("torch_reserved", "inference.torch.memory.reserved", "By", of="device", kind="level")


MEASURES = (
    CPU,
    CPU_SHARE,
    MEMORY,
    THREADS,
    LOOP_LAG,
    THROTTLED,
    HOST_CPU,
    GPU,
    GPU_MEMORY,
    GPU_MEMORY_SHARE,
    GPU_POWER,
    GPU_CLOCK,
    GPU_HOT,
    GPU_CAPPED,
    PCIE_IN,
    PCIE_OUT,
    TORCH_ALLOCATED,
    TORCH_RESERVED,
)
BY_METRIC = {
    name: tuple(measure for measure in MEASURES if measure.metric == name)
    for name in {measure.metric for measure in MEASURES}
}


class Reading(NamedTuple):
    measure: Measure  # Measure of the value
    value: float  # Value, in the unit of the measure; rates per second. [>= 0]
    device: str = ""  # The GPU or device; "" for the process or the machine


def means(readings: Iterable[Reading]) -> list[Reading]:
    """Return the mean of the readings of each measure and device.

    >>> [measured.value for measured in means([Reading(GPU, 0.5, "gpu0"), Reading(GPU, 1.0, "gpu0"), Reading(GPU, 0.1, "gpu1")])]
    [0.75, 0.1]
    """
    values_by_device: dict[tuple[Measure, str], list[float]] = {}
    for measure, value, device in readings:
        values_by_device.setdefault((measure, device), []).append(value)
    return [
        Reading(measure, sum(values) / len(values), device) for (measure, device), values in values_by_device.items()
    ]


def place(of: Of, host: str, process: str, device: str) -> str:
    """Return the name of the object that a value describes; long names are cut at the start, because the end identifies a pod.

    >>> place("process", "web-1", "7", ""), place("gpu", "web-1", "7", "gpu0"), place("device", "web-1", "7", "cuda:0")
    ('web-1:7', 'web-1/gpu0', 'web-1:7/cuda:0')
    """
    owner = f"{host}:{process}" if of in ("process", "device") else host
    return (f"{owner}/{device}" if of in ("gpu", "device") else owner)[-_MAX_PLACE_CHARS:]


def host_of(where: str) -> str:
    """Return the machine part of a name from `place`.

    >>> host_of("web-1:7/cuda:0"), host_of("web-1/gpu0")
    ('web-1', 'web-1')
    """
    return where.partition("/")[0].partition(":")[0]


# Key under which the values of a measure at a place are stored.
hardware_key = PairKey(" ")
split_hardware_key = hardware_key.split
