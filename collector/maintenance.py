"""Roll-ups and retention, on their own clock."""

from __future__ import annotations

from ..core.periodic_thread import PeriodicThread
from ..store import Store
from .health import Health
from .self_metrics import SelfMetrics

MAINTENANCE_PART = "maintaining the store"


class Maintenance(PeriodicThread):
    """Runs `Store.maintain` now and then in a thread, and survives its errors.

    Args:
        store: What to maintain.
        interval_seconds: The time between two runs.
        health: Told when a run fails and when one succeeds again.
        metrics: Told of failures, and of the size of the store.
    """

    def __init__(self, store: Store, *, interval_seconds: float, health: Health, metrics: SelfMetrics) -> None:
        super().__init__("maintenance", rest_seconds=interval_seconds)
        self._store, self._interval_seconds = store, interval_seconds
        self._health, self._metrics = health, metrics

    def step(self) -> float:
        """Maintain the store now."""
        self.run_once()
        return self._interval_seconds

    def run_once(self) -> None:
        """Maintain the store now; a failure is reported, not raised."""
        try:
            self._store.maintain()
            self._metrics.store(self._store.about.state(), len(self._store.about.folds()))
        except Exception as error:  # noqa: BLE001 - the next run may succeed, and nothing must end the thread
            self._metrics.maintenance_failed()
            self._health.failed(MAINTENANCE_PART, f"{type(error).__name__}: {error}")
        else:
            self._health.succeeded(MAINTENANCE_PART)
