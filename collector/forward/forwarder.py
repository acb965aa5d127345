"""Forwarder: sends the backlog of each destination, in one thread with an event loop and a task for each destination.

The oldest bodies are sent first, a few at a time, and removed from the store in one transaction. Collectors with a common store share
the destinations by leases.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

from ...core import names
from ...core.background_tasks import TaskSupervisor
from ...core.egress import EgressPolicy
from ...core.errors import StagelensError
from ...store import Store
from ...store.engines import database
from ...store.outgoing import (
    Backlog,
    Outgoing,
    drop_oldest,
    drop_unknown_destinations,
    hold_destination,
    oldest_bodies,
    read_backlogs,
    release_destinations,
    remove_bodies,
    store_identity,
)
from .admission import ForwardQueue
from .config import Destination, with_secrets
from .grpc_transport import open_grpc_transport
from .state import DestinationStates
from .transport import HttpTransport, Refused, Retry, Transport

# Default of the OpenTelemetry Collector (exporterhelper, sending_queue.num_consumers).
_AT_ONCE = 10
# Limits of one turn: bodies that are read, sent, and removed in one transaction.
_BODIES, _BYTES = 200, 8 * 1024**2
# No request starts later in a turn, so that the lease lasts longer than the turn.
_TURN_SECONDS = 10.0
_HOLD_SECONDS = 120.0
_IDLE_SECONDS, _ELSEWHERE_SECONDS = 0.5, 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
# A refused local connection is cheap, and after a local restart data should appear at once.
_LONGEST_LOCAL_PAUSE_SECONDS = 1.0
# Limit of a retry delay requested by a destination.
_LONGEST_RETRY_AFTER_SECONDS = 600.0
# After this time replaced TLS files, and a new address of a gRPC destination, are used.
_CALLS_SECONDS = 300.0


class DestinationSender:
    """Sends to one destination until it is cancelled.

    Args:
        destination: The destination.
        store: Store with the backlog.
        room: Capacity of the backlog.
        states: Records its state.
        env: Environment with secrets and the egress allow-list.
        holder: Identity of this collector in leases.
        tending: Supervisor of its task.
        clock: Current time. [Unix seconds]
    """

    def __init__(
        self,
        destination: Destination,
        *,
        store: Store,
        room: ForwardQueue,
        states: DestinationStates,
        env: Mapping[str, str],
        holder: str,
        tending: TaskSupervisor[Destination],
        clock: Callable[[], float],
    ) -> None:
        self._destination, self._store, self._room, self._states = destination, store, room, states
        self._env, self._holder, self._tending, self._clock = env, holder, tending, clock
        egress_policy = EgressPolicy.from_env(env)
        self._egress_policy = egress_policy.with_kind("metadata") if destination.link_local else egress_policy
        self._held_until = 0.0
        # Accepted or finally refused by the destination, and still in the store.
        self._done: list[Outgoing] = []
        self._failures = 0
        self._calls: Transport | None = None
        self._calls_until = 0.0

    @property
    def holds(self) -> bool:
        """Whether this collector has the lease of the destination."""
        return self._held_until > self._clock()

    async def run(self) -> None:
        """Send until the supervisor stops."""
        try:
            while not self._tending.ended.is_set():
                try:
                    pause = await self._turn()
                except StagelensError as error:
                    pause = self._failed(str(error))
                except Exception as error:  # noqa: BLE001 - the task must survive; the next turn may succeed
                    pause = self._failed(f"{type(error).__name__}: {error}")
                await self._tending.rest(pause)
        finally:
            await self._hang_up()

    async def _turn(self) -> float:
        """Send a part of the backlog; return the pause before the next turn, in seconds."""
        if not await self._tending.in_thread(self._settle):
            self._states.elsewhere(self._destination.name)
            return _ELSEWHERE_SECONDS
        bodies = await self._tending.in_thread(self._waiting)
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
        await self._tending.in_thread(self._settle, pause)
        return pause

    def _settle(self, pause: float = 0.0) -> bool:
        """Remove finished bodies and renew the lease for *pause* seconds and a turn; return whether the lease is held."""
        now, seconds = self._clock(), pause + _HOLD_SECONDS
        if not self._done and self._held_until > now + seconds - _HOLD_SECONDS / 2:
            return True
        with self._store.transaction() as connection:
            held = hold_destination(connection, self._destination.name, self._holder, now, seconds)
            remove_bodies(connection, [body.id for body in self._done])
        self._room.freed(self._destination.name, sum(len(body.body) for body in self._done))
        self._done.clear()
        self._held_until = now + seconds if held else 0.0
        return held

    def _waiting(self) -> list[Outgoing]:
        with database.reading(self._store.engine) as connection:
            return oldest_bodies(connection, self._destination.name, _BODIES, _BYTES)

    async def _send(self, bodies: Sequence[Outgoing]) -> list[Retry]:
        """Send *bodies* and record finished ones; return the outcomes that need a retry."""
        to = self._destination
        sent = with_secrets(to.headers, to.secrets, self._env)
        # After a failure a single body is tried.
        calls, room = await self._connected(), asyncio.Semaphore(1 if self._failures else _AT_ONCE)
        later: list[Retry] = []
        end = time.monotonic() + _TURN_SECONDS

        async def send(body: Outgoing) -> None:
            async with room:
                if later or self._tending.ended.is_set() or time.monotonic() > end:
                    return  # it stays in the backlog
                via = ",".join(filter(None, (body.via, self._room.identity)))
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
        """Record the failure and return the pause: exponential with jitter, or at least *seconds*."""
        most = _LONGEST_LOCAL_PAUSE_SECONDS if self._destination.is_local else _LONGEST_PAUSE_SECONDS
        longest = min(_FIRST_PAUSE_SECONDS * 2**self._failures, most)
        self._failures = min(self._failures + 1, 16)
        self._states.down(self._destination.name, why, bodies)
        self._calls_until = 0.0
        pause = random.uniform(longest / 2, longest)  # noqa: S311 - jitter
        return max(pause, min(seconds or 0.0, _LONGEST_RETRY_AFTER_SECONDS))

    async def _connected(self) -> Transport:
        """Return the transport, which is renewed periodically."""
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


_log = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0
# Interval to look for backlogs without a destination, and their age when they are dropped. [seconds]
_LOOK_FOR_OTHERS_SECONDS, _KEEP_OTHERS_SECONDS = 3600.0, 86_400
# Time limit for requests in progress at shutdown. [seconds]
_GRACE_SECONDS = 10.0


class Forwarder:
    """Sends bodies to all destinations.

    Args:
        store: Store with the backlog.
        destinations: Returns the current destinations; called periodically.
        env: Environment with secrets and the egress allow-list.
        budget_bytes: Size limit of the store; None for no limit.
        clock: Current time. [Unix seconds]

    Attributes:
        room: Capacity of the backlog.
        states: States of all destinations.
        thread: The thread.
    """

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
            self.room = ForwardQueue(destinations, store_identity(connection), budget_bytes)
        self.states = DestinationStates()
        self._holder = secrets.token_hex(8)
        self._lines: dict[str, DestinationSender] = {}
        self._others_at = time.monotonic()
        self._tending = TaskSupervisor(
            "stagelens-forwarder",
            wanted=lambda: {each.name: each for each in destinations()},
            tend=self._send,
            forget=self._forget,
            look_seconds=_LOOK_SECONDS,
            looked=self._looked,
            grace_seconds=_GRACE_SECONDS,
            threads=2,
        )
        self.thread = self._tending.thread

    def start(self) -> None:
        """Start to send."""
        self._tending.start()

    def stop(self) -> None:
        """Finish requests in progress and release the destinations; without `start` it does nothing."""
        if not self._tending.stop():
            return
        try:
            with self._store.transaction() as connection:
                release_destinations(connection, self._holder)
        except StagelensError:
            _log.warning("the destinations could not be handed back; other collectors send to them in a while")

    async def _send(self, destination: Destination) -> None:
        line = self._lines[destination.name] = DestinationSender(
            destination,
            store=self._store,
            room=self.room,
            states=self.states,
            env=self._env,
            holder=self._holder,
            tending=self._tending,
            clock=self._clock,
        )
        await line.run()

    def _forget(self, name: str) -> None:
        self._lines.pop(name, None)
        self.states.forget(name)

    async def _looked(self, wanted: Mapping[str, Destination]) -> None:
        if wanted or time.monotonic() >= self._others_at:
            self._others_at = time.monotonic() + _LOOK_FOR_OTHERS_SECONDS
            await self._tending.in_thread(self._look, wanted)

    def _look(self, wanted: Mapping[str, Destination]) -> None:
        """Query the backlog, and drop bodies beyond the limit or without a destination."""
        try:
            self.room.begin_look()
            with database.reading(self._store.engine) as connection:
                found = read_backlogs(connection)
            self.room.look(found)
            self.states.waiting({name: found.get(name, Backlog()) for name in wanted})
            for name, destination in wanted.items():
                self._make_room(destination, found.get(name, Backlog()))
            old = int(self._clock()) - _KEEP_OTHERS_SECONDS
            others = [name for name, each in found.items() if name not in wanted and (each.oldest or old) < old]
            if others:
                with self._store.transaction() as connection:
                    gone = drop_unknown_destinations(connection, wanted, old)
                named = ", ".join(others)
                _log.warning(
                    "%d bodies were dropped that waited for %s, which the file does not name any more", gone, named
                )
        except StagelensError as error:
            # The writer reports store errors, too; the known backlog stays.
            _log.debug("%s", error)

    def _make_room(self, destination: Destination, backlog: Backlog) -> None:
        most = self.room.most_bytes(destination)
        line = self._lines.get(destination.name)
        if destination.when_full != "drop_oldest" or backlog.size_bytes <= most or line is None or not line.holds:
            return
        with self._store.transaction() as connection:
            gone = drop_oldest(connection, destination.name, most)
        self.states.lost(destination.name, "full", gone, "too much waited for it; what had waited longest was dropped")
