"""Connection limits of a server: in total and for each address.

At a limit a new connection replaces the longest idle one, so that idle connections never keep other clients out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, Protocol

Place = Literal["in", "surplus", "out"]


class Waiter(Protocol):
    """A connection that counts towards the limits."""

    def give_way(self) -> None:
        """Respond that there are too many connections, and close."""
        ...


@dataclass(eq=False)
class ConnectionLimits:
    """The connections of one server. For use in its event loop only.

    Args:
        name: Name of the server in messages.
        probes: Health probe paths, which are served beyond the limits, or an orchestrator would restart the process.
        most: Limit in total. [count]
        most_of_one: Limit for one address, of IPv6 for one /64 network. [count]
        surplus: Further connections that get a 503 to their request, unless it is a health probe. [count]
    """

    name: str
    probes: Collection[str]
    most: int = 600
    most_of_one: int = 150
    surplus: int = 100
    _members: dict[Waiter, str] = field(default_factory=dict[Waiter, str])
    _of: Counter[str] = field(default_factory=Counter[str])
    _surplus: set[Waiter] = field(default_factory=set[Waiter])
    # Idle connections, the longest idle one first.
    _waiting: dict[Waiter, None] = field(default_factory=dict[Waiter, None])

    def enter(self, connection: Waiter, address: str) -> Place:
        """Add a new *connection* from *address*, idle until its first request, and return how it counts."""
        owner = client_of(address)
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
        """Remove *connection*; calling it again does nothing."""
        self._waiting.pop(connection, None)
        self._surplus.discard(connection)
        owner = self._members.pop(connection, None)
        if owner is not None:
            self._of[owner] -= 1
            if not self._of[owner]:
                del self._of[owner]

    def waits(self, connection: Waiter) -> None:
        """Mark *connection* as idle."""
        self._waiting.pop(connection, None)
        if connection in self._members or connection in self._surplus:
            self._waiting[connection] = None

    def works(self, connection: Waiter) -> None:
        """Mark *connection* as busy with a request."""
        self._waiting.pop(connection, None)

    def _has_room(self, owner: str) -> bool:
        return len(self._members) < self.most and self._of[owner] < self.most_of_one

    def _end_oldest(self, waiting: list[Waiter]) -> None:
        if waiting:
            self.leave(waiting[0])
            waiting[0].give_way()
