"""HTTP connections with limits: the size and duration of a request head, pipelined requests, and slow readers.

Uvicorn has none of these limits. A `Connection` is an asyncio protocol around the one that uvicorn makes. It passes on one head, then its body, and the next head after
the response: so it knows what it waits for, and few bytes become many requests only one after the other. The application of
`LimitedConnections` reports the start and the end of each request to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..otlp.responses import failure_response, http_response, media_type_of
from .bodies import receive_body
from .connection_limits import ConnectionLimits, LimitedConnection

# Key of the ASGI scope for the common name of the client's certificate.
SCOPE_KEY = "stagelens.certificate"
# Request line and headers. The longest allowed token takes an eighth of it.
MAX_HEAD_BYTES = 32 * 1024
# Overhead of one header, RFC 9113 (6.5.2).
_HEADER_OVERHEAD_BYTES = 32
# From the first byte of a connection, or of a head, to the end of the head.
MAX_HEAD_SECONDS = 10.0
# How long a response may wait without any of it being read, and how long all of it may take. [seconds]
MAX_UNREAD_SECONDS, MAX_SENDING_SECONDS = 10.0, 120.0
# Size of pipelined requests above which the connection is not read until the response. Below it, a disconnect is noticed.
_MAX_HELD_BYTES = 64 * 1024

_NEWLINE: Final = b"\r\n"
_BLANK_LINE: Final = b"\r\n\r\n"
_HEAD_TOO_LARGE = f"the request's head is larger than {MAX_HEAD_BYTES} bytes; send fewer or shorter headers"


class LimitedConnections:
    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        # By the address and port of the client, as in the ASGI scope.
        self.of_clients: dict[tuple[str, int], Connection] = {}

    def protocol(self, handshake: LimitedConnection | None = None, **options: Any) -> Connection:
        """Return the protocol of a new connection, which replaces its *handshake*; *options* are those of uvicorn's protocols."""
        return Connection(self, HttpToolsProtocol(**options), handshake)

    def application(self, application: ASGIApp) -> ASGIApp:
        """Return *application* with the certificate of the client under `SCOPE_KEY`; requests of surplus connections are refused."""

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            connection = self.of_clients.get(tuple(scope.get("client") or ()))  # type: ignore[call-overload]
            if scope["type"] != "http" or connection is None:
                await application(scope, receive, send)
                return
            is_ended = False

            def end() -> None:
                nonlocal is_ended
                if not is_ended:
                    is_ended = True
                    connection.end_request()

            async def respond(message: Message) -> None:
                connection.has_response = True
                await send(message)
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    end()

            connection.start_request(scope)
            try:
                if connection.is_surplus and scope["path"] not in self.limits.probes:
                    await _refuse_surplus(Request(scope, receive), self.limits, respond)
                else:
                    await application({**scope, SCOPE_KEY: connection.certificate}, receive, respond)
            finally:
                end()

        return call


class Connection(asyncio.Protocol):
    _transport: asyncio.Transport

    def __init__(
        self, connections: LimitedConnections, http: asyncio.Protocol, handshake: LimitedConnection | None
    ) -> None:
        self._connections, self._limits, self._http = connections, connections.limits, http
        self._handshake = handshake
        self._loop = asyncio.get_running_loop()
        self._client = ("", 0)
        self.certificate = ""
        self.is_surplus = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._is_writing_paused = self._is_reading_paused = False
        # Received and not yet passed on.
        self._held = bytearray()
        # Of the current head: its size with the overhead, its last bytes, and whether all of it was passed on.
        self._head_bytes, self._head_end, self._has_head = 0, b"", False
        # Of the current body: what is known to follow, and whether chunks follow it.
        self._body_bytes_left, self._is_chunked = 0, False
        self._has_request = self.has_response = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] - of a stream
        self._transport = transport
        self._client = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.certificate = certificate_of(transport)
        self._connections.of_clients[self._client] = self
        self._http.connection_made(transport)
        self._expect_head()
        if self._handshake is not None:
            self._limits.leave(self._handshake)
        admission = self._limits.enter(self, self._client[0])
        self.is_surplus = admission == "surplus"
        if admission == "out":
            self._limits.refused(self._client[0], "too many connections")
            self.give_way()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.leave(self)
        self._stop_head_timer()
        self._stop_unread_timer()
        self._connections.of_clients.pop(self._client, None)
        self._http.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and not self._has_request:
            self._limits.waits(self)
        if not self._held and len(data) <= self._body_bytes_left:
            self._pass_body(data)
        else:
            self._held += data
            self._pass_on()
        self._limits.received(self, len(data))
        if self._head_timer is None and not (self._has_request or self._has_head):
            self._expect_head()

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        self._http.pause_writing()
        self._work_or_wait()
        self._abort_later()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._stop_unread_timer()
        self._http.resume_writing()
        self._work_or_wait()

    def start_request(self, scope: Scope) -> None:
        self._stop_head_timer()
        self._head_bytes, self._head_end, self._has_head = 0, b"", False
        self._has_request, self.has_response = True, False
        headers: dict[bytes, bytes] = dict(scope["headers"])
        self._is_chunked = b"transfer-encoding" in headers
        self._body_bytes_left = int(headers.get(b"content-length", 0))
        self._pass_on()
        if not self._body_bytes_left and not self._is_chunked:
            self._work_or_wait()

    def end_request(self) -> None:
        self._has_request = False
        self._limits.waits(self)
        if self._unread_timer is None and (self._transport.is_closing() or self._transport.get_write_buffer_size()):
            self._abort_later()
        if self._transport.is_closing():
            return
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()
        self._pass_on()
        if self._held or self._head_end:
            self._expect_head()

    def give_way(self) -> None:
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, too_many_message(self._limits.name))
        # The connection no longer counts, so it must not stay open until its client reads or closes.
        self._loop.call_soon(self._transport.abort)

    def _pass_on(self) -> None:
        while self._held and not self._transport.is_closing():
            if self._is_chunked and not self._body_bytes_left:
                self._find_chunks()
            if self._body_bytes_left:
                self._pass_body(self._take(self._body_bytes_left))
            elif self._is_chunked:
                break
            elif self._has_request or self._has_head:
                self._hold()
                break
            else:
                self._pass_head()

    def _take(self, size: int) -> bytes:
        with memoryview(self._held) as held:
            piece = bytes(held[:size])
        del self._held[:size]
        return piece

    def _hold(self) -> None:
        if len(self._held) > _MAX_HELD_BYTES and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _pass_head(self) -> None:
        if not self._head_end and self._held[0] in _NEWLINE:
            # Empty lines before a request, RFC 9112 (2.2).
            empty = len(self._held) - len(self._held.lstrip(_NEWLINE))
            self._head_bytes += empty
            del self._held[:empty]
        end = (self._head_end + self._held[: MAX_HEAD_BYTES + 1]).find(_BLANK_LINE)
        size = len(self._held) if end < 0 else end + len(_BLANK_LINE) - len(self._head_end)
        piece = self._take(size)
        self._head_bytes += size + _HEADER_OVERHEAD_BYTES * piece.count(b"\n")
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _HEAD_TOO_LARGE)
            return
        self._head_end = (self._head_end + piece)[1 - len(_BLANK_LINE) :]
        self._has_head = end >= 0
        self._parse(piece)

    def _pass_body(self, piece: bytes) -> None:
        self._body_bytes_left -= len(piece)
        self._parse(piece)
        if not self._body_bytes_left and not self._is_chunked:
            self._work_or_wait()

    def _find_chunks(self) -> None:
        """Add the chunks that start in the received data to the body: at the last one with its trailers, the body ends."""
        held, at = self._held, 0
        while self._is_chunked and (newline := held.find(_NEWLINE, at)) >= 0:
            try:
                size = int(held[at:newline].partition(b";")[0], 16)
            except ValueError:  # uvicorn refuses it
                size = 1
            if size:
                at = newline + size + 2 * len(_NEWLINE)
            elif (end := held.find(_BLANK_LINE, newline)) >= 0:
                at, self._is_chunked = end + len(_BLANK_LINE), False
            else:
                break
        self._body_bytes_left = at
        if len(held) - at + _HEADER_OVERHEAD_BYTES * held.count(b"\n", at) > MAX_HEAD_BYTES and self._is_chunked:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _HEAD_TOO_LARGE)

    def _parse(self, piece: bytes) -> None:
        self._http.data_received(piece)
        if self._transport.is_closing():
            self._limits.refused(self._client[0], "invalid HTTP")
            self._abort_later()

    def _work_or_wait(self) -> None:
        # The server waits for a client without a complete request, and for one that does not read its response.
        is_complete = self._has_request and not self._body_bytes_left and not self._is_chunked
        if is_complete and not self._is_writing_paused:
            self._limits.works(self)
        else:
            self._limits.waits(self)

    def _expect_head(self) -> None:
        self._stop_head_timer()
        message = f"no request came within {MAX_HEAD_SECONDS:g} s"
        self._head_timer = self._loop.call_later(MAX_HEAD_SECONDS, self._refuse, HTTPStatus.REQUEST_TIMEOUT, message)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _abort_later(self) -> None:
        """Abort the connection if the client reads nothing for `MAX_UNREAD_SECONDS`, or after `MAX_SENDING_SECONDS` in total."""
        self._stop_unread_timer()
        end = self._loop.time() + MAX_SENDING_SECONDS

        def check(before: int) -> None:
            self._unread_timer = None
            unread = self._transport.get_write_buffer_size()
            if not unread and not self._transport.is_closing():
                return
            if not 0 < unread < before or self._loop.time() > end:
                self._transport.abort()
            else:
                self._unread_timer = self._loop.call_later(MAX_UNREAD_SECONDS, check, unread)

        before = self._transport.get_write_buffer_size()
        self._unread_timer = self._loop.call_later(MAX_UNREAD_SECONDS, check, before)

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Respond with *status* and *message* unless a response has started, and close the connection."""
        self._held.clear()
        if self._transport.is_closing():
            return
        if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            self._limits.refused(self._client[0], message.partition(";")[0])
        if not (self._has_request and self.has_response):
            reply = failure_response("", status, message, {"Connection": "close"})
            headers = reply.headers | {"Content-Type": reply.media_type, "Content-Length": str(len(reply.body))}
            lines = [f"HTTP/1.1 {status.value} {status.phrase}", *map(": ".join, headers.items())]
            self._transport.write("\r\n".join(lines).encode() + _BLANK_LINE + reply.body)
        self._transport.close()
        self._abort_later()


def certificate_of(transport: asyncio.BaseTransport) -> str:
    """Return the common name of the verified client certificate of *transport*, "" for none."""
    # The dictionary is empty unless the certificate was verified.
    shown: dict[str, Any] = transport.get_extra_info("peercert") or {}
    subject: tuple[tuple[tuple[str, str], ...], ...] = shown.get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[-1] if names else ""


def too_many_message(name: str) -> str:
    return f"the {name} has too many connections; send it again"


async def _refuse_surplus(request: Request, limits: ConnectionLimits, send: Send) -> None:
    limits.refused(request.client.host if request.client else "", "too many connections")
    with contextlib.suppress(ClientDisconnect, TimeoutError):
        # Its sender reads the response only after it has sent the body.
        await receive_body(request, sys.maxsize, None)
    status, headers = HTTPStatus.SERVICE_UNAVAILABLE, {"Connection": "close"}
    reply = failure_response(media_type_of(request), status, too_many_message(limits.name), headers)
    await http_response(reply)(request.scope, request.receive, send)
