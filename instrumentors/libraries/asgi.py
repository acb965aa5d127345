"""Recording of the HTTP requests and of the messages of websockets of any ASGI application.

- Each call of the outermost application counts as one request. Calls of mounted applications belong to the same request.
- Each message that a websocket receives counts as one request, until the last answer before the next message is awaited.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextvars import Token
from typing import Any, Final, TypeAlias

from ...core.health_probes import is_known_agent
from ...core.stages import FRAMEWORK, HANDLER
from .. import named_attributes, recorder
from ..instrumentor import log_failure
from ..recorder import abandon, begin, end
from ..recorder_state import state
from ..records import ROUTE, START, Marks, clock, has_capacity
from ..stalls import watch_loop
from .proxy_waits import own_wait_ns, transport_peer, trusted_wait_ns
from .server_common import (
    FAILED,
    MIN_CHECK_NS,
    MIN_CHUNK_NS,
    Exchange,
    NotCopied,
    called_like,
    has_hung_up,
    readable,
    record_request_head,
    route_of,
    unmatched_route,
)
from .server_reports import with_timing
from .streams import ResponseStream

SERVER_TIMING_VARIABLE: Final = "STAGELENS_SERVER_TIMING"

# Whether the response gets a `Server-Timing` header with the stages so far. Off by default, because the header
# reveals the stage times to every caller. Our client instrumentation and browsers read it. https://www.w3.org/TR/server-timing/
sends_server_timing = os.environ.get(SERVER_TIMING_VARIABLE, "").strip().lower() == "true"

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
# Key of the exchange in the ASGI scope, through which wrappers set the route.
KEY = "stagelens"
# Key of the arrival at the proxy of Ray in the scope.
ARRIVED = "stagelens.arrived"
READ = frozenset({b"content-length", b"traceparent", b"tracestate", b"x-request-start", b"x-force-trace"})
_AGENT = b"user-agent"
READ_OF_GET = READ | {_AGENT}
# Attributes by which uvicorn, hypercorn, gunicorn and Daphne say that the client has gone.
_GONE: Final = ("disconnected", "closed", "_closed", "_disconnected")
# `pathsend` makes the server send a file as the complete body.
LAST_MESSAGES = ("http.response.body", "http.response.pathsend")


def flushing_at_shutdown(send: Send) -> Send:
    """Return a *send* that flushes all records before it reports the end of the shutdown."""

    async def report_and_send(message: Message) -> None:
        if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
            try:
                # A dependency of Starlette; not loaded by processes that serve nothing.
                from anyio import CancelScope, CapacityLimiter, to_thread  # noqa: PLC0415

                # A separate limiter: the shutdown would hang while requests occupy all threads of the pool.
                with CancelScope(shield=True):
                    await to_thread.run_sync(recorder.flush, limiter=CapacityLimiter(1))
            except RuntimeError:
                # An event loop that AnyIO does not know, or an interpreter that exits: `atexit` is left.
                pass
            except Exception:
                log_failure("the last requests before the shutdown")
        await send(message)

    return called_like(report_and_send, send)


Application: TypeAlias = Callable[[Any, Scope, Receive, Send], Awaitable[None]]


class AsgiExchange(Exchange):
    """State of one HTTP request of any ASGI application, whose `receive` and `send` it wraps."""

    _headers: Iterable[tuple[bytes, bytes]] = ()
    # The route that has named it: a method of FastAPI calls that of Starlette.
    named_by: object = None

    def __init__(self, scope: Scope, receive: Receive, send: Send, marks: Marks, rest: str) -> None:
        self.marks, self.rest = marks, rest
        self._scope = scope
        self._receive = receive
        self._send = send
        # What each message reads, which is faster here than the default of the class.
        self.gone = self.finished = self._body_read = False
        self.ended = self.status = self.size = 0
        self.stream = None
        # Start of the running handler, 0 if none runs.
        self.handling = 0
        # Whether a route has been called, and no response of the framework yet.
        self.awaits_response = False
        self.route = self.mounts = ""
        self.start = self._read_head()

    def name(self, template: str) -> None:
        """Set the route to the prefixes of the mounts followed by *template*; the current task runs the handler."""
        self.route = self.marks[ROUTE] = self.mounts + template
        if state.register is not None:
            state.register(self.marks, self.route)

    def end_handler(self) -> None:
        started, self.handling = self.handling, 0
        if started:
            self.marks.extend(("handler", started, self.ended or clock()))

    def receiving(self) -> Receive:
        """Return the application's `receive`: the wait for the body is `network`, the wait for a disconnect is not."""

        async def receive() -> Message:
            started = clock()
            try:
                message = await self._receive()
            except BaseException:
                if not self._body_read:
                    self._mark(started)
                raise
            try:
                if message["type"] == "http.disconnect":
                    self.gone = True
                if not self._body_read:
                    self._mark(started)
                    self._body_read = not message.get("more_body", False)
            except Exception:
                log_failure("timing a request body")
            return message

        return called_like(receive, self._receive)

    def sending(self) -> Send:
        """Return the application's `send`: it is `network`; the last part of the body ends the request."""

        async def send(message: Message) -> None:
            started = clock()
            if started - self.marks[START] > MIN_CHECK_NS:
                self._check_client(message)
            if sends_server_timing and message["type"] == "http.response.start":
                message = with_timing(message, self.marks, self.start, started)
            gone = self.gone
            try:
                await self._send(message)
            except BaseException:
                self._mark(started)
                raise
            try:
                ended = clock()
                more = message.get("more_body", False)
                if (not more or ended - started > MIN_CHUNK_NS) and has_capacity(self.marks):
                    self.marks.extend(("network", started, ended))
                kind = message["type"]
                if kind == "http.response.start":
                    self.status = message["status"]
                    self._headers = readable(message.get("headers"))
                    if self.awaits_response and not self.handling:
                        self._resume_handler()
                elif kind in LAST_MESSAGES:
                    self._sent_body(message, started, more, gone)
            except Exception:
                log_failure("timing a response")

        return called_like(send, self._send)

    def close(self, error_type: str) -> None:
        """Finish the record if the last byte was never sent, because the application returned, raised or was cancelled."""
        if self.finished:
            return
        self.gone = self.gone or error_type == "ClientDisconnect" or self._has_client_gone()
        if not self.status and not self.gone:
            # The server sends an error response for an application that sends none.
            self.status = FAILED
        if self.handling:
            self.end_handler()
        self.complete(error_type)

    def _check_client(self, message: Message) -> None:
        """Note whether the client has gone before the last part of the response is sent; it may go when it has that."""
        try:
            if message["type"] in LAST_MESSAGES and not message.get("more_body", False):
                self.gone = self.gone or self._has_client_gone()
        except Exception:
            log_failure("checking a client")

    def _has_client_gone(self) -> bool:
        server = self._server()
        if any(getattr(server, name, False) is True for name in _GONE):
            return True
        # The event loop may not have run since.
        ask = getattr(getattr(server, "transport", None), "get_extra_info", None)
        return ask is not None and bool(has_hung_up(ask("socket")))

    def _server(self) -> Any:
        """Return the object of the server that has the connection, None for an unknown one."""
        # Of uvicorn and hypercorn; of Daphne, a `partial`; of gunicorn, behind that of the body.
        server = getattr(self._send, "__self__", None) or next(iter(getattr(self._send, "args", ())), None)
        return server or getattr(getattr(self._receive, "__self__", None), "protocol", None)

    def _sent_body(self, message: Message, started: int, more: bool, gone: bool) -> None:
        body = message.get("body")
        if body:
            self.size += len(body)
            if self.stream is None and more:
                self.stream = ResponseStream(self._headers)
            if self.stream is not None:
                self.stream.add(started, body)
        elif message["type"] != "http.response.body":
            self.size = -1
        if not more:
            # The end of the response is a disconnect, too, which Hypercorn reports while it sends.
            self.gone = gone
            self.ended = clock()
            # A 500 may be the response to an exception, whose class is known later, in `close`.
            if self.status < FAILED:
                if self.handling:
                    self.end_handler()
                self.complete("")

    def _resume_handler(self) -> None:
        """Let the code that sends this response, after the endpoint, belong to the handler: it is none of the framework's."""
        keys = self.marks[::3]
        if "handler" in keys:
            self.handling = max(end for key, end in zip(keys, self.marks[2::3], strict=True) if key == "handler")

    def _mark(self, started: int) -> None:
        if has_capacity(self.marks):
            self.marks.extend(("network", started, clock()))

    def template(self) -> str:
        # A custom route class, or a mounted application that is not a router.
        template = getattr(self._scope.get("route"), "path", None) or self._scope.get("path_template")
        if self.mounts or (template and isinstance(template, str)):
            return str(self.mounts or template)
        path = path_of(self._scope)
        return route_of(self.marks, path, self.status) if self.rest == HANDLER else unmatched_route(path)

    def _read_head(self) -> int:
        read: dict[bytes, str] = {}
        method = self._scope.get("method", "")
        wanted = READ_OF_GET if method == "GET" else READ
        for name, value in readable(self._scope.get("headers")):
            if name in wanted and (name != _AGENT or is_known_agent(value)):
                read.setdefault(name, value.decode("latin-1"))
        # In a replica of Ray, its proxy says when the request has arrived there.
        arrived = self._scope.get(ARRIVED)
        if arrived is None:
            waited = trusted_wait_ns(read.get(b"x-request-start", ""), self._peer)
        else:
            waited = own_wait_ns(arrived)
        if named_attributes.sources:
            named_attributes.record_headers(self.marks, self._header)
        return record_request_head(
            self.marks,
            method,
            read.get(b"traceparent", ""),
            read.get(b"x-force-trace", ""),
            waited,
            read.get(b"tracestate", ""),
            read.get(b"content-length", ""),
            read.get(_AGENT, ""),
        )

    def _peer(self) -> object:
        # The client in the scope may be one that a proxy has named.
        transport = getattr(self._server(), "transport", None)
        return transport_peer(transport, self._scope.get("client") or "")

    def _header(self, name: str) -> str:
        return _header(self._scope, name)


def _header(scope: Scope, name: str) -> str:
    wanted = name.encode()
    return ", ".join(value.decode("latin-1") for key, value in readable(scope.get("headers")) if key == wanted)


def path_of(scope: Scope) -> str:
    """Return the path of a request, which contains that of the mounted application since ASGI 2.4."""
    path, root = scope.get("path", ""), scope.get("root_path", "")
    return path if path.startswith(root) else root + path


class MessageExchange(NotCopied):
    """Messages of one websocket: each that arrives is a request, until the last answer before the application awaits the next."""

    _exchange: Exchange | None = None
    _token: Token[Marks | None] | None = None
    # End of the last answer, 0 before the first one.
    _answered = 0
    rest = HANDLER

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send

    def receiving(self) -> Receive:
        async def receive() -> Message:
            self.close("")
            message = await self._receive()
            if message["type"] == "websocket.receive":
                self._open()
            return message

        return called_like(receive, self._receive)

    def sending(self) -> Send:
        async def send(message: Message) -> None:
            started = clock()
            try:
                await self._send(message)
            finally:
                self._sent(started, message)

        return called_like(send, self._send)

    def close(self, error_type: str) -> None:
        """Finish the record of the current message, if there is one."""
        exchange, token, self._exchange, self._token = self._exchange, self._token, None, None
        if exchange is None or token is None:
            return
        # The time after the last answer is no wait of the client.
        exchange.ended = 0 if error_type else self._answered
        try:
            template = getattr(self._scope.get("route"), "path", None) or self._scope.get("path_template")
            params = self._scope.get("path_params")
            exchange.route = template or route_of(exchange.marks, path_of(self._scope), 0, params)
        except Exception:
            log_failure("describing a message of a websocket")
        end(token)
        exchange.complete(error_type)

    def _open(self) -> None:
        opened = begin()
        if opened is None:
            return
        marks, self._token = opened
        self._exchange, self._answered = Exchange(marks, HANDLER), 0
        try:
            if named_attributes.sources:
                named_attributes.record_headers(marks, functools.partial(_header, self._scope))
        except Exception:
            log_failure("timing a message of a websocket")

    def _sent(self, started: int, message: Message) -> None:
        self._answered = clock()
        exchange = self._exchange
        if exchange is None:
            return
        if has_capacity(exchange.marks):
            exchange.marks.extend(("network", started, self._answered))
        if exchange.stream is None:
            exchange.stream = ResponseStream()
        exchange.stream.add(started, message.get("bytes") or message.get("text"))


def recorded(application: Application, rest: str = FRAMEWORK) -> Application:
    # One coroutine, by which servers distinguish ASGI 3 from ASGI 2; each further one costs the request 3 µs.
    async def __call__(self: Any, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: N807 - shown in tracebacks
        # A server passes the call on to the application of a framework, and both are wrapped.
        opened = _inside(scope, rest) if KEY in scope else _open(scope, receive, send, rest)
        if opened is None:
            await application(self, scope, receive, send)
        elif isinstance(opened, tuple):
            exchange, token = opened
            try:
                await application(self, scope, exchange.receiving(), exchange.sending())
            except BaseException as error:
                exchange.close(type(error).__qualname__)
                raise
            else:
                exchange.close("")
            finally:
                if token is not None:
                    end(token)
                del opened, token
                # Break the reference cycle of scope and exchange, which the garbage collector would have to free for each request.
                scope.pop(KEY, None)
        else:
            await application(self, scope, receive, opened)

    return __call__


class Served:
    """An application as its server calls it: its requests count, whatever its framework is."""

    __slots__ = ("app",)

    def __init__(self, app: Any) -> None:
        self.app = app

    __call__ = recorded(lambda self, *request: self.app(*request), HANDLER)


_forwarding: Final[list[Application]] = []


def forwarding(call: Application) -> Application:
    """Return *call*, the `__call__` of an application that forwards requests to other processes: they count there alone."""
    _forwarding.append(call)
    return call


def is_forwarding(app: Any) -> bool:
    return any(type(app).__call__ is call for call in _forwarding)


_Opened: TypeAlias = tuple[AsgiExchange | MessageExchange, Token[Marks | None] | None]


def _inside(scope: Scope, rest: str) -> None:
    exchange = scope[KEY]
    if exchange is not None and rest == FRAMEWORK:
        exchange.rest = rest


def _open(scope: Scope, receive: Receive, send: Send, rest: str) -> _Opened | Send | None:
    if scope["type"] == "websocket":
        exchange = scope[KEY] = MessageExchange(scope, receive, send)
        return exchange, None
    if scope["type"] != "http":
        if scope["type"] != "lifespan":
            return None
        scope[KEY] = None
        watch_loop()
        return flushing_at_shutdown(send)
    opened = begin()
    if opened is None:
        return None
    marks, token = opened
    try:
        exchange = scope[KEY] = AsgiExchange(scope, receive, send, marks, rest)
    except Exception:
        abandon(token)
        log_failure("timing a request")
        return None
    return exchange, token
