"""Recording of the HTTP requests of any WSGI application, from the call to the last part of the body.

WSGI has no hook for sending: the time between two parts of the body is the server writing the first one to the client,
and is `network`. Reading the body through `wsgi.input` is `network` too. Both are passed on unread, and so are headers
except those of `server_common`.

The application's code also runs while its body is iterated (a generator), in whatever thread or context the server
uses: the request is in the context during each step and never in between.

Servers and middlewares get the very body of the application, whose type they may depend on; only a generator is replaced, by
one with its name. The methods of a framework's class of bodies are patched (`step`, `close`) and find the request by the body.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, MutableMapping
from contextvars import ContextVar, Token
from types import GeneratorType
from typing import Any, TypeAlias

from ...core.stages import FRAMEWORK, HANDLER
from .. import named_attributes
from ..instrumentor import log_failure
from ..recorder import abandon, begin, end
from ..records import ROUTE, START, Marks, clock, current, has_capacity
from .proxy_waits import UNIX_PEER, socket_peer, trusted_wait_ns
from .server_common import (
    COMPLETE,
    FAILED,
    MIN_CHECK_NS,
    MIN_CHUNK_NS,
    Exchange,
    called_like,
    has_hung_up,
    named_like,
    readable,
    record_request_head,
    route_of,
    stand_in,
    unmatched_route,
)
from .streams import ResponseStream

Environ: TypeAlias = MutableMapping[str, Any]
StartResponse: TypeAlias = Callable[..., Any]

# Wait for a thread of the next request in this context, if the server reports it. [nanoseconds]
waited_ns: ContextVar[int] = ContextVar("stagelens_waited", default=0)
# Key of the exchange in the environment, through which wrappers set the route; the dot marks it as no CGI variable.
KEY = "stagelens.exchange"
READS = frozenset({"__next__", "read", "read1", "readinto", "readinto1", "readline", "readlines"})


class WsgiExchange(Exchange):
    _headers: Iterable[tuple[str, str]] = ()

    def __init__(self, environ: Environ, start_response: StartResponse, marks: Marks, rest: str) -> None:
        self.marks, self.rest = marks, rest
        # What each part reads, which is faster here than the default of the class.
        self.gone = self.finished = False
        self.status = self.size = 0
        self.stream = None
        self.route = ""
        # Start of the current write of the server, 0 for none.
        self._written = 0
        # Id of the body with which the request ends, and of the one that the server got; 0 for none.
        self.ends_with = self.returned = 0
        self._path = environ.get("PATH_INFO")
        self._start_response = start_response
        self._connection = environ.get("gunicorn.socket") or environ.get("werkzeug.socket")
        if self._connection is None:
            self._connection = environ.get("waitress.client_disconnected")
        # Time of the last check of the client.
        self._checked_at = marks[START]
        waited = waited_ns.get()
        if waited:
            # Reset, because the next request shares the connection and its thread.
            waited_ns.set(0)
        method = environ.get("REQUEST_METHOD", "")
        self.start = record_request_head(
            marks,
            method,
            environ.get("HTTP_TRACEPARENT", ""),
            environ.get("HTTP_X_FORCE_TRACE", ""),
            # The wait since the proxy includes the wait for a thread of the server.
            max(trusted_wait_ns(environ.get("HTTP_X_REQUEST_START", ""), lambda: self._peer(environ)), waited),
            environ.get("HTTP_TRACESTATE", ""),
            environ.get("CONTENT_LENGTH", ""),
            environ.get("HTTP_USER_AGENT", "") if method == "GET" else "",
        )
        if named_attributes.sources:
            named_attributes.record_headers(marks, lambda name: environ.get(_variable(name)))

    def _peer(self, environ: Environ) -> object:
        # A middleware may have replaced the address.
        return socket_peer(_socket(self._connection, self._start_response), environ.get("REMOTE_ADDR") or UNIX_PEER)

    def name(self, template: str) -> None:
        self.route = self.marks[ROUTE] = template

    def name_unknown(self, environ: Environ) -> None:
        if self.rest != HANDLER or self.route:
            return
        try:
            # https://bottlepy.org/docs/dev/api.html#bottle.BaseRequest.route
            rule = getattr(environ.get("bottle.route"), "rule", None)
            path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
            self.route = rule or route_of(self.marks, path, self.status)
        except Exception:
            log_failure("naming a route")

    def starting(self) -> StartResponse:
        def start_response(*args: Any, **options: Any) -> Any:
            try:
                status, headers = (*args, *options.values())[:2]
                self.status, self._headers = int(status[:3]), readable(headers)
            except Exception:
                log_failure("reading a status")
            return self._start_response(*args, **options)

        return called_like(start_response, self._start_response)

    def wrote(self, now: int) -> None:
        started, self._written = self._written, 0
        if started and now - started > MIN_CHUNK_NS and has_capacity(self.marks):
            self.marks.extend(("network", started, now))

    def step(self, produce: Callable[[Any], Any], argument: Any, key: int) -> Any:
        started = self.begin_parts()
        error_type: str | None = None
        token = current.set(self.marks)
        try:
            part = produce(argument)
        except BaseException as error:
            error_type = "" if isinstance(error, StopIteration) else type(error).__qualname__
            raise
        finally:
            end(token)
            del token
            self.end_parts(started)
            if error_type is not None and self.returned == key:
                self.finish(error_type)
        if self.returned and self.ends_with == key:
            try:
                self.hand_over(part)
            except Exception:
                log_failure("timing a response")
        return part

    def begin_parts(self) -> int:
        started = clock()
        if self.size < 0:
            # The server has nothing to write yet.
            self._written = self.size = 0
        if self._written:
            self.wrote(started)
        return started

    def end_parts(self, started: int) -> None:
        now = clock()
        if now - started > MIN_CHUNK_NS and has_capacity(self.marks):
            self.marks.extend(("handler", started, now))

    def close(self, close: Callable[[Any], Any], body: Any, key: int) -> None:
        """Close *body* inside the request; this ends the request if it was not read to its end."""
        self.wrote(clock())
        error_type = ""
        token = current.set(self.marks)
        try:
            close(body)
        except BaseException as error:
            error_type = type(error).__qualname__
            raise
        finally:
            end(token)
            del token
            self.closed(key, error_type)

    def closed(self, key: int, error_type: str = "") -> None:
        """Note that the body with id *key* was closed or freed; a middleware may close one before it returns another."""
        _bodies.pop(key, None)
        if key == self.ends_with:
            self.ends_with = 0
            if self.returned:
                # The server did not read it to its end.
                self._check_client(clock())
                self.finish(error_type)

    def _check_client(self, now: int) -> None:
        """Note whether the client has gone before a part is written; it may go when it has the last one."""
        if not self.gone:
            gone = has_hung_up(_socket(self._connection, self._start_response))
            self._checked_at, self.gone = sys.maxsize if gone is None else now, bool(gone)

    def hand_over(self, part: Any) -> None:
        self.hand_over_all(len(part))
        if self.stream is None:
            self.stream = ResponseStream(self._headers)
        self.stream.add(self._written, part)

    def hand_over_all(self, size: int) -> None:
        self._written = now = clock()
        if now - self._checked_at > MIN_CHECK_NS:
            self._check_client(now)
        self.size += size

    def send_unread(self) -> None:
        """Record that a body was passed to the server whose parts may not be seen, such as a file."""
        if not self._written:
            self._written, self.size = clock(), -1
            if self._written - self._checked_at > MIN_CHECK_NS:
                self._check_client(self._written)

    def finish(self, error_type: str) -> None:
        if not self.finished:
            self.ended = clock()
            if self._written:
                self.wrote(self.ended)
            # The server sends an error response for an application that sends none.
            self.status = self.status or FAILED
            self.complete(error_type)

    def template(self) -> str:
        return unmatched_route(self._path)


def _socket(connection: Any, start_response: Any) -> Any:
    owner = getattr(connection, "__self__", None) or getattr(start_response, "__self__", None)
    if connection is not None and hasattr(connection, "fileno"):
        return connection
    # Waitress and gevent; wsgiref and the server of Django; cheroot.
    for path in (("socket",), ("request_handler", "connection"), ("req", "conn", "socket")):
        candidate = functools.reduce(lambda value, name: getattr(value, name, None), path, owner)
        if candidate is not None:
            return candidate
    return None


def _variable(header: str) -> str:
    """Return the variable of the WSGI environment that has *header*.

    >>> _variable("x-tenant"), _variable("content-type")
    ('HTTP_X_TENANT', 'CONTENT_TYPE')
    """
    name = header.upper().replace("-", "_")
    return name if name in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{name}"


Application: TypeAlias = Callable[[Any, Environ, StartResponse], Iterable[bytes]]


# Bodies on their way to the server by id, with their requests.
_bodies: dict[int, tuple[weakref.ref[Any], WsgiExchange]] = {}


def attach(body: Any, exchange: WsgiExchange) -> bool:
    """Let the request end with *body*, at the latest when that is freed; return False if its type has no weak references."""
    key = id(body)
    try:
        reference = weakref.ref(body, lambda _: exchange.closed(key))
    except TypeError:
        return False
    earlier = exchange_of(body)
    _bodies[key], exchange.ends_with = (reference, exchange), key
    if earlier is not None and earlier is not exchange:
        # An application that returns the same object again and again.
        earlier.finish("")
    return True


def exchange_of(body: Any) -> WsgiExchange | None:
    entry = _bodies.get(id(body))
    return None if entry is None or entry[1].finished else entry[1]


def step(original: Any) -> Any:
    def __next__(self: Any) -> Any:  # noqa: N807 - shown in tracebacks
        exchange = exchange_of(self)
        return original(self) if exchange is None else exchange.step(original, self, id(self))

    return __next__


def stepped(parts: Iterator[Any], body: Any) -> Iterator[Any]:
    return map(step(lambda _: next(parts)), itertools.repeat(body))


def close(original: Any) -> Any:
    def close(self: Any) -> None:
        exchange = exchange_of(self)
        if exchange is None:
            original(self)
        else:
            exchange.close(original, self, id(self))

    return close


class _Closing:
    """Owner of a generator that closes it, even if others refer to it."""

    __slots__ = ("parts",)

    def __init__(self, parts: Generator[Any, Any, Any]) -> None:
        self.parts = parts

    def __del__(self) -> None:
        self.parts.close()


def _passing(owner: _Closing, exchange: WsgiExchange) -> Generator[Any, Any, Any]:
    parts = owner.parts
    produce, argument = next, parts
    while True:
        try:
            part = exchange.step(produce, argument, exchange.ends_with)
        except StopIteration as last:
            return last.value
        try:
            sent = yield part
            produce, argument = (next, parts) if sent is None else (parts.send, sent)
        except GeneratorExit:
            exchange.close(GeneratorType.close, parts, exchange.ends_with)
            raise
        except BaseException as error:
            produce, argument = parts.throw, error


def _timed_read(stream: Any, marks: Marks, name: str) -> Any:
    return functools.partial(_read, marks, getattr(stream, name)) if name in READS else None


def _read(marks: Marks, read: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    started = clock()
    try:
        return read(*arguments, **options)
    finally:
        if has_capacity(marks):
            marks.extend(("network", started, clock()))


def served(app: Any) -> Any:
    """Return *app* as its server calls it: its requests count, whatever its framework is."""

    def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        return serve(_call, app, environ, start_response, HANDLER)

    return called_like(application, app)


def _call(app: Any, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    return app(environ, start_response)


def serve(
    application: Application, app: Any, environ: Environ, start_response: StartResponse, rest: str = FRAMEWORK
) -> Iterable[bytes]:
    opened = _open(environ, start_response, rest)
    if opened is None:
        outer = environ.get(KEY)
        if outer is not None and rest == FRAMEWORK:
            outer.rest = rest
        body = application(app, environ, start_response)
        # Its parts and its end are seen here, whatever a middleware around it returns.
        return body if outer is None else _failing_open(_attached_inside, body, environ, outer)
    exchange, token = opened
    try:
        body = application(app, environ, exchange.starting())
    except BaseException as error:
        exchange.name_unknown(environ)
        exchange.finish(type(error).__qualname__)
        raise
    finally:
        end(token)
        # Break the reference cycle of the environment and the object of `start_response`, which only the garbage collector would free.
        environ.pop(KEY, None)
    exchange.name_unknown(environ)
    return _failing_open(_attached, body, environ, exchange)


def _failing_open(attach: Callable[..., Any], body: Any, environ: Environ, exchange: WsgiExchange) -> Any:
    try:
        return attach(body, environ, exchange)
    except Exception:
        log_failure("timing a response")
        exchange.finish("")
        return body


def _attached_inside(body: Any, _: Environ, exchange: WsgiExchange) -> Any:
    attach(body, exchange)
    return body


def _open(
    environ: Environ, start_response: StartResponse, rest: str
) -> tuple[WsgiExchange, Token[Marks | None]] | None:
    if environ.get("HTTP_UPGRADE", "").lower() == "websocket":
        return None
    opened = begin()
    if opened is None:
        return None
    marks, token = opened
    try:
        exchange = environ[KEY] = WsgiExchange(environ, start_response, marks, rest)
        stream = environ.get("wsgi.input")
        has_body = environ.get("CONTENT_LENGTH", "0") not in {"", "0"} or "HTTP_TRANSFER_ENCODING" in environ
        if has_body and stream is not None:
            environ["wsgi.input"] = stand_in(stream, functools.partial(_timed_read, stream, marks))
    except Exception:
        abandon(token)
        log_failure("timing a request")
        return None
    return exchange, token


def _attached(body: Any, environ: Environ, exchange: WsgiExchange) -> Any:
    # Not `isgenerator`, which takes a proxy for what it is around.
    if type(body) is GeneratorType:
        body = named_like(_passing(_Closing(body), exchange), body)
        attach(body, exchange)
    elif type(body) in COMPLETE:
        # Its sending is not seen.
        exchange.hand_over_all(sum(map(len, body)))
        exchange.finish("")
    elif not _attach_file(body, environ, exchange) and not exchange.ends_with:
        exchange.send_unread()
        if not attach(body, exchange):
            exchange.finish("")
    exchange.returned = id(body)
    return body


def _attach_file(body: Any, environ: Environ, exchange: WsgiExchange) -> bool:
    file_wrapper = environ.get("wsgi.file_wrapper")
    if not isinstance(file_wrapper, type) or not issubclass(type(body), file_wrapper):
        return False
    exchange.send_unread()
    try:
        body.close = functools.partial(_close, body.close, exchange)
    except AttributeError:
        # An extension type, or one without such a method.
        return False
    return True


def _close(original: Callable[[], Any], exchange: WsgiExchange) -> None:
    exchange.finish("")
    original()
