"""What the machine of this process does, once an export: the process itself, its GPUs, and torch's memory on them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..core.hardware import TORCH_ALLOCATED, TORCH_RESERVED, Reading
from .gpus import Gpus
from .instrumentor import report
from .process import Process


class Hardware:
    """Everything that is read of the machine."""

    def __init__(self) -> None:
        self._gpus = Gpus()
        self._sources: tuple[Callable[[], Iterable[Reading]], ...] = (Process().take, self._gpus.take, torch_memory)

    def watch(self) -> None:
        """Read from here on what has to be read more often; never raises."""
        try:
            self._gpus.watch()
        except Exception:
            report("starting a thread that reads GPUs")

    def take(self) -> list[Reading]:
        """Return what can be said of the time since the last call; never raises."""
        found: list[Reading] = []
        for source in self._sources:
            try:
                found += source()
            except Exception:
                report("reading what the machine does")
        return [each for each in found if 0 <= each.value < math.inf]


def torch_memory() -> Iterator[Reading]:
    """Yield what torch holds of each device; nothing where the process does not use it on one. CUDA is never initialised."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    for device in range(cuda.device_count()):
        told = cuda.memory_stats(device)
        if told.get("reserved_bytes.all.peak"):
            yield Reading(TORCH_ALLOCATED, told["allocated_bytes.all.current"], f"cuda:{device}")
            yield Reading(TORCH_RESERVED, told["reserved_bytes.all.current"], f"cuda:{device}")
