"""A real collector over a database of its own, and what of a service's requests has come there."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.core import names
from stagelens.core.histogram import Histogram
from stagelens.core.stages import OVERHEAD, UNEXPLAINED
from stagelens.store import Selection, Store

AROUND = timedelta(minutes=10)
WAIT_SECONDS = 60.0
# What the truth calls what is no stage but is told of streams.
STREAMS = {"first_token": names.FIRST_TOKEN, "gap": names.STREAM_GAP, "per_token": names.OUTPUT_TOKEN}


@dataclass(frozen=True, slots=True)
class Reported:
    """What the store says of the requests of one series.

    Args:
        requests: How many there are.
        mean: Their mean latency. [seconds]
        histograms: The distribution of each stage's own time, and of what streams are like. [seconds]
        traces: Each kept request by its trace: seconds by stage.
        covered: The share of the latency that some stage claims, in the requests at the median.
        overhead: What none does. [seconds there]
    """

    requests: int
    mean: float
    histograms: Mapping[str, Histogram]
    traces: Mapping[str, Mapping[str, float]]
    covered: float
    overhead: float

    @property
    def covered_mean(self) -> float:
        """The share of all time with a known cause."""
        unexplained = sum(self.histograms[stage].sum for stage in UNEXPLAINED if stage in self.histograms)
        return 1 - unexplained / (self.mean * self.requests)


class Books:
    """The store behind a running collector.

    Args:
        store: It; for queries of other kinds, too.
        address: Where the collector listens.
    """

    def __init__(self, store: Store, address: str) -> None:
        self.store = store
        self.address = address

    def read(self, requests: int, **series: str) -> Reported:
        """Return what is reported of *requests*, once they have all come; None is not waited for longer than a minute."""
        now = datetime.now(UTC)
        selection = Selection(now - AROUND, now + AROUND, **series)
        self._await(selection, requests)
        read = self.store.read
        latency = read.latency(selection)
        streams = {key: read.streams(selection, metric) for key, metric in STREAMS.items()}
        histograms = {
            **read.stage_latency(selection),
            **{key: only(reported) for key, reported in streams.items() if reported},
        }
        at_median = read.breakdown(selection, [0.5]).iloc[0]
        retained = read.exemplars(selection, limit=10 * requests)
        return Reported(
            requests=latency.count,
            mean=latency.sum / latency.count,
            histograms=histograms,
            traces=dict(zip(retained["trace_id"], retained["stages"], strict=True)),
            covered=1 - sum(at_median.get(stage, 0.0) for stage in UNEXPLAINED) / at_median["value_seconds"],
            overhead=at_median[OVERHEAD],
        )

    def _await(self, selection: Selection, requests: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while (came := self.store.read.latency(selection).count) < requests:
            if time.monotonic() > deadline:
                msg = f"{came} of {requests} requests were reported"
                raise RuntimeError(msg)
            time.sleep(0.2)


def only(by_definition: Mapping[str, Histogram]) -> Histogram:
    """Return the one histogram; a service here measures by one definition."""
    (histogram,) = by_definition.values()
    return histogram


@contextlib.contextmanager
def collecting() -> Generator[Books]:
    """Run a collector."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(f"sqlite:///{folder}/accuracy.db")
        collector = Collector(CollectorConfig(port=0), store)
        collector.start()
        try:
            host, port = collector.address
            yield Books(store, f"http://{host}:{port}")
        finally:
            collector.stop()
            store.close()
