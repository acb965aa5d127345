"""States of the scrape targets, for the page *Engines*, /metrics and the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from .config import Engine, ScrapeTarget
from .snapshot import Difference

_log = logging.getLogger(__name__)

_PREFIX = "stagelens_collector_scrape_"


@dataclass(frozen=True, slots=True)
class TargetState:
    url: str
    service: str
    engine: str = ""
    # "elsewhere": another collector does it.
    state: Literal["up", "down", "elsewhere", "new"] = "new"
    error: str = ""
    seconds: float = 0.0
    streams: int = 0
    beyond: int = 0
    failures: int = 0
    lost_seconds: float = 0.0


_METRICS: tuple[tuple[type[Any], str, str, Callable[[TargetState], float]], ...] = (
    (GaugeMetricFamily, "up", "1 while the target can be scraped.", lambda state: state.state == "up"),
    (GaugeMetricFamily, "seconds", "Duration of the last scrape.", lambda state: state.seconds),
    (GaugeMetricFamily, "streams", "Series in the last scrape.", lambda state: state.streams),
    (
        GaugeMetricFamily,
        "streams_left_out",
        "Skipped series: above the limit, or invalid.",
        lambda state: state.beyond,
    ),
    (CounterMetricFamily, "failures", "Failed scrapes.", lambda state: state.failures),
    (CounterMetricFamily, "lost_seconds", "Time without counts.", lambda state: state.lost_seconds),
)


class TargetStates(Collector):
    """States of all scrape targets. Thread-safe; each change is logged once, not with every scrape."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, TargetState] = {}

    def all(self) -> list[TargetState]:
        with self._lock:
            return sorted(self._states.values(), key=lambda state: (state.service, state.url))

    def read(self, target: ScrapeTarget, engine: Engine, difference: Difference, seconds: float) -> None:
        before = self._of(target)
        self._set(
            replace(
                before,
                engine=engine.name,
                state="up",
                error=difference.note,
                seconds=seconds,
                streams=len(difference.base.streams),
                beyond=difference.base.beyond,
                lost_seconds=before.lost_seconds + difference.lost_seconds,
            )
        )

    def failed(self, target: ScrapeTarget, error: str) -> None:
        before = self._of(target)
        self._set(replace(before, state="down", error=error, failures=before.failures + 1))

    def elsewhere(self, target: ScrapeTarget) -> None:
        self._set(replace(self._of(target), state="elsewhere", error=""))

    def forget(self, url: str) -> None:
        with self._lock:
            self._states.pop(url, None)

    def _of(self, target: ScrapeTarget) -> TargetState:
        with self._lock:
            return self._states.get(target.url) or TargetState(target.url, target.service)

    def _set(self, state: TargetState) -> None:
        with self._lock:
            before = self._states.get(state.url)
            self._states[state.url] = state
        if (before.state if before else "up") != state.state and "down" in (state.state, before and before.state):
            _log.warning("scraping %s: %s%s", state.url, state.state, f", {state.error}" if state.error else "")

    def collect(self) -> Iterable[Metric]:
        states = [state for state in self.all() if state.state in ("up", "down")]
        for kind, name, text, value in _METRICS:
            family = kind(_PREFIX + name, text, labels=("target",))
            for state in states:
                family.add_metric((state.url,), value(state))
            yield family
