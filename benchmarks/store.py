"""What the store costs at size: bytes a histogram, what is written for them, roll-ups, and every question of the pages.

    python benchmarks/store.py [--engine sqlite|postgresql|clickhouse] [--series N ...] [--days D] [--data FOLDER]
                               [--only TEXT] [--parts questions,cold,writes,prometheus]

The data: --series rows of `points` for each bucket (5 services, 2 versions, routes, statuses; 10 rows a stream of requests: 2
dominant stages, 4 stages, 4 stage times), each with 20 requests every 10 s, 24 h of them at 10 s, 8 days by the minute and all
--days by the hour; 2,000 and 30 are 41 million rows and their totals. Loading takes 8 minutes; --data keeps them for the next
time. All questions end now, at no full hour.

CPU is the median of several times the same question, ours and the database server's; what the machine's other users do hardly
changes it. Cold is the wall time in a new process, once the system has dropped the files from memory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from sqlalchemy import func, select
from storage import asking, prometheus, writing
from storage.dataset import Shape
from storage.engines import ENGINES, Site, tier_bytes
from storage.load import load
from storage.questions import questions
from storage.tables import table

from stagelens.store import Store, schema

PARTS = ("questions", "cold", "writes", "prometheus")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, default="sqlite")
    parser.add_argument(
        "--series", type=int, nargs="+", default=[2000, 200], help="rows of one bucket (default: 2000 200)"
    )
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--data", type=Path, help="where the databases are kept (default: nowhere)")
    parser.add_argument("--only", default="", help="questions with this in their name")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--points-url", help=argparse.SUPPRESS)
    return parser.parse_args()


def filled(site: Site, shape: Shape, note: Path) -> None:
    """Load the data, unless the *note* says that they are there; print what a histogram takes."""
    store = site.open()
    if not note.exists():
        grown = load(store, shape)
        note.write_text(json.dumps({**grown, **tier_bytes(store, site)} if site.server or site.points_url else grown))
    sizes = {int(tier): size for tier, size in json.loads(note.read_text()).items()}
    print(table(("tier [s]", "histograms", "MB", "bytes each", "of them encoded"), _sizes(store, sizes)), end="\n\n")
    store.close()


def _sizes(store: Store, sizes: dict[int, int]) -> list[tuple[str, ...]]:
    ledger = schema.ledger
    held = select(ledger.c.tier, func.sum(ledger.c.rows), func.sum(ledger.c.bytes)).group_by(ledger.c.tier)
    with store.engine.connect() as connection:
        return [
            (
                str(tier),
                f"{rows:,}",
                f"{sizes[tier] / 1e6:,.0f}",
                f"{sizes[tier] / int(rows):.0f}",
                f"{size / rows:.0f}",
            )
            for tier, rows, size in sorted(connection.execute(held).all())
        ]


def measure(engine: str, shape: Shape, data: Path, parts: list[str], only: str) -> None:
    """Print the tables of one engine and one size."""
    print(f"## {engine}, {shape.n_series:,} series, {shape.days} days\n", flush=True)
    wanted = [question for question in questions() if only in question.name]
    with ENGINES[engine](data, shape.name) as site:
        filled(site, shape, data / f"{engine}.{shape.name}.json")
        if "questions" in parts:
            costs = dict(asking.ask_warm(site, wanted))
            cold = {each.name: asking.ask_cold(site, each) if "cold" in parts else None for each in wanted}
            print(asking.table_of({name: (each, cold[name]) for name, each in costs.items()}), end="\n\n", flush=True)
    if "writes" in parts:
        print(writing.table_of(writing.write(ENGINES[engine], shape, data)), end="\n\n", flush=True)
    if "prometheus" in parts:
        print(f"Prometheus:\n\n{prometheus.table_of(shape, data)}", end="\n\n", flush=True)


def main() -> None:
    """Measure and print."""
    options = arguments()
    if options.ask:
        site = Site(options.url, (), options.points_url)
        print(asking.ask_once(site, next(each for each in questions() if each.name == options.ask)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        for series in options.series:
            data = options.data or Path(temporary)
            measure(options.engine, Shape(series, options.days), data, options.parts.split(","), options.only)


if __name__ == "__main__":
    main()
