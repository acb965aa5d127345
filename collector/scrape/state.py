"""States of scrape targets for the health page, /metrics and the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from .config import Target
from .deltas import Difference
from .engine_rules import Engine

_log = logging.getLogger(__name__)

_PREFIX = "stagelens_collector_scrape_"


@dataclass(frozen=True, slots=True)
class TargetState:
    """State of a target.

    Args:
        url: Its URL.
        service: Its service.
        engine: Display name of its engine; empty if unknown.
        state: `up`, `down`, `elsewhere` (another collector scrapes it) or `new`.
        error: Reason why it is down, or a note while it is up.
        last_success: Time of the last successful scrape. [Unix seconds]
        seconds: Duration of the last successful scrape. [seconds]
        streams: Number of streams read.
        beyond: Number of streams left out.
        failures: Failed scrapes.
        lost_seconds: Duration whose counts are lost. [seconds]
    """

    url: str
    service: str
    engine: str = ""
    state: Literal["up", "down", "elsewhere", "new"] = "new"
    error: str = ""
    last_success: float | None = None
    seconds: float = 0.0
    streams: int = 0
    beyond: int = 0
    failures: int = 0
    lost_seconds: float = 0.0


class TargetStates(Collector):
    """States of all targets. Thread-safe; a change is logged once, not with each scrape."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, TargetState] = {}

    def all(self) -> list[TargetState]:
        """Return all states, by service and URL."""
        with self._lock:
            return sorted(self._states.values(), key=lambda state: (state.service, state.url))

    def read(self, target: Target, engine: Engine, difference: Difference, at: float, seconds: float) -> None:
        """Record a successful scrape of *target* *at* a time in Unix seconds."""
        before = self._of(target)
        self._set(
            replace(
                before,
                engine=engine.label,
                state="up",
                error=difference.note,
                last_success=at,
                seconds=seconds,
                streams=len(difference.base.streams),
                beyond=difference.base.beyond,
                lost_seconds=before.lost_seconds + difference.lost_seconds,
            )
        )

    def failed(self, target: Target, error: str) -> None:
        """Record a failed scrape of *target*."""
        before = self._of(target)
        self._set(replace(before, state="down", error=error, failures=before.failures + 1))

    def elsewhere(self, target: Target) -> None:
        """Record that another collector scrapes *target*."""
        self._set(replace(self._of(target), state="elsewhere", error=""))

    def forget(self, url: str) -> None:
        """Remove a target that is no longer configured."""
        with self._lock:
            self._states.pop(url, None)

    def _of(self, target: Target) -> TargetState:
        with self._lock:
            return self._states.get(target.url) or TargetState(target.url, target.service)

    def _set(self, state: TargetState) -> None:
        with self._lock:
            before = self._states.get(state.url)
            self._states[state.url] = state
        if (before.state if before else "up") != state.state and "down" in (state.state, before and before.state):
            _log.warning("scraping %s: %s%s", state.url, state.state, f", {state.error}" if state.error else "")

    def collect(self) -> Iterable[Metric]:
        """Return the states as Prometheus metrics."""
        up = GaugeMetricFamily(_PREFIX + "up", "1 while the target can be read.", labels=("target",))
        took = GaugeMetricFamily(_PREFIX + "seconds", "How long its last reading took.", labels=("target",))
        streams = GaugeMetricFamily(_PREFIX + "streams", "What was told apart in it.", labels=("target",))
        beyond = GaugeMetricFamily(
            _PREFIX + "streams_left_out", "What was not: no room, or no sense.", labels=("target",)
        )
        failures = CounterMetricFamily(_PREFIX + "failures", "Readings that failed.", labels=("target",))
        lost = CounterMetricFamily(_PREFIX + "lost_seconds", "Time nobody counted.", labels=("target",))
        for state in self.all():
            if state.state in ("up", "down"):
                up.add_metric((state.url,), state.state == "up")
                took.add_metric((state.url,), state.seconds)
                streams.add_metric((state.url,), state.streams)
                beyond.add_metric((state.url,), state.beyond)
                failures.add_metric((state.url,), state.failures)
                lost.add_metric((state.url,), state.lost_seconds)
        return (up, took, streams, beyond, failures, lost)
