"""How long a question takes: CPU time and wall time warm, wall time cold."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

# The shortest question is asked so often, the longest twice.
_TIMES, _LEAST, _SECONDS = 15, 3, 2.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one question costs; milliseconds.

    Args:
        cpu: Of this process, warm.
        server_cpu: Of the database's own process, warm.
        wall: Warm.
    """

    cpu: float
    server_cpu: float
    wall: float


def cost(ask: Callable[[], object], server_seconds: Callable[[], float]) -> Cost:
    """Ask again and again and return the medians; *server_seconds* is the CPU time the server has taken so far."""
    ask()
    taken: list[list[float]] = []
    started = time.perf_counter()
    while len(taken) < _LEAST or (len(taken) < _TIMES and time.perf_counter() - started < _SECONDS):
        before = time.process_time(), server_seconds(), time.perf_counter()
        ask()
        after = time.process_time(), server_seconds(), time.perf_counter()
        taken.append([1000 * (late - early) for early, late in zip(before, after, strict=True)])
    return Cost(*map(median, zip(*taken, strict=True)))


def forget(files: list[Path]) -> None:
    """Drop *files* from the page cache."""
    for path in files:
        # A server may have removed one since.
        with suppress(FileNotFoundError), path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
