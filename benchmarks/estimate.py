"""Is what the agent says of its own cost true?

    python benchmarks/estimate.py [--seconds S]

Requests with us and without take turns, in random order; the truth is what the medians differ by. The agent's estimate comes
from calibrations before requests like these, as in a service.

- before: each request after a sweep through 32 MB, as a model does, and its stages around nothing, one after the other.
- between: a sweep before each of its stages as well.
- tight: no sweep at all, which no service is like.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable

import numpy as np
from costs.table import Table

import stagelens
from stagelens.instrumentors import recorder
from stagelens.instrumentors.agent.govern import PathCost
from stagelens.instrumentors.recorder_state import state

SECONDS = 30.0
STAGES = (0, 6, 24, 200)
# Of a sweep between them.
FEW_STAGES = (1, 6)
# A calibration per second is one in many requests.
REHEARSE_EVERY = 8
_MEMORY = np.zeros(32 * 1024**2 // 8)


def sweep() -> None:
    """Leave nothing of ours in the caches."""
    np.add(_MEMORY, 1, out=_MEMORY)


def nothing() -> None:
    """Do nothing, as a stage or without one."""


staged = stagelens.stage("forward")(nothing)


def took_ns(serve: Callable[[], object], pieces: list[float]) -> int:
    """Return what *serve* takes but for what it has put down in *pieces*: the sweeps in it."""
    pieces.clear()
    started = time.perf_counter_ns()
    serve()
    return time.perf_counter_ns() - started - int(sum(pieces))


def measure(table: Table, name: str, count: int, *, before: bool, between: bool, seconds: float) -> None:
    """Add a row for requests of *count* stages."""
    pieces: list[float] = []

    def steps(step: Callable[[], None]) -> None:
        for _ in range(count):
            if between:
                started = time.perf_counter_ns()
                sweep()
                pieces.append(time.perf_counter_ns() - started)
            step()

    served = {True: lambda: request(staged), False: lambda: steps(nothing)}

    @stagelens.request("estimate")
    def request(step: Callable[[], None]) -> None:
        steps(step)

    path, estimates = PathCost(), list[float]()
    took: dict[bool, deque[int]] = {True: deque(), False: deque()}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for with_us in random.sample((False, True), 2):
            if before:
                sweep()
            took[with_us].append(took_ns(served[with_us], pieces))
        if len(took[True]) % REHEARSE_EVERY == 0:
            if before:
                sweep()
            state.calibrate_next(0, path.calibrate)
            request(nothing)
            estimates.append(path.of_ns(count))
        recorder.pending.clear()
    truth = statistics.median(took[True]) - statistics.median(took[False])
    estimated = statistics.median(estimates)
    table.row(f"{name}, {count} stages", f"{truth / 1e3:.1f}", f"{estimated / 1e3:.1f}", f"{estimated / truth:.2f}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for each row (default: {SECONDS:g})")
    seconds: float = parser.parse_args().seconds
    # Nothing is counted or sent.
    recorder.background.wake_at = sys.maxsize
    table = Table("what it costs a request to be recorded", "truth, us", "estimate, us", "ratio")
    for count in STAGES:
        measure(table, "before", count, before=True, between=False, seconds=seconds)
    for count in FEW_STAGES:
        measure(table, "between", count, before=True, between=True, seconds=seconds)
    for count in STAGES:
        measure(table, "tight", count, before=False, between=False, seconds=seconds)
    table.print()


if __name__ == "__main__":
    main()
