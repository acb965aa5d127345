"""What is asked of the machine a service runs on, and how it is called on the wire and in the store.

On the wire these are OpenTelemetry's gauges and sums, by its semantic conventions where they have a name for it, so that what
other programs send under that name is taken too. In the store a value is an observation in a histogram like all others, so
that it merges, is rolled up and forgotten like them: the mean over a time is exact.

Source: https://opentelemetry.io/docs/specs/semconv/hardware/gpu/ and https://opentelemetry.io/docs/specs/semconv/system/process-metrics/
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

# As they come: as a gauge, as a sum that goes up and down, or as what a counter grew by, which is kept per second.
Kind = Literal["gauge", "level", "rate"]
# What a value is of: a process, its whole machine, a GPU of it (`hw.id`), or a device as the process calls it.
Of = Literal["process", "host", "gpu", "device"]

HOST, PROCESS_ID, POD = "host.name", "process.pid", "k8s.pod.name"
GPU_ID, GPU_TYPE = "hw.id", "hw.type"
# Which part of a GPU is told of: its encoder and decoder are beside what computes, and not asked for.
GPU_TASK, GENERAL = "hw.gpu.task", "general"
DIRECTION = "network.io.direction"
_MAX_PLACE_CHARS = 120


@dataclass(frozen=True, slots=True)
class Measure:
    """Something that is asked of a machine.

    Args:
        key: In the store.
        metric: On the wire.
        unit: Of the metric, by UCUM; of a rate in the store: per second.
        of: What it is told of.
        kind: How it comes.
        direction: What `network.io.direction` must say, where the metric has one.
    """

    key: str
    metric: str
    unit: str
    of: Of = "process"
    kind: Kind = "gauge"
    direction: str = ""


# Of a process. How many CPUs it kept busy, and which share that is of those it may use.
CPU = Measure("cpu", "process.cpu.time", "s", kind="rate")
CPU_SHARE = Measure("cpu_share", "process.cpu.utilization", "1")
MEMORY = Measure("memory", "process.memory.usage", "By", kind="level")
THREADS = Measure("threads", "process.thread.count", "{thread}", kind="level")
# How much too late its event loops came round, at the worst.
LOOP_LAG = Measure("loop_lag", "inference.loop.lag", "s")
# The share of the scheduler's periods in which it was stopped, because its container had used up what it may use.
THROTTLED = Measure("throttled", "inference.cpu.throttled", "1")
# What all processes of the machine keep busy of its CPUs.
HOST_CPU = Measure("host_cpu", "inference.host.cpu.utilization", "1", of="host")

# Of a GPU, whoever uses it: the share of the time in which a kernel ran.
GPU = Measure("gpu", "hw.gpu.utilization", "1", of="gpu")
GPU_MEMORY = Measure("gpu_memory", "hw.gpu.memory.usage", "By", of="gpu", kind="level")
GPU_MEMORY_SHARE = Measure("gpu_memory_share", "hw.gpu.memory.utilization", "1", of="gpu")
GPU_POWER = Measure("gpu_power", "hw.power", "W", of="gpu")
PCIE_IN = Measure("pcie_in", "hw.gpu.io", "By", of="gpu", kind="rate", direction="receive")
PCIE_OUT = Measure("pcie_out", "hw.gpu.io", "By", of="gpu", kind="rate", direction="transmit")

# What torch of a process has given out of a device's memory, and what it holds.
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
    PCIE_IN,
    PCIE_OUT,
    TORCH_ALLOCATED,
    TORCH_RESERVED,
)
BY_METRIC = {
    name: tuple(each for each in MEASURES if each.metric == name) for name in {each.metric for each in MEASURES}
}


class Reading(NamedTuple):
    """What was read.

    Args:
        measure: Of which measure.
        value: From 0 up, in its unit; of a rate per second.
        device: Of which GPU or device; "" for the process or the machine.
    """

    measure: Measure
    value: float
    device: str = ""


def means(readings: Iterable[Reading]) -> list[Reading]:
    """Return the mean of those of the same measure and device.

    >>> [each.value for each in means([Reading(GPU, 0.5, "gpu0"), Reading(GPU, 1.0, "gpu0"), Reading(GPU, 0.1, "gpu1")])]
    [0.75, 0.1]
    """
    found: dict[tuple[Measure, str], list[float]] = {}
    for measure, value, device in readings:
        found.setdefault((measure, device), []).append(value)
    return [Reading(measure, sum(values) / len(values), device) for (measure, device), values in found.items()]


def place(of: Of, host: str, process: str, device: str) -> str:
    """Return how that is called which a value is told of; the end of a long name, for what tells pods apart stands there.

    >>> place("process", "web-1", "7", ""), place("gpu", "web-1", "7", "gpu0"), place("device", "web-1", "7", "cuda:0")
    ('web-1:7', 'web-1/gpu0', 'web-1:7/cuda:0')
    """
    owner = f"{host}:{process}" if of in ("process", "device") else host
    return (f"{owner}/{device}" if of in ("gpu", "device") else owner)[-_MAX_PLACE_CHARS:]


def host_of(where: str) -> str:
    """Return the machine of what `place` made.

    >>> host_of("web-1:7/cuda:0"), host_of("web-1/gpu0")
    ('web-1', 'web-1')
    """
    return where.partition("/")[0].partition(":")[0]


def hardware_key(measure: str, where: str) -> str:
    """Return the name under which a value is kept.

    >>> hardware_key("gpu", "web-1/gpu0")
    'gpu web-1/gpu0'
    """
    return f"{measure} {where}"


def split_hardware_key(name: str) -> tuple[str, str]:
    """Return measure and place of what `hardware_key` made."""
    measure, _, where = name.partition(" ")
    return measure, where
