"""What a stage costs the thread that serves the request: ours beside opentelemetry-sdk spans, hot and cold, in one run.

    python benchmarks/recorder.py [--rounds 30]

A request is a root and six stages around functions that do nothing. *Hot*: in a tight loop. *Cold*: a sweep through 32 MB
(as a model does) runs before every single request, so that neither code nor data are in the caches; that is what a service
pays, and it is 6 to 10 times as much. Variants take turns in random order; what the bare calls take is subtracted; ratios
are medians over rounds of ratios within a round, because absolute times drift with the neighbours' load.

OpenTelemetry's spans record and have no processor: batching and export come on top, as do our fold (below) and export.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from opentelemetry.sdk.trace import TracerProvider

from stagelens import request, stage
from stagelens.instrumentors import recorder
from stagelens.instrumentors.config import Keep
from stagelens.instrumentors.fold import Fold

STAGES = ("serialize", "preprocess", "tokenize", "forward", "postprocess", "network")
HOT_REQUESTS = 200
COLD_REQUESTS = 12
FOLD_AT_ONCE = 64

Call = Callable[[], None]


def work() -> None:
    """Do nothing: the stage itself is not what is measured."""


def bare() -> None:
    """Six calls, nothing recorded."""
    for _ in STAGES:
        work()


def with_blocks() -> None:
    """`with stagelens.stage(…)`, six times."""
    with request("benchmark"):
        for name in STAGES:
            with stage(name):
                work()


DECORATED = [stage(name)(work) for name in STAGES]


def decorators() -> None:
    """`@stagelens.stage(…)`, six times: also what a patched library function costs."""
    with request("benchmark"):
        for timed in DECORATED:
            timed()


def integration() -> None:
    """The same stages in a request as a server integration opens it."""
    opened = recorder.begin()
    if opened is None:
        return
    marks, token = opened
    for timed in DECORATED:
        timed()
    recorder.end(token)
    recorder.finish(marks, marks[1], recorder.clock(), "/predict", "", 200)


TRACER = TracerProvider().get_tracer("benchmark")


def spans() -> None:
    """`start_as_current_span`, a root and six children."""
    with TRACER.start_as_current_span("benchmark"):
        for name in STAGES:
            with TRACER.start_as_current_span(name):
                work()


VARIANTS: dict[str, Call] = {
    "bare": bare,
    "stagelens, with": with_blocks,
    "stagelens, decorator": decorators,
    "stagelens, integration": integration,
    "opentelemetry-sdk": spans,
}


def hot(call: Call) -> float:
    """Return nanoseconds a request, of CPU time, in a tight loop."""
    begun = time.thread_time_ns()
    for _ in range(HOT_REQUESTS):
        call()
    spent = time.thread_time_ns() - begun
    recorder.pending.clear()
    return spent / HOT_REQUESTS


SWEEP = np.ones(4 * 1024 * 1024)


def cold(call: Call) -> float:
    """Return the median of nanoseconds a request, of wall time, each after a sweep through memory."""
    samples: list[int] = []
    for _ in range(COLD_REQUESTS):
        SWEEP.sum()
        begun = time.perf_counter_ns()
        call()
        samples.append(time.perf_counter_ns() - begun)
    recorder.pending.clear()
    return statistics.median(samples)


def compare(measure: Callable[[Call], float], rounds: int) -> dict[str, tuple[float, float]]:
    """Return for each variant the nanoseconds a stage over the bare calls, and how many times the integration that is."""
    rows: list[dict[str, float]] = []
    for _ in range(rounds):
        order = random.sample(list(VARIANTS), len(VARIANTS))
        measured = {name: measure(VARIANTS[name]) for name in order}
        rows.append({name: measured[name] - measured["bare"] for name in VARIANTS if name != "bare"})
    return {
        name: (
            statistics.median(row[name] for row in rows) / len(STAGES),
            statistics.median(row[name] / row["stagelens, integration"] for row in rows),
        )
        for name in rows[0]
    }


def fold_cost(rounds: int) -> float:
    """Return the median of nanoseconds of CPU time a request in the background: partition, histograms, sampling."""
    samples: list[float] = []
    fold = Fold(Keep(), random.Random(1))
    for _ in range(rounds):
        for _ in range(FOLD_AT_ONCE):
            decorators()
        SWEEP.sum()
        begun = time.thread_time_ns()
        while recorder.pending:
            fold.add(recorder.pending.popleft())
        samples.append((time.thread_time_ns() - begun) / FOLD_AT_ONCE)
    return statistics.median(samples)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="how often the variants take turns (default: 30)")
    rounds: int = parser.parse_args().rounds
    # Only the request's thread is measured: nothing may fold behind its back.
    recorder.background.wake_at = sys.maxsize
    for name, measure in (("hot", hot), ("cold", cold)):
        compare(measure, 2)
        print(f"{name:<26}{'ns a stage':>12}{'ratio':>8}")
        for variant, (nanoseconds, ratio) in compare(measure, rounds).items():
            print(f"  {variant:<24}{nanoseconds:>12,.0f}{ratio:>8.1f}")
    print(f"{'fold, in the background':<24}{fold_cost(rounds):>12,.0f} ns a request")


if __name__ == "__main__":
    main()
