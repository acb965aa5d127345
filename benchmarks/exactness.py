"""Error of quantiles of the same requests in our store and in a real Prometheus.

    python benchmarks/exactness.py [--requests N] [--seed S]

Requests of each shape of latency are spread evenly over an hour, and counted every 10 s: in our store (SQLite,
rolled up, as a dashboard reads it), and in classic histograms of a Prometheus, queried by
`histogram_quantile(q, sum by (le) (rate(…_bucket[1h])))`. "20 requests" is the first shape in an hour with no more.

- exact: the request at that rank (nearest rank).
- default: the default buckets of prometheus_client.
- chosen: twenty bounds, evenly spaced on a logarithmic scale from the fastest to the slowest of these requests, or
  from half to double the median if that is wider.

Native histograms are left out: Prometheus reads them from scrapes and remote write only, not from text.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import Histogram as ClientHistogram
from tables import Table

# The tests use the same shapes, and the same server.
sys.path.insert(0, str(Path(__file__).parents[1]))

from stagelens.core.histogram import Histogram
from stagelens.store import Batch
from tests.store.latency_shapes import QUANTILES, SHAPES, exact, spread
from tests.support import prometheus_server
from tests.support.prometheus_server import scraped
from tests.support.raw_requests import NOON, NS, PointAggregator, Request, Series, Site

FEW, HOUR, CHOSEN = 20, 3600, 20
START, END = NOON - HOUR, NOON
DEFAULT_BOUNDS = [bound for bound in ClientHistogram.DEFAULT_BUCKETS if bound != float("inf")]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    samples: list[int]

    @property
    def requests(self) -> list[Request]:
        return spread(self.samples, START, HOUR, [Series(self.name)])

    @property
    def chosen_bounds(self) -> list[float]:
        median = exact(self.samples, 0.5)
        low, high = min(min(self.samples) / NS, median / 2), max(max(self.samples) / NS, median * 2)
        return [*(low * (high / low) ** (step / (CHOSEN - 1)) for step in range(CHOSEN - 1)), high]

    def metric(self, buckets: str) -> str:
        return f"latency_{self.name.replace(' ', '_')}_{buckets}"


def ours(case: Case) -> Histogram:
    """Return the latency of *case* in our store, once it is rolled up."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(f"sqlite:///{folder}/stagelens.db", {})
        site.store.write([Batch("all", PointAggregator().points(case.requests))])
        site.clock.now += 2 * HOUR
        site.store.maintain()
        latency = site.store.read.latency(site.between(START, END))
        site.store.close()
    return latency


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=36_000, help="of each shape (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the latencies")
    options = parser.parse_args()
    if not prometheus_server.is_installed():
        print(prometheus_server.HINT, file=sys.stderr)
        return 1
    cases = [Case(shape.name, shape.samples(options.requests, options.seed)) for shape in SHAPES]
    cases.append(Case(f"{FEW} requests", SHAPES[0].samples(FEW, options.seed)))
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            for buckets, bounds in (("default", DEFAULT_BOUNDS), ("chosen", case.chosen_bounds)):
                prometheus_server.write(Path(folder), case.metric(buckets), bounds, case.requests, scraped(START, END))
        with prometheus_server.serving(Path(folder)) as prometheus:
            title = f"error, of {options.requests} requests in an hour; Prometheus {prometheus.version()}"
            table = Table(title, "exact", "Stagelens", "default", "chosen")
            for case in cases:
                latency = ours(case)
                for quantile in QUANTILES:
                    truth, estimate = exact(case.samples, quantile), latency.quantile(quantile)
                    theirs = (
                        prometheus.quantile(case.metric(text), quantile, END, HOUR) for text in ("default", "chosen")
                    )
                    values = [estimate.value if estimate else 0.0, *theirs]
                    cells = (f"{(value / truth - 1) * 100:+.1f} %" for value in values)
                    table.row(f"{case.name}, p{100 * quantile:g}", f"{truth * 1000:.2f} ms", *cells)
            table.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
