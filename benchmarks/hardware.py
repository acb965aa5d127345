"""What it costs to tell of the machine: CPU time of the background, and bytes, for each export of a process.

    python benchmarks/hardware.py

GPUs are read where nvidia-ml-py is installed and a driver answers: by a thread of their own, every two seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stagelens.instrumentors.agent import hardware as hardware_module
from stagelens.instrumentors.agent.hardware import Gpus, Hardware
from stagelens.instrumentors.export.otlp import Encoder, ExportInterval

TURNS = 500
INTERVAL_NS = 10_000_000_000
RESOURCE = {"service.name": "web", "host.name": "web-5d9c7f-x2x7k", "service.instance.id": "a" * 32}


def main() -> None:
    """Measure and print."""
    # Without a pause between two readings.
    hardware_module.MIN_SECONDS = 0.0
    hardware, gpus, now = Hardware(), Gpus(), time.time_ns()
    encoder, interval = Encoder(RESOURCE, lambda: None), ExportInterval(now - INTERVAL_NS, now)
    readings = hardware.take()
    gpus.read_once()
    readings += gpus.take()
    body = encoder.metrics(interval, {}, {}, readings)
    print(f"reading the process  {_microseconds(hardware.take):6.0f} µs")
    print(f"writing it           {_microseconds(lambda: encoder.metrics(interval, {}, {}, readings)):6.0f} µs")
    print(f"sent                 {len(body):6} bytes, {len(readings)} values, alone in a body")
    devices = {each.device for each in readings if each.device.startswith(("gpu", "mig"))}
    if devices:
        print(f"reading {len(devices)} GPUs once  {_microseconds(gpus.read_once):6.0f} µs")


def _microseconds(work: Callable[[], object]) -> float:
    """Return the CPU time of *work*, the median of many turns."""
    spent: list[int] = []
    for _ in range(TURNS):
        started = time.thread_time_ns()
        work()
        spent.append(time.thread_time_ns() - started)
    return sorted(spent)[TURNS // 2] / 1000


if __name__ == "__main__":
    main()
