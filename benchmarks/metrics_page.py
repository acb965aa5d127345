"""What /metrics costs: counting latency for Prometheus, and a scrape of so many histograms in both formats.

    python benchmarks/metrics_page.py [--histograms N]

One thread, no HTTP. Points are of agents: fifteen buckets each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from costs.table import Table

from stagelens.collector import exposition
from stagelens.collector import exposition as text
from stagelens.collector.prometheus import EMPTY_SECONDS, Counters, PrometheusSettings
from stagelens.core.names import REQUEST_DURATION, STAGE_DURATION
from stagelens.store.points import Buckets, HistogramArrays, Identity, PointColumns
from stagelens.store.series import Series

STAGES = ("forward", "preprocess", "queue", "serialize", "overhead", "network")
POINTS, BUCKETS, ROUNDS = 20_000, 15, 7


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histograms", type=int, default=1000)
    wanted = parser.parse_args().histograms
    now = [0.0]
    counters = Counters(lambda: PrometheusSettings(histograms=wanted), lambda: now[0])
    points = _points(wanted)
    counting = _best(lambda: counters.count(points))
    now[0] = EMPTY_SECONDS
    pages = {
        "text": lambda: text.write_text(counters.read()),
        "protobuf": lambda: exposition.write_protobuf([], counters.read()),
    }
    table = Table(f"/metrics with {counters.used} latency histograms", "milliseconds", "kB")
    table.row(f"counting {POINTS} points", f"{counting:.1f}", "")
    for name, page in pages.items():
        table.row(f"a scrape in {name}", f"{_best(page):.0f}", f"{len(page()) / 1000:.0f}")
    table.print()


def _points(histograms: int) -> PointColumns:
    """Return points of as many services as fill *histograms*."""
    rng = np.random.default_rng(1)
    each = [(REQUEST_DURATION, "forward"), *((STAGE_DURATION, stage) for stage in STAGES)]
    owners = [Series(f"service-{number}", "1", "prod") for number in range(-(-histograms // len(each)))]
    about = [Identity(owner, *what) for owner in owners for what in each][:histograms]
    size = POINTS * BUCKETS
    index = (np.cumsum(rng.integers(1, 8, (POINTS, BUCKETS)), axis=1) - 150).ravel()
    buckets = Buckets(np.arange(0, size + 1, BUCKETS), index, np.ones(size, np.int64))
    histogram = HistogramArrays(np.full(POINTS, 5), np.zeros(POINTS, np.int64), np.ones(POINTS), buckets)
    chosen = [about[number % histograms] for number in range(POINTS)]
    return PointColumns(chosen, np.zeros(POINTS, np.int64), histogram)


def _best(work: Callable[[], object]) -> float:
    """Return the least time of several runs, in milliseconds."""
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - began))
    return min(times)


if __name__ == "__main__":
    main()
