"""What a thread and its process had of the CPUs, by the kernel's own count."""

from __future__ import annotations

import time


def on_and_off_cpu() -> tuple[int, int]:
    """Return for how long this thread ever had a CPU, and was ready and had none, in nanoseconds; zeros where the kernel does not tell."""
    try:
        # https://docs.kernel.org/scheduler/sched-stats.html. Opened each time: a program that becomes a daemon closes what it
        # does not know.
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:  # noqa: PTH123 - a Path costs half as much again
            ran, waited, _ = file.read().split()
        return int(ran), int(waited)
    except (OSError, ValueError):
        return 0, 0


def worked() -> int:
    """Return for how long this process has computed, and this thread has waited to, in nanoseconds.

    What a thread did beside that, it waited for something else: a disk, a network, a lock. While other threads compute, more was
    worked than that thread did, on several CPUs even more than time went by.
    """
    return time.process_time_ns() + on_and_off_cpu()[1]
