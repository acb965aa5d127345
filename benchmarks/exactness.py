"""How far off is a quantile? The same requests in our store and in a real Prometheus, beside what is exactly true.

    python benchmarks/exactness.py [--requests N] [--seed S]

For each shape of latency so many requests are spread evenly over an hour, and counted every 10 s: in our store (SQLite,
rolled up, as a dashboard reads it), and in classic histograms of a Prometheus, asked by
`histogram_quantile(q, sum by (le) (rate(…_bucket[1h])))`. "20 requests" is the first shape at an hour with no more.

- exact: the request at that rank (nearest rank) of all of them, sorted.
- default: the buckets that prometheus_client gives a histogram if it is not told otherwise.
- chosen: twenty bounds, evenly spaced on a logarithmic scale from the fastest to the slowest of these very requests, or
  from half to double the median if that is wider. Nobody knows the service better.
- bytes: what an hour at 10 s takes for one series. For Prometheus its chunks, without their index, which is shared by
  more of them; for us all by which the file grows, index included, with twenty alike.

Native histograms are not beside them: Prometheus takes those from scrapes and remote write alone, not from text.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client import Histogram as ClientHistogram

# The tests use the same shapes, and the same server.
sys.path.insert(0, str(Path(__file__).parents[1]))

from costs.table import Table

from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION
from stagelens.store import Batch, Point
from tests.store.latency_shapes import QUANTILES, SHAPES, exact, spread
from tests.support import prometheus_server
from tests.support.prometheus_server import Prometheus, scraped
from tests.support.raw_requests import NOON, NS, PointAggregator, Request, Series, Site

REQUESTS, FEW, SEED = 36_000, 20, 1
HOUR = 3600
START, END = NOON - HOUR, NOON
CHOSEN, ROUTES = 20, 20
DEFAULT_BOUNDS = [bound for bound in ClientHistogram.DEFAULT_BUCKETS if bound != float("inf")]


@dataclass(frozen=True, slots=True)
class StorageSize:
    """What is kept of an hour of one series.

    Args:
        buckets: In how many the requests are counted.
        size_bytes: What they take.
    """

    buckets: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Case:
    """The requests of one shape.

    Args:
        name: What the table calls it.
        samples: Their latencies. [nanoseconds]
    """

    name: str
    samples: list[int]

    @property
    def requests(self) -> list[Request]:
        """When each of them was made."""
        return spread(self.samples, START, HOUR, [Series(self.name)])

    @property
    def chosen_bounds(self) -> list[float]:
        """Bounds of buckets that fit them as well as bounds can."""
        median = exact(self.samples, 0.5)
        low, high = min(min(self.samples) / NS, median / 2), max(max(self.samples) / NS, median * 2)
        return [*(low * (high / low) ** (step / (CHOSEN - 1)) for step in range(CHOSEN - 1)), high]

    def metric(self, buckets: str) -> str:
        """Return the name of their histogram with *buckets* in Prometheus."""
        return f"latency_{self.name.replace(' ', '_')}_{buckets}"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"of each shape (default: {REQUESTS})")
    parser.add_argument("--seed", type=int, default=SEED, help="of the latencies")
    return parser.parse_args()


def cases(n: int, seed: int) -> list[Case]:
    """Return *n* requests of each shape, and a few."""
    full = [Case(shape.name, shape.samples(n, seed)) for shape in SHAPES]
    return [*full, Case(f"{FEW} requests", SHAPES[0].samples(FEW, seed))]


def in_routes(case: Case) -> list[Point]:
    """Return the latency of *case* as that of each of some routes, so that pages of the file are full.

    The time in each stage has histograms of its own, for which a latency in Prometheus has nothing.
    """
    latency = [point for point in PointAggregator().points(case.requests) if point.metric == REQUEST_DURATION]
    return [
        replace(point, series=replace(point.series, route=f"/{route}")) for route in range(ROUTES) for point in latency
    ]


def ours(case: Case) -> tuple[Histogram, StorageSize]:
    """Return what our store says of *case* once it is rolled up, and what an hour at 10 s took before."""
    points = in_routes(case)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "stagelens.db")
        site = Site(f"sqlite:///{file}", {})
        site.store.close()
        empty = file.stat().st_size
        site.reopen()
        site.store.write([Batch("all", points)])
        site.store.close()
        size = (file.stat().st_size - empty) // ROUTES
        site.clock.now += 2 * HOUR
        site.reopen()
        site.store.maintain()
        found = site.store.read.latency(site.between(START, END, route="/0"))
        site.store.close()
    return found, StorageSize(len(found.buckets), size)


def feed(case: Case, folder: Path) -> dict[str, StorageSize]:
    """Write *case* into the data of a Prometheus, once with each kind of buckets, and return what they took."""
    requests = case.requests
    sizes: dict[str, StorageSize] = {}
    for buckets, bounds in (("default", DEFAULT_BOUNDS), ("chosen", case.chosen_bounds)):
        size = prometheus_server.write(folder, case.metric(buckets), bounds, requests, scraped(START, END))
        sizes[buckets] = StorageSize(len(bounds) + 1, size)
    return sizes


def errors(case: Case, latency: Histogram, prometheus: Prometheus, table: Table) -> None:
    """Add a row for each quantile of *case*."""
    for quantile in QUANTILES:
        truth, estimate = exact(case.samples, quantile), latency.quantile(quantile)
        estimates = [estimate.value if estimate else 0.0]
        estimates += [prometheus.quantile(case.metric(each), quantile, END, HOUR) for each in ("default", "chosen")]
        table.row(
            f"{case.name}, p{100 * quantile:g}",
            f"{truth * 1000:.2f} ms",
            *(f"{(value / truth - 1) * 100:+.1f} %" for value in estimates),
        )


def main() -> int:
    """Measure and print."""
    options = arguments()
    if not prometheus_server.is_installed():
        print(prometheus_server.HINT, file=sys.stderr)
        return 1
    every = cases(options.requests, options.seed)
    mine = {case.name: ours(case) for case in every}
    with tempfile.TemporaryDirectory() as folder:
        theirs = {case.name: feed(case, Path(folder)) for case in every}
        with prometheus_server.serving(Path(folder)) as prometheus:
            title = f"error, of {options.requests} requests in an hour; Prometheus {prometheus.version()}"
            table = Table(title, "exact", "Stagelens", "default", "chosen")
            for case in every:
                errors(case, mine[case.name][0], prometheus, table)
            table.print()
    table = Table("buckets, and bytes of an hour at 10 s, of one series", "Stagelens", "default", "chosen")
    for case in every:
        sizes = (mine[case.name][1], theirs[case.name]["default"], theirs[case.name]["chosen"])
        table.row(case.name, *(f"{each.buckets}: {each.size_bytes / 1000:.0f} kB" for each in sizes))
    table.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
