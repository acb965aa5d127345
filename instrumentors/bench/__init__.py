"""The command `stagelens bench`: measures the cost of the instrumentation on the user's own service.

The service alternately runs with and without the instrumentation. This module is the command line and the result table;
`rounds` measures.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from ...core.errors import StagelensError
from ..session import Sink
from .rounds import CPU, PORT, THROUGHPUT, Both, Change, Plan, RequestSpec, changes, environments, measure_rounds

FINE = 0
# Exit code of SIGINT, as in shells.
INTERRUPTED = 130
# With fewer rounds no two ranks enclose the median at 95 % (`confidence.ranks`).
MIN_ROUNDS = 6
ROUNDS, REQUESTS, CONCURRENCY, WARM_UP, START_TIMEOUT_SECONDS = 12, 200, 4, 50, 300.0
EPILOG = """\
A round is one turn without and one turn with Stagelens, in random order. Without --url and --load, a turn is one run of
the command from start to exit. No data is sent to a collector.

  stagelens bench --url http://127.0.0.1:8000/predict -- uvicorn app:app
  stagelens bench --url http://127.0.0.1:{port}/predict --body body.json -- uvicorn app:app --port {port}
  stagelens bench --url http://127.0.0.1:8000/health --load 'hey -n 500 http://127.0.0.1:8000/predict' -- python serve.py
  stagelens bench -- python batch.py

If the command contains {port}, it is started once with and once without Stagelens, on two free ports, and both processes
receive requests alternately. Otherwise it is started again for each turn, which takes longer.

Ctrl-C prints the result of the completed rounds. Exit codes: 0 measured, 1 command or load failed, 2 wrong usage.
"""


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of `stagelens bench`."""
    made = argparse.ArgumentParser(
        "stagelens bench",
        usage="stagelens bench [options] -- COMMAND [ARGUMENT ...]",
        description="Measure the overhead of `stagelens run` on COMMAND.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--url", metavar="URL", help="URL to request; with --load, URL that responds when the command is ready"
    )
    made.add_argument("--method", metavar="NAME", help="method of the request (default GET, with --body POST)")
    made.add_argument("--body", type=Path, metavar="FILE", help="file with the body (default none)")
    made.add_argument(
        "--header", action="append", default=[], metavar="'NAME: VALUE'", help="header to send; can be repeated"
    )
    made.add_argument(
        "--load", default="", metavar="COMMAND", help="shell command that generates the load; its duration is measured"
    )
    made.add_argument("--requests", type=_count, default=REQUESTS, metavar="N", help=f"per turn (default {REQUESTS})")
    made.add_argument(
        "--concurrency", type=_count, default=CONCURRENCY, metavar="N", help=f"at the same time (default {CONCURRENCY})"
    )
    made.add_argument("--rounds", type=_count, default=ROUNDS, metavar="N", help=f"number (default {ROUNDS})")
    made.add_argument(
        "--warm-up",
        type=_number,
        default=WARM_UP,
        metavar="N",
        help=f"warm-up requests after each start, not measured (default {WARM_UP})",
    )
    made.add_argument(
        "--patience",
        type=float,
        default=START_TIMEOUT_SECONDS,
        metavar="S",
        help=f"maximum wait for a start, in seconds (default {START_TIMEOUT_SECONDS:g})",
    )
    made.add_argument(
        "--stage", action="append", default=[], metavar="STAGE=MODULE:FUNCTION", help="as in `stagelens run`"
    )
    made.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)
    return made


def main(words: list[str]) -> int:
    """Measure the command in *words* and print the result."""
    reader = parser()
    options = reader.parse_args(words)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        reader.error("the command is missing")
    if options.load and not options.url:
        reader.error("--load needs --url, which responds when the command is ready")
    if options.url and (wrong := _wrong_address(options.url, command)):
        reader.error(wrong)
    with Sink() as sink:
        plan = _read_plan(options, command, sink.endpoint)
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
            f"    stagelens doctor -- {shlex.join(command)}"
        )
    return FINE


def _wrong_address(url: str, command: Sequence[str]) -> str:
    if (PORT in url) != (PORT in " ".join(command)):
        return f"write {PORT} in both --url and the command, or in neither"
    try:
        parts = urlsplit(url.replace(PORT, "1"))
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    return "" if fine else f"--url is {url!r}; write an address such as http://127.0.0.1:8000/predict"


def _read_plan(options: argparse.Namespace, command: list[str], endpoint: str) -> Plan:
    try:
        body = options.body.read_bytes() if options.body else None
    except OSError as error:
        msg = f"--body {options.body} cannot be read ({error.strerror})"
        raise StagelensError(msg) from error
    method = options.method or ("GET" if body is None else "POST")
    return Plan(
        command=command,
        environments=environments(os.environ, options.stage, endpoint),
        asking=RequestSpec(options.url, method, body, _request_headers(options, body)) if options.url else None,
        load=options.load,
        requests=options.requests,
        concurrency=options.concurrency,
        rounds=options.rounds,
        warm_up=options.warm_up,
        start_timeout_seconds=options.patience,
    )


def _request_headers(options: argparse.Namespace, body: bytes | None) -> dict[str, str]:
    given = dict(tuple(part.strip() for part in header.partition(":")[::2]) for header in options.header)
    typed = body is None or any(name.lower() == "content-type" for name in given)
    return given if typed else {"Content-Type": "application/json", **given}


def _print_result(plan: Plan, found: Mapping[str, Change], count: int) -> None:
    of = f" of {plan.requests} requests, {plan.concurrency} concurrent" if plan.asking and not plan.load else ""
    print(f"{shlex.join(plan.command)}: {count} rounds{of}\n")
    print(f"{'':<16}{'without':>12}{'with':>12}{'change':>11}   95 % CI")
    for name, change in found.items():
        title = "CPU per request" if name == CPU and of else name
        without, with_ = (_format_value(name, value) for value in (change.without, change.with_))
        print(f"{title:<16}{without:>12}{with_:>12}{_percent(change.ratio):>11}   {_format_interval(change)}")
    if any(change.low is None for change in found.values()):
        print(f"\nNo significant result with fewer than {MIN_ROUNDS} rounds.")
    elif noise := [name for name, change in found.items() if change.is_noise]:
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


def _count(text: str) -> int:
    if (number := _number(text)) < 1:
        msg = "write a whole number from 1"
        raise argparse.ArgumentTypeError(msg)
    return number


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        msg = "write a whole number"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
