"""What a request costs the whole process at a steady pace: folding, encoding and exporting included."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from contextlib import ExitStack

from .paced import TAIL_SECONDS, Process, Served
from .peers import BARE, OURS
from .table import Table

RATES = (100, 400)
MODEL = "onnx 1 ms"
# Two of our exports lie in so many seconds; where a turn is shorter, the exports come closer together.
INTERVAL_SECONDS = 10.0

# By variant, in one round.
Round = dict[str, Served]


def start(names: tuple[str, ...], sink: str, seconds: float, stack: ExitStack) -> dict[str, Process]:
    """Start a process for each of *names*, for as long as *stack* lasts; turns will be *seconds* long."""
    interval = min(INTERVAL_SECONDS, seconds / 2)
    processes: dict[str, Process] = {}
    for name in names:
        process = processes[name] = Process(
            name, sink, MODEL, {"STAGELENS_EXPORT_INTERVAL": f"{interval * 1000:.0f}ms"}
        )
        stack.callback(process.stop)
    return processes


def measure(processes: dict[str, Process], rate: float, seconds: float, rounds: int) -> list[Round]:
    """Have *processes* take turns of *seconds* in random order."""
    return [
        {name: processes[name].serve(rate, seconds) for name in random.sample(list(processes), len(processes))}
        for _ in range(rounds)
    ]


def over_bare(rows: list[Round], name: str, part: Callable[[Served], int]) -> float:
    """Return the median over rounds of how many microseconds *part* of a request of *name* took more than of a bare one."""
    return statistics.median(
        (part(row[name]) / row[name].requests - part(row[BARE]) / row[BARE].requests) / 1000 for row in rows
    )


def run(names: tuple[str, ...], sink: str, rounds: int, seconds: float) -> None:
    """Measure and print a table for each rate."""
    with ExitStack() as stack:
        processes = start(names, sink, seconds, stack)
        there = {name: process for name, process in processes.items() if process.installed}
        for process in there.values():
            # The first requests import what exports.
            process.serve(RATES[0], 3.0)
        for rate in RATES:
            rows = measure(there, rate, seconds, rounds)
            served = statistics.median(row[OURS].requests for row in rows) / (seconds - TAIL_SECONDS)
            table = Table(
                f"Whole process at {rate} requests/s ({served:.0f} served), us of CPU a request over bare "
                f"(turns of {seconds:g} s, two of our exports in each, medians of {rounds} rounds)",
                "thread",
                "background",
                "total",
                "x ours",
            )
            for name in names:
                if name not in there:
                    table.note(name, "not installed: pip install -e '.[bench]'")
                elif name != BARE:
                    table.row(name, *_cells(rows, name))
            table.print()


def _cells(rows: list[Round], name: str) -> tuple[str, ...]:
    total, ours = (
        over_bare(rows, each, lambda served: served.thread_ns + served.background_ns) for each in (name, OURS)
    )
    thread = over_bare(rows, name, lambda served: served.thread_ns)
    behind = over_bare(rows, name, lambda served: served.background_ns)
    return f"{thread:.1f}", f"{behind:.1f}", f"{total:.1f}", f"{total / ours:.1f}"
