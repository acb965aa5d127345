"""The connections of HTTP: how many there may be, how large a head may be, and how slow their other ends.

Uvicorn bounds none of this: a head that never ends would be collected for ever, one that never comes would keep its
connection, and so would an answer that nobody reads. Bodies are bounded where they are received.
"""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from ...core.errors import StagelensError
from ..otlp.responses import failure_reply
from .body_reader import discard
from .connection_limits import ConnectionLimits, Waiter
from .misc_routes import media_type_of, response_of
from .tls import certificate_of, named

# Request line and headers; a token of the longest kind allowed takes an eighth of it.
MAX_HEAD_BYTES = 32 * 1024
# What a header takes besides its letters, as RFC 9113 (6.5.2) counts it.
_A_HEADER_BYTES = 32
# From the first byte of a head, or of a connection, to the head's last.
MAX_HEAD_SECONDS = 10.0
# Requests on one connection that are sent without waiting for answers: the smallest of them take a hundred times their size,
# and what was received at once may hold thousands. No exporter sends more than one.
MAX_UNANSWERED = 16
# How long a response may wait without any of it being read, and how long all of it may take. [seconds]
MAX_UNREAD_SECONDS, MAX_SENDING_SECONDS = 10.0, 120.0

_TOO_HASTY = f"{MAX_UNANSWERED} requests of this connection are not answered yet; wait for answers"


class _HeadError(StagelensError):
    """The head of a request is too large, or comes too early."""


class Connection(HttpToolsProtocol):
    """A connection of uvicorn's, with bounds.

    Args:
        limits: Of all connections of its server.
        handshake: The TLS handshake it follows, which no longer counts towards the limits.
    """

    _head_bytes = 0
    _unseen_bytes = 0  # of what was received since the parser last found something
    _unanswered: deque[RequestResponseCycle]  # more than one where requests are sent without waiting for answers
    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, limits: ConnectionLimits, handshake: Waiter | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits, self._handshake = limits, handshake

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] - as uvicorn has it
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._unanswered = deque()
        self.app: Any = named(self.app, certificate_of(transport))
        self._expect_head()
        if self._handshake is not None:
            self._limits.leave(self._handshake)
        place = self._limits.enter(self, self.client[0] if self.client else "")
        if place == "surplus":
            self.app = _surplus(self.app, self._limits)
        elif place == "out":
            self.give_way()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadlines, and let no answer be written any more."""
        self._limits.leave(self)
        self._head_is_here()
        self._answer_is_read()
        for cycle in self._unanswered:
            cycle.disconnected = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse *data*, and give up on a head, or the head of a chunk, that goes on and on."""
        self._unseen_bytes += len(data)
        super().data_received(data)
        if self._unseen_bytes > MAX_HEAD_BYTES:
            self._end(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _too_large())
        elif self._head_timer is None and not self._unanswered:
            self._expect_head()

    def on_message_begin(self) -> None:
        """Count a new head."""
        if len(self._unanswered) >= MAX_UNANSWERED:
            raise _HeadError(_TOO_HASTY)  # which comes back as a call of send_400_response
        super().on_message_begin()
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or one that follows the body."""
        self._count(len(name) + len(value) + _A_HEADER_BYTES)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer: from here on the application looks at the clock."""
        self._unseen_bytes = 0
        self._head_is_here()
        self._limits.works(self)
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unseen_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Take the end of a body."""
        self._unseen_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the last answer to be read."""
        self._unanswered.popleft()
        if not self._unanswered and not self.flow.write_paused:
            self._limits.waits(self)
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_later()

    def give_way(self) -> None:
        """Respond that there are too many connections, and close this one."""
        self._end(HTTPStatus.SERVICE_UNAVAILABLE, too_many(self._limits.name))
        # It no longer counts, so it must not stay open until its client reads or closes.
        self.loop.call_soon(self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that nobody uses."""
        super().timeout_keep_alive_handler()
        self._abort_later()

    def pause_writing(self) -> None:
        """Wait for somebody to read."""
        super().pause_writing()
        self._abort_later()

    def resume_writing(self) -> None:
        """Somebody reads."""
        self._answer_is_read()
        if not self._unanswered:
            self._limits.waits(self)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or has a head that is too large."""
        if self._head_bytes > MAX_HEAD_BYTES:
            self._end(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _too_large())
        else:
            self._end(HTTPStatus.BAD_REQUEST, msg)

    def _count(self, size_bytes: int) -> None:
        self._unseen_bytes = 0
        self._head_bytes += size_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _HeadError(_too_large())  # which comes back as a call of send_400_response

    def _expect_head(self) -> None:
        message = f"no request came within {MAX_HEAD_SECONDS:g} s"
        self._head_timer = self.loop.call_later(MAX_HEAD_SECONDS, self._end, HTTPStatus.REQUEST_TIMEOUT, message)

    def _head_is_here(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _abort_later(self) -> None:
        """Abort the connection once nothing of its response was read for `MAX_UNREAD_SECONDS`, or after `MAX_SENDING_SECONDS`."""
        self._answer_is_read()
        end = self.loop.time() + MAX_SENDING_SECONDS

        def check(before: int) -> None:
            unread = self.transport.get_write_buffer_size()
            if not 0 < unread < before or self.loop.time() > end:
                self.transport.abort()
            else:
                self._unread_timer = self.loop.call_later(MAX_UNREAD_SECONDS, check, unread)

        self._unread_timer = self.loop.call_later(MAX_UNREAD_SECONDS, check, self.transport.get_write_buffer_size())

    def _answer_is_read(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _end(self, status: HTTPStatus, message: str) -> None:
        """Say why, unless an answer is under way, and close."""
        if self.transport.is_closing():
            return
        if not (self._unanswered and self._unanswered[0].response_started):
            reply = failure_reply("", status, message, {"Connection": "close"})
            headers = reply.headers | {"Content-Type": reply.media_type, "Content-Length": str(len(reply.body))}
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self.transport.write(STATUS_LINE[status] + lines.encode() + b"\r\n" + reply.body)
        self.transport.close()
        self._abort_later()


def _too_large() -> str:
    return f"the request's head is larger than {MAX_HEAD_BYTES} bytes; send fewer or shorter headers"


def too_many(name: str) -> str:
    """Return the error message of the server *name* at its connection limit."""
    return f"the {name} has as many connections as it can bear; send it again"


def _surplus(application: ASGIApp, limits: ConnectionLimits) -> ASGIApp:
    """Return the application of a connection beyond the limits: health probes are served, other requests get a 503."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in limits.probes:
            await application(scope, receive, send)
            return
        request = Request(scope, receive)
        await discard(request)
        headers = {"Connection": "close"}
        reply = failure_reply(media_type_of(request), HTTPStatus.SERVICE_UNAVAILABLE, too_many(limits.name), headers)
        await response_of(reply)(scope, receive, send)

    return answer
