"""What it costs to be there: idle CPU, memory, the time of an import, and garbage collections."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from .paced import TAIL_SECONDS, Process
from .peers import BARE, OURS
from .table import Table

REQUESTS_IN_MEMORY, REQUESTS_COLLECTED = 5_000, 10_000
RATE = 400
IMPORTS_A_ROUND = 10


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one process took.

    Args:
        idle: Share of a core, after one request.
        megabytes: Resident (Rss) after 5,000 requests.
        older_collections: Of generation 1 and 2, in 10,000 requests.
    """

    idle: float
    megabytes: float
    older_collections: int


def of(name: str, sink: str, idle_seconds: float, share: float) -> Footprint:
    """Measure a new process of *name*; *share* of the requests will do for a trial."""
    process = Process(name, sink, "onnx 1 ms", {})
    # One request, and the second until it is folded.
    process.serve(1, 1 + TAIL_SECONDS)
    idle_ns = process.idle_ns(idle_seconds)
    before = process.state()
    process.serve(RATE, share * REQUESTS_IN_MEMORY / RATE + TAIL_SECONDS)
    halfway = process.state()
    process.serve(RATE, share * (REQUESTS_COLLECTED - REQUESTS_IN_MEMORY) / RATE + TAIL_SECONDS)
    after = process.state()
    process.stop()
    return Footprint(
        idle_ns / 1e9 / idle_seconds,
        halfway.resident_bytes / 1e6,
        after.older_collections - before.older_collections,
    )


def import_milliseconds(rounds: int) -> float:
    """Return how many milliseconds longer Python takes to start and end with us: a median over pairs."""
    return 1000 * statistics.median(
        _seconds("import stagelens; stagelens.instrument()") - _seconds("pass") for _ in range(rounds * IMPORTS_A_ROUND)
    )


def _seconds(program: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - started


def run(sink: str, rounds: int, idle_seconds: float, share: float) -> None:
    """Measure and print."""
    found: dict[str, list[Footprint]] = {BARE: [], OURS: []}
    for _ in range(rounds):
        for name in random.sample(list(found), 2):
            found[name].append(of(name, sink, idle_seconds, share))

    def row(title: str, unit: str, part: Callable[[Footprint], float]) -> None:
        bare, ours = ([part(footprint) for footprint in found[name]] for name in (BARE, OURS))
        added = statistics.median(with_us - without for with_us, without in zip(ours, bare, strict=True))
        table.row(f"{title} [{unit}]", *(f"{number:.3g}" for number in (*map(statistics.median, (bare, ours)), added)))

    table = Table(f"Footprint (processes of their own, medians of {rounds} rounds)", "bare", "stagelens", "added")
    row(f"idle for {idle_seconds:g} s after one request", "% of a core", lambda footprint: 100 * footprint.idle)
    row(f"memory after {share * REQUESTS_IN_MEMORY:,.0f} requests", "MB", lambda footprint: footprint.megabytes)
    row(
        f"old collections in {share * REQUESTS_COLLECTED:,.0f} requests",
        "gen 1, 2",
        lambda footprint: footprint.older_collections,
    )
    table.row("import and instrument [ms]", "", "", f"{import_milliseconds(rounds):.1f}")
    table.print()
