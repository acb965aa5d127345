"""Size of a stored histogram, by tier and database.

    python benchmarks/store.py [--engine sqlite|postgresql|clickhouse] [--services N] [--routes R] [--days D]

Makes the store of `benchmarks/fleet.py` in SQLite, and copies it to another engine as `stagelens migrate` does. ClickHouse is chDB, in
this process.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from fleet import NOW, Fleet, make
from ingesting.databases import postgresql
from tables import Table

from stagelens.store import Store
from stagelens.store.backup import copy_store

ENGINES = ("sqlite", "postgresql", "clickhouse")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, default="sqlite")
    parser.add_argument("--services", type=int, default=5)
    parser.add_argument("--routes", type=int, default=10)
    parser.add_argument("--days", type=int, default=8)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        # The server of PostgreSQL is another user.
        folder.chmod(0o755)
        store = make(folder, Fleet(options.services, options.days, routes=options.routes))
        stack.callback(store.close)
        if options.engine == "postgresql":
            url, points_url = stack.enter_context(postgresql(folder, "sizes")).url, None
        else:
            url, points_url = f"sqlite:///{folder}/copy.db", None
        if options.engine == "clickhouse":
            points_url = f"clickhousedb://?interface=chdb&path={folder}/points&ttl=off"
        copy = Store.open(url, points_url=points_url, clock=lambda: NOW)
        stack.callback(copy.close)
        copy_store(store, copy, lambda _done, _total: None)
        title = f"{options.engine}, {options.services} services with {options.routes} routes, {options.days} days"
        table = Table(title, "histograms", "MB", "bytes each")
        # A row of the copy may hold several histograms.
        for source, tier in zip(store.read.storage().tiers, copy.read.storage().tiers, strict=True):
            size = f"{tier.bytes / source.rows:.0f}"
            table.row(f"{tier.seconds} s", f"{source.rows:,}", f"{tier.bytes / 1e6:,.0f}", size)
        table.print()


if __name__ == "__main__":
    main()
