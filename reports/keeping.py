"""A collector of one run's own: the ordinary one, over a database in a temporary folder, where nobody else finds it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

from ..collector.folding import Folding
from ..collector.serve import Collector, CollectorConfig
from ..collector.store import Retention, Store
from ..collector.traces.leftovers import Patience
from .folders import folder_for

# As long as a run goes on, all of it is kept as finely as it came.
_EVER = timedelta(days=395)
_RETENTION = Retention(seconds_10=_EVER, minutes=_EVER, hours=_EVER, traces=_EVER)


class Keeping:
    """A collector that runs.

    Args:
        store: What it keeps.
        collector: Itself.
    """

    def __init__(self, store: Store, collector: Collector) -> None:
        self.store = store
        self._collector = collector

    @property
    def endpoint(self) -> str:
        """Where it is to be sent to."""
        host, port = self._collector.address
        return f"http://{host}:{port}"

    def finish(self) -> list[str]:
        """Count all that was sent: also what still waits for more of its request, because no more will come.

        Returns:
            What could not be done, one line each.
        """
        self._collector.stop()
        health = self._collector.health
        Folding(
            self.store,
            interval_seconds=0,
            max_waiting_bytes=0,
            health=health,
            metrics=self._collector.metrics,
            patience=Patience(hold_seconds=0),
        ).run_once()
        return health.reasons


@contextmanager
def keeping() -> Generator[Keeping]:
    """Run a collector; nothing is left of it in the end.

    Raises:
        StagelensError: It cannot run: there is no room for it, or no port.
    """
    with folder_for("run") as folder:
        store = Store.open(f"sqlite:///{folder / 'run.db'}", retention=_RETENTION)
        try:
            collector = Collector(CollectorConfig(port=0), store)
            collector.start()
            try:
                yield Keeping(store, collector)
            finally:
                collector.stop()
        finally:
            store.close()
