"""Recording of the HTTP requests of any WSGI application, from the call to the last part of the body.

WSGI has no hook for sending: the time between two parts of the body is the server writing the first one to the client,
and is `network`. Reading the body through `wsgi.input` is `network` too. Both are passed on unread, and so are headers
except those of `server_common`.

The application's code also runs while its body is iterated (a generator), in whatever thread or context the server
uses: the request is in the context during each step and never in between.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextvars import ContextVar, Token
from typing import Any, TypeAlias

from .. import named_attributes
from ..instrumentor import log_failure
from ..recorder import abandon, begin, end, finish
from ..records import MAX_MARKS, Marks, clock, current
from .server_common import FAILED, MIN_CHUNK_NS, UNMATCHED, ResponseStream, proxy_wait_ns, record_request_head

Environ: TypeAlias = MutableMapping[str, Any]
StartResponse: TypeAlias = Callable[..., Any]

# Wait for a thread of the next request in this context, if the server reports it. [nanoseconds]
waited_ns: ContextVar[int] = ContextVar("stagelens_waited", default=0)


class WsgiExchange:
    """State of one WSGI request; finishes its record exactly once.

    Args:
        environ: The WSGI environment.
        start_response: Function of the server.
        marks: Marks of the request.
    """

    __slots__ = (
        "_headers",
        "_size",
        "_start",
        "_start_response",
        "_status",
        "_stream",
        "_written",
        "error_type",
        "finished",
        "marks",
        "route",
    )

    def __init__(self, environ: Environ, start_response: StartResponse, marks: Marks) -> None:
        self.marks = marks
        self.finished = False
        self.route = UNMATCHED
        # Class of an exception for which the framework has sent the response.
        self.error_type = ""
        self._start_response = start_response
        self._status = 0
        self._headers: Iterable[tuple[str, str]] = ()
        self._stream: ResponseStream | None = None
        # Size of the response body so far, -1 if the server sends a file. [bytes]
        self._size = 0
        # Start of the current write of the server, 0 for none.
        self._written = 0
        self._start = record_request_head(
            marks,
            environ.get("REQUEST_METHOD", ""),
            environ.get("HTTP_TRACEPARENT", ""),
            environ.get("HTTP_X_FORCE_TRACE", ""),
            # The wait since the proxy includes the wait for a thread of the server.
            max(proxy_wait_ns(environ.get("HTTP_X_REQUEST_START", "")), _waited_here()),
            environ.get("HTTP_TRACESTATE", ""),
            environ.get("CONTENT_LENGTH", ""),
        )
        if named_attributes.sources:
            named_attributes.record_headers(marks, lambda name: environ.get(_variable(name)))

    def name(self, template: str) -> None:
        """Set the route to *template*."""
        self.route = template

    def start_response(self, status: str, headers: Any, *exc_info: Any) -> Any:
        """Start the response for the application."""
        try:
            self._status, self._headers = int(status[:3]), headers
        except Exception:
            log_failure("reading a status")
        return self._start_response(status, headers, *exc_info)

    def wrote(self, now: int) -> None:
        """Record that the server has finished writing the previous part."""
        started, self._written = self._written, 0
        if started and now - started > MIN_CHUNK_NS and len(self.marks) < MAX_MARKS:
            self.marks.extend(("network", started, now))

    def produced(self, started: int) -> None:
        """Record the code that produced a part of the body, since *started*."""
        now = clock()
        if now - started > MIN_CHUNK_NS and len(self.marks) < MAX_MARKS:
            self.marks.extend(("handler", started, now))

    def hand_over(self, size: int) -> None:
        """Record that a part of *size* bytes was passed to the server."""
        self._written = now = clock()
        if not size:
            return
        self._size += size
        if self._stream is None:
            self._stream = ResponseStream(now)
        else:
            self._stream.add(now)

    def send_file(self) -> None:
        """Record that a file was passed to the server, whose size is not known."""
        self._written, self._size = clock(), -1

    def finish(self, error_type: str) -> None:
        """Finish the record of the request; repeated calls have no effect."""
        if self.finished:
            return
        self.finished = True
        ended = clock()
        try:
            self.wrote(ended)
            self.marks.extend(self._stream_facts())
        except Exception:
            log_failure("describing a request")
        self.marks.extend(("framework", self.marks[1], ended, "@response_size", self._size, 0))
        # The server sends an error response for an application that sends none.
        status = self._status or FAILED
        finish(self.marks, self._start, ended, self.route, error_type or self._error_type_of(status), status)

    def _error_type_of(self, status: int) -> str:
        return self.error_type if status >= FAILED else ""

    def _stream_facts(self) -> Marks:
        if self._stream is None or any(name.lower() == "content-length" for name, _ in self._headers):
            return []
        return self._stream.facts()


def _variable(header: str) -> str:
    """Return the variable of the WSGI environment that has *header*.

    >>> _variable("x-tenant"), _variable("content-type")
    ('HTTP_X_TENANT', 'CONTENT_TYPE')
    """
    name = header.upper().replace("-", "_")
    return name if name in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{name}"


def _waited_here() -> int:
    waited = waited_ns.get()
    if waited:
        # Reset, because the next request shares the connection and its thread.
        waited_ns.set(0)
    return waited


Application: TypeAlias = Callable[[Any, Environ, StartResponse], Iterable[bytes]]

# Key of the exchange in the environment, through which wrappers set the route; the dot marks it as no CGI variable.
KEY = "stagelens.exchange"

READS = frozenset({"read", "read1", "readinto", "readinto1", "readline", "readlines"})


class Body:
    """Response body whose parts are produced inside the request; all other attributes are those of the application's body.

    Args:
        body: Return value of the application.
        exchange: State of the request.
    """

    __slots__ = ("_body", "_exchange", "_parts")

    def __init__(self, body: Any, exchange: WsgiExchange) -> None:
        self._body = body
        self._exchange = exchange
        self._parts: Iterator[bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        exchange = self._exchange
        started = clock()
        exchange.wrote(started)
        token = current.set(exchange.marks)
        try:
            if self._parts is None:
                self._parts = iter(self._body)
            part = next(self._parts)
            exchange.produced(started)
        except StopIteration:
            exchange.produced(started)
            exchange.finish("")
            raise
        except BaseException as error:
            exchange.finish(type(error).__qualname__)
            raise
        finally:
            end(token)
        try:
            exchange.hand_over(len(part))
        except Exception:
            log_failure("timing a response")
        return part

    def close(self) -> None:
        """Close the application's body; this ends the request if the body was not read to its end."""
        close = getattr(self._body, "close", None)
        exchange = self._exchange
        if exchange.finished:
            if close is not None:
                close()
            return
        exchange.wrote(clock())
        token = current.set(exchange.marks)
        try:
            if close is not None:
                close()
        except BaseException as error:
            exchange.finish(type(error).__qualname__)
            raise
        finally:
            end(token)
            exchange.finish("")


class SizedBody(Body):
    """A body with a known number of parts, because servers send a Content-Length for a single part."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._body)


class Input:
    """Wrapper of `wsgi.input` that records reads as `network`.

    Args:
        stream: Input stream of the server.
        marks: Marks of the request.
    """

    __slots__ = ("_marks", "_stream")

    def __init__(self, stream: Any, marks: Marks) -> None:
        self._stream = stream
        self._marks = marks

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._stream, name)
        return functools.partial(_read, self._marks, attribute) if name in READS else attribute

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        line = _read(self._marks, self._stream.readline)
        if not line:
            raise StopIteration
        return line


def _read(marks: Marks, read: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    started = clock()
    try:
        return read(*arguments, **options)
    finally:
        if len(marks) < MAX_MARKS:
            marks.extend(("network", started, clock()))


def serve(application: Application, app: Any, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Run `application(app, environ, start_response)` and record it if it is a new request.

    Not recorded are websockets, and inner applications of a request that is already recorded.
    """
    opened = _open(environ, start_response)
    if opened is None:
        return application(app, environ, start_response)
    exchange, token = opened
    try:
        body = application(app, environ, exchange.start_response)
    except BaseException as error:
        exchange.finish(type(error).__qualname__)
        raise
    finally:
        end(token)
        # Break the reference cycle of the environment and the object of `start_response`, which only the garbage collector would free.
        environ.pop(KEY, None)
    try:
        return _wrapped(body, environ, exchange)
    except Exception:
        log_failure("timing a response")
        exchange.finish("")
        return body


def _open(environ: Environ, start_response: StartResponse) -> tuple[WsgiExchange, Token[Marks | None]] | None:
    if environ.get("HTTP_UPGRADE", "").lower() == "websocket":
        return None
    opened = begin()
    if opened is None:
        return None
    marks, token = opened
    try:
        exchange = environ[KEY] = WsgiExchange(environ, start_response, marks)
        if environ.get("CONTENT_LENGTH", "0") not in {"", "0"} or "HTTP_TRANSFER_ENCODING" in environ:
            environ["wsgi.input"] = Input(environ["wsgi.input"], marks)
    except Exception:
        abandon(token)
        log_failure("timing a request")
        return None
    return exchange, token


def _wrapped(body: Any, environ: Environ, exchange: WsgiExchange) -> Any:
    file_wrapper = environ.get("wsgi.file_wrapper")
    if isinstance(file_wrapper, type) and isinstance(body, file_wrapper):
        return _file(body, exchange)
    return SizedBody(body, exchange) if hasattr(type(body), "__len__") else Body(body, exchange)


def _file(body: Any, exchange: WsgiExchange) -> Any:
    """Return the file wrapper of the server, which is sent without iteration; closing it ends the request."""
    exchange.send_file()
    try:
        body.close = functools.partial(_close, getattr(body, "close", None), exchange)
    except AttributeError:
        # An extension type: its sending time cannot be measured.
        exchange.finish("")
    return body


def _close(original: Callable[[], Any] | None, exchange: WsgiExchange) -> None:
    exchange.finish("")
    if original is not None:
        original()
