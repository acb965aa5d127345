"""Processes with open requests: each sends a further report unless it is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..core.hardware import split_hardware_key
from ..core.names import NOTED_US, OPEN_TIME
from ..store import Series
from ..store.events import STOPPED, StoredLoad
from ..store.points import Point, PointColumns

# A process reports every ten seconds while requests are open. [seconds]
STOPPED_AFTER = 60
# Intervals between the reports of a process without one after which it has stopped.
_MISSED_REPORTS = 3
# Bounds the memory; further processes are not watched. [count]
_MAX_PROCESSES = 10_000
_NS = 1_000_000_000
# Microseconds that a process reports for an open request: in a regular report, unless its interval is shorter; and the least, more
# than it notes for all of them between these.
_SEEN_US, _MIN_SEEN_US = 10_000_000, 100_000


@dataclass(slots=True)
class LastReport:
    oldest: Series
    place: str
    # By the clock of the process, and of the collector. [Unix seconds]
    at: int
    received: float
    requests: int
    oldest_seconds: float
    interval_seconds: int = 0

    def include(self, other: LastReport) -> None:
        self.requests += other.requests
        if other.oldest_seconds > self.oldest_seconds:
            self.oldest, self.oldest_seconds = other.oldest, other.oldest_seconds

    def as_stopped(self, instance: str) -> StoredLoad:
        series, ended = self.oldest, int(self.received * _NS)
        names = (series.service, series.version, series.environment, instance, self.place)
        started = ended - int(self.oldest_seconds * _NS)
        return StoredLoad(*names, STOPPED, series.route, "", started, ended, self.requests)


class OpenProcesses:
    """Processes whose last report has open requests: each sends a further report unless it is killed. Thread-safe and bounded.

    An open request is in every report until one that counts it, also in the last report of a process that exits.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[str, LastReport] = {}

    def note(self, instance: str, points: PointColumns) -> None:
        """Note the report of a process. The bodies of one report, in any order, have the same time."""
        if not instance or not len(points):
            return
        opened = [index for index, about in enumerate(points.identities) if about.metric == OPEN_TIME]
        at = int(points.at.max())
        with self._lock:
            before = self._last.get(instance)
            if before is not None and at > before.at:
                del self._last[instance]
            for index in opened if before is None or at >= before.at else ():
                self._add(instance, next(iter(points.between(index, index + 1))), before)

    def _add(self, instance: str, point: Point, before: LastReport | None) -> None:
        buckets = point.histogram.buckets
        if not buckets or (instance not in self._last and len(self._last) >= _MAX_PROCESSES):
            return
        is_regular = min(buckets.values()) >= _MIN_SEEN_US
        seen = min(_SEEN_US, *buckets.values()) if is_regular else NOTED_US
        oldest_seconds = 2.0 ** ((max(buckets) + 1) / 2.0**point.histogram.scale)
        requests = round(sum(buckets.values()) / seen)
        interval = point.at - before.at if before else 0
        process = split_hardware_key(point.stage)[1]
        report = LastReport(point.series, process, point.at, self._clock(), requests, oldest_seconds, interval)
        if instance in self._last:
            self._last[instance].include(report)
        else:
            self._last[instance] = report

    def stopped(self) -> Mapping[str, LastReport]:
        now = self._clock()
        with self._lock:
            return {
                instance: last
                for instance, last in self._last.items()
                if now - last.received > max(STOPPED_AFTER, _MISSED_REPORTS * last.interval_seconds)
            }

    def open_requests(self) -> int:
        with self._lock:
            return sum(last.requests for last in self._last.values())

    def forget(self, stopped: Mapping[str, LastReport]) -> None:
        with self._lock:
            for instance, last in stopped.items():
                if self._last.get(instance) is last:
                    del self._last[instance]
