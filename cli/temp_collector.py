"""Temporary collector of one run, with a database in a temporary folder."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

from ..collector.background import SpanAggregator
from ..collector.serve import Collector, CollectorConfig
from ..collector.traces.inbox import InboxLimits
from ..core.addresses import server_url
from ..store import Retention, Store
from .files import temporary_folder

# The data of the run has full resolution, however long the run lasts.
_EVER = timedelta(days=395)
_RETENTION = Retention(seconds_10=_EVER, minutes=_EVER, hours=_EVER, traces=_EVER)


class TemporaryCollector:
    def __init__(self, store: Store, collector: Collector) -> None:
        self.store = store
        self._collector = collector

    @property
    def endpoint(self) -> str:
        return server_url(*self._collector.address)

    def finish(self) -> list[str]:
        self._collector.stop()
        metrics = self._collector.metrics
        SpanAggregator(
            self.store,
            interval_seconds=0,
            max_waiting_bytes=0,
            metrics=metrics,
            limits=InboxLimits(hold_seconds=0),
        ).run_once()
        return metrics.health.reasons


@contextmanager
def temporary_collector() -> Generator[TemporaryCollector]:
    with temporary_folder("run") as folder:
        store = Store.open(f"sqlite:///{folder / 'run.db'}", retention=_RETENTION)
        try:
            collector = Collector(CollectorConfig(port=0), store)
            collector.start()
            try:
                yield TemporaryCollector(store, collector)
            finally:
                collector.stop()
        finally:
            store.close()
