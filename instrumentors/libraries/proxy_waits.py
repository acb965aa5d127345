"""Waits between a proxy and the server, from the header `X-Request-Start`: which proxies are trusted, and how far their clocks are off."""

from __future__ import annotations

import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ...core.addresses import parse_ip
from ..instrumentor import log_failure

# Longer than any proxy waits: the header or the clock of the proxy is wrong.
MAX_PROXY_WAIT_NS = 600 * 10**9
# Smallest number of each unit for a time since 1970, and the unit. 10**11 s is the year 5138, 10**11 ms is 1973.
_UNITS_NS = ((1e17, 1), (1e14, 10**3), (1e11, 10**6), (0, 10**9))
_SENT_AT = re.compile(r"(?:t=)?([0-9]{9,19}(?:\.[0-9]{1,9})?)")
TRUSTED_VARIABLE: Final = "STAGELENS_TRUSTED_PROXIES"
# Peer of a connection through a Unix socket, which has no address; and of a request whose peer is not known.
UNIX_PEER: Final = "unix"
# Waits vary, the difference of two clocks does not: half of all waits are within this time of the shortest one. [nanoseconds]
SKEW_SPREAD_NS = 20_000_000
MAX_PROXIES: Final = 64
logger = logging.getLogger("stagelens")


def proxy_wait_ns(header: str, now_ns: int = 0) -> int:
    """Return the time from `X-Request-Start`, set by a proxy, to the arrival of the request, in nanoseconds.

    Proxies write seconds (nginx: `t=1700000000.123`), milliseconds (Heroku), microseconds (Apache: `t=%t`) or
    nanoseconds since 1970; the size of the number shows the unit. With several proxies and values the first one counts.

    *now_ns* is the time of arrival, 0 for now. The result is 0 for an invalid header: unreadable, in the future, or more than
    `MAX_PROXY_WAIT_NS` ago.

    >>> proxy_wait_ns("t=1700000000.250", 1_700_000_000_750_000_000)
    500000000
    """
    match = _SENT_AT.fullmatch(header.partition(",")[0].strip())
    if match is None:
        return 0
    number = float(match[1])
    unit_ns = next(unit for floor, unit in _UNITS_NS if number >= floor)
    # A float has a resolution of a quarter of a microsecond for seconds since 1970.
    waited = (now_ns or time.time_ns()) - round(number * unit_ns / 1000) * 1000
    return waited if 0 <= waited <= MAX_PROXY_WAIT_NS else 0


# Latest waits of a proxy by which its clock is evaluated, and the number that this needs.
CLOCK_WAITS, MIN_CLOCK_WAITS = 64, 20
# A smaller difference of the clocks cannot be distinguished from the network; a longer wait counts only once the clock is known. [nanoseconds]
MIN_SKEW_NS, MAX_UNKNOWN_NS = 50_000_000, 1_000_000_000


class ProxyClock:
    """Clock of a proxy beside ours, by the waits of its latest requests."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._waits: deque[int] = deque(maxlen=CLOCK_WAITS)
        self._is_reported = False

    def wait_ns(self, waited_ns: int) -> int:
        """Return *waited_ns*, a wait by both clocks, without the difference of the clocks."""
        self._waits.append(waited_ns)
        waits = sorted(self._waits.copy())
        if len(waits) < MIN_CLOCK_WAITS:
            return waited_ns if waited_ns < MAX_UNKNOWN_NS else 0
        skew = waits[0]
        if skew < MIN_SKEW_NS or waits[len(waits) // 2] - skew > SKEW_SPREAD_NS:
            return waited_ns
        if not self._is_reported:
            self._is_reported = True
            logger.warning(
                "stagelens: the clock of the proxy %s is %.2f s behind: the waits from X-Request-Start are shortened by that; "
                "synchronize its clock",
                *(self._peer, skew / 1e9),
            )
        return waited_ns - skew


clocks: Final[dict[str, ProxyClock]] = {}
_ignored: Final[set[str]] = set()


def trusted_networks(text: str) -> tuple[Any, ...]:
    """Return the networks in *text*, a list of addresses, networks, `unix` and `*`; what is neither is logged and left out."""
    # Loaded only by processes that name a proxy.
    from ipaddress import ip_network  # noqa: PLC0415

    networks: list[Any] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(entry if entry in {"*", UNIX_PEER} else ip_network(entry, strict=False))
        except ValueError:
            logger.warning(
                "stagelens: %s has %r, which is ignored; write addresses such as 10.0.0.7 or 10.0.0.0/8, unix or *",
                *(TRUSTED_VARIABLE, entry),
            )
    return tuple(networks)


trusted = trusted_networks(os.environ.get(TRUSTED_VARIABLE, "")) if os.environ.get(TRUSTED_VARIABLE) else ()


def is_trusted(peer: str) -> bool:
    if "*" in trusted or (peer == UNIX_PEER and UNIX_PEER in trusted):
        return True
    address = parse_ip(peer)
    address = getattr(address, "ipv4_mapped", None) or address
    return address is not None and any(address in network for network in trusted if not isinstance(network, str))


def trusted_wait_ns(header: str, peer: Callable[[], object]) -> int:
    """Return the wait since `X-Request-Start` if a trusted proxy has set it, else 0; in nanoseconds. Never raises."""
    if not header:
        return 0
    try:
        return _wait_at(proxy_wait_ns(header), _address_of(peer()))
    except Exception:
        log_failure("reading X-Request-Start")
        return 0


def _address_of(name: Any) -> str:
    if isinstance(name, (tuple, list)):
        name = name[0] if name else ""
    # The name of a Unix socket is a path.
    return UNIX_PEER if name and parse_ip(str(name)) is None else str(name)


def own_wait_ns(sent: str) -> int:
    """Return the wait since *sent*, a time that Stagelens wrote in another process, perhaps on another host; in nanoseconds."""
    return clocks.setdefault("", ProxyClock("another host")).wait_ns(proxy_wait_ns(sent))


def _wait_at(waited_ns: int, peer: str) -> int:
    if not waited_ns:
        return 0
    if not is_trusted(peer):
        if not _ignored:
            _ignored.add(peer)
            logger.info("stagelens: X-Request-Start from %s is ignored: it is not in %s", peer or "?", TRUSTED_VARIABLE)
        return 0
    if peer not in clocks and len(clocks) >= MAX_PROXIES:
        clocks.clear()
    return clocks.setdefault(peer, ProxyClock(peer)).wait_ns(waited_ns)


def socket_peer(connection: Any, otherwise: object = "") -> object:
    try:
        return connection.getpeername() or UNIX_PEER
    except Exception:
        return otherwise


def transport_peer(transport: Any, otherwise: object = "") -> object:
    # One of Twisted has no such method.
    name = transport.get_extra_info("peername") if hasattr(transport, "get_extra_info") else None
    return otherwise if name is None else name or UNIX_PEER
