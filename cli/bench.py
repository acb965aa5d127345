"""`stagelens bench -- COMMAND`: measure the cost of the instrumentation on the user's own service."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from ..core.errors import StagelensError
from ..instrumentors.bench import measure
from ..instrumentors.bench.rounds import PORT, Plan, RequestSpec

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


def bench(parser: argparse.ArgumentParser) -> None:
    parser.usage = "stagelens bench [options] -- COMMAND [ARGUMENT ...]"
    parser.description = "Measure the overhead of `stagelens run` on COMMAND."
    parser.epilog = EPILOG
    add = parser.add_argument
    add("--url", metavar="URL", help="URL to request; with --load, URL that responds when the command is ready")
    add("--method", metavar="NAME", help="method of the request (default GET, with --body POST)")
    add("--body", type=Path, metavar="FILE", help="file with the body (default none)")
    add("--header", action="append", default=[], metavar="'NAME: VALUE'", help="header to send; can be repeated")
    load = "shell command that generates the load; its duration is measured"
    add("--load", default="", metavar="COMMAND", help=load)
    add("--requests", type=_count, default=REQUESTS, metavar="N", help="per turn (default %(default)s)")
    add("--concurrency", type=_count, default=CONCURRENCY, metavar="N", help="at the same time (default %(default)s)")
    add("--rounds", type=_count, default=ROUNDS, metavar="N", help="number (default %(default)s)")
    warm_up = "warm-up requests after each start, not measured (default %(default)s)"
    add("--warm-up", type=_number, default=WARM_UP, metavar="N", help=warm_up)
    wait = f"maximum wait for a start, in seconds (default {START_TIMEOUT_SECONDS:g})"
    add("--patience", type=float, default=START_TIMEOUT_SECONDS, metavar="S", help=wait)
    add("--stage", action="append", default=[], metavar="STAGE=MODULE:FUNCTION", help="as in `stagelens run`")
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)

    def run(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
        command = options.command[1:] if options.command[:1] == ["--"] else options.command
        if not command:
            parser.error("the command is missing")
        if options.load and not options.url:
            parser.error("--load needs --url, which responds when the command is ready")
        if options.url and (wrong := _wrong_address(options.url, command)):
            parser.error(wrong)
        return measure(_read_plan(options, command), options.stage, environment)

    parser.set_defaults(run=run)


def _wrong_address(url: str, command: Sequence[str]) -> str:
    if (PORT in url) != (PORT in " ".join(command)):
        return f"write {PORT} in both --url and the command, or in neither"
    try:
        parts = urlsplit(url.replace(PORT, "1"))
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    return "" if is_valid else f"--url is {url!r}; write an address such as http://127.0.0.1:8000/predict"


def _read_plan(options: argparse.Namespace, command: list[str]) -> Plan:
    try:
        body = options.body.read_bytes() if options.body else None
    except OSError as error:
        msg = f"--body {options.body} cannot be read ({error.strerror})"
        raise StagelensError(msg) from error
    method = options.method or ("GET" if body is None else "POST")
    return Plan(
        command=command,
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
