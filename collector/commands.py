"""Maintenance of the store: its size, deletion of services, backup, restore and migration."""

from __future__ import annotations

import re
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

from ..core.errors import StoreError
from ..core.settings.values import format_size
from ..store import Store
from ..store.backup import copy_store
from ..store.engines import database
from ..store.queries.state import Storage
from ..store.store_factory import open_existing
from .config import CollectorConfig

_PROGRESS_SECONDS = 0.2
_TIERS = {10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 21_600: "6 h", 86_400: "1 d"}
# The widest tier whose size matters to the projection. [seconds]
_LARGE_TIER = 3600
# Share of the store below which tables are summed in one line.
_SMALL_SHARE = 0.01
# Maximum number of service names that are printed.
_SHOWN = 10
# Suffixes of the database file and of SQLite's side files.
_BESIDE = ("", "-wal", "-shm", "-journal")


def print_storage(config: CollectorConfig) -> None:
    with ExitStack() as stack:
        store = open_existing(config)
        stack.callback(store.close)
        storage, capped = store.read.storage(), store.read.capped_dimensions()
        where = database.location(store.engine.url)
    print(
        "\n".join(
            (*_described(where, storage), *(f"{dimension}: new ones count as __other__." for dimension in capped))
        )
    )


def forget(config: CollectorConfig, patterns: Sequence[str]) -> None:
    """Delete all data of the services that *patterns* name; `*` matches any characters."""
    with closing(open_existing(config)) as store:
        services = store.services()
        by_pattern = {pattern: _matching(services, pattern) for pattern in patterns}
        for pattern, matches in by_pattern.items():
            if not matches:
                msg = f"there is no service {pattern}; nothing was deleted. The dashboard lists all services"
                raise StoreError(msg)
        named = sorted({name for matches in by_pattern.values() for name in matches})
        store.forget(named)
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    print(f"Deleted all data of {', '.join(named[:_SHOWN])}{more}. New data of these services will be stored.")


def _matching(names: Sequence[str], pattern: str) -> list[str]:
    """Return the names that *pattern* selects: the equal name, or all matching names with `*` for any text.

    >>> _matching(["svc1", "svc[1]"], "svc[1]"), _matching(["svc1", "svc[1]", "x"], "svc*")
    (['svc[1]'], ['svc1', 'svc[1]'])
    """
    if pattern in names:
        return [pattern]
    wanted = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    return [name for name in names if wanted.fullmatch(name)]


def _described(where: str, storage: Storage) -> Iterator[str]:
    budget = "no budget" if storage.budget_bytes is None else f"a budget of {format_size(storage.budget_bytes)}"
    yield f"{where}: {format_size(storage.used_bytes)}, {budget}"
    yield ""
    tiers = [
        (
            _TIERS[tier.seconds],
            f"{tier.rows:,}",
            format_size(tier.bytes),
            f"{tier.since:%Y-%m-%d %H:%M}" if tier.since else "-",
            f"{tier.retention.total_seconds() / 86_400:g} d",
            f"{format_size(tier.bytes_per_day)}/day" if tier.rows else "-",
            format_size(tier.settled_bytes) if tier.rows else "-",
        )
        for tier in storage.tiers
    ]
    yield from _table([("tier", "rows", "size", "since (UTC)", "retained for", "growth", "final size"), *tiers])
    yield ""
    large = {name: size for name, size in storage.tables.items() if size > storage.used_bytes * _SMALL_SHARE}
    tables = [*large.items(), ("all others", sum(storage.tables.values()) - sum(large.values()))]
    yield from _table([("table", "size"), *((name, format_size(size)) for name, size in tables)])
    yield ""
    # The wider tiers take little space, and have no data on the first day.
    empty = [_TIERS[tier.seconds] for tier in storage.tiers if not tier.rows and tier.seconds <= _LARGE_TIER]
    if empty:
        yield f"The projected size is not known yet: no data yet in {', '.join(empty)}."
    else:
        yield f"At this rate the store levels off at {format_size(storage.settled_bytes)}{_until(storage)}."


def _until(storage: Storage) -> str:
    if storage.budget_bytes is None:
        return ""
    if storage.full_at is None:
        return f"; the budget of {format_size(storage.budget_bytes)} is never reached"
    return (
        f"; the budget of {format_size(storage.budget_bytes)} is reached on {storage.full_at:%Y-%m-%d}; then the oldest data "
        "of the finest tier is deleted"
    )


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *rest = (
            text.ljust(width) if number == 0 else text.rjust(width)
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "   ".join((first, *rest)).rstrip()


def backup(config: CollectorConfig, file: Path) -> None:
    _check_name(file)
    if file.exists():
        msg = f"{file} already exists; name another file, or move it"
        raise StoreError(msg)
    # A file gets its final name only when the backup is complete.
    part = file.with_name(f"{file.name}.part")
    with ExitStack() as stack:
        source = open_existing(config)
        stack.callback(source.close)
        _check_space(source.read.storage().file_bytes, file)
        _remove(part)
        stack.callback(_remove, part)
        target = Store.open(f"sqlite:///{part}")
        stack.callback(target.close)
        rows = copy_store(source, target, _progress())
        target.close()
        part.rename(file)
    print(f"{file}: {rows:,} rows of histograms, {format_size(file.stat().st_size)}; compared with the store")


def _check_space(needed_bytes: int, file: Path) -> None:
    folder = file.absolute().parent
    if not folder.is_dir():
        msg = f"there is no folder {folder}; create it, or choose another file"
        raise StoreError(msg)
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        msg = (
            f"the backup needs about {format_size(needed_bytes)}, and the disk of {folder} has {format_size(free)} left; "
            "free some space, or choose a file on another disk"
        )
        raise StoreError(msg)


def _remove(file: Path) -> None:
    for ending in _BESIDE:
        file.with_name(f"{file.name}{ending}").unlink(missing_ok=True)


def restore(config: CollectorConfig, file: Path) -> None:
    _check_name(file)
    if not file.is_file():
        msg = f"there is no backup {file}"
        raise StoreError(msg)
    _check_tables(file)
    _move(CollectorConfig(database=f"sqlite:///{file}"), config)


def _check_name(file: Path) -> None:
    if "?" in str(file):
        msg = f"{file} contains a question mark, which starts the parameters of a database URL; rename the file"
        raise StoreError(msg)


def _check_tables(file: Path) -> None:
    """Check that *file* has only tables: views and triggers run SQL of their author, which may never end."""
    query = "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%' LIMIT 1"
    with (
        suppress(sqlite3.DatabaseError),
        closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection,
    ):
        row = connection.execute(query).fetchone()
        if row is not None:
            msg = f"{file} is not a backup of Stagelens: it contains {row[0]}, which is not a table; restore a file that `stagelens backup` wrote"
            raise StoreError(msg)


def migrate(config: CollectorConfig, to: str, to_points: str | None) -> None:
    _move(config, config.model_copy(update={"database": to, "points": to_points}))
    print("Now stop all writers to the old store, and set STAGELENS_DATABASE (and STAGELENS_POINTS) to the new one.")


def _move(source: CollectorConfig, target: CollectorConfig) -> None:
    with ExitStack() as stack:
        old = open_existing(source)
        stack.callback(old.close)
        # All data are copied without a budget; the next server applies the storage budget.
        retention = replace(target.retention, budget_bytes=None)
        new = Store.open(target.database, points_url=target.points, retention=retention)
        stack.callback(new.close)
        rows = copy_store(old, new, _progress())
        places = [database.location(store.engine.url) for store in (old, new)]
    print(f"{places[0]} -> {places[1]}: {rows:,} rows of histograms, and everything else; compared, no difference")


def _progress() -> Callable[[int, int], None]:
    start = drawn = time.monotonic()
    first: int | None = None

    def draw(done: int, total: int) -> None:
        nonlocal drawn, first
        now = time.monotonic()
        first = done if first is None else first
        if not sys.stderr.isatty() or (now - drawn < _PROGRESS_SECONDS and done < total):
            return
        drawn = now
        rate = (done - first) / max(now - start, _PROGRESS_SECONDS)
        share = done / total if total else 1
        print(f"\r{share:6.1%}  {rate:,.0f} rows/s ", end="\n" if done >= total else "", file=sys.stderr, flush=True)

    return draw
