"""What a real service pays: FastAPI on uvicorn around a model, with and without, asked in bursts that take turns."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tables import Table

from .server import BASE, BASE_VARIABLE, NONE, SERVERS, Server, recorder

# Requests in a burst, by model.
BURSTS = {"none": 60, "onnx 1 ms": 60}
WARM_UP = 40


@dataclass(frozen=True, slots=True)
class Burst:
    cpu_ns: float
    wall_ns: float
    p50_ns: float
    p99_ns: float


def burst(server: Server, requests: int) -> Burst:
    latencies: list[int] = []
    cpu_before, started = server.cpu_ns(), time.perf_counter_ns()
    for _ in range(requests):
        asked = time.perf_counter_ns()
        server.ask()
        latencies.append(time.perf_counter_ns() - asked)
    wall, cpu = time.perf_counter_ns() - started, server.cpu_ns() - cpu_before
    latencies.sort()
    return Burst(cpu / requests, wall / requests, statistics.median(latencies), latencies[int(0.99 * (requests - 1))])


@contextmanager
def cores() -> Generator[int | None]:
    """Keep us off a core, which is the servers'; None on a machine that has but one, or cannot do that."""
    own = sorted(os.sched_getaffinity(0))
    if len(own) < 2 or shutil.which("taskset") is None:
        yield None
        return
    os.sched_setaffinity(0, own[1:])
    try:
        yield own[0]
    finally:
        os.sched_setaffinity(0, own)


def run(sink: str, models: Sequence[str], rounds: int) -> None:
    there = [
        name for name in SERVERS if recorder(name, sink).installed and (name != BASE or BASE_VARIABLE in os.environ)
    ]
    for model in models:
        _show(model, BURSTS[model], *measure(there, model, sink, rounds), rounds)


def measure(
    names: Sequence[str], model: str, sink: str, rounds: int
) -> tuple[list[dict[str, Burst]], dict[str, float]]:
    """Return each round, and by server the CPU time per request with the pauses, in which exports go on. [nanoseconds]."""
    requests = BURSTS[model]
    with ExitStack() as stack:
        core = stack.enter_context(cores())
        servers: list[Server] = []
        for name in names:
            servers.append(Server(name, model, sink, core))
            stack.callback(servers[-1].stop)
        for server in servers:
            burst(server, WARM_UP)
        before = {server.name: server.cpu_ns() for server in servers}
        rows = [
            {server.name: burst(server, requests) for server in random.sample(servers, len(servers))}
            for _ in range(rounds)
        ]
        return rows, {server.name: (server.cpu_ns() - before[server.name]) / (requests * rounds) for server in servers}


def _show(model: str, requests: int, rows: list[dict[str, Burst]], whole: dict[str, float], rounds: int) -> None:
    bare_us = statistics.median(row[NONE].cpu_ns for row in rows) / 1000
    table = Table(
        f"Service around {model}: {bare_us:,.0f} us of CPU a request without; ratios to that "
        f"(bursts of {requests}, medians of {rounds} rounds)",
        "CPU +us",
        "CPU",
        "whole +us",
        "CPU, whole",
        "throughput",
        "p50",
        "p99",
    )
    for name in SERVERS[1:]:
        if name == BASE and name not in whole:
            continue
        if name not in whole:
            table.note(name, "not installed: pip install -e '.[bench]'")
            continue

        def ratio(part: Callable[[Burst], float], name: str = name) -> str:
            return f"{statistics.median(part(row[name]) / part(row[NONE]) for row in rows):.3f}"

        table.row(
            name,
            f"{statistics.median(row[name].cpu_ns - row[NONE].cpu_ns for row in rows) / 1000:+,.0f}",
            ratio(lambda took: took.cpu_ns),
            f"{(whole[name] - whole[NONE]) / 1000:+,.0f}",
            f"{whole[name] / whole[NONE]:.3f}",
            ratio(lambda took: 1 / took.wall_ns),
            ratio(lambda took: took.p50_ns),
            ratio(lambda took: took.p99_ns),
        )
    table.print()
