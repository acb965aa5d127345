"""aiohttp server: counts requests, and times `framework`, `handler`, `serialize`, `network` and `queue`.

- The time of a request includes the handler, all middlewares, and the sending of the response.
- Each message that a websocket receives counts as one request, until the last answer before the next message is awaited.
- The route is the path template, including the prefixes of parent applications.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from ..functions import CLOUDPICKLE_HOOKS
from ..instrumentor import Hook, Instrumentor, Probed, Target, TimedCall, log_failure, timed
from ..probes import Probe, can_be_probed, probed
from ..records import ROUTE, START, clock, has_capacity
from ..stalls import watch_loop
from .proxy_waits import transport_peer
from .server_common import (
    FAILED,
    MIN_CHECK_NS,
    MIN_CHUNK_NS,
    has_hung_up,
    is_users_code,
    unmatched_route,
)
from .web_frameworks import SENDING, Messages, NativeExchange, is_websocket, receiving, with_messages

Handler: TypeAlias = Callable[[Any], Awaitable[Any]]
_HANDLER: Final = timed("handler").probe


class AiohttpExchange(NativeExchange):
    _streamed: Any = None
    size = 0

    def serve(self, request: Any, handler: Handler) -> AiohttpExchange:
        self._request = request
        self._handler = handler
        self.rest = "framework"
        # The router runs later.
        self.marks[ROUTE] = self._template
        return self

    async def handle(self, request: Any) -> Any:
        started = clock()
        try:
            return await self._handler(request)
        except BaseException as error:
            self.error_type = type(error).__qualname__
            raise
        finally:
            if self._is_handler() and has_capacity(self.marks):
                self.marks.extend(("handler", started, self.ended or clock()))

    def _is_handler(self) -> bool:
        match = getattr(self._request, "_match_info", None)
        handler = getattr(match, "handler", None)
        if getattr(match, "http_exception", None) is not None or not is_users_code(handler):
            return False
        function = _function_of(handler)
        return type(function) is not FunctionType or function not in _timed_handlers

    def reads(self, stream: Any) -> bool:
        """Return whether *stream* is the body of this request, not that of an outgoing request of the handler."""
        return stream is self._request.content

    def hand_over(self, response: Any, part: Any) -> None:
        self._streamed = response
        self.size += _size_of(part)
        self.add_chunk(response.headers.items(), part)

    def mark_network(self, started: int, ended: int) -> None:
        if has_capacity(self.marks):
            self.marks.extend(("network", started, ended))

    def check_client(self, now: int) -> None:
        """Note whether the client has gone before the end of the response is sent; it may go when it has that."""
        transport = self._request.transport
        self.gone = transport is None or (
            # The event loop may not have run since.
            now - self.marks[START] > MIN_CHECK_NS and bool(has_hung_up(transport.get_extra_info("socket")))
        )

    def last_byte(self, started: int, size: int) -> None:
        """Record the end of the response; *started* is the start of its last write, of *size* bytes."""
        self.ended = clock()
        self.size += size
        self.mark_network(started, self.ended)

    def end(self, response: Any) -> None:
        """Finish the record of the request. *response* is the sent response, None if none was sent completely."""
        ended = self.ended or clock()
        try:
            self._note(response)
        except Exception:
            self.status = FAILED
            log_failure("describing a request")
        self.ended = ended
        # A handler may raise its response, such as "not found".
        self.complete("" if response is not None else self.error_type)
        self.leave()

    def _note(self, response: Any) -> None:
        transport = self._request.transport
        if response is None:
            streamed = 0 if self._streamed is None else self._streamed.status
            self.status = streamed or (0 if transport is None else FAILED)
        else:
            self.status = response.status
            self.size = response.headers.get("Content-Length", self.size)
        self.gone = self.gone or (not self.ended and transport is None)
        if response is None or self._request.method == "HEAD":
            self.size = None

    def template(self) -> str:
        # Without the reference to this object, which has the marks.
        route = self.marks[ROUTE] = self._template()
        return route

    def _template(self) -> str:
        return _template(self._request)


def _template(request: Any) -> str:
    match = getattr(request, "_match_info", None)
    resource = None if match is None else match.route.resource
    return unmatched_route(request.path) if resource is None else resource.canonical


class AioHttpServerInstrumentor(Instrumentor):
    library = "aiohttp"
    title = "aiohttp (server)"
    stages = MappingProxyType(
        {
            "framework": "the time outside the handler, such as middlewares, and requests that match no route",
            "handler": "the handler",
            "network": "the wait for the request body, and the writing of the response",
            "queue": "the wait after a trusted proxy has set the header `X-Request-Start`",
            "serialize": "calls of `Request.json`, `Request.post` and `json_response`, and the creation of a `Response`",
        }
    )
    facts = ("method", "first_token", "gap")
    not_timed = (
        "invalid HTTP requests, because they do not count as requests",
        "middlewares around a `web.View`, and old-style middlewares: their time is `handler`",
        "the callbacks of the signal `on_response_prepare`",
    )
    tested = MappingProxyType({"aiohttp": "3.14.5"})

    def targets(self) -> Iterable[Target]:
        return (
            # Called once for each handler, whose middlewares are cached.
            ("aiohttp.web_app", Probed(Probe(_time_handler, parameters=1)), "_build_middlewares"),
            ("aiohttp.web_protocol:RequestHandler", _handle_request, "_handle_request"),
            ("aiohttp.web_request:BaseRequest", timed("serialize"), "json post"),
            ("aiohttp.web_response:StreamResponse", _write, "write"),
            ("aiohttp.web_response:Response StreamResponse", _write_eof, "write_eof"),
            ("aiohttp.web_response:Response", timed("serialize"), "__init__"),
            ("aiohttp.web_response", timed("serialize"), "json_response"),
            ("aiohttp.web_fileresponse:FileResponse", timed("network"), "_sendfile"),
            ("aiohttp.web_runner:BaseRunner", Probed(Probe(watch_loop)), "setup"),
            ("aiohttp.web_ws:WebSocketResponse", Probed(Probe(receiving, _received, None, 1)), "receive"),
            ("aiohttp.web_ws:WebSocketResponse", SENDING, "send_str send_bytes"),
            ("aiohttp.streams:StreamReader", Probed.until_end(_waiting, 1), "_wait"),
        )

    def hooks(self) -> Mapping[str, Hook]:
        # Handlers are functions of the user.
        return {**super().hooks(), **CLOUDPICKLE_HOOKS}


# Exchange of the running task, because a response has no reference to its request before it is sent.
_exchange: ContextVar[AiohttpExchange | None] = ContextVar("stagelens_aiohttp_exchange", default=None)


def _handle_request(original: Any) -> Any:
    async def _handle_request(self: Any, request: Any, start_time: Any, request_handler: Handler) -> Any:
        # aiohttp handles invalid HTTP with a handler other than that of the application.
        if request_handler is not self._request_handler:
            return await original(self, request, start_time, request_handler)
        header = request.headers.get
        if is_websocket(header):
            return await original(self, request, start_time, partial(_handle_messages, request_handler))
        exchange = AiohttpExchange.open(
            request.method, header, lambda: transport_peer(request.transport), partial(_joined, request)
        )
        if exchange is None:
            return await original(self, request, start_time, request_handler)
        serving = _exchange.set(exchange.serve(request, request_handler))
        response = None
        try:
            result = await original(self, request, start_time, exchange.handle)
            response = result[0]
            return result
        finally:
            exchange.end(response)
            del exchange
            # Fails in another context, in which the garbage collector may close the coroutine of an unfinished task.
            with contextlib.suppress(ValueError):
                _exchange.reset(serving)

    return _handle_request


async def _handle_messages(handler: Handler, request: Any) -> Any:
    return await with_messages(handler(request), request, partial(_template, request))


def _joined(request: Any, name: str) -> str:
    return ", ".join(request.headers.getall(name, ()))


def _received(opened: Messages | None, message: Any) -> None:
    if opened is not None and message.type.name in {"TEXT", "BINARY"}:
        opened.received()


# Functions of handlers that record themselves, inside of the middlewares.
_timed_handlers: WeakSet[FunctionType] = WeakSet()


def _time_handler(handler: Handler) -> None:
    try:
        function = _function_of(handler)
        if not is_users_code(handler) or not can_be_probed(function, _HANDLER) or function in _timed_handlers:
            return
        # Any other function may return before its coroutine has run.
        if function.__code__.co_flags & inspect.CO_COROUTINE:
            function.__code__ = probed(function.__code__, _HANDLER)
            _timed_handlers.add(function)
    except Exception:
        log_failure("timing a handler")


def _function_of(handler: Any) -> Any:
    while isinstance(handler, partial):
        handler = handler.func
    if isinstance(handler, type):
        handler = getattr(handler, "_iter", None)
    return getattr(handler, "__func__", handler)


def _write(original: Any) -> Any:
    async def write(self: Any, data: Any) -> None:
        exchange = _exchange.get()
        if exchange is None:
            await original(self, data)
            return
        started = clock()
        try:
            exchange.hand_over(self, data)
        except Exception:
            log_failure("timing a response")
        try:
            await original(self, data)
        finally:
            ended = clock()
            if ended - started > MIN_CHUNK_NS:
                exchange.mark_network(started, ended)

    return write


def _size_of(data: Any) -> int:
    # Of any other object aiohttp says what is wrong.
    return len(data) if isinstance(data, (bytes, bytearray, memoryview)) else 0


def _write_eof(original: Any) -> Any:
    # A `Response` writes its complete body here.
    async def write_eof(self: Any, data: bytes = b"") -> None:
        exchange = _exchange.get()
        if exchange is None:
            await original(self, data)
            return
        started = clock()
        try:
            exchange.check_client(started)
        except Exception:
            log_failure("checking a client")
        try:
            await original(self, data)
        finally:
            exchange.last_byte(started, _size_of(data))

    return write_eof


# Called only if data is not yet available; clients read through the same class.
def _waiting(stream: Any) -> TimedCall | None:
    exchange = _exchange.get()
    return None if exchange is None or not exchange.reads(stream) else TimedCall(exchange.marks, "network")
