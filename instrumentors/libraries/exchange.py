"""One HTTP request as an ASGI application sees it: from the first byte in to the last byte of the response out.

Background tasks run after the last byte and belong to no request. Bodies and header values are passed on unread, but
for two headers: `traceparent`, and `X-Request-Start`, which a proxy sets and which moves the start of the request back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import Token
from typing import Any, TypeAlias

from .. import recorder
from ..instrumentor import report
from ..recorder import MAX_MARKS, Marks, begin, clock, end, finish

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Any, Scope, Receive, Send], Awaitable[None]]

# Where the exchange lies in the scope, for those who learn the route.
KEY = "stagelens"

UNMATCHED = "__unmatched__"
# The methods of RFC 9110 and RFC 5789; a client may send any other word.
METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
OTHER_METHOD = "_OTHER"

# `pathsend` has the server send a file as the whole body.
LAST_MESSAGES = ("http.response.body", "http.response.pathsend")

# Longer than any proxy waits: the header is wrong, or its clock is.
MAX_PROXY_WAIT_NS = 600 * 10**9
# Chunks of a stream that go straight to the socket's buffer take less; to mark each would fill the list for nothing.
MIN_CHUNK_NS = 50_000
# From which number on a time since 1970 is in that unit, and the unit. 10**11 s is the year 5138, 10**11 ms is 1973.
_UNITS_NS = ((1e17, 1), (1e14, 10**3), (1e11, 10**6), (0, 10**9))
_SENT_AT = re.compile(rb"(?:t=)?(\d{9,19}(?:\.\d{1,9})?)")


class Exchange:
    """What happens to one request: wraps its `receive` and `send`, and finishes the record exactly once.

    Args:
        scope: The ASGI scope.
        receive: The server's.
        send: The server's.
        marks: The request's record.
    """

    __slots__ = (
        "_body_read",
        "_disconnected",
        "_ended",
        "_finished",
        "_marks",
        "_receive",
        "_scope",
        "_send",
        "_start",
        "_status",
        "mounts",
        "route",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, marks: Marks) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._marks = marks
        self._start: int = marks[1]
        self._ended = 0
        self._status = 0
        self._body_read = self._disconnected = self._finished = False
        self.mounts = ""
        self.route = ""
        self._read_head()

    async def receive(self) -> Message:
        """Receive for the application; waiting for the body is `network`, waiting for the client to leave is not."""
        begun = clock()
        try:
            message = await self._receive()
        except BaseException:
            if not self._body_read:
                self._mark(begun)
            raise
        try:
            self._received(message, begun)
        except Exception:
            report("timing a request body")
        return message

    async def send(self, message: Message) -> None:
        """Send for the application, as `network`; the last part of the body ends the request."""
        begun = clock()
        try:
            await self._send(message)
        except BaseException:
            self._mark(begun)
            raise
        try:
            self._sent(message, begun)
        except Exception:
            report("timing a response")

    def close(self, error_type: str) -> None:
        """Finish the record if no last byte did: the application has returned, raised or was cancelled."""
        if self._finished:
            return
        if not self._status and not self._disconnected:
            # The server answers for an application that does not.
            self._status = 500
        self._finish(error_type)

    def _received(self, message: Message, begun: int) -> None:
        self._disconnected = self._disconnected or message["type"] == "http.disconnect"
        if not self._body_read:
            self._mark(begun)
            self._body_read = not message.get("more_body", False)

    def _sent(self, message: Message, begun: int) -> None:
        more = message.get("more_body", False)
        if not more or clock() - begun > MIN_CHUNK_NS:
            self._mark(begun)
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif not more and message["type"] in LAST_MESSAGES:
            self._ended = clock()
            # A 500 may be the answer to an exception, whose name `close` will know.
            if self._status < 500:  # noqa: PLR2004 - the class of status
                self._finish("")

    def _finish(self, error_type: str) -> None:
        self._finished = True
        ended = self._ended or clock()
        route = UNMATCHED
        try:
            route = self._template()
        except Exception:
            report("naming a route")
        finish(self._marks, self._start, ended, route, error_type, self._status)

    def _mark(self, begun: int) -> None:
        if len(self._marks) < MAX_MARKS:
            self._marks.extend(("network", begun, clock()))

    def _template(self) -> str:
        if self.route:
            return self.route
        # A route class of the user's own, or a mounted application that is no router.
        template = getattr(self._scope.get("route"), "path", None)
        return self.mounts or (template if template and isinstance(template, str) else UNMATCHED)

    def _read_head(self) -> None:
        method = self._scope.get("method", "")
        self._marks.extend(("@method", method if method in METHODS else OTHER_METHOD, 0))
        waited = 0
        for name, value in self._scope["headers"]:
            if name == b"traceparent":
                self._marks.extend(("@traceparent", value.decode("latin-1"), 0))
            elif name == b"x-request-start":
                waited = waited or proxy_wait_ns(value, time.time_ns())
        if waited:
            self._start -= waited
            self._marks.extend(("queue", self._start, self._start + waited))


async def serve(application: Application, app: Any, scope: Scope, receive: Receive, send: Send) -> None:
    """Run `application(app, scope, receive, send)`; one HTTP request is recorded, anything else only runs.

    Anything else is a websocket, a lifespan, and the inner applications of a request that is already recorded.
    """
    if scope["type"] == "lifespan" and KEY not in scope:
        # FastAPI hands it on to Starlette, and both come through here.
        scope[KEY] = None
        await application(app, scope, receive, _reporting_before_exit(send))
        return
    opened = _open(scope, receive, send)
    if opened is None:
        await application(app, scope, receive, send)
        return
    exchange, token = opened
    try:
        await application(app, scope, exchange.receive, exchange.send)
    except BaseException as error:
        exchange.close(type(error).__qualname__)
        raise
    else:
        exchange.close("")
    finally:
        end(token)
        # The scope and the exchange hold each other: left to the garbage collector, each request would be its work.
        scope.pop(KEY, None)


def _reporting_before_exit(send: Send) -> Send:
    """Return *send* with our last report in front of the end of the shutdown.

    After it uvicorn raises the signal that stopped it once more, with the default handler: no exit handler runs.
    """

    async def report_and_send(message: Message) -> None:
        if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
            try:
                # Starlette stands on it; who serves nothing shall not load it.
                from anyio import CapacityLimiter, to_thread  # noqa: PLC0415

                # A limiter of its own: while all threads of the pool are held by requests, the shutdown would hang.
                await to_thread.run_sync(recorder.flush, limiter=CapacityLimiter(1))
            except Exception:
                report("the last requests before the shutdown")
        await send(message)

    return report_and_send


def _open(scope: Scope, receive: Receive, send: Send) -> tuple[Exchange, Token[Marks | None]] | None:
    if scope["type"] != "http":
        return None
    opened = begin()
    if opened is None:
        return None
    marks, token = opened
    try:
        exchange = scope[KEY] = Exchange(scope, receive, send, marks)
    except Exception:
        end(token)
        report("timing a request")
        return None
    return exchange, token


def proxy_wait_ns(header: bytes, now_ns: int) -> int:
    """Return how long a request had been under way when it arrived, by its `X-Request-Start`.

    Proxies write seconds (nginx: `t=1700000000.123`), milliseconds (Heroku), microseconds (Apache: `t=%t`) or
    nanoseconds since 1970; the size of the number tells which.

    Args:
        header: The header's value.
        now_ns: The time of arrival. [nanoseconds since 1970]

    Returns:
        0 for a header that makes no sense: unreadable, from the future, or longer ago than `MAX_PROXY_WAIT_NS`. [ns]

    >>> proxy_wait_ns(b"t=1700000000.250", 1_700_000_000_750_000_000)
    500000000
    """
    match = _SENT_AT.fullmatch(header.strip())
    if match is None:
        return 0
    number = float(match[1])
    unit_ns = next(unit for floor, unit in _UNITS_NS if number >= floor)
    # A float holds seconds since 1970 to a quarter of a microsecond.
    waited = now_ns - round(number * unit_ns / 1000) * 1000
    return waited if 0 <= waited <= MAX_PROXY_WAIT_NS else 0
