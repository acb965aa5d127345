"""The collector tells, every ten seconds, how it is: a row in the store, for the page that shows all collectors."""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata

from ..core.errors import StoreError
from ..core.settings.values import format_size
from ..store import Store
from ..store.collectors import Report, Vitals, remove_collector, write_report
from ..store.inbox import read_backlog
from .config_file import LiveConfig
from .forward.state import DestinationState as Destination
from .scrape.state import TargetState
from .self_metrics import Health, SelfMetrics

_log = logging.getLogger(__name__)

Samples = Mapping[tuple[str, tuple[str, ...]], float]

INTERVAL_SECONDS = 10.0
# Rates are of so many intervals: a minute.
_INTERVALS = 6
_P99 = 0.99
# What is shown of each reason, and how many targets that are down, or senders that want too much.
_MAX_CHARS, _MAX_DOWN = 300, 20


class StatusReporter(Loop):
    """Writes the row of one collector, in a thread, under the `name` it is given before it starts.

    Args:
        store: Where to.
        metrics: The numbers.
        health: What fails.
        file: What is wrong with its file.
        targets: How the targets of its scraper are.
        destinations: How those are to whom it sends on.
        greedy: The senders that named more services than their share.
        clock: Unix seconds.
    """

    def __init__(
        self,
        store: Store,
        *,
        metrics: SelfMetrics,
        health: Health,
        file: LiveConfig,
        targets: Callable[[], Sequence[TargetState]] = lambda: (),
        destinations: Callable[[], Sequence[Destination]] = lambda: (),
        greedy: Callable[[], Sequence[str]] = lambda: (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__("vitals")
        self._store, self._metrics, self._health, self._file = store, metrics, health, file
        self._targets, self._destinations, self._greedy, self._clock = targets, destinations, greedy, clock
        self._id, self.name, self._started = secrets.token_hex(8), "", clock()
        self._version = metadata.version("stagelens")
        self._taken: deque[tuple[float, Samples]] = deque(maxlen=_INTERVALS + 1)
        # Since when each part fails.
        self._since: dict[str, float] = {}

    def step(self) -> float:
        """Write the row now."""
        try:
            self.report()
        except StoreError as error:
            # Those who commit and maintain say so, too, and the page shows the silence.
            _log.debug("%s", error)
        return INTERVAL_SECONDS

    def stop(self) -> None:
        """End the thread, and take the row away: who is stopped is not missed. Without `start` it does nothing."""
        super().stop()
        if self.thread.ident is None:
            return
        try:
            with self._store.transaction() as connection:
                remove_collector(connection, self._id)
        except StoreError as error:
            _log.warning("the collector is shown as silent from now on, its row could not be taken away: %s", error)

    def report(self) -> None:
        """Write the row now.

        Raises:
            StoreError: It could not be written.
        """
        now = self._clock()
        self._taken.append((now, self._metrics.samples()))
        failing = self._health.failing | dict.fromkeys(self._health.dead, "")
        self._since = {part: self._since.get(part, now) for part in failing}
        targets, destinations = self._targets(), self._destinations()
        down = [state for state in targets if state.state == "down"]
        vitals = replace(
            vitals_from_samples(self._taken),
            targets_up=sum(state.state == "up" for state in targets),
            targets_down={state.url: state.error[:_MAX_CHARS] for state in down[:_MAX_DOWN]},
            destinations_down={
                each.name: f"{each.error[:_MAX_CHARS]} ({format_size(each.backlog.size_bytes)} wait)"
                for each in destinations
                if each.state == "down"
            },
            destinations_lost={each.name: each.lost_bodies for each in destinations if each.lost_bodies},
            failing=tuple((part, why[:_MAX_CHARS], self._since[part]) for part, why in failing.items()),
            file_errors=tuple(line[:_MAX_CHARS] for line in self._file.errors),
            greedy=tuple(self._greedy()[:_MAX_DOWN]),
        )
        with self._store.transaction() as connection:
            spans = read_backlog(connection)
            seconds = max(now - spans.oldest, 0) if spans.oldest else 0
            vitals = replace(vitals, spans_waiting_bytes=spans.size_bytes, spans_waiting_seconds=seconds)
            write_report(connection, Report(self._id, self.name, self._version, self._started, now, vitals))


def vitals_from_samples(taken: Sequence[tuple[float, Samples]]) -> Vitals:
    """Return how the collector is by its numbers: those at each of the times in *taken*, the oldest first."""
    (first, before), (last, after) = taken[0], taken[-1]
    seconds = max(last - first, 1.0)
    # Before the first time nothing was counted.
    since: Samples = before if len(taken) > 1 else {}
    grown = {key: value - since.get(key, 0.0) for key, value in after.items()}
    exports: dict[str, float] = {}
    refused: dict[str, float] = {}
    for (name, labels), count in grown.items():
        if name == "requests_total" and count > 0:
            signal, code = labels
            into, key = (exports, signal) if code.startswith("2") else (refused, code)
            into[key] = into.get(key, 0.0) + count / seconds
    return Vitals(
        exports_per_second=exports,
        refused_per_second=refused,
        rejected={" ".join(key): value for (name, key), value in after.items() if name == "rejected_total" and value},
        queue_batches=after.get(("queue_batches", ()), 0),
        queue_bytes=after.get(("queue_bytes", ()), 0),
        receiving_bytes=after.get(("receiving_bytes", ()), 0),
        commit_p99_seconds=_quantile_bound(grown, "commit_seconds_bucket", _P99),
        store_bytes=after.get(("store_bytes", ()), 0),
        store_budget_bytes=after.get(("store_budget_bytes", ()), 0),
        memory_bytes=after.get(("process_resident_memory_bytes", ()), 0),
        cpu_ratio=grown.get(("process_cpu_seconds_total", ()), 0) / seconds if len(taken) > 1 else 0,
    )


def _quantile_bound(grown: Samples, name: str, quantile: float) -> float | None:
    """Return the end of the bucket that *quantile* lies in; None where nothing was counted, or it lies past them all."""
    counts = sorted((float(labels[0]), count) for (key, labels), count in grown.items() if key == name)
    if not counts or not counts[-1][1]:
        return None
    bound = next(end for end, count in counts if count >= quantile * counts[-1][1])
    return bound if bound != float("inf") else counts[-2][0]
