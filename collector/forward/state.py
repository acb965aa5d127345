"""How each destination is: for /metrics, the page of the collectors, and the log."""

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
# What is lost is said so often, with what was said last. [seconds]
_SAY_EVERY = 60.0

Lost = Literal["refused", "returned", "unreadable", "full"]


@dataclass(frozen=True, slots=True)
class DestinationState:
    """How a destination is.

    Args:
        name: Which.
        state: `up`, `down`, `elsewhere` (another collector sends to it) or `new`.
        error: Why it is down.
        backlog: What waits for it, in the whole store.
        sent: Bodies it has taken, by signal.
        sent_bytes: Their size, compressed with zstd.
        rejected: Points, spans and records of them it did not want.
        lost: Bodies it will never have, by why.
        retries: Bodies that were to be sent again.
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
        """How many it will never have; those that came from there it has."""
        return sum(count for why, count in self.lost.items() if why != "returned")


class DestinationStates(Collector):
    """The states of all destinations. Thread-safe; a change is logged, and losses are, but no more than once a minute.

    Args:
        clock: Says how much time has passed. [seconds]
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[str, DestinationState] = {}
        # When a loss was last said, and how many bodies were lost since.
        self._said: dict[tuple[str, Lost], tuple[float, int]] = {}
        # When it was last said that one is down, and of whom nothing better was said since.
        self._said_down: dict[str, float] = {}
        self._known_down: set[str] = set()

    def all(self) -> list[DestinationState]:
        """Return them, by name."""
        with self._lock:
            return [state for _, state in sorted(self._states.items())]

    def sent(self, name: str, signal: str, size_bytes: int, rejected: int, said: str) -> None:
        """Note that destination *name* has taken a body of *signal*, but for what it *rejected*."""
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
        """Note that destination *name* will never have so many *bodies*."""
        self._change(name, lambda state: replace(state, lost=Counter(state.lost) + Counter({why: bodies})))
        now = self._clock()
        at, untold = self._said.get((name, why), (float("-inf"), 0))
        untold += bodies
        if now - at >= _SAY_EVERY:
            _log.warning("%s will not get %d of what was received: %s", name, untold, said)
            at, untold = now, 0
        self._said[name, why] = at, untold

    def up(self, name: str) -> None:
        """Note that it can be sent to."""
        self._turn(name, lambda state: replace(state, state="up", error=""))

    def down(self, name: str, why: str, retries: int) -> None:
        """Note why it cannot, and that so many bodies are to be sent again."""
        self._turn(name, lambda state: replace(state, state="down", error=why, retries=state.retries + retries))

    def elsewhere(self, name: str) -> None:
        """Note that another collector sends to it."""
        self._turn(name, lambda state: replace(state, state="elsewhere", error=""))

    def waiting(self, backlogs: Mapping[str, Backlog]) -> None:
        """Note what waits for each that is sent to."""
        for name, backlog in backlogs.items():
            self._change(name, partial(replace, backlog=backlog))

    def forget(self, name: str) -> None:
        """Forget a destination that is named no more."""
        with self._lock:
            self._states.pop(name, None)

    def _change(
        self, name: str, change: Callable[[DestinationState], DestinationState]
    ) -> tuple[DestinationState, DestinationState]:
        """Change the state of destination *name*, in one step for all threads; return what it was, and is."""
        with self._lock:
            before = self._states.get(name) or DestinationState(name)
            after = self._states[name] = change(before)
        return before, after

    def _turn(self, name: str, change: Callable[[DestinationState], DestinationState]) -> None:
        """Change it, and say so in the log where that is news."""
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
        """Yield them as Prometheus' metrics."""
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
            # From zero on: an alert wants to know the first, and what begins at one has not grown.
            for why in get_args(Lost):
                lost.add_metric((*key, why), state.lost.get(why, 0))
            retries.add_metric(key, state.retries)
        return (up, waiting, oldest, sent, size, rejected, lost, retries)
