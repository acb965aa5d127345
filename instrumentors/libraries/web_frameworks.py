"""Litestar; and frameworks with a server of their own protocol: `http.server` of Python, Sanic and Tornado.

The docstring of a class is the text of its page in the documentation.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar, Token
from types import MappingProxyType
from typing import Any, Self

from ...core.stages import FRAMEWORK, HANDLER
from .. import named_attributes
from ..instrumentor import Instrumentor, Probed, Target, log_failure, timed
from ..probes import Probe, itself
from ..recorder import abandon, begin, end
from ..records import START, Marks, clock
from .asgi import MessageExchange, recorded
from .proxy_waits import socket_peer, transport_peer, trusted_wait_ns
from .server_common import (
    FAILED,
    MIN_CHECK_NS,
    NOT_FOUND,
    UNMATCHED,
    Exchange,
    has_hung_up,
    is_users_code,
    name_route,
    record_request_head,
    route_of,
)
from .streams import ResponseStream

_STAGES = MappingProxyType(
    {"handler": "the handler", "queue": "the wait after a trusted proxy has set the header `X-Request-Start`"}
)
# Attribute of a request of Tornado: the pattern that its path has matched last, that of the innermost router.
_PATTERN = "_stagelens_pattern"


class NativeExchange(Exchange):
    path = ""

    def __init__(self, marks: Marks, token: Token[Marks | None]) -> None:
        super().__init__(marks, HANDLER)
        self._token: Token[Marks | None] | None = token

    @classmethod
    def open(
        cls,
        method: str | None,
        header: Callable[[str], Any],
        peer: Callable[[], object] = str,
        named: Callable[[str], Any] | None = None,
    ) -> Self | None:
        """Start a request with this HTTP method, None for none, whose headers *header* returns; None inside of a request.

        The headers that the user named come from *named*, if given.
        """
        opened = begin()
        if opened is None:
            return None
        try:
            exchange = cls(*opened)
            exchange.read_head(method, lambda name: header(name) or "", peer)
            if named_attributes.sources:
                named_attributes.record_headers(exchange.marks, lambda name: (named or header)(name) or "")
        except Exception:
            abandon(opened[1])
            log_failure("timing a request")
            return None
        return exchange

    def read_head(self, method: str | None, header: Callable[[str], str], peer: Callable[[], object]) -> None:
        self.start = record_request_head(
            self.marks,
            method,
            header("traceparent"),
            header("X-Force-Trace"),
            trusted_wait_ns(header("X-Request-Start"), peer),
            header("tracestate"),
            header("Content-Length"),
            header("User-Agent") if method == "GET" else "",
        )

    def add_chunk(self, headers: Iterable[tuple[str, str]], chunk: bytes) -> None:
        if self.stream is None:
            self.stream = ResponseStream(headers)
        self.stream.add(clock(), chunk)

    def check_connection(self, connection: Any) -> None:
        """Note whether the client of *connection*, a socket or None for a closed one, has gone; it may go when it has the response."""
        if not self.gone and clock() - self.marks[START] > MIN_CHECK_NS:
            self.gone = connection is None or bool(has_hung_up(connection))

    def leave(self) -> None:
        """Remove the request from this context; a task that it has started may go on."""
        token, self._token = self._token, None
        if token is not None:
            end(token)

    def finish(self, path: str, error: BaseException | None) -> None:
        """Finish the record of the request of *path*, which ended with *error*."""
        self.ended, self.path = clock(), path
        self.leave()
        self.status = self.status or (FAILED if error else 0)
        self.complete(type(error).__qualname__ if error else "")

    def template(self) -> str:
        return route_of(self.marks, self.path, self.status)


class Messages(MessageExchange):
    def __init__(self, headers: Any, template: Callable[[], str]) -> None:
        named = [
            [text.encode("latin-1", "replace") for text in (name.lower(), value)] for name, value in headers.items()
        ]
        unused: Any = None
        super().__init__({"headers": named, "route": self}, unused, unused)
        self._template = template
        _messages.set(self)

    @property
    def path(self) -> str:
        return self._template()

    def received(self) -> None:
        self._open()

    def answered(self, started: int, data: Any) -> None:
        self._sent(started, {"bytes": data})

    def end(self, outcome: object) -> None:
        self.close(type(outcome).__qualname__ if isinstance(outcome, BaseException) else "")


# Those of the websocket whose handler runs.
_messages: ContextVar[Messages | None] = ContextVar("stagelens_messages", default=None)


def _connect(request: Any, template: Callable[[], str]) -> None:
    try:
        Messages(request.headers, template)
    except Exception:
        log_failure("timing a websocket")


def _disconnect(_: object, outcome: object) -> None:
    opened = _messages.get()
    if opened is not None:
        opened.end(outcome)


def receiving(_: object) -> Messages | None:
    """Return the messages of this websocket; the current one ends, because the next one is awaited."""
    opened = _messages.get()
    if opened is not None:
        opened.close("")
    return opened


def _sending(_: object, data: Any) -> tuple[Messages | None, int, Any]:
    return _messages.get(), clock(), data


def _sent(token: tuple[Messages | None, int, Any], _: object) -> None:
    opened, started, data = token
    try:
        if opened is not None:
            opened.answered(started, data)
    except Exception:
        log_failure("timing a message of a websocket")


SENDING = Probed(Probe(_sending, _sent, _sent, 2))


async def until_end(serving: Awaitable[Any], finish: Callable[[BaseException | None], object]) -> Any:
    failure = None
    try:
        return await serving
    except BaseException as error:
        failure = error
        raise
    finally:
        finish(failure)
        del failure


async def with_messages(serving: Awaitable[Any], request: Any, template: Callable[[], str]) -> Any:
    """Return what *serving* returns, the work on the websocket that *request* opens, and count its messages."""
    _connect(request, template)
    return await until_end(serving, functools.partial(_disconnect, request))


# Request of this context.
_exchange: ContextVar[NativeExchange | None] = ContextVar("stagelens_native", default=None)


def _note_error(error: BaseException | None) -> NativeExchange | None:
    exchange = _exchange.get()
    if exchange is not None and error is not None:
        exchange.error_type = type(error).__qualname__
    return exchange


def is_websocket(header: Callable[[str], Any]) -> bool:
    return (header("Upgrade") or "").lower() == "websocket"


class LitestarInstrumentor(Instrumentor):
    """Litestar: counts requests, and times `framework`, `handler` and `network`.

    - Each call of the application counts as one request, and each message of a websocket.
    - The route is the path template.
    """

    library = "litestar"
    title = "Litestar"
    stages = MappingProxyType(
        {
            "framework": "the time in middleware, routing, guards and the sending of the response",
            "handler": "the parameters, dependencies and the handler, and the conversion of its result",
            "network": "the reading of the body, and the sending of the response",
            "queue": "the wait after a trusted proxy has set the header `X-Request-Start`",
        }
    )
    facts = ("method", "first_token", "gap")
    not_timed = ("background tasks",)
    tested = MappingProxyType({"litestar": "2.25.0"})

    def targets(self) -> Iterable[Target]:
        return (
            ("litestar.app:Litestar", recorded, "__call__"),
            ("litestar.routes.http:HTTPRoute", timed("handler"), "_call_handler_function"),
        )


class HttpServerInstrumentor(Instrumentor):
    """http.server: counts the requests of the handlers of Python's own HTTP server.

    - A request lasts from the end of its headers to the return of `do_GET`, `do_POST` and the like.
    - The route is the path, as for an [unknown framework](servers.md).
    """

    library = "http.server"
    title = "http.server"
    stages = _STAGES
    facts = ("method",)
    not_timed = ("a handler that overrides `handle_one_request`",)

    def targets(self) -> Iterable[Target]:
        return (
            (
                "http.server:BaseHTTPRequestHandler",
                Probed(Probe(_Turn, _Turn.leave, _Turn.leave, 1)),
                "handle_one_request",
            ),
            ("http.server:BaseHTTPRequestHandler", Probed(Probe(itself, _parsed, None, 1)), "parse_request"),
            ("http.server:BaseHTTPRequestHandler", Probed(Probe(_responding, None, None, 2)), "send_response_only"),
        )


class _Turn:
    """One request of a connection; before it is parsed, it may only be awaited."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.exchange: NativeExchange | None = None
        self._before = _turn.set(self)

    def leave(self, outcome: object) -> None:
        _turn.reset(self._before)
        if self.exchange is not None:
            error = outcome if isinstance(outcome, BaseException) else None
            if error is not None:
                self.exchange.check_connection(self.handler.connection)
            self.exchange.finish(str(self.handler.path).partition("?")[0], error)


_turn: ContextVar[_Turn | None] = ContextVar("stagelens_turn", default=None)


def _parsed(handler: Any, succeeded: object) -> None:
    turn = _turn.get()
    try:
        # That of Werkzeug calls a WSGI application, which is counted.
        if not succeeded or turn is None or turn.handler is not handler or hasattr(handler, "run_wsgi"):
            return
        if not is_websocket(handler.headers.get):
            turn.exchange = NativeExchange.open(
                handler.command, handler.headers.get, lambda: socket_peer(handler.connection)
            )
    except Exception:
        log_failure("timing a request")


def _responding(handler: Any, code: Any) -> None:
    turn = _turn.get()
    if turn is not None and turn.handler is handler and turn.exchange is not None:
        turn.exchange.status = int(code)
        turn.exchange.check_connection(handler.connection)


class SanicInstrumentor(Instrumentor):
    """Sanic: counts requests, under its own server and under an ASGI server.

    - The route is the path template.
    - Each message that a websocket receives counts as one request, until the last answer before the next message is awaited.
    """

    library = "sanic"
    title = "Sanic"
    stages = _STAGES
    facts = ("method",)
    not_timed = (
        "messages that `recv_burst` or `recv_streaming` receives, under its own server",
        "the splitting into middleware and handler",
    )
    tested = MappingProxyType({"sanic": "25.12.1"})

    def targets(self) -> Iterable[Target]:
        connecting = Probe(
            lambda _, __, request: _connect(request, lambda: f"/{request.route.path}"), _disconnect, _disconnect, 3
        )
        cancelled = Probe(lambda socket: _disconnect(socket, asyncio.CancelledError()), parameters=1)
        protocol, socket = "sanic.server.protocols.http_protocol", "sanic.server.websockets.impl:WebsocketImplProtocol"
        return (
            ("sanic.app:Sanic", Probed(connecting), "_websocket_handler"),
            # Sanic compiles most of its own methods again at the start, without our patches.
            (f"{protocol}:HttpProtocolMixin", Probed(Probe(itself, _set_up, None, 1)), "_setup"),
            ("sanic.router:Router", _router_get, "get"),
            (
                "sanic.handlers.error:ErrorHandler",
                Probed(Probe(lambda _, __, error: _note_error(error), parameters=3)),
                "response",
            ),
            # What the handler of a websocket has raised is only logged.
            ("sanic.handlers.error:ErrorHandler", Probed(Probe(_disconnect, parameters=2)), "log"),
            (socket, Probed(Probe(receiving, _received, None, 1)), "recv"),
            (socket, SENDING, "send"),
            # After a cancellation, because the client has gone.
            (socket, Probed(cancelled), "end_connection"),
        )


def _received(opened: Messages | None, message: Any) -> None:
    # None at the end of its timeout.
    if opened is not None and message is not None:
        opened.received()


def _set_up(protocol: Any, _: object) -> None:
    handle = protocol.request_handler

    @functools.wraps(handle)
    async def handle_request(request: Any, *args: Any, **options: Any) -> Any:
        header = request.headers.get
        exchange = None
        if not is_websocket(header):
            exchange = NativeExchange.open(request.method, header, lambda: transport_peer(request.transport))
        if exchange is None:
            return await handle(request, *args, **options)
        _exchange.set(exchange)
        return await until_end(handle(request, *args, **options), functools.partial(_finish_sanic, exchange, request))

    protocol.request_handler = handle_request


def _finish_sanic(exchange: NativeExchange, request: Any, failure: BaseException | None) -> None:
    _exchange.set(None)
    exchange.status = getattr(getattr(request.stream, "response", None), "status", 0)
    # Sanic cancels the handler when the client has gone.
    exchange.gone = isinstance(failure, asyncio.CancelledError) and request.transport.is_closing()
    exchange.finish(request.path, failure)


def _router_get(original: Any) -> Any:
    # Around the cache, which calls the function of the router once for each path.
    def get(self: Any, *args: Any, **options: Any) -> Any:
        resolved = original(self, *args, **options)
        try:
            name_route("/" + resolved[0].path)
        except Exception:
            log_failure("naming a route")
        return resolved

    for name in ("cache_clear", "cache_info", "cache_parameters"):
        if hasattr(original, name):
            setattr(get, name, getattr(original, name))
    return get


class TornadoInstrumentor(Instrumentor):
    """Tornado: counts the requests of `RequestHandler`, and the messages of `WebSocketHandler`.

    - A request lasts from its last byte to the return of the handler's method.
    - The route is the pattern of the handler, without its last `$`.
    - A message of a websocket counts as a request, which lasts until `on_message` returns.
    """

    library = "tornado"
    title = "Tornado"
    stages = MappingProxyType({**_STAGES, "framework": "requests that match no handler, and those for static files"})
    facts = ("method", "first_token", "gap")
    not_timed = ("a callback that is given to `HTTPServer` instead of an application or a `WSGIContainer`",)
    tested = MappingProxyType({"tornado": "6.6.1"})

    def targets(self) -> Iterable[Target]:
        failed = Probe(lambda _: _note_error(sys.exc_info()[1]), parameters=1)
        return (
            ("tornado.web:RequestHandler", _execute, "_execute"),
            ("tornado.web:RequestHandler", Probed(Probe(_flushing, None, None, 2)), "flush"),
            (
                "tornado.web:RequestHandler",
                Probed(Probe(_handle_exception, None, None, 2)),
                "_handle_request_exception",
            ),
            ("tornado.routing:PathMatches", Probed(Probe(_matching, _matched, None, 2)), "match"),
            ("tornado.websocket:WebSocketProtocol", _run_callback, "_run_callback"),
            ("tornado.websocket:WebSocketProtocol", Probed(failed), "_abort"),
        )


def _matching(matcher: Any, request: Any) -> tuple[Any, Any]:
    return matcher, request


def _matched(pair: tuple[Any, Any], match: object) -> None:
    if match is None:
        return
    matcher, request = pair
    try:
        setattr(request, _PATTERN, matcher.regex.pattern.removesuffix("$"))
    except Exception:
        log_failure("naming a route")


def _finish_tornado(exchange: NativeExchange, handler: Any, error: BaseException | None) -> None:
    is_users = is_users_code(type(handler))
    exchange.route = getattr(handler.request, _PATTERN, "") if exchange.status != NOT_FOUND or is_users else UNMATCHED
    exchange.rest = HANDLER if is_users else FRAMEWORK
    exchange.finish(handler.request.path, error)


def _execute(original: Any) -> Any:
    async def _execute(self: Any, *args: Any, **options: Any) -> Any:
        header = self.request.headers.get
        exchange = None
        # What a `FallbackHandler` calls counts.
        if not (is_websocket(header) or hasattr(self, "fallback")):
            exchange = NativeExchange.open(self.request.method, header, lambda: socket_peer(_socket(self)))
        if exchange is None:
            return await original(self, *args, **options)
        _exchange.set(exchange)
        return await until_end(original(self, *args, **options), functools.partial(_executed, exchange, self))

    return _execute


def _executed(exchange: NativeExchange, handler: Any, failure: BaseException | None) -> None:
    _exchange.set(None)
    exchange.status = handler.get_status()
    _finish_tornado(exchange, handler, failure)


def _socket(handler: Any) -> Any:
    return getattr(getattr(handler.request.connection, "stream", None), "socket", None)


def _flushing(handler: Any, include_footers: Any) -> None:
    exchange = _exchange.get()
    if exchange is None:
        return
    exchange.check_connection(_socket(handler))
    # At the end, the rest of the body; without a flush before, all of it.
    if not include_footers:
        exchange.add_chunk(handler._headers.get_all(), b"".join(handler._write_buffer))  # noqa: SLF001 - as `flush` does


def _handle_exception(handler: Any, error: Any) -> None:
    exchange = _note_error(error)
    if exchange is not None:
        exchange.check_connection(_socket(handler))


def _run_callback(original: Any) -> Any:
    def run_callback(self: Any, callback: Any, *args: Any, **options: Any) -> Any:
        is_message = getattr(callback, "__name__", "") == "on_message"
        exchange = NativeExchange.open(None, lambda _: "") if is_message else None
        if exchange is None:
            return original(self, callback, *args, **options)
        future, token = None, _exchange.set(exchange)
        try:
            future = original(self, callback, *args, **options)
        finally:
            _exchange.reset(token)
            exchange.leave()
            if future is None:
                _finish_tornado(exchange, self.handler, None)
            else:
                future.add_done_callback(lambda _: _finish_tornado(exchange, self.handler, None))
        return future

    return run_callback
