"""What a request costs the thread that serves it: all variants in one process, taking turns."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from tables import Table

from .peers import BARE, OURS, PEERS, STAGES, Call, Peer, set_up

HOT_REQUESTS = 200
COLD_REQUESTS = 12

# Nanoseconds a request, of one variant in one round.
Measure = Callable[[Call], float]


def hot(serve: Call) -> float:
    started = time.thread_time_ns()
    for _ in range(HOT_REQUESTS):
        serve()
    return (time.thread_time_ns() - started) / HOT_REQUESTS


@cache
def _memory() -> np.ndarray:
    """Return 32 MB: as much as the caches hold, or more."""
    return np.ones(4 * 1024 * 1024)


def cold(serve: Call) -> float:
    """Return the median of nanoseconds a request, of wall time, each after a sweep through memory, as a model does."""
    memory = _memory()
    samples: list[int] = []
    for _ in range(COLD_REQUESTS):
        memory.sum()
        started = time.perf_counter_ns()
        serve()
        samples.append(time.perf_counter_ns() - started)
    return statistics.median(samples)


class Compared:
    def __init__(self, rounds: list[dict[str, float]]) -> None:
        self._rounds = rounds

    def nanoseconds(self, name: str) -> float:
        return statistics.median(row[name] for row in self._rounds)

    def ratio(self, name: str) -> float:
        return statistics.median(row[name] / row[OURS] for row in self._rounds)


def compare(measure: Measure, peers: Mapping[str, Peer], rounds: int) -> Compared:
    rows: list[dict[str, float]] = []
    for _ in range(rounds):
        took: dict[str, float] = {}
        for name in random.sample(list(peers), len(peers)):
            took[name] = measure(peers[name].serve)
            # Nobody's export may run while another is measured.
            peers[name].settle()
        rows.append({name: took[name] - took[BARE] for name in peers if name != BARE})
    return Compared(rows)


def run(address: str, rounds: int) -> None:
    found = {name: set_up(name, address) for name in PEERS}
    peers = {name: peer for name, peer in found.items() if peer is not None}
    for measure in (hot, cold):
        compare(measure, peers, 2)
    in_loop, after_model = compare(hot, peers, rounds), compare(cold, peers, rounds)
    table = Table(
        f"Request thread, {len(STAGES)} stages, over bare calls (one process, medians of {rounds} rounds)",
        "hot us",
        "x ours",
        "cold us",
        "x ours",
    )
    for name in found:
        if name not in peers:
            table.note(name, "not installed: pip install -e '.[bench]'")
        elif name != BARE:
            table.row(
                name,
                f"{in_loop.nanoseconds(name) / 1000:.2f}",
                f"{in_loop.ratio(name):.1f}",
                f"{after_model.nanoseconds(name) / 1000:.1f}",
                f"{after_model.ratio(name):.1f}",
            )
    table.print()
