"""Forwarder: sends the backlog of each destination, in one thread with an event loop and a task for each destination.

The oldest bodies are sent first, a few at a time, and removed from the store in one transaction. Collectors with a common store share
the destinations by leases. The states of destinations are shown on /metrics, on the page of the collectors, and in the log.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, get_args

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ...core import names
from ...core.background_tasks import TaskSupervisor
from ...core.egress import EgressPolicy
from ...core.errors import StagelensError
from ...store import Store, collectors
from ...store.engines import database
from .admission import ForwardQueue
from .config import Destination
from .transport import HttpTransport, Refused, Retry, Transport, open_grpc_transport

_log = logging.getLogger(__name__)

_PREFIX = "stagelens_collector_forward_"
# Minimum interval between log lines about losses and failures of a destination. [seconds]
_SAY_EVERY = 60.0

Lost = Literal["refused", "returned", "unreadable", "full"]


@dataclass(frozen=True, slots=True)
class DestinationState:
    name: str
    # "elsewhere": another collector does it.
    state: Literal["up", "down", "elsewhere", "new"] = "new"
    error: str = ""
    backlog: collectors.Backlog = field(default_factory=collectors.Backlog)
    sent: Mapping[str, int] = field(default_factory=Counter[str])
    sent_bytes: int = 0
    rejected: int = 0
    lost: Mapping[Lost, int] = field(default_factory=Counter[Lost])
    retries: int = 0

    @property
    def lost_bodies(self) -> int:
        return sum(count for why, count in self.lost.items() if why != "returned")


class DestinationStates(Collector):
    """States of all destinations. Thread-safe; changes and losses are logged at most once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._states: dict[str, DestinationState] = {}
        # Time of the last log line about a loss, and the number of bodies lost since then.
        self._said: dict[tuple[str, Lost], tuple[float, int]] = {}
        # Time of the last log line about a failure, and the destinations that were logged as down.
        self._said_down: dict[str, float] = {}
        self._known_down: set[str] = set()

    def all(self) -> list[DestinationState]:
        with self._lock:
            return [state for _, state in sorted(self._states.items())]

    def sent(self, name: str, signal: str, size_bytes: int, rejected: int, reason: str) -> None:
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
            _log.warning("%s accepted only a part: %d items refused, %s", name, rejected, reason or "no reason")

    def lost(self, name: str, why: Lost, bodies: int, reason: str) -> None:
        self._change(name, lambda state: replace(state, lost=Counter(state.lost) + Counter({why: bodies})))
        now = self._clock()
        at, untold = self._said.get((name, why), (float("-inf"), 0))
        untold += bodies
        if now - at >= _SAY_EVERY:
            _log.warning("%s did not accept %d bodies, which were dropped: %s", name, untold, reason)
            at, untold = now, 0
        self._said[name, why] = at, untold

    def up(self, name: str) -> None:
        self._turn(name, lambda state: replace(state, state="up", error=""))

    def down(self, name: str, why: str, retries: int) -> None:
        self._turn(name, lambda state: replace(state, state="down", error=why, retries=state.retries + retries))

    def elsewhere(self, name: str) -> None:
        self._turn(name, lambda state: replace(state, state="elsewhere", error=""))

    def waiting(self, backlogs: Mapping[str, collectors.Backlog]) -> None:
        for name, backlog in backlogs.items():
            self._change(name, partial(replace, backlog=backlog))

    def forget(self, name: str) -> None:
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
        before, state = self._change(name, change)
        if before.state == state.state:
            return
        now = self._clock()
        if state.state == "down" and now - self._said_down.get(state.name, float("-inf")) >= _SAY_EVERY:
            self._said_down[state.name] = now
            self._known_down.add(state.name)
            _log.warning("forwarding to %s: down, %s; received data is buffered", state.name, state.error)
        elif state.state != "down" and state.name in self._known_down:
            self._known_down.discard(state.name)
            _log.warning("forwarding to %s: %s", state.name, state.state)

    def collect(self) -> Iterable[Metric]:
        labels = ("destination",)
        up = GaugeMetricFamily(_PREFIX + "up", "1 while the destination accepts data.", labels=labels)
        waiting = GaugeMetricFamily(_PREFIX + "waiting_bytes", "Size of waiting bodies, compressed.", labels=labels)
        oldest = GaugeMetricFamily(
            _PREFIX + "oldest_timestamp_seconds", "Arrival time of the oldest; 0 for none.", labels=labels
        )
        sent = CounterMetricFamily(_PREFIX + "sent", "Bodies accepted by the destination.", labels=(*labels, "signal"))
        size = CounterMetricFamily(_PREFIX + "sent_bytes", "Their size, compressed.", labels=labels)
        rejected = CounterMetricFamily(
            _PREFIX + "rejected", "Points, spans and records refused by the destination.", labels=labels
        )
        lost = CounterMetricFamily(_PREFIX + "dropped", "Bodies dropped before delivery.", labels=(*labels, "reason"))
        retries = CounterMetricFamily(_PREFIX + "retries", "Delivery attempts that are retried.", labels=labels)
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


# Default of the OpenTelemetry Collector (exporterhelper, sending_queue.num_consumers).
_AT_ONCE = 10
# Limits of one turn: bodies that are read, sent, and removed in one transaction.
_BODIES, _BYTES = 200, 8 * 1024**2
# Time after which no request starts in a turn, so that the lease lasts longer than the turn. [seconds]
_TURN_SECONDS = 10.0
_HOLD_SECONDS = 120.0
_IDLE_SECONDS, _ELSEWHERE_SECONDS = 0.5, 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
# Longest pause for a destination on this machine: a refused connection is cheap, and after a restart data should arrive at once.
_LONGEST_LOCAL_PAUSE_SECONDS = 1.0
# Maximum retry delay that a destination can request.
_LONGEST_RETRY_AFTER_SECONDS = 600.0
# Lifetime of a transport, after which replaced TLS files and new addresses of a gRPC destination are used. [seconds]
_CALLS_SECONDS = 300.0


class DestinationSender:
    def __init__(
        self,
        destination: Destination,
        *,
        store: Store,
        queue: ForwardQueue,
        states: DestinationStates,
        env: Mapping[str, str],
        holder: str,
        supervisor: TaskSupervisor[Destination],
        clock: Callable[[], float],
    ) -> None:
        self._destination, self._store, self._queue, self._states = destination, store, queue, states
        self._env, self._holder, self._supervisor, self._clock = env, holder, supervisor, clock
        egress_policy = EgressPolicy.from_env(env)
        self._egress_policy = egress_policy.with_kind("metadata") if destination.allow_link_local else egress_policy
        self._held_until = 0.0
        # Bodies that the destination accepted or refused permanently, and that are still in the store.
        self._done: list[collectors.Outgoing] = []
        self._failures = 0
        self._calls: Transport | None = None
        self._calls_until = 0.0

    @property
    def holds(self) -> bool:
        return self._held_until > self._clock()

    async def run(self) -> None:
        try:
            while not self._supervisor.ended.is_set():
                try:
                    pause = await self._turn()
                except StagelensError as error:
                    pause = self._failed(str(error))
                except Exception as error:  # noqa: BLE001 - the task must survive; the next turn may succeed
                    pause = self._failed(f"{type(error).__name__}: {error}")
                await self._supervisor.rest(pause)
        finally:
            await self._hang_up()

    async def _turn(self) -> float:
        """Send a part of the backlog; return the pause before the next turn, in seconds."""
        if not await self._supervisor.in_thread(self._settle):
            self._states.elsewhere(self._destination.name)
            return _ELSEWHERE_SECONDS
        bodies = await self._supervisor.in_thread(self._waiting)
        if not bodies:
            return _IDLE_SECONDS
        later = await self._send(bodies)
        if self._done:
            self._failures = 0
        pause = 0.0
        if later:
            pause = self._failed(later[0].why, len(later), later[0].seconds)
        else:
            self._states.up(self._destination.name)
        await self._supervisor.in_thread(self._settle, pause)
        return pause

    def _settle(self, pause: float = 0.0) -> bool:
        """Remove finished bodies and renew the lease for *pause* seconds and a turn; return whether the lease is held."""
        now, seconds = self._clock(), pause + _HOLD_SECONDS
        if not self._done and self._held_until > now + seconds - _HOLD_SECONDS / 2:
            return True
        with self._store.transaction() as connection:
            held = collectors.hold_destination(connection, self._destination.name, self._holder, now, seconds)
            collectors.remove_bodies(connection, [body.id for body in self._done])
        self._queue.freed(self._destination.name, sum(len(body.body) for body in self._done))
        self._done.clear()
        self._held_until = now + seconds if held else 0.0
        return held

    def _waiting(self) -> list[collectors.Outgoing]:
        with database.reading(self._store.engine) as connection:
            return collectors.oldest_bodies(connection, self._destination.name, _BODIES, _BYTES)

    async def _send(self, bodies: Sequence[collectors.Outgoing]) -> list[Retry]:
        """Send *bodies* and record the finished bodies; return the outcomes that need a retry."""
        to = self._destination
        sent = to.current_headers(self._env)
        # After a failure only one body is sent at a time.
        calls, slots = await self._connected(), asyncio.Semaphore(1 if self._failures else _AT_ONCE)
        later: list[Retry] = []
        end = time.monotonic() + _TURN_SECONDS

        async def send(body: collectors.Outgoing) -> None:
            async with slots:
                if later or self._supervisor.ended.is_set() or time.monotonic() > end:
                    return  # it stays in the backlog
                via = ",".join(filter(None, (body.via, self._queue.identity)))
                outcome = await calls.post(body, {**sent, names.VIA_HEADER: via})
            if isinstance(outcome, Retry):
                later.append(outcome)
                return
            name = self._destination.name
            if isinstance(outcome, Refused):
                self._states.lost(name, outcome.why, 1, outcome.said)
            else:
                self._states.sent(name, body.signal, len(body.body), outcome.rejected, outcome.said)
            self._done.append(body)

        async with asyncio.TaskGroup() as group:
            for body in bodies:
                group.create_task(send(body))
        return later

    def _failed(self, why: str, bodies: int = 0, seconds: float | None = None) -> float:
        """Record a failure, and return the pause in seconds: exponential backoff with jitter, and at least *seconds*."""
        most = _LONGEST_LOCAL_PAUSE_SECONDS if self._destination.is_local else _LONGEST_PAUSE_SECONDS
        longest = min(_FIRST_PAUSE_SECONDS * 2**self._failures, most)
        self._failures = min(self._failures + 1, 16)
        self._states.down(self._destination.name, why, bodies)
        self._calls_until = 0.0
        pause = random.uniform(longest / 2, longest)  # noqa: S311 - jitter
        return max(pause, min(seconds or 0.0, _LONGEST_RETRY_AFTER_SECONDS))

    async def _connected(self) -> Transport:
        if self._calls is None or time.monotonic() > self._calls_until:
            await self._hang_up()
            to = self._destination, self._egress_policy
            self._calls = await open_grpc_transport(*to) if self._destination.protocol == "grpc" else HttpTransport(*to)
            self._calls_until = time.monotonic() + _CALLS_SECONDS
        return self._calls

    async def _hang_up(self) -> None:
        if self._calls is not None:
            await self._calls.aclose()
            self._calls = None


_CHECK_SECONDS = 2.0
# Interval of the check for backlogs without a destination, and the age at which such backlogs are dropped. [seconds]
_LOOK_FOR_OTHERS_SECONDS, _KEEP_OTHERS_SECONDS = 3600.0, 86_400
# Time limit for requests in progress at shutdown. [seconds]
_GRACE_SECONDS = 10.0


class Forwarder:
    def __init__(
        self,
        store: Store,
        destinations: Callable[[], Sequence[Destination]],
        env: Mapping[str, str],
        *,
        budget_bytes: int | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._env, self._clock = store, env, clock
        with database.reading(store.engine) as connection:
            self.queue = ForwardQueue(destinations, collectors.store_identity(connection), budget_bytes)
        self.states = DestinationStates()
        self._holder = secrets.token_hex(8)
        self._lines: dict[str, DestinationSender] = {}
        self._others_at = time.monotonic()
        self._supervisor = TaskSupervisor(
            "stagelens-forwarder",
            wanted=lambda: {each.name: each for each in destinations()},
            run_task=self._send,
            on_removed=self._forget,
            check_seconds=_CHECK_SECONDS,
            on_checked=self._check_backlogs,
            grace_seconds=_GRACE_SECONDS,
            threads=2,
        )
        self.thread = self._supervisor.thread

    def start(self) -> None:
        self._supervisor.start()

    def stop(self) -> None:
        """Finish requests in progress and release the destinations; does nothing without `start`."""
        if not self._supervisor.stop():
            return
        try:
            with self._store.transaction() as connection:
                collectors.release_destinations(connection, self._holder)
        except StagelensError:
            _log.warning("the destinations could not be released; other collectors take over later")

    async def _send(self, destination: Destination) -> None:
        line = self._lines[destination.name] = DestinationSender(
            destination,
            store=self._store,
            queue=self.queue,
            states=self.states,
            env=self._env,
            holder=self._holder,
            supervisor=self._supervisor,
            clock=self._clock,
        )
        await line.run()

    def _forget(self, name: str) -> None:
        self._lines.pop(name, None)
        self.states.forget(name)

    async def _check_backlogs(self, wanted: Mapping[str, Destination]) -> None:
        if wanted or time.monotonic() >= self._others_at:
            self._others_at = time.monotonic() + _LOOK_FOR_OTHERS_SECONDS
            await self._supervisor.in_thread(self._read_backlogs, wanted)

    def _read_backlogs(self, wanted: Mapping[str, Destination]) -> None:
        try:
            self.queue.begin_backlog_query()
            with database.reading(self._store.engine) as connection:
                found = collectors.read_backlogs(connection)
            self.queue.set_backlogs(found)
            self.states.waiting({name: found.get(name, collectors.Backlog()) for name in wanted})
            for name, destination in wanted.items():
                self._drop_excess(destination, found.get(name, collectors.Backlog()))
            old = int(self._clock()) - _KEEP_OTHERS_SECONDS
            others = [name for name, each in found.items() if name not in wanted and (each.oldest or old) < old]
            if others:
                with self._store.transaction() as connection:
                    gone = collectors.drop_unknown_destinations(connection, wanted, old)
                named = ", ".join(others)
                _log.warning("%d bodies for %s were dropped: the destination was removed from the file", gone, named)
        except StagelensError as error:
            # The writer also reports store errors; the last known backlog stays.
            _log.debug("%s", error)

    def _drop_excess(self, destination: Destination, backlog: collectors.Backlog) -> None:
        most = self.queue.most_bytes(destination)
        line = self._lines.get(destination.name)
        if destination.when_full != "drop_oldest" or backlog.size_bytes <= most or line is None or not line.holds:
            return
        with self._store.transaction() as connection:
            gone = collectors.drop_oldest(connection, destination.name, most)
        self.states.lost(destination.name, "full", gone, "its buffer is full; the oldest bodies were dropped")
