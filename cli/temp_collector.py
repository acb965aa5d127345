"""Temporary collector of one run, with a database in a temporary folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from ..collector.background import SpanFolder
from ..collector.config import LiveConfig
from ..collector.forward import forwarder as state
from ..collector.forward.forwarder import Forwarder
from ..collector.serve import Collector, CollectorConfig
from ..collector.traces.inbox import InboxLimits
from ..core.addresses import server_url
from ..store import Retention, Store
from ..store.collectors import read_backlogs
from ..store.engines import database
from .files import temporary_folder

# The data of the run has full resolution, however long the run lasts.
_EVER = timedelta(days=395)
# Maximum time to forward the remaining data of a run, and polling interval. [seconds]
_SEND_ON_SECONDS, _POLL_SECONDS = 10.0, 0.05
_RETENTION = Retention(seconds_10=_EVER, minutes=_EVER, hours=_EVER, traces=_EVER)


class TemporaryCollector:
    def __init__(self, store: Store, collector: Collector, file: LiveConfig) -> None:
        self.store = store
        self._collector = collector
        self._file = file

    @property
    def endpoint(self) -> str:
        return server_url(*self._collector.address)

    def finish(self) -> list[str]:
        self._collector.stop()
        health = self._collector.health
        SpanFolder(
            self.store,
            interval_seconds=0,
            max_waiting_bytes=0,
            health=health,
            metrics=self._collector.metrics,
            limits=InboxLimits(hold_seconds=0),
        ).run_once()
        return health.reasons

    def send_on(self) -> bool:
        """Forward the remaining data; return whether the destination accepted all of it.

        Returns as soon as the destination is down, and after `_SEND_ON_SECONDS` at the latest.
        """
        if not self._file.current.forward:
            return False
        forwarder = Forwarder(self.store, lambda: self._file.current.forward, self._file.env, budget_bytes=None)
        forwarder.start()
        end = time.monotonic() + _SEND_ON_SECONDS
        try:
            while self._waits() and time.monotonic() < end:
                if any(each.state == "down" for each in forwarder.states.all()):
                    return False
                time.sleep(_POLL_SECONDS)
        finally:
            forwarder.stop()
        return not self._waits()

    def _waits(self) -> bool:
        with database.reading(self.store.engine) as connection:
            return bool(read_backlogs(connection))


@contextmanager
def temporary_collector(send_on_to: str = "") -> Generator[TemporaryCollector]:
    """Run a collector, and remove all its data at the end."""
    with temporary_folder("run") as folder:
        store = Store.open(f"sqlite:///{folder / 'run.db'}", retention=_RETENTION)
        try:
            file = LiveConfig(_write_config(folder, send_on_to), {})
            collector = Collector(CollectorConfig(port=0), store, file=file)
            collector.start()
            try:
                yield TemporaryCollector(store, collector, file)
            finally:
                collector.stop()
        finally:
            store.close()


def _write_config(folder: Path, send_on_to: str) -> Path | None:
    if not send_on_to:
        return None
    # Warnings are suppressed: the user already knows that the collector is not reachable.
    logging.getLogger(state.__name__).setLevel(logging.ERROR)
    path = folder / "collector.yaml"
    path.write_text(
        f"forward: {{destinations: [{{name: collector, endpoint: '{send_on_to}', compression: none, when_full: drop_oldest}}]}}\n",
        encoding="utf-8",
    )
    return path
