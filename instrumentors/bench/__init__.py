"""Cost of the instrumentation on the user's own service, which alternately runs with and without it.

This module prints the result; `rounds` measures.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..session import Sink
from .rounds import CPU, THROUGHPUT, Both, Change, Plan, changes, environments, measure_rounds

FINE = 0
# Exit code of SIGINT, as in shells.
INTERRUPTED = 130
# With fewer rounds no two ranks enclose the median at 95 % (`confidence.ranks`).
MIN_ROUNDS = 6


def measure(plan: Plan, stages: Sequence[str], environment: Mapping[str, str]) -> int:
    """Measure *plan* with the named *stages*, print the result, and return the exit code."""
    with Sink() as sink:
        plan = replace(plan, environments=environments(environment, stages, sink.endpoint))
        measured: list[Both] = []
        try:
            for both in measure_rounds(plan):
                measured.append(both)
                _print_progress(len(measured), plan.rounds)
        except KeyboardInterrupt:
            # Ctrl-C ends the measurement early and prints the result so far.
            if not measured:
                return INTERRUPTED
    _print_result(plan, changes(measured), len(measured))
    if not sink.exports:
        print(
            "\nNo request was counted: the difference is startup time and noise.\n"
            f"    stagelens doctor -- {shlex.join(plan.command)}"
        )
    return FINE


def _print_result(plan: Plan, changes: Mapping[str, Change], count: int) -> None:
    of = f" of {plan.requests} requests, {plan.concurrency} concurrent" if plan.asking and not plan.load else ""
    print(f"{shlex.join(plan.command)}: {count} rounds{of}\n")
    print(f"{'':<16}{'without':>12}{'with':>12}{'change':>11}   95 % CI")
    for name, change in changes.items():
        title = "CPU per request" if name == CPU and of else name
        without, with_ = (_format_value(name, value) for value in (change.without, change.with_))
        print(f"{title:<16}{without:>12}{with_:>12}{_percent(change.ratio):>11}   {_format_interval(change)}")
    if any(change.low is None for change in changes.values()):
        print(f"\nNo significant result with fewer than {MIN_ROUNDS} rounds.")
    elif noise := [name for name, change in changes.items() if change.is_noise]:
        print(f"\nBelow the noise: {', '.join(noise)}. Increase --rounds or --requests to narrow the interval.")


def _format_interval(change: Change) -> str:
    if change.low is None or change.high is None:
        return "?"
    return f"{_percent(change.low)} … {_percent(change.high)}"


def _format_value(name: str, value: float) -> str:
    if name == THROUGHPUT:
        return f"{value:,.0f} /s"
    scale, unit = next((pair for pair in ((1, "s"), (1e3, "ms")) if value * pair[0] >= 1), (1e6, "µs"))
    return f"{value * scale:.3g} {unit}"


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"


def _print_progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\rround {done} of {of}", end="\n" if done == of else "", file=sys.stderr, flush=True)
