"""The real way in: batches of a fleet through `Store.write`, rolled up every minute, for a bit more than an hour."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np

from stagelens.core.histogram import SCALE, Histogram
from stagelens.store import Batch, Point, Series, Store
from stagelens.store.engines import database
from stagelens.store.points import decode_buckets
from stagelens.store.schema import FINEST, METRIC_CODES

from .dataset import HOUR, MINUTE, NOW, SERVICES, Shape
from .engines import Site
from .pool import KINDS, Pool, pools
from .tables import table

Engine: TypeAlias = Callable[[Path, str], AbstractContextManager[Site]]

INSTANCES = 4  # of a service; each serves its share of the routes
_SECONDS = HOUR + 3 * MINUTE
_NAMES = {code: name for name, code in METRIC_CODES.items()}


@dataclass(frozen=True, slots=True)
class Written:
    """What it took.

    Args:
        batches_a_commit: How many shared a transaction.
        rows: Written at 10 s.
        write_seconds: CPU time of the writes, ours and the server's.
        roll_up_seconds: CPU time of the upkeep.
        grown: Bytes the tables have grown by.
        written: Bytes that went to the disk.
    """

    batches_a_commit: int
    rows: int
    write_seconds: float
    roll_up_seconds: float
    grown: int
    written: int


def write(engine: Engine, shape: Shape, data: Path) -> list[Written]:
    """Write with each batch in a transaction of its own, with those of a service in one, and with all in one.

    Args:
        engine: Gives the database in a folder.
        shape: Whose series.
        data: Where folders may be made.
    """
    histograms = _histograms(pools()[FINEST])
    trials: list[Written] = []
    for size in (1, INSTANCES, INSTANCES * SERVICES):
        with TemporaryDirectory(dir=data) as folder:
            # The server is another user.
            Path(folder).chmod(0o755)
            with engine(Path(folder), "writes") as site:
                trials.append(_write(site, shape, histograms, size))
    return trials


def _histograms(pool: Pool) -> list[Histogram]:
    found = decode_buckets(pool.blobs)
    edges = found.offsets.tolist()
    index, amount = found.index.tolist(), found.amount.tolist()
    return [
        Histogram(SCALE, dict(zip(index[low:high], amount[low:high], strict=True)), 0, total)
        for low, high, total in zip(edges, edges[1:], pool.sum.tolist(), strict=False)
    ]


def _write(site: Site, shape: Shape, histograms: list[Histogram], size: int) -> Written:
    start = NOW - NOW % HOUR
    clock = [start]
    store = Store.open(site.url, points_url=site.points_url, clock=lambda: clock[0])
    random = np.random.default_rng(size)
    write_seconds = roll_up_seconds = 0.0

    def seconds_of(action: Callable[[], object]) -> float:
        before = time.process_time() + site.server_seconds()
        action()
        return time.process_time() + site.server_seconds() - before

    used, written = _used(store), site.written_bytes()
    for at in range(start, start + _SECONDS, 10):
        clock[0] = at + 10
        batches = _batches(shape, histograms, at, random)
        for first in range(0, len(batches), size):
            write_seconds += seconds_of(lambda group=batches[first : first + size]: store.write(group))
        if clock[0] % MINUTE == 0:
            roll_up_seconds += seconds_of(store.maintain)
    grown = _used(store) - used
    store.close()
    rows = shape.n_series * _SECONDS // 10
    return Written(size, rows, write_seconds, roll_up_seconds, grown, site.written_bytes() - written)


def _batches(shape: Shape, histograms: list[Histogram], at: int, random: np.random.Generator) -> list[Batch]:
    """Return what each instance of each service sends after one step of 10 s."""
    names = sorted({series.service for series in shape.streams})
    made: list[Batch] = []
    for service in names:
        streams = [series for series in shape.streams if series.service == service]
        for instance in range(INSTANCES):
            points = [
                point for series in streams[instance::INSTANCES] for point in _points(series, histograms, at, random)
            ]
            made.append(Batch(f"{service}/{instance}:{at}", points=points, instance=f"{service}/{instance}"))
    return made


def _points(series: Series, histograms: list[Histogram], at: int, random: np.random.Generator) -> list[Point]:
    draw = int(random.integers(len(histograms) // len(KINDS))) * len(KINDS)
    return [
        Point(series, _NAMES[metric], stage, at, histograms[draw + kind]) for kind, (metric, stage) in enumerate(KINDS)
    ]


def _used(store: Store) -> int:
    with store.engine.connect() as connection:
        return database.used_bytes(connection) + store.points.used_bytes(connection)


def table_of(trials: list[Written]) -> str:
    """Return the table of all trials."""
    return table(
        (
            "batches a commit",
            "rows at 10 s",
            "write [us a row]",
            "[ms a commit]",
            "roll-up [% of a core]",
            "MB grown",
            "MB written",
            "written / grown",
        ),
        [
            (
                str(each.batches_a_commit),
                f"{each.rows:,}",
                f"{1e6 * each.write_seconds / each.rows:.1f}",
                f"{1e3 * each.write_seconds / (_SECONDS / 10 * INSTANCES * SERVICES / each.batches_a_commit):.1f}",
                f"{100 * each.roll_up_seconds / _SECONDS:.2f}",
                f"{each.grown / 1e6:.0f}",
                f"{each.written / 1e6:.0f}",
                f"{each.written / each.grown:.1f}",
            )
            for each in trials
        ],
    )
