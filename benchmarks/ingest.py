"""Cost of ingest, beside arize-phoenix, mlflow and Rotel, and whether acknowledged data survives a kill.

    python benchmarks/ingest.py FOLDER [--only TEXT ...] [--rounds N] [--parts spans,points,kill] [--short]

FOLDER gets the databases, which are deleted, and the peers, each in an environment of its own (`pip install arize-phoenix`,
`mlflow`, `rotel`, from PyPI), which are kept. All servers have one core and the load the other; a round measures each system once,
with a new database. The load is the same for all: exports of 512 spans (64 requests, each a root and seven stages in a trace
of its own, ten attributes a span) over HTTP in protobuf, uncompressed, as fast as they are acknowledged. Rotel stores nothing.
Other peers get fewer exports, because they take minutes.

- spans: *durable/s* counts what the database has committed: until the last acknowledgement where that means so, else until
  the rows are there. *CPU-s/M* is the CPU time for a million, of the server and its database, until both rest. *p99* is of the
  acknowledgement. *peak* is the most memory of the server's processes, without PostgreSQL's. *B each* is the growth of the database.
- points: the datapoints of our agents, as they send them: about 200 an export, gzip.
- kill: a second after the last acknowledgement the server is killed (SIGKILL), started again, and what it holds is counted.
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
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

from ingesting import traffic
from ingesting.load import send
from ingesting.systems import LOAD_CORE, Running, System, mlflow, ours, phoenix, rotel, running
from tables import Table

PARTS = ("spans", "points", "kill")
WARM_UP = 4
# A request is counted a while after its root has come, because its spans come in any order.
STUCK_SECONDS = 40.0


@dataclass(frozen=True)
class Amounts:
    ours: int = 1000
    peers: int = 20
    connections: int = 16
    rounds: int = 3


SHORT = Amounts(ours=100, peers=5, rounds=1)


@dataclass(frozen=True)
class Measured:
    durable_per_second: float
    cpu_seconds_per_million: float
    p50_ms: float
    p99_ms: float
    peak_mb: float
    bytes_each: float
    share_held: float
    retries: int


def measure(target: Running, load: traffic.Load, count: int, connections: int) -> Measured:
    system, exports = target.system, load.exports()
    send(target.url, exports, range(WARM_UP), 1, system.headers)
    cpu, size = target.meter.wait_for_rest(), target.database.stored_bytes()
    began = time.perf_counter()
    sent = send(target.url, exports, range(WARM_UP, WARM_UP + count), connections, system.headers)
    stored = _until_stored(target, load.units * (WARM_UP + count), began) if system.held else sent.seconds
    cpu = target.meter.wait_for_rest() - cpu
    total = load.units * count
    return Measured(
        durable_per_second=total / (sent.seconds if system.durable else stored),
        cpu_seconds_per_million=1e6 * cpu / total,
        p50_ms=sent.latency_ms(0.5),
        p99_ms=sent.latency_ms(0.99),
        peak_mb=target.process.memory_bytes("VmHWM") / 1e6,
        bytes_each=(target.database.stored_bytes() - size) / total,
        share_held=target.units() / (load.units * (WARM_UP + count)),
        retries=sent.retries,
    )


def _until_stored(target: Running, units: int, began: float) -> float:
    """Return the seconds from *began* until the database holds so many *units*, or gets no more."""
    held, changed = -1, time.perf_counter()
    while held < units and time.perf_counter() - changed < STUCK_SECONDS:
        time.sleep(0.2)
        now = target.units()
        if now != held:
            held, changed = now, time.perf_counter()
    return changed - began


def compare(systems: Sequence[System], folder: Path, load: traffic.Load, amounts: Amounts) -> None:
    results: defaultdict[str, list[Measured]] = defaultdict(list)
    for number in range(amounts.rounds):
        for place, system in enumerate(systems):
            with fresh(folder) as home, running(system, home, f"{place}") as target:
                count = amounts.ours if system.quick else amounts.peers
                result = measure(target, load, count, amounts.connections)
            results[system.name].append(result)
            print(f"  round {number + 1}, {system.name}: {result}", flush=True)
    columns = ("durable/s", "CPU-s/M", "p50 ms", "p99 ms", "peak MB", "B each", "held", "retries", "CPU x ours")
    table = Table(f"Medians of {amounts.rounds} rounds", *columns)
    reference = 0.0
    for name, rounds in results.items():
        middle = Measured(
            *(statistics.median(getattr(each, field.name) for each in rounds) for field in fields(Measured))
        )
        reference = reference or middle.cpu_seconds_per_million
        table.row(
            name,
            f"{middle.durable_per_second:,.0f}",
            f"{middle.cpu_seconds_per_million:,.1f}",
            f"{middle.p50_ms:,.0f}",
            f"{middle.p99_ms:,.0f}",
            f"{middle.peak_mb:,.0f}",
            f"{middle.bytes_each:,.0f}",
            f"{middle.share_held:.2%}",
            f"{middle.retries:,.0f}",
            f"{middle.cpu_seconds_per_million / reference:,.1f}",
        )
    table.print()


def kills(systems: Sequence[System], folder: Path, load: traffic.Load, amounts: Amounts) -> None:
    table = Table("SIGKILL a second after the last acknowledgement", "acknowledged", "there after the kill", "lost")
    for place, system in enumerate(systems):
        sent = load.units * amounts.peers
        with fresh(folder) as home, running(system, home, f"{place}") as target:
            send(target.url, load.exports(), range(amounts.peers), amounts.connections, system.headers)
            time.sleep(1)
            target.kill_and_start_again()
            _until_stored(target, sent, time.perf_counter())
            held = target.units()
        table.row(system.name, f"{sent:,}", f"{held:,}", f"{sent - held:,}")
    table.print()


@contextmanager
def fresh(folder: Path) -> Generator[Path]:
    """Give a folder of its own below *folder*, that a database's own user may enter too."""
    with tempfile.TemporaryDirectory(dir=folder) as home:
        Path(home).chmod(0o755)
        yield Path(home)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where databases and peers are")
    parser.add_argument("--only", nargs="+", default=[""], help="systems with one of these in their name")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: 3)")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--exports", type=int, default=1000, help="to ours; a peer gets a fiftieth (default: 1000)")
    parser.add_argument("--connections", type=int, default=16, help="that send at once (default: 16)")
    parser.add_argument("--short", action="store_true", help="a tenth of the load, one round: is it all there?")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    amounts = SHORT if options.short else Amounts(options.exports, options.exports // 50, rounds=options.rounds)
    amounts = replace(amounts, connections=options.connections)
    parts = options.parts.split(",")
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.sched_setaffinity(0, {LOAD_CORE})
    # Servers are stopped then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    systems = [system for system in everything(folder) if any(wanted in system.name for wanted in options.only)]
    mine = [system for system in systems if system.quick and system.held]
    spans = traffic.Load(traffic.spans, traffic.SPANS_AN_EXPORT)
    if "spans" in parts:
        compare(systems, folder, spans, amounts)
    if "points" in parts:
        points = traffic.Load(traffic.points, traffic.points_an_export())
        print(f"an export of an agent: {points.units} datapoints, {len(points.exports()(0).body):,} bytes")
        per_request = points.units / traffic.REQUESTS_AN_AGENT
        compare([system.for_points(per_request) for system in mine if not system.every], folder, points, amounts)
    if "kill" in parts:
        kills([system for system in systems if system.held], folder, spans, amounts)


def everything(folder: Path) -> Iterator[System]:
    for engine in ("sqlite", "postgresql"):
        yield ours(engine, every=True)
        yield ours(engine, every=False)
    for engine in ("sqlite", "postgresql"):
        yield phoenix(folder, engine)
        yield mlflow(folder, engine)
    yield rotel(folder)


if __name__ == "__main__":
    main()
