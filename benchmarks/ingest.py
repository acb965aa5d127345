"""What taking in costs, and whether what was acknowledged is still there: ours beside arize-phoenix, mlflow and Rotel.

    python benchmarks/ingest.py FOLDER [--only TEXT ...] [--rounds N] [--parts spans,points,kill,rates] [--short]

FOLDER gets the databases, which are deleted, and the peers, each in an environment of its own (`pip install arize-phoenix`,
`mlflow`, `rotel`, from PyPI), which are kept. All servers have one core and the load the other; a round measures each system once,
with a new database. The load is the same for all: exports of 512 spans (64 requests, each a root and seven stages in a trace
of its own, ten attributes a span) over HTTP in protobuf, uncompressed, as an OpenTelemetry SDK sends them, as fast as they
are taken. Rotel stores nothing: it shows what receiving alone takes. Other peers get fewer of them, for they take minutes.

- spans: *durable/s* counts what the database has committed: until the last acknowledgement where that says so, and until
  the rows are there where it does not. *CPU-s/M* is the CPU time for a million, of the server and its database, until all
  of it rests: with the folding of requests that comes after the acknowledgement. *p99* is of the acknowledgement. *peak* is
  the most memory of the server's processes, without PostgreSQL's. *B each* is what the database has grown by.
- points: the datapoints of our agents, as they send them: about 200 an export, gzip.
- kill: all is acknowledged; a second later the server is killed (SIGKILL), started again, and what it holds is counted.
- rates: what one agent costs the collector, by how many requests a second its process serves.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ingesting import rates, traffic
from ingesting.load import send
from ingesting.processes import LOAD_CORE
from ingesting.systems import Running, System, mlflow, ours, phoenix, rotel, running
from storage.tables import table

PARTS = ("spans", "points", "kill", "rates")
WARM_UP = 4
# A request is counted a while after its root has come, for its spans come in any order.
STUCK_SECONDS = 40.0
RATES = (10, 100, 1000, 10_000)


@dataclass(frozen=True)
class Amounts:
    """How much is sent.

    Args:
        ours: Exports to ours.
        peers: Exports to peers.
        connections: How many send at once.
        intervals: How often an agent exports.
        rates: Requests a second of agents.
        rounds: How often all of it.
    """

    ours: int = 1000
    peers: int = 20
    connections: int = 16
    intervals: int = 10
    rates: tuple[int, ...] = RATES
    rounds: int = 3

    def of(self, system: System) -> int:
        """Return how many exports *system* gets."""
        return self.ours if system.quick else self.peers


SHORT = Amounts(ours=100, peers=5, intervals=3, rates=RATES[:3], rounds=1)


@dataclass(frozen=True)
class Measured:
    """One system in one round.

    Args:
        durable: A second.
        cpu_seconds: For a million.
        p50: Of the acknowledgement. [milliseconds]
        p99: The same.
        peak: Of memory. [MB]
        each: On disk. [bytes]
        held: The share of what was acknowledged that is there at the end.
        retries: Answers that said to come again.
    """

    durable: float
    cpu_seconds: float
    p50: float
    p99: float
    peak: float
    each: float
    held: float
    retries: int


def measure(target: Running, load: traffic.Load, count: int, connections: int) -> Measured:
    """Send *count* exports to *target*."""
    system, exports = target.system, load.exports()
    send(target.url, exports, range(WARM_UP), 1, system.headers)
    cpu, size = target.meter.wait_for_rest(), target.stored_bytes()
    began = time.perf_counter()
    sent = send(target.url, exports, range(WARM_UP, WARM_UP + count), connections, system.headers)
    there = _until_there(target, load.units * (WARM_UP + count), began) if system.held else sent.seconds
    seconds = sent.seconds if system.durable else there
    cpu = target.meter.wait_for_rest() - cpu
    total = load.units * count
    return Measured(
        durable=total / seconds,
        cpu_seconds=1e6 * cpu / total,
        p50=sent.latency_ms(0.5),
        p99=sent.latency_ms(0.99),
        peak=target.process.peak_bytes() / 1e6,
        each=(target.stored_bytes() - size) / total,
        held=target.units() / (load.units * (WARM_UP + count)),
        retries=sent.retries,
    )


def _until_there(target: Running, units: int, began: float) -> float:
    """Return the seconds from *began* until the database holds so many *units*, or does not get any further."""
    held, changed = -1, time.perf_counter()
    while held < units and time.perf_counter() - changed < STUCK_SECONDS:
        time.sleep(0.2)
        now = target.units()
        if now != held:
            held, changed = now, time.perf_counter()
    return changed - began


HEADS = (
    "system",
    "durable/s",
    "CPU-s/M",
    "p50 ms",
    "p99 ms",
    "peak MB",
    "B each",
    "held",
    "told to retry",
    "CPU x ours",
)


def compare(systems: Sequence[System], folder: Path, load: traffic.Load, amounts: Amounts) -> str:
    """Return the table of *systems*."""
    found: defaultdict[str, list[Measured]] = defaultdict(list)
    for number in range(amounts.rounds):
        for place, system in enumerate(systems):
            with fresh(folder) as home, running(system, home, f"{place}") as target:
                result = measure(target, load, amounts.of(system), amounts.connections)
            found[system.name].append(result)
            print(f"  round {number + 1}, {system.name}: {result}", flush=True)
    reference = _median(found[systems[0].name], "cpu_seconds")
    return table(HEADS, [_row(name, results, reference) for name, results in found.items()])


def _row(name: str, results: list[Measured], reference: float) -> tuple[str, ...]:
    def middle(field: str) -> float:
        return _median(results, field)

    return (
        name,
        f"{middle('durable'):,.0f}",
        f"{middle('cpu_seconds'):,.1f}",
        f"{middle('p50'):,.0f}",
        f"{middle('p99'):,.0f}",
        f"{middle('peak'):,.0f}",
        f"{middle('each'):,.0f}",
        f"{middle('held'):.2%}",
        f"{middle('retries'):,.0f}",
        f"{middle('cpu_seconds') / reference:,.1f}",
    )


def _median(results: Iterable[Measured], field: str) -> float:
    return statistics.median(getattr(each, field) for each in results)


def kills(systems: Sequence[System], folder: Path, load: traffic.Load, amounts: Amounts) -> str:
    """Return the table of what is left after a SIGKILL, a second after the last acknowledgement."""
    rows: list[tuple[str, ...]] = []
    for place, system in enumerate(systems):
        count = amounts.peers
        sent = load.units * count
        with fresh(folder) as home, running(system, home, f"{place}") as target:
            send(target.url, load.exports(), range(count), amounts.connections, system.headers)
            time.sleep(1)
            target.kill_and_start_again()
            _until_there(target, sent, time.perf_counter())
            held = target.units()
        rows.append((system.name, f"{sent:,}", f"{held:,}", f"{sent - held:,}"))
        print(f"  {rows[-1]}", flush=True)
    return table(("system", "acknowledged", "there after the kill", "lost"), rows)


def by_rate(system: System, folder: Path, amounts: Amounts) -> str:
    """Return the table of what an agent costs."""
    with fresh(folder) as home, running(system, home, "rates") as target:
        costs = [rates.cost(target, rate, amounts.intervals) for rate in (amounts.rates[0], *amounts.rates)][1:]
    return table(
        ("requests/s", "bytes an export", "agent CPU ms an export", "agent us a request", "collector CPU ms an export"),
        [
            (
                f"{each.rate:,}",
                f"{each.body_bytes:,.0f}",
                f"{each.agent_ms:,.1f}",
                f"{1000 * each.agent_ms / (each.rate * rates.INTERVAL_SECONDS):,.1f}",
                f"{each.collector_ms:,.1f}",
            )
            for each in costs
        ],
    )


@contextmanager
def fresh(folder: Path) -> Generator[Path]:
    """Give a folder of its own below *folder*, that a database's own user may enter too."""
    with tempfile.TemporaryDirectory(dir=folder) as home:
        Path(home).chmod(0o755)
        yield Path(home)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where databases and peers are")
    parser.add_argument("--only", nargs="+", default=[""], help="systems with one of these in their name")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: 3)")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument(
        "--exports", type=int, default=Amounts.ours, help="that ours gets; a peer a fiftieth (default: 1000)"
    )
    parser.add_argument("--connections", type=int, default=Amounts.connections, help="that send at once (default: 16)")
    parser.add_argument("--short", action="store_true", help="a tenth of the load, one round: is it all there?")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = arguments()
    amounts = SHORT if options.short else Amounts(options.exports, options.exports // 50, rounds=options.rounds)
    amounts = replace(amounts, connections=options.connections)
    parts = options.parts.split(",")
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.sched_setaffinity(0, {LOAD_CORE})
    # So that servers are stopped then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    systems = [system for system in everything(folder) if any(wanted in system.name for wanted in options.only)]
    mine = [system for system in systems if system.quick and system.held]
    spans = traffic.Load(traffic.spans, traffic.SPANS_AN_EXPORT)
    if "spans" in parts:
        print(compare(systems, folder, spans, amounts), end="\n\n")
    if "points" in parts:
        points = traffic.Load(traffic.points, traffic.points_an_export())
        takers = [system.for_points(points.units / traffic.REQUESTS_AN_AGENT) for system in mine if not system.every]
        print(compare(takers, folder, points, amounts), end="\n\n")
    if "kill" in parts:
        print(kills([system for system in systems if system.held], folder, spans, amounts), end="\n\n")
    if "rates" in parts and mine:
        print(by_rate(mine[0], folder, amounts))


def everything(folder: Path) -> Iterator[System]:
    """Yield all that is compared, the one that others are compared with first."""
    for engine in ("sqlite", "postgresql"):
        yield ours(engine, every=True)
        yield ours(engine, every=False)
    for engine in ("sqlite", "postgresql"):
        yield phoenix(folder, engine)
        yield mlflow(folder, engine)
    yield rotel(folder)


if __name__ == "__main__":
    main()
