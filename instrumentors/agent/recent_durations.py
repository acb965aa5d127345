"""The duration from which a request of each route is slow, by its recent requests."""

from __future__ import annotations

from ..records import clock

# Requests whose p90 is a threshold; at least this many are needed.
RECENT_REQUESTS, MIN_REQUESTS, MAX_ROUTES = 200, 20, 1000
# A request is not slow below this multiple of the median: where all take about the same time, none is slow.
MIN_SLOWER = 1.2


class RecentDurations:
    def __init__(self) -> None:
        self._recent: dict[str | None, list[int]] = {None: []}
        self._thresholds: dict[str | None, int] = {}
        self.shortest: int | None = None
        self.slow_at = 0

    def add(self, route: str, duration: int) -> None:
        threshold = self.threshold(route)
        if threshold is not None and duration > threshold:
            self.slow_at = clock()
        self._add(None, duration)
        if route in self._recent or len(self._recent) < MAX_ROUTES:
            self._add(route, duration)

    def threshold(self, route: str) -> int | None:
        threshold = self._thresholds.get(route) if route else None
        return self._thresholds.get(None) if threshold is None else threshold

    def _add(self, key: str | None, duration: int) -> None:
        recent = self._recent.setdefault(key, [])
        recent.append(duration)
        if len(recent) % MIN_REQUESTS == 0:
            del recent[:-RECENT_REQUESTS]
            ordered = sorted(recent)
            self._thresholds[key] = max(ordered[len(ordered) * 9 // 10], int(MIN_SLOWER * ordered[len(ordered) // 2]))
            self.shortest = min(self._thresholds.values())
