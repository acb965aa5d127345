"""What one replica costs the collectors and the store, at a hundred replicas and at ten thousand.

    python benchmarks/scale.py                     points in ClickHouse (chDB, in this process), the rest in SQLite
    python benchmarks/scale.py --points none       everything in SQLite

Every replica sends what the agent sends (its own encoder, protobuf, gzip): one body of about 50 histograms every 10 s. Collectors
share the replicas evenly; each reads its bodies as the server does and commits them in groups as its writer does. A collector is a
store of its own over the same database, run one after the other in one process: what is measured is the CPU time of all
of it together, the database included, and what is written.

Not included: HTTP, the network, and waiting for other collectors. `docs/design/storage.md` has the results.
"""

from __future__ import annotations

import argparse
import gzip
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stagelens.collector.ingest.pipeline import read_export
from stagelens.collector.ingest.validation import TimeWindow
from stagelens.collector.ingest.writer import MAX_ROWS_A_COMMIT
from stagelens.collector.traces.span_reader import SpanReader
from stagelens.core import names
from stagelens.instrumentors.agent.aggregate import Delta, Dimensions
from stagelens.instrumentors.agent.sample import Sampler
from stagelens.instrumentors.config import SamplingLimits
from stagelens.instrumentors.export.otlp import Encoder, ExportInterval
from stagelens.store import Batch, Retention, Store

NS = 1_000_000_000
# 2026-11-20 12:00:00 UTC, the start of an hour.
START = 1_795_176_000
SERVICES, VERSIONS, ROUTES = 20, 2, 5
REPLICAS_A_COLLECTOR = 2500
# Different bodies; a replica sends one of them under a name of its own.
BODIES_A_SERVICE = 3
STAGES = ("forward", "queue", "preprocess", "overhead")
_SPANS = SpanReader()


@dataclass
class Spent:
    """CPU seconds by what they went to."""

    reading: float = 0.0
    writing: float = 0.0
    rolling_up: float = 0.0


@dataclass(frozen=True)
class Clock:
    """The time the simulation is at."""

    now: list[float]

    def __call__(self) -> float:
        """Return it, in Unix seconds."""
        return self.now[0]


def body(service: int, version: int, seed: int, at: int) -> bytes:
    """Return what one replica sends for the 10 s before *at*, inflated."""
    rng = random.Random(seed)
    deltas: dict[Dimensions, Delta] = {}
    for route in range(ROUTES):
        delta = Delta(Sampler(SamplingLimits()))
        for _ in range(20):
            spent = {stage: int(rng.lognormvariate(17 - place, 0.4)) for place, stage in enumerate(STAGES)}
            if rng.random() < 0.05:
                spent["queue"] *= 30
            delta.counts.add(spent, sum(spent.values()))
        deltas[Dimensions("model", "1", f"/predict/{route}", "cuda:0", names.STATUS_OK)] = delta
    resource = {
        "service.name": f"service-{service}",
        "service.version": f"v{version}",
        "deployment.environment.name": "production",
        "service.instance.id": f"replica-{service}-{version}-{seed}",
    }
    encoder = Encoder(resource, lambda: None)
    return gzip.decompress(encoder.metrics(ExportInterval((at - 10) * NS, at * NS), deltas, {}))


def bodies(at: int) -> list[bytes]:
    """Return the different bodies of the fleet."""
    return [
        body(service, version, seed, at)
        for service in range(SERVICES)
        for version in range(VERSIONS)
        for seed in range(BODIES_A_SERVICE)
    ]


def groups(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """Yield *batches* as the writer groups them for a commit, when all of them wait."""
    group: list[Batch] = []
    rows = 0
    for batch in batches:
        rows += 1 + len(batch.points)
        if group and rows > MAX_ROWS_A_COMMIT:
            yield group
            group, rows = [], 1 + len(batch.points)
        group.append(batch)
    if group:
        yield group


def interval(stores: Sequence[Store], replicas: int, number: int, clock: Clock, spent: Spent) -> None:
    """Let all replicas send once."""
    at = START + 10 * number
    clock.now[0] = at + 1
    sent = bodies(at)
    for place, store in enumerate(stores):
        began = time.process_time()
        batches = [
            read_export(
                "metrics",
                "application/x-protobuf",
                sent[replica % len(sent)],
                f"{replica}:{number}",
                TimeWindow(0, 2**40),
                _SPANS,
            ).batch
            for replica in range(place, replicas, len(stores))
        ]
        read = time.process_time()
        for group in groups(batches):
            store.write(group)
        spent.reading += read - began
        spent.writing += time.process_time() - read


def measure(replicas: int, intervals: int, points: str | None) -> list[str]:
    """Return the row of the table of so many *replicas*."""
    clock, spent = Clock([START]), Spent()
    n_collectors = -(-replicas // REPLICAS_A_COLLECTOR)
    with tempfile.TemporaryDirectory(prefix="stagelens-scale") as folder:
        points_url = f"clickhousedb://?interface=chdb&path={Path(folder)}/points" if points == "chdb" else points
        stores = [
            Store.open(f"sqlite:///{folder}/stagelens.db", points_url=points_url, retention=Retention(), clock=clock)
            for _ in range(n_collectors)
        ]
        interval(stores, replicas, 0, clock, Spent())  # series are new only once
        walls: list[float] = []
        for number in range(1, intervals + 1):
            began = time.perf_counter()
            interval(stores, replicas, number, clock, spent)
            walls.append(time.perf_counter() - began)
        clock.now[0] = START + 10 * intervals + 600
        began = time.process_time()
        stores[0].maintain()
        spent.rolling_up = time.process_time() - began
        state = stores[0].read.state()
        rows, size = _stored(stores[0])
        for store in stores:
            store.close()
    exports = replicas * intervals
    return [
        f"{replicas:,}",
        str(n_collectors),
        f"{1e6 * spent.reading / exports:,.0f}",
        f"{1e6 * spent.writing / exports:,.0f}",
        f"{1e6 * spent.rolling_up / exports:,.0f}",
        f"{1e6 * (spent.reading + spent.writing + spent.rolling_up) / exports:,.0f}",
        f"{100 * (spent.reading + spent.writing + spent.rolling_up) / (10 * intervals):,.1f}",
        f"{statistics.median(walls):.2f}",
        f"{rows / (intervals + 1):,.0f}",
        f"{size / max(rows, 1):.0f}" if rows else "",
        f"{state.size_bytes / 2**20:,.1f}",
    ]


def _stored(store: Store) -> tuple[int, int]:
    """Return the rows and the bytes of histograms of the finest tier."""
    with store.transaction() as connection:
        row = connection.exec_driver_sql('SELECT sum("rows"), sum("bytes") FROM ledger WHERE tier = 10').one()
    return int(row[0]), int(row[1])


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--points", default="chdb", help="where the points are: chdb (default), none, or a ClickHouse URL"
    )
    parser.add_argument("--replicas", type=int, nargs="+", default=[100, 1000, 10_000], help="fleet sizes")
    parser.add_argument("--intervals", type=int, default=6, help="how often each replica sends (default 6)")
    options = parser.parse_args()
    print(
        "| replicas | collectors | reading, µs an export | writing | roll-up | all | % of a core | wall s a 10 s interval "
        "| rows a 10 s | blob B/row | store MiB |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for replicas in options.replicas:
        row = measure(replicas, options.intervals, None if options.points == "none" else options.points)
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
