"""States of forwarding destinations for /metrics, the page of the collectors, and the log."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, get_args

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ...store.outgoing import Backlog

_log = logging.getLogger(__name__)

_PREFIX = "stagelens_collector_forward_"
# Losses and failures of a destination are logged at most this often. [seconds]
_SAY_EVERY = 60.0

Lost = Literal["refused", "returned", "unreadable", "full"]


@dataclass(frozen=True, slots=True)
class DestinationState:
    """State of a destination.

    Args:
        name: Its name.
        state: `up`, `down`, `elsewhere` (another collector sends to it) or `new`.
        error: Reason why it is down.
        backlog: Its backlog in the whole store.
        sent: Accepted bodies, by signal.
        sent_bytes: Size of the accepted bodies, compressed with zstd.
        rejected: Rejected points, spans and records of accepted bodies.
        lost: Bodies that will never be sent, by reason.
        retries: Retried bodies.
    """

    name: str
    state: Literal["up", "down", "elsewhere", "new"] = "new"
    error: str = ""
    backlog: Backlog = field(default_factory=Backlog)
    sent: Mapping[str, int] = field(default_factory=Counter[str])
    sent_bytes: int = 0
    rejected: int = 0
    lost: Mapping[Lost, int] = field(default_factory=Counter[Lost])
    retries: int = 0

    @property
    def lost_bodies(self) -> int:
        """Number of lost bodies, without those that came from the destination itself."""
        return sum(count for why, count in self.lost.items() if why != "returned")


class DestinationStates(Collector):
    """States of all destinations. Thread-safe; changes and losses are logged at most once a minute.

    Args:
        clock: Monotonic time. [seconds]
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[str, DestinationState] = {}
        # Time of the last log line for a loss, and the number of bodies lost since.
        self._said: dict[tuple[str, Lost], tuple[float, int]] = {}
        # Time of the last log line for a failure, and the destinations that are logged as down.
        self._said_down: dict[str, float] = {}
        self._known_down: set[str] = set()

    def all(self) -> list[DestinationState]:
        """Return all states, by name."""
        with self._lock:
            return [state for _, state in sorted(self._states.items())]

    def sent(self, name: str, signal: str, size_bytes: int, rejected: int, said: str) -> None:
        """Record that destination *name* accepted a body of *signal* with *rejected* items."""
        before, _ = self._change(
            name,
            lambda state: replace(
                state,
                sent=Counter(state.sent) + Counter([signal]),
                sent_bytes=state.sent_bytes + size_bytes,
                rejected=state.rejected + rejected,
            ),
        )
        if rejected and not before.rejected:
            _log.warning("%s takes what it is sent only in part: %d refused, %s", name, rejected, said or "no reason")

    def lost(self, name: str, why: Lost, bodies: int, said: str) -> None:
        """Record *bodies* that will never be sent to destination *name*."""
        self._change(name, lambda state: replace(state, lost=Counter(state.lost) + Counter({why: bodies})))
        now = self._clock()
        at, untold = self._said.get((name, why), (float("-inf"), 0))
        untold += bodies
        if now - at >= _SAY_EVERY:
            _log.warning("%s will not get %d of what was received: %s", name, untold, said)
            at, untold = now, 0
        self._said[name, why] = at, untold

    def up(self, name: str) -> None:
        """Record that the destination works."""
        self._turn(name, lambda state: replace(state, state="up", error=""))

    def down(self, name: str, why: str, retries: int) -> None:
        """Record that the destination fails, and the number of bodies to retry."""
        self._turn(name, lambda state: replace(state, state="down", error=why, retries=state.retries + retries))

    def elsewhere(self, name: str) -> None:
        """Record that another collector sends to the destination."""
        self._turn(name, lambda state: replace(state, state="elsewhere", error=""))

    def waiting(self, backlogs: Mapping[str, Backlog]) -> None:
        """Record the backlog of each destination."""
        for name, backlog in backlogs.items():
            self._change(name, partial(replace, backlog=backlog))

    def forget(self, name: str) -> None:
        """Remove a destination that is no longer configured."""
        with self._lock:
            self._states.pop(name, None)

    def _change(
        self, name: str, change: Callable[[DestinationState], DestinationState]
    ) -> tuple[DestinationState, DestinationState]:
        """Change the state of destination *name* atomically; return the previous and the new state."""
        with self._lock:
            before = self._states.get(name) or DestinationState(name)
            after = self._states[name] = change(before)
        return before, after

    def _turn(self, name: str, change: Callable[[DestinationState], DestinationState]) -> None:
        """Change the state, and log the transition."""
        before, state = self._change(name, change)
        if before.state == state.state:
            return
        now = self._clock()
        if state.state == "down" and now - self._said_down.get(state.name, float("-inf")) >= _SAY_EVERY:
            self._said_down[state.name] = now
            self._known_down.add(state.name)
            _log.warning("sending on to %s: down, %s; what is received waits for it", state.name, state.error)
        elif state.state != "down" and state.name in self._known_down:
            self._known_down.discard(state.name)
            _log.warning("sending on to %s: %s", state.name, state.state)

    def collect(self) -> Iterable[Metric]:
        """Return the states as Prometheus metrics."""
        labels = ("destination",)
        up = GaugeMetricFamily(_PREFIX + "up", "1 while the destination takes what it is sent.", labels=labels)
        waiting = GaugeMetricFamily(_PREFIX + "waiting_bytes", "Bodies that wait, compressed.", labels=labels)
        oldest = GaugeMetricFamily(
            _PREFIX + "oldest_timestamp_seconds", "When the oldest of them came; 0 for none.", labels=labels
        )
        sent = CounterMetricFamily(_PREFIX + "sent", "Bodies the destination has taken.", labels=(*labels, "signal"))
        size = CounterMetricFamily(_PREFIX + "sent_bytes", "Their size, compressed.", labels=labels)
        rejected = CounterMetricFamily(
            _PREFIX + "rejected", "Points, spans and records of them it did not want.", labels=labels
        )
        lost = CounterMetricFamily(
            _PREFIX + "dropped", "Bodies the destination will never have.", labels=(*labels, "reason")
        )
        retries = CounterMetricFamily(_PREFIX + "retries", "Bodies that were to be sent again.", labels=labels)
        for state in self.all():
            key = (state.name,)
            if state.state in ("up", "down"):
                up.add_metric(key, state.state == "up")
            waiting.add_metric(key, state.backlog.size_bytes)
            oldest.add_metric(key, state.backlog.oldest or 0)
            for signal, count in state.sent.items():
                sent.add_metric((*key, signal), count)
            size.add_metric(key, state.sent_bytes)
            rejected.add_metric(key, state.rejected)
            # Reported from zero on: `increase()` does not see a counter that first appears with the value 1.
            for why in get_args(Lost):
                lost.add_metric((*key, why), state.lost.get(why, 0))
            retries.add_metric(key, state.retries)
        return (up, waiting, oldest, sent, size, rejected, lost, retries)
