"""The questions Prometheus can answer, asked of Prometheus: classic histograms of the same streams of requests.

It cannot answer the others: where the time of the requests at a percentile goes (no histogram of one time by another), what
two versions differ by, which stage made bad requests bad, exemplars by rank; and it keeps no month of hours by itself.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from bisect import bisect_left
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from stagelens.core.histogram import bucket_middle
from stagelens.store.points import Ints, decode_buckets

from .dataset import HOUR, NOW, Shape
from .engines import cpu_seconds
from .pool import DOMINANTS, KINDS, Pool, pools
from .tables import table
from .timing import cost

# The buckets of its client for Python.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_HOURS = {"service-2": 24}
_OTHER_HOURS = 2
_START_SECONDS = 120
# What is asked, how our own benchmark calls it, and from when to when by what step.
QUESTIONS = (
    (
        "p50, p95, p99 of a service, 24h by minute",
        "quantiles_over_time 24h by minute",
        '{service="service-2"}',
        24 * HOUR,
        60,
        (0.5, 0.95, 0.99),
    ),
    ("p50 of all services, 1h by 30 s", "quantiles_over_time 1h, all services", "", HOUR, 30, (0.5,)),
)


@dataclass(frozen=True)
class Server:
    """A running server."""

    address: str
    process: int

    def ask(self, selector: str, seconds: int, step: int, quantiles: tuple[float, ...]) -> None:
        """Ask for *quantiles* of what *selector* selects, step by step over so many seconds."""
        for quantile in quantiles:
            rate = f"rate(request_duration_seconds_bucket{selector}[{step}s])"
            query = {
                "query": f"histogram_quantile({quantile}, sum by (le) ({rate}))",
                "start": NOW - seconds,
                "end": NOW,
                "step": step,
            }
            url = f"{self.address}/api/v1/query_range?{urllib.parse.urlencode(query)}"
            with urllib.request.urlopen(url) as response:  # noqa: S310 - an address of our own making
                if not json.load(response)["data"]["result"]:
                    msg = f"Prometheus found nothing for {query}"
                    raise RuntimeError(msg)


def table_of(shape: Shape, data: Path) -> str:
    """Return the table of what the questions cost Prometheus; its blocks are kept below *data*."""
    with serving(shape, data) as server:
        costs = [
            (name, ours, cost(partial(server.ask, *asked), partial(cpu_seconds, server.process)))
            for name, ours, *asked in QUESTIONS
        ]
    rows = [(name, f"{each.server_cpu:.0f}", f"{each.wall:.0f}", ours) for name, ours, each in costs]
    return table(("question", "server's CPU [ms]", "wall [ms]", "ours"), rows)


def _load(shape: Shape, folder: Path) -> None:
    text = folder.with_suffix(".openmetrics")
    folder.mkdir(parents=True)
    with text.open("w") as file:
        file.writelines(f"{line}\n" for line in _exposition(shape, pools()[10]))
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    text.unlink()


def _exposition(shape: Shape, pool: Pool) -> Iterator[str]:
    """Yield the lines of OpenMetrics text: 24 hours of the service that is asked for, two of the others."""
    counts, sums = _by_bucket(pool)
    bounds = [*map(repr, BOUNDS), "+Inf"]
    random = np.random.default_rng(2)
    yield "# TYPE request_duration_seconds histogram"
    for series in shape.streams:
        hours = _HOURS.get(series.service, _OTHER_HOURS)
        times = np.arange(NOW - hours * HOUR - 60, NOW + 1, 10)
        draws = random.integers(pool.draws, size=len(times))
        held, total = counts[draws].cumsum(axis=0), sums[draws].cumsum()
        of = f'service="{series.service}",version="{series.version}",route="{series.route}",status="{series.status}"'
        for at, row, seconds in zip(times.tolist(), held.tolist(), total.tolist(), strict=True):
            for bound, count in zip(bounds, row, strict=True):
                yield f'request_duration_seconds_bucket{{{of},le="{bound}"}} {count} {at}'
            yield f"request_duration_seconds_count{{{of}}} {row[-1]} {at}"
            yield f"request_duration_seconds_sum{{{of}}} {seconds} {at}"
    yield "# EOF"


def _by_bucket(pool: Pool) -> tuple[Ints, Ints]:
    """Return the cumulative counts by bucket, and the sum, of the requests of each draw."""
    dominants = len(DOMINANTS)
    rows = [pool.blobs[draw * len(KINDS) + kind] for draw in range(pool.draws) for kind in range(dominants)]
    found = decode_buckets(rows)
    place = np.array([bisect_left(BOUNDS, bucket_middle(index)) for index in range(-400, 400)])[found.index + 400]
    counts = np.zeros((pool.draws, len(BOUNDS) + 1), np.int64)
    np.add.at(counts, (np.repeat(np.arange(len(rows)) // dominants, found.lengths), place), found.amount)
    return counts.cumsum(axis=1), pool.sum.reshape(-1, len(KINDS))[:, :dominants].sum(axis=1)


@contextmanager
def serving(shape: Shape, data: Path) -> Generator[Server]:
    """Start Prometheus with the streams of *shape*; its blocks are kept below *data*."""
    folder = data / f"prometheus.{shape.n_series}"
    if not folder.exists():
        _load(shape, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    configuration = folder / "prometheus.yml"
    configuration.write_text("scrape_configs: []\n")
    options = ["--storage.tsdb.retention.time=10y", f"--storage.tsdb.path={folder}", f"--web.listen-address={address}"]
    command = ["prometheus", f"--config.file={configuration}", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(f"http://{address}/-/ready")
        yield Server(f"http://{address}", process.pid)
    finally:
        process.terminate()
        process.wait()


def _wait(url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=1).close()  # noqa: S310 - as above
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
