"""Exports and items that the collector refused."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from ..core.errors import StoreError
from ..core.stages import OTHER
from ..store import Series
from ..store.collectors import lost_points
from ..store.points import PointColumns

# Services, and senders, whose losses are counted apart between two reports; all others have one count in common.
_MAX_SERVICES, _MAX_SENDERS = 1000, 20


class CollectorLosses:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_services: Counter[tuple[Series, str]] = Counter()
        self._of_senders: Counter[str] = Counter()

    def add(self, series: Series, reason: str, number: int = 1) -> None:
        with self._lock:
            if (series, reason) not in self._of_services and len(self._of_services) >= _MAX_SERVICES:
                series = Series(OTHER)
            self._of_services[series, reason] += number

    def add_of_sender(self, sender: str, why: str) -> None:
        with self._lock:
            key = f"{sender}: {why}"
            is_listed = key in self._of_senders or len(self._of_senders) < _MAX_SENDERS
            self._of_senders[key if is_listed else f"others: {why}"] += 1

    @property
    def of_senders(self) -> dict[str, float]:
        with self._lock:
            return dict(self._of_senders)

    def store(self, write: Callable[[PointColumns], object], now: int) -> None:
        """Pass the losses by service since the last call to *write*; after an error they are passed again."""
        with self._lock:
            counts, self._of_services = self._of_services, Counter()
        if not counts:
            return
        try:
            write(PointColumns.join([lost_points(*key, number, now) for key, number in counts.items()]))
        except StoreError:
            with self._lock:
                self._of_services += counts
            raise
