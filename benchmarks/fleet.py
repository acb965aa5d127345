"""Make the store of a whole fleet, for benchmarks and tests of pages at size.

    python benchmarks/fleet.py FOLDER [--services N] [--days D] [--fine-days F] [--present]

FOLDER gets `fleet.db`, an SQLite store that ends at `NOW` or at the present time, and `slo.yaml`, with an objective for each service.
D days are in the tiers of hours and coarser, F of them in those of minutes, and an eighth of F in steps of 10 s. Each service has a
new version every ten days, and failed requests on one day of four. All buckets are drawn from one pool of histograms. SQLite joins the
pool with the buckets and inserts the rows in the order of their key, without a Python object for each row.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
from pool import KINDS, Pool, pools
from sqlalchemy import insert, update

from stagelens.core.columns import Ints
from stagelens.core.histogram import SCALE
from stagelens.store import Batch, Event, Series, SeriesCaps, Store, schema
from stagelens.store.engines import database
from stagelens.store.schema import SLOT_SECONDS, TIERS, floor_to, tier_code
from stagelens.store.series import SeriesIndex, SeriesNumbers

MINUTE, HOUR, DAY = 60, 3600, 86_400
# 2026-11-20 13:37:40 UTC: the end of no hour.
NOW = 1_795_181_860
_RELEASE_DAYS, _ERROR_DAYS = 10, 4
_PART = 1_300_000
_FIRST_ROUTE = "/predict"
_KINDS_OF_SERVICES = ("ranking", "vision", "speech", "search", "chat", "fraud", "pricing", "embedding")
_POOL = """CREATE TEMP TABLE pool (tier INTEGER, metric INTEGER, draw INTEGER, stage TEXT, count INTEGER, sum REAL, histogram BLOB,
    PRIMARY KEY (tier, metric, draw, stage)) WITHOUT ROWID"""
_DRAWS = """CREATE TEMP TABLE draws (tier INTEGER, bucket INTEGER, series_id INTEGER, total_id INTEGER, draw INTEGER,
    PRIMARY KEY (tier, bucket, series_id)) WITHOUT ROWID"""
# The order of the loops is that of the key of `points`.
_INSERT = """INSERT INTO points
    SELECT :code, :service, :metric, draws.bucket, {owner}, pool.stage, :part, :scale, 0, pool.count, pool.sum, pool.histogram
    FROM draws CROSS JOIN pool ON pool.tier = draws.tier AND pool.metric = abs(:metric) AND pool.draw = draws.draw
    WHERE draws.tier = :tier AND {owner} > 0"""


@dataclass(frozen=True, slots=True)
class Fleet:
    services: int = 40
    days: int = 30
    fine_days: int = 8
    end: int = NOW
    routes: int = 1

    @property
    def start(self) -> int:
        return floor_to(self.end, DAY) - self.days * DAY

    def name(self, service: int) -> str:
        kind = _KINDS_OF_SERVICES[service % len(_KINDS_OF_SERVICES)]
        return f"{kind}-{service // len(_KINDS_OF_SERVICES) + 1}"

    def kept_from(self, tier: int) -> int:
        if tier >= HOUR:
            return self.start
        kept = self.fine_days * DAY if tier >= MINUTE else self.fine_days * DAY // 8
        return max(self.start, floor_to(self.end - kept, HOUR))

    def series_by_day(self, service: int) -> Iterator[tuple[int, Series]]:
        for day in range(self.days + 1):
            version = f"v{1 + (day + service) // _RELEASE_DAYS}"
            for status in ("ok", "error") if (day + service) % _ERROR_DAYS == 0 else ("ok",):
                for route in range(self.routes):
                    path = f"/predict/{route}" if route else _FIRST_ROUTE
                    series = Series(self.name(service), version, "production", "model", "1", path, "cuda:0", status)
                    yield self.start + day * DAY, series


def make(folder: Path, fleet: Fleet) -> Store:
    """Make the store and the SLO file of *fleet* in *folder*, in place of an earlier one."""
    path = folder / "fleet.db"
    for suffix in ("", "-wal", "-shm", ".lock"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    (folder / "slo.yaml").write_text(_objectives(fleet))
    store = open_store(folder, fleet.end)
    for service in range(fleet.services):
        at = datetime.fromtimestamp(fleet.end, UTC) - timedelta(days=(service * 7) % max(fleet.days, 1))
        store.add_event(Event(at, fleet.name(service), "deploy", "rollout", "A new version"))
    store.write([Batch("fleet", instance="fleet/1")])
    filling = _Filling(fleet)
    owners = filling.add_series(store)
    store.close()
    filling.insert(path, owners)
    store = open_store(folder, fleet.end)
    filling.finish(store)
    return store


def open_store(folder: Path, now: int = NOW) -> Store:
    return Store.open(f"sqlite:///{folder / 'fleet.db'}", clock=lambda: now)


def _objectives(fleet: Fleet) -> str:
    lines = ["slos:"]
    for service in range(fleet.services):
        name = fleet.name(service)
        lines.append(f"  - {{name: {name}, service: {name}, objective: 0.99, threshold: 500ms, window: 30d}}")
    return "\n".join([*lines, ""])


@dataclass(frozen=True, slots=True)
class _Day:
    start: int
    series: Series
    ids: SeriesNumbers

    @property
    def total_id(self) -> int:
        """Id of the total, for one of the routes that share it; 0 for the others."""
        return self.ids.total_id if self.series.route == _FIRST_ROUTE else 0


class _Filling:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._pools = pools()
        self._sizes = {tier: _bytes_by_draw(pool) for tier, pool in self._pools.items()}
        self._rows: Counter[tuple[int, int]] = Counter()
        self._bytes: Counter[tuple[int, int]] = Counter()

    def add_series(self, store: Store) -> list[_Day]:
        index, days = SeriesIndex(SeriesCaps()), list[_Day]()
        with store.transaction() as connection:
            index.refresh(connection, database.generation(connection))
            for service in range(self._fleet.services):
                for day, series in self._fleet.series_by_day(service):
                    days.append(_Day(day, series, index.intern(connection, series, day)))
            index.widen(connection, [(day.ids.series_id, min(day.start + DAY, self._fleet.end) - 10) for day in days])
        return days

    def insert(self, path: Path, days: list[_Day]) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        # No journal: it would write everything twice.
        for statement in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            "PRAGMA cache_size = -262144",
            "BEGIN",
            _POOL,
            _DRAWS,
        ):
            connection.execute(statement)
        for tier, pool in self._pools.items():
            connection.executemany("INSERT INTO pool VALUES (?, ?, ?, ?, ?, ?, ?)", _pool_rows(tier, pool))
        for service_id, own in groupby(days, key=lambda day: day.ids.service_id):
            self._insert_service(connection, service_id, list(own))
        connection.execute("COMMIT")
        connection.close()

    def _insert_service(self, connection: sqlite3.Connection, service_id: int, days: list[_Day]) -> None:
        rows: list[tuple[int, ...]] = []
        for day in days:
            for tier in TIERS:
                buckets = np.arange(
                    max(day.start, self._fleet.kept_from(tier)), _end(tier, day.start, self._fleet.end), tier
                )
                draws = self._draws(tier, buckets, crc32(repr((day.series, day.start)).encode()))
                self._count(tier, buckets, draws, copies=2 if day.total_id and tier > TIERS[0] else 1)
                ids = (day.ids.series_id, day.total_id)
                rows += [
                    (tier, bucket, *ids, draw) for bucket, draw in zip(buckets.tolist(), draws.tolist(), strict=True)
                ]
        connection.execute("DELETE FROM draws")
        connection.executemany("INSERT INTO draws VALUES (?, ?, ?, ?, ?)", sorted(rows))
        codes = sorted({metric for metric, _ in KINDS})
        for tier in TIERS:
            totals = [] if tier == TIERS[0] else sorted(-code for code in codes)
            for metric in (*totals, *codes):
                statement = _INSERT.format(owner="draws.total_id" if metric < 0 else "draws.series_id")
                values = {"tier": tier, "code": tier_code(tier), "service": service_id, "metric": metric}
                connection.execute(statement, values | {"part": _PART, "scale": SCALE})

    def _draws(self, tier: int, buckets: Ints, seed: int) -> Ints:
        """Return the draws of *buckets* of one day: the day is drawn with *seed*, its parts are those that were summed to it."""
        coarsest = self._pools[TIERS[-1]]
        found = np.full(len(buckets), seed % coarsest.draws)
        for fine, coarse in reversed([*pairwise(TIERS)]):
            if coarse > tier:
                found = self._pools[coarse].parts[found, buckets % coarse // fine]
        return found

    def _count(self, tier: int, buckets: Ints, draws: Ints, *, copies: int) -> None:
        slots, slot = np.unique(buckets - buckets % SLOT_SECONDS[tier], return_inverse=True)
        rows, size = np.bincount(slot), np.bincount(slot, self._sizes[tier][draws])
        for at, n, held in zip(slots.tolist(), rows.tolist(), size.tolist(), strict=True):
            self._rows[tier, at] += copies * len(KINDS) * n
            self._bytes[tier, at] += copies * int(held)

    def finish(self, store: Store) -> None:
        ledger = [
            {"tier": tier, "slot": slot, "rows": rows, "bytes": self._bytes[tier, slot]}
            for (tier, slot), rows in self._rows.items()
        ]
        with store.transaction() as connection:
            connection.execute(insert(schema.ledger), ledger)
            connection.execute(update(schema.store).values(last_part=_PART))
            connection.execute(update(schema.services).values(revision=_PART))
            for tier in TIERS:
                values = {
                    "kept_from": self._fleet.kept_from(tier),
                    "watermark": _watermark(tier, self._fleet.end) if tier > TIERS[0] else 0,
                }
                connection.execute(update(schema.rollups).where(schema.rollups.c.tier == tier).values(**values))


def _pool_rows(tier: int, pool: Pool) -> Iterator[tuple[int, int, int, str, int, float, bytes]]:
    sums = pool.sum.tolist()
    for at, blob in enumerate(pool.blobs):
        draw, kind = divmod(at, len(KINDS))
        yield tier, KINDS[kind][0], draw, KINDS[kind][1], pool.count[at], sums[at], blob


def _bytes_by_draw(pool: Pool) -> Ints:
    sizes = np.fromiter(map(len, pool.blobs), np.int64, len(pool.blobs))
    return sizes.reshape(-1, len(KINDS)).sum(axis=1)


def _watermark(tier: int, end: int) -> int:
    return floor_to(end - MINUTE, tier)


def _end(tier: int, day: int, end: int) -> int:
    """Return the end of the buckets of *tier* on the day that starts at *day*."""
    return min(day + DAY, end if tier == TIERS[0] else _watermark(tier, end))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--services", type=int, default=Fleet().services)
    parser.add_argument("--days", type=int, default=Fleet().days)
    parser.add_argument("--fine-days", type=int, default=Fleet().fine_days)
    parser.add_argument("--present", action="store_true", help="end the data now, for a server with the real clock")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    began, end = time.process_time(), int(time.time()) if options.present else NOW
    store = make(options.folder, Fleet(options.services, options.days, options.fine_days, end))
    tiers: Mapping[int, int] = {tier.seconds: tier.rows for tier in store.read.storage().tiers}
    store.close()
    size = (options.folder / "fleet.db").stat().st_size / 1e9
    rows = ", ".join(f"{rows:,} of {tier} s" for tier, rows in tiers.items())
    print(f"{sum(tiers.values()):,} rows ({rows}), {size:.2f} GB, {time.process_time() - began:.1f} CPU-s")


if __name__ == "__main__":
    main()
