"""Sends on what was received, in one thread with an event loop and a line to each destination.

The way to one destination: what has waited longest is sent, a few bodies at a time, and taken out of the store.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

from ...core.errors import StagelensError
from ...store import Store
from ...store.engines import database
from ...store.outgoing import (
    Backlog,
    drop_oldest,
    drop_unknown_destinations,
    read_backlogs,
    release_destinations,
    store_identity,
)
from .admission import Room
from .config import Destination
from .state import States

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0
# What waits for nobody is looked for so often, and dropped after so long: a file may be mended until then. [seconds]
_LOOK_FOR_OTHERS_SECONDS, _KEEP_OTHERS_SECONDS = 3600.0, 86_400
# What is under way when the end comes may end so long. [seconds]
_GRACE_SECONDS = 10.0


class Forwarder:
    """Sends bodies to destinations.

    Args:
        store: Where they wait.
        destinations: Whom to send to; asked again and again, so that it may change.
        env: Where secrets are, and whom may be called.
        budget_bytes: How large the store may be; None for as large as it gets.
        clock: The time. [Unix seconds]

    Attributes:
        room: Where bodies come in.
        states: How each destination is.
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
            self.room = Room(destinations, store_identity(connection), budget_bytes)
        self.states = States()
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
        """Begin to send."""
        self._tending.start()

    def stop(self) -> None:
        """End what is under way, and leave the rest to other collectors, or the next start; without `start` it does nothing."""
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
        """See how much waits, and drop what there is no room or nobody for."""
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
            # Those who commit say so, too; what is known of the room stays.
            _log.debug("%s", error)

    def _make_room(self, destination: Destination, backlog: Backlog) -> None:
        most = self.room.most_bytes(destination)
        line = self._lines.get(destination.name)
        if destination.when_full != "drop_oldest" or backlog.size_bytes <= most or line is None or not line.holds:
            return
        with self._store.transaction() as connection:
            gone = drop_oldest(connection, destination.name, most)
        self.states.lost(destination.name, "full", gone, "too much waited for it; what had waited longest was dropped")
