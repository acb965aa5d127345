"""What it costs to be recorded: ours beside OpenTelemetry, ddtrace, sentry-sdk and prometheus-client, in one run.

    python benchmarks/overhead.py [micro] [total] [footprint] [service] [--rounds N] [--seconds S] [--model M] [--base DIR]
    python benchmarks/overhead.py --gate

A request is a root and six stages around functions that do nothing. All variants take turns in random order, ratios are
medians of ratios within a round, and what the bare calls take is subtracted: times drift with the neighbours' load,
ratios hardly. `A/A` is the bare variant once more: what it differs by is noise. The tables:

- micro: the request's thread, all variants in one process. *Hot*: CPU time in a tight loop. *Cold*: wall time of single
  requests, each after a sweep through 32 MB, as a model does, so that neither code nor data are in the caches; that is
  what a service pays, and it is 6 to 10 times as much.
- total: CPU time of a whole process, one for each variant, that serves 100 and 400 requests a second with a real model
  before each; the model's own time is not counted. *Background* is every thread but the request's: folding, encoding,
  exporting. All exporters post to a server that throws everything away, in a process of its own.
- footprint: a process that has served one request and then does nothing; resident memory added after 5,000 requests;
  garbage collections of an older generation in 10,000; and how much longer Python takes to start with
  `import stagelens; stagelens.instrument()`. All beside a process without us that has loaded what every server has.
- service: FastAPI on uvicorn around no model and three models. CPU is the server's, for a request: within the bursts, and,
  as *whole*, with all that goes on between them. Throughput, p50 and p99 as its one client sees them.

`--gate` is what CI holds: the ratios of micro and of the whole of a service, and the garbage collections, generously; never
a time.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from costs import footprint, gate, micro, service, total
from costs.peers import OURS_WITH, PEERS, SAMPLED_OUT
from costs.server import BASE_VARIABLE
from costs.sink import Sink

PARTS = ("micro", "total", "footprint", "service")
BY_DEFAULT = PARTS[:3]
# How often the variants take turns: a round of each part takes about 4 s, 6 min, 2 min and 10 s.
ROUNDS = {"micro": 30, "total": 3, "footprint": 3, "service": 60}
MICRO = tuple(PEERS)
# Of those that differ by their request thread only, one.
TOTAL = tuple(name for name in PEERS if name not in (OURS_WITH, SAMPLED_OUT))
TURN_SECONDS, IDLE_SECONDS = 20.0, 30.0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: the first three)")
    parser.add_argument("--rounds", type=int, help=f"how often the variants take turns (default: {ROUNDS})")
    parser.add_argument(
        "--seconds", type=float, default=TURN_SECONDS, help="length of a turn of total; from 20 s on with real exports"
    )
    parser.add_argument(
        "--base", help="folder that holds another version of the package stagelens, as a row of service"
    )
    parser.add_argument("--model", action="append", choices=service.BURSTS, help="of service (default: all)")
    parser.add_argument("--gate", action="store_true", help="hold the ratios, as CI does; nothing else")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such part; there are {', '.join(PARTS)}")
    return options


def run(part: str, sink: str, rounds: int, seconds: float, models: Sequence[str]) -> None:
    """Measure *part*, with turns of *seconds* or around *models*, and print its tables."""
    # A trial with short turns is one with few requests.
    share = min(1.0, seconds / TURN_SECONDS)
    if part == "micro":
        micro.run(MICRO, sink, rounds)
    elif part == "total":
        total.run(TOTAL, sink, rounds, seconds)
    elif part == "footprint":
        footprint.run(sink, rounds, share * IDLE_SECONDS, share)
    else:
        service.run(sink, models, rounds)


def hold(sink: str) -> int:
    """Run the gate and return the exit code."""
    failures = list(gate.failures(sink))
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


def main() -> int:
    """Measure and print."""
    options = arguments()
    # It would record less where this machine is slow, and cost less than it says.
    os.environ["STAGELENS_OVERHEAD_BUDGET"] = "none"
    if options.base:
        os.environ[BASE_VARIABLE] = options.base
    sink = Sink()
    if options.gate:
        return hold(sink.address)
    for part in options.parts or BY_DEFAULT:
        run(part, sink.address, options.rounds or ROUNDS[part], options.seconds, options.model or tuple(service.BURSTS))
    print("The sink was sent:", ", ".join(f"{size:,} bytes to {path}" for path, size in sink.received().items()))
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # The exporters in this process would wait for a sink that ends with it.
    os._exit(status)
