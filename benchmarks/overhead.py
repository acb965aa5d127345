"""Cost of the agent beside OpenTelemetry, ddtrace and prometheus-client, in one run.

    python benchmarks/overhead.py [micro] [service] [--rounds N] [--model M] [--base DIR]
    python benchmarks/overhead.py --gate

A request is a root and six stages around functions that do nothing. All variants take turns in random order, ratios are
medians of ratios within a round, and the cost of the bare calls is subtracted. `A/A` is the bare variant once more: its difference is
noise. The tables:

- micro: the request's thread, all variants in one process. *Hot*: CPU time in a tight loop. *Cold*: wall time of single
  requests, each after a sweep through 32 MB, as a model does, so that neither code nor data are in the caches.
- service: FastAPI on uvicorn around no model and a model of 1 ms. CPU is the server's, for a request: within the bursts, and,
  as *whole*, with the pauses between them. Throughput, p50 and p99 as its one client sees them.

All exporters post to a server that discards everything. `--gate` checks, as CI does, the ratios of micro and service, garbage
collections, the cost of a page by its window, and the memory of compressed bodies; never a time.
"""

from __future__ import annotations

import argparse
import os
import sys

from costs import gate, micro, service
from costs.server import BASE_VARIABLE
from costs.sink import Sink

PARTS = ("micro", "service")
# A round of each part takes about 4 s and 10 s.
ROUNDS = {"micro": 30, "service": 60}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: micro)")
    parser.add_argument("--rounds", type=int, help=f"how often the variants take turns (default: {ROUNDS})")
    parser.add_argument(
        "--base", help="folder that holds another version of the package stagelens, as a row of service"
    )
    parser.add_argument("--model", action="append", choices=service.BURSTS, help="of service (default: all)")
    parser.add_argument("--gate", action="store_true", help="check the limits, as CI does; nothing else")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such part; there are {', '.join(PARTS)}")
    return options


def hold(sink: str) -> int:
    failures = list(gate.failures(sink))
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0


def main() -> int:
    options = arguments()
    # It would record less where this machine is slow.
    os.environ["STAGELENS_OVERHEAD_BUDGET"] = "none"
    if options.base:
        os.environ[BASE_VARIABLE] = options.base
    sink = Sink()
    if options.gate:
        return hold(sink.address)
    for part in options.parts or ("micro",):
        rounds = options.rounds or ROUNDS[part]
        if part == "micro":
            micro.run(sink.address, rounds)
        else:
            service.run(sink.address, options.model or tuple(service.BURSTS), rounds)
    print("The sink received:", ", ".join(f"{size:,} bytes to {path}" for path, size in sink.received().items()))
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # The exporters in this process would wait for a sink that ends with it.
    os._exit(status)
