"""Number of HTTP connections of one server, in total and for each address.

At a limit a new connection replaces one for whose client the server waits: for a request, the rest of its body, or the reading of a
response. So clients that send or read little never exclude others.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Literal, Protocol, TypeAlias

Admission = Literal["in", "surplus", "out"]
# Prefix length of the IPv6 network of one client, which can use any address of the network. [bits]
_IPV6_PREFIX_BITS = 64
# Bytes that each wait counts in addition to the received ones: a new connection with a few bytes is never slower than an old one.
_CREDIT_BYTES = 4096


def client_of(address: str) -> str:
    """Return the address or network that stands for one client in per-client limits.

    >>> client_of("10.0.0.7"), client_of("::ffff:10.0.0.7"), client_of("2001:db8::1:2:3:4")
    ('10.0.0.7', '10.0.0.7', '2001:db8::/64')
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:  # a host name
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _IPV6_PREFIX_BITS), strict=False))


class LimitedConnection(Protocol):
    def give_way(self) -> None: ...


@dataclass(slots=True)
class _Wait:  # of the server for a client
    since: float = field(default_factory=time.monotonic)
    received_bytes: int = 0

    def seconds_per_byte(self, now: float) -> float:
        return (now - self.since) / (self.received_bytes + _CREDIT_BYTES)

    def byte_seconds(self, now: float) -> float:
        return (now - self.since) * self.received_bytes


_Waits: TypeAlias = dict[LimitedConnection, _Wait]


@dataclass(eq=False)
class ConnectionLimits:
    """Connection counts and limits of one server. For use in its event loop only.

    A new connection replaces the slowest waiting one of the client that has most of them, so that one client cannot replace all
    connections of another. The connections for whose requests the server works are never replaced.
    """

    name: str  # name of the server in messages
    # Health probe paths, which are served beyond the limits, or an orchestrator would restart the process.
    probes: Collection[str] = ()
    most: int = 600  # maximum number of connections [count]
    most_of_one: int = 150  # maximum for one IPv4 address or one IPv6 /64 network [count]
    surplus: int = 100  # further connections, whose requests get a 503 unless they are health probes [count]
    most_bytes: int = 32 * 1024**2  # maximum size of all incomplete requests; one counts as half of it at most
    # Called with the address of a refused client and the reason.
    refused: Callable[[str, str], None] = lambda _address, _why: None
    # The client of each connection; None for the surplus ones.
    _owners: dict[LimitedConnection, str | None] = field(default_factory=dict[LimitedConnection, "str | None"])
    _of: Counter[str | None] = field(default_factory=Counter["str | None"])
    _waiting: dict[str | None, _Waits] = field(default_factory=dict["str | None", _Waits])
    _received_bytes: int = 0

    def enter(self, connection: LimitedConnection, address: str) -> Admission:
        owner: str | None = client_of(address)
        if self._of[owner] >= self.most_of_one:
            self._replace([self._waiting.get(owner, {})])
        elif not self._has_capacity(owner):
            self._replace(self._largest())
        if not self._has_capacity(owner):
            owner = None
            if self._of[owner] >= self.surplus:
                self._replace([self._waiting.get(owner, {})])
            if self._of[owner] >= self.surplus:
                return "out"
        self._owners[connection] = owner
        self._of[owner] += 1
        self.waits(connection)
        return "surplus" if owner is None else "in"

    def leave(self, connection: LimitedConnection) -> None:
        """Remove *connection*; a repeated call does nothing."""
        self.works(connection)
        if connection in self._owners:
            owner = self._owners.pop(connection)
            self._of[owner] -= 1
            if not self._of[owner]:
                del self._of[owner]

    def waits(self, connection: LimitedConnection) -> None:
        self.works(connection)
        if connection in self._owners:
            self._waiting.setdefault(self._owners[connection], {})[connection] = _Wait()

    def works(self, connection: LimitedConnection) -> None:
        owner = self._owners.get(connection)
        if (wait := self._waiting.get(owner, {}).pop(connection, None)) is not None:
            self._received_bytes -= wait.received_bytes
            if not self._waiting[owner]:
                del self._waiting[owner]

    def received(self, connection: LimitedConnection, size_bytes: int) -> None:
        wait = self._waiting.get(self._owners.get(connection), {}).get(connection)
        if wait is None:
            return
        size_bytes = min(size_bytes, self.most_bytes // 2 - wait.received_bytes)
        wait.received_bytes += size_bytes
        self._received_bytes += size_bytes
        while self._received_bytes > self.most_bytes:
            largest = max(self._waiting.values(), key=lambda waits: sum(wait.received_bytes for wait in waits.values()))
            self._replace([largest], _Wait.byte_seconds)

    def _has_capacity(self, owner: str | None) -> bool:
        return len(self._owners) - self._of[None] < self.most and self._of[owner] < self.most_of_one

    def _largest(self) -> list[_Waits]:
        members = [waits for owner, waits in self._waiting.items() if owner is not None]
        most = max(map(len, members), default=0)
        return [waits for waits in members if len(waits) == most]

    def _replace(self, among: list[_Waits], cost: Callable[[_Wait, float], float] = _Wait.seconds_per_byte) -> None:
        now = time.monotonic()
        costs = ((cost(wait, now), connection) for waits in among for connection, wait in waits.items())
        _, connection = max(costs, key=itemgetter(0), default=(0.0, None))
        if connection is not None:
            self.leave(connection)
            connection.give_way()
