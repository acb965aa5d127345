"""How many connections a server has, how many of them one address may have, and which ends where one too many comes.

Connections that wait for a request are worth nothing yet: who opens many of them and says nothing loses the oldest of them, and
keeps nobody out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ..core.addresses import owner_of

Place = Literal["in", "surplus", "out"]


class Waiter(Protocol):
    """A connection, as far as its place is concerned."""

    def give_way(self) -> None:
        """Say that there are too many, and end."""
        ...


@dataclass(eq=False)
class ConnectionLimits:
    """The connections of one server, in its event loop.

    Args:
        name: What has them, in a word.
        probes: The paths that are answered also where all places are taken, or an orchestrator would restart the process.
        most: How many there may be.
        most_of_one: And of one address; of IPv6 of one /64 network.
        surplus: So many more are told that there are too many, after their request, which may be a probe.
    """

    name: str
    probes: Collection[str]
    most: int = 600
    most_of_one: int = 150
    surplus: int = 100
    _members: dict[Waiter, str] = field(default_factory=dict[Waiter, str])
    _of: Counter[str] = field(default_factory=Counter[str])
    _surplus: set[Waiter] = field(default_factory=set[Waiter])
    # In the order in which they began to wait.
    _waiting: dict[Waiter, None] = field(default_factory=dict[Waiter, None])

    def enter(self, connection: Waiter, address: str) -> Place:
        """Return the place of a new *connection* from *address*, which waits for its first request."""
        owner = owner_of(address)
        if not self._has_room(owner):
            takes_from = {owner} if self._of[owner] >= self.most_of_one else set(self._of)
            self._end_oldest([each for each in self._waiting if self._members.get(each) in takes_from])
        if self._has_room(owner):
            self._members[connection] = owner
            self._of[owner] += 1
            self.waits(connection)
            return "in"
        if len(self._surplus) >= self.surplus:
            self._end_oldest([each for each in self._waiting if each in self._surplus])
        if len(self._surplus) >= self.surplus:
            return "out"
        self._surplus.add(connection)
        self.waits(connection)
        return "surplus"

    def leave(self, connection: Waiter) -> None:
        """Take note that *connection* has ended; a second time does nothing."""
        self._waiting.pop(connection, None)
        self._surplus.discard(connection)
        owner = self._members.pop(connection, None)
        if owner is not None:
            self._of[owner] -= 1
            if not self._of[owner]:
                del self._of[owner]

    def waits(self, connection: Waiter) -> None:
        """Take note that *connection* waits for a request from now on."""
        self._waiting.pop(connection, None)
        if connection in self._members or connection in self._surplus:
            self._waiting[connection] = None

    def works(self, connection: Waiter) -> None:
        """Take note that the head of a request has come on *connection*."""
        self._waiting.pop(connection, None)

    def _has_room(self, owner: str) -> bool:
        return len(self._members) < self.most and self._of[owner] < self.most_of_one

    def _end_oldest(self, waiting: list[Waiter]) -> None:
        if waiting:
            self.leave(waiting[0])
            waiting[0].give_way()
