"""Limits of HTTP connections: their number, the size and duration of a request head, and slow readers.

Uvicorn has none of these limits: an endless head would be buffered forever, and connections without a request, or whose client does
not read the response, would stay open. `body_reader` limits the bodies.

`ConnectionLimits` counts connections in total and for each address. At a limit a new connection replaces one for whose client the
server waits: for a request, the rest of its body, or the reading of a response. So clients that send or read little never exclude
others. `accept_tls` counts connections before their TLS handshake, because an asyncio server reports a connection only after the
handshake and allows a minute for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from http import HTTPStatus
from operator import itemgetter
from ssl import SSLContext
from typing import Any, Literal, Protocol, TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ...core.errors import StagelensError
from ..otlp.model import failure_response, http_response, media_type_of
from .access_config import certificate_of, with_certificate
from .body_reader import receive_body

Place = Literal["in", "surplus", "out"]
# Prefix length of the IPv6 network of one client, which can use any address of the network. [bits]
_IPV6_PREFIX_BITS = 64


def client_of(address: str) -> str:
    """Return the address or network that stands for one client in per-client limits.

    >>> client_of("10.0.0.7"), client_of("::ffff:10.0.0.7"), client_of("2001:db8::1:2:3:4")
    ('10.0.0.7', '10.0.0.7', '2001:db8::/64')
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # a host name
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _IPV6_PREFIX_BITS), strict=False))


class LimitedConnection(Protocol):
    """A connection that counts towards the limits."""

    def give_way(self) -> None: ...


# Bytes that each wait counts in addition to the received ones: a new connection with a few bytes is never slower than an old one.
_CREDIT_BYTES = 4096


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

    def enter(self, connection: LimitedConnection, address: str) -> Place:
        owner: str | None = client_of(address)
        if self._of[owner] >= self.most_of_one:
            self._replace([self._waiting.get(owner, {})])
        elif not self._has_room(owner):
            self._replace(self._largest())
        if not self._has_room(owner):
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
            largest = max(self._waiting.values(), key=lambda each: sum(wait.received_bytes for wait in each.values()))
            self._replace([largest], _Wait.byte_seconds)

    def _has_room(self, owner: str | None) -> bool:
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


# Request line and headers. The longest allowed token takes an eighth of it.
MAX_HEAD_BYTES = 32 * 1024
# Overhead of one header, RFC 9113 (6.5.2).
_HEADER_OVERHEAD_BYTES = 32
# From the first byte of a connection, or of a head, to the end of the head.
MAX_HEAD_SECONDS = 10.0
# Pipelined requests on one connection. The smallest requests take a hundred times their size in memory, and one read may
# contain thousands of them. No exporter sends more than one.
MAX_UNANSWERED = 16
# How long a response may wait without any of it being read, and how long all of it may take. [seconds]
MAX_UNREAD_SECONDS, MAX_SENDING_SECONDS = 10.0, 120.0

_TOO_MANY_PIPELINED = f"{MAX_UNANSWERED} requests of this connection have no response yet; wait for responses"


class _HeadError(StagelensError):
    """The head of a request is too large, or too many requests are pipelined."""


class Connection(HttpToolsProtocol):
    """Uvicorn connection with limits."""

    _head_bytes = 0
    _unparsed_bytes = 0  # received since the parser last reported an element
    _unanswered: deque[RequestResponseCycle]  # more than one where requests are pipelined
    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def __init__(
        self, *args: Any, limits: ConnectionLimits, handshake: LimitedConnection | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._limits, self._handshake = limits, handshake

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] - as uvicorn has it
        super().connection_made(transport)
        self._unanswered = deque()
        self.app: Any = with_certificate(self.app, certificate_of(transport))
        self._expect_head()
        if self._handshake is not None:
            self._limits.leave(self._handshake)
        place = self._limits.enter(self, self._address)
        if place == "surplus":
            self.app = _surplus_app(self.app, self._limits)
        elif place == "out":
            self._limits.refused(self._address, "too many connections")
            self.give_way()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.leave(self)
        self._stop_head_timer()
        self._stop_unread_timer()
        for cycle in self._unanswered:
            cycle.disconnected = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse *data*; refuse a request head or chunk header without an end."""
        self._unparsed_bytes += len(data)
        super().data_received(data)
        self._limits.received(self, len(data))
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _head_too_large_message())
        elif self._head_timer is None and not self._unanswered:
            self._expect_head()

    def on_message_begin(self) -> None:
        if len(self._unanswered) >= MAX_UNANSWERED:
            raise _HeadError(_TOO_MANY_PIPELINED)  # uvicorn calls send_400_response for it
        super().on_message_begin()
        self._head_bytes = 0
        self._wait_or_work()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + _HEADER_OVERHEAD_BYTES)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unparsed_bytes = 0
        self._stop_head_timer()
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed_bytes = 0
        super().on_message_complete()
        self._wait_or_work()

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        self._wait_or_work()
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_later()

    def give_way(self) -> None:
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, too_many_message(self._limits.name))
        # The connection no longer counts, so it must not stay open until its client reads or closes.
        self.loop.call_soon(self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_later()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_or_work()
        self._abort_later()

    def resume_writing(self) -> None:
        self._stop_unread_timer()
        super().resume_writing()
        self._wait_or_work()

    def send_400_response(self, msg: str) -> None:
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _head_too_large_message())
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _wait_or_work(self) -> None:
        # The server waits for a client without a complete request, and for one that does not read its response.
        if self._unanswered and not self._unanswered[0].more_body and not self.flow.write_paused:
            self._limits.works(self)
        else:
            self._limits.waits(self)

    def _count(self, size_bytes: int) -> None:
        self._unparsed_bytes = 0
        self._head_bytes += size_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _HeadError(_head_too_large_message())  # uvicorn calls send_400_response for it

    def _expect_head(self) -> None:
        message = f"no request came within {MAX_HEAD_SECONDS:g} s"
        self._head_timer = self.loop.call_later(MAX_HEAD_SECONDS, self._refuse, HTTPStatus.REQUEST_TIMEOUT, message)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _abort_later(self) -> None:
        """Abort the connection if the client reads nothing for `MAX_UNREAD_SECONDS`, or after `MAX_SENDING_SECONDS` in total."""
        self._stop_unread_timer()
        end = self.loop.time() + MAX_SENDING_SECONDS

        def check(before: int) -> None:
            unread = self.transport.get_write_buffer_size()
            if not 0 < unread < before or self.loop.time() > end:
                self.transport.abort()
            else:
                self._unread_timer = self.loop.call_later(MAX_UNREAD_SECONDS, check, unread)

        self._unread_timer = self.loop.call_later(MAX_UNREAD_SECONDS, check, self.transport.get_write_buffer_size())

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Respond with *status* and *message* unless a response has started, and close the connection."""
        if self.transport.is_closing():
            return
        if status in (HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, HTTPStatus.BAD_REQUEST):
            self._limits.refused(self._address, message.partition(";")[0])
        if not (self._unanswered and self._unanswered[0].response_started):
            reply = failure_response("", status, message, {"Connection": "close"})
            headers = reply.headers | {"Content-Type": reply.media_type, "Content-Length": str(len(reply.body))}
            lines = [f"HTTP/1.1 {status.value} {status.phrase}", *map(": ".join, headers.items())]
            self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + reply.body)
        self.transport.close()
        self._abort_later()


def _head_too_large_message() -> str:
    return f"the request's head is larger than {MAX_HEAD_BYTES} bytes; send fewer or shorter headers"


def too_many_message(name: str) -> str:
    """Return the error message of the server *name* at its connection limit."""
    return f"the {name} has too many connections; send it again"


def _surplus_app(application: ASGIApp, limits: ConnectionLimits) -> ASGIApp:
    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in limits.probes:
            await application(scope, receive, send)
            return
        request = Request(scope, receive)
        limits.refused(request.client.host if request.client else "", "too many connections")
        with contextlib.suppress(ClientDisconnect, TimeoutError):
            await receive_body(
                request, sys.maxsize, None
            )  # its sender reads the response only after it has sent the body
        headers = {"Connection": "close"}
        reply = failure_response(
            media_type_of(request), HTTPStatus.SERVICE_UNAVAILABLE, too_many_message(limits.name), headers
        )
        await http_response(reply)(scope, receive, send)

    return respond


_log = logging.getLogger(__name__)

# Pause after a connection could not be accepted, for example without a free file descriptor. [seconds]
_ACCEPT_PAUSE_SECONDS = 1.0


@dataclass(eq=False)
class Handshake:
    """A connection during its TLS handshake."""

    socket: socket.socket

    def give_way(self) -> None:
        """Close the connection without a response, which cannot be sent before the handshake is complete."""
        # Not closed here: the event loop still uses the socket.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


async def accept_tls(
    listening: socket.socket,
    tls: SSLContext,
    limits: ConnectionLimits,
    connection: Callable[[LimitedConnection], Connection],
) -> None:
    """Accept connections until cancelled."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    listening.setblocking(False)
    while True:
        try:
            accepted, address = await loop.sock_accept(listening)
        except OSError as error:
            _log.warning("the %s cannot accept a connection: %s", limits.name, error.strerror or error)
            await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
            continue
        handshake = Handshake(accepted)
        if limits.enter(handshake, address[0]) == "out":
            accepted.close()
            continue
        task = loop.create_task(_run_handshake(handshake, tls, limits, connection))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _run_handshake(
    handshake: Handshake,
    tls: SSLContext,
    limits: ConnectionLimits,
    connection: Callable[[LimitedConnection], Connection],
) -> None:
    try:
        # Raised for a timeout, a protocol error or a rejected certificate; the event loop has closed the socket then.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection(handshake), handshake.socket, ssl=tls, ssl_handshake_timeout=MAX_HEAD_SECONDS
            )
    finally:
        limits.leave(handshake)
