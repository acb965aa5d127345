"""One HTTP request as a WSGI application sees it: from the call to the last part of the body.

WSGI has no hook for sending: what passes between two parts of the body is the server writing the first to the client,
and `network`. Reading the body through `wsgi.input` is `network` too. Both pass unread, and so do header values but for
the three of `head.py`.

The application's code runs also while its body is iterated (a generator), in whatever thread or context the server does
that: the request is in the context during each step and never in between.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextvars import Token
from typing import Any, TypeAlias

from ..instrumentor import report
from ..recorder import begin, end
from ..records import MAX_MARKS, Marks, clock, current
from .wsgi_exchange import Environ, Exchange, StartResponse

Application: TypeAlias = Callable[[Any, Environ, StartResponse], Iterable[bytes]]

# Where the exchange lies in the environment, for those who learn the route; with a dot, as what is no CGI variable.
KEY = "stagelens.exchange"

READS = frozenset({"read", "read1", "readinto", "readinto1", "readline", "readlines"})


class Body:
    """The body of a response, part by part inside its request; all else about it is the application's own.

    Args:
        body: What the application returned.
        exchange: Its request.
    """

    __slots__ = ("_body", "_exchange", "_parts")

    def __init__(self, body: Any, exchange: Exchange) -> None:
        self._body = body
        self._exchange = exchange
        self._parts: Iterator[bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        exchange = self._exchange
        exchange.wrote(clock())
        token = current.set(exchange.marks)
        try:
            if self._parts is None:
                self._parts = iter(self._body)
            part = next(self._parts)
        except StopIteration:
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
            report("timing a response")
        return part

    def close(self) -> None:
        """Close the application's body; one that was not read to its end belongs to the request until here."""
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
    """A body of so many parts: a server that is told "one" announces its length."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._body)


class Input:
    """`wsgi.input`, whose reading is `network`.

    Args:
        stream: The server's.
        marks: The request's record.
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
    begun = clock()
    try:
        return read(*arguments, **options)
    finally:
        if len(marks) < MAX_MARKS:
            marks.extend(("network", begun, clock()))


def serve(application: Application, app: Any, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Run `application(app, environ, start_response)`; a request is recorded, anything else only runs.

    Anything else is a websocket, and the inner applications of a request that is already recorded.
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
        # Servers keep the environment in what `start_response` belongs to: a circle, left to the garbage collector.
        environ.pop(KEY, None)
    try:
        return _wrapped(body, environ, exchange)
    except Exception:
        report("timing a response")
        exchange.finish("")
        return body


def _open(environ: Environ, start_response: StartResponse) -> tuple[Exchange, Token[Marks | None]] | None:
    if environ.get("HTTP_UPGRADE", "").lower() == "websocket":
        return None
    opened = begin()
    if opened is None:
        return None
    marks, token = opened
    try:
        exchange = environ[KEY] = Exchange(environ, start_response, marks)
        if environ.get("CONTENT_LENGTH", "0") not in {"", "0"} or "HTTP_TRANSFER_ENCODING" in environ:
            environ["wsgi.input"] = Input(environ["wsgi.input"], marks)
    except Exception:
        end(token)
        report("timing a request")
        return None
    return exchange, token


def _wrapped(body: Any, environ: Environ, exchange: Exchange) -> Any:
    file_wrapper = environ.get("wsgi.file_wrapper")
    if isinstance(file_wrapper, type) and isinstance(body, file_wrapper):
        return _file(body, exchange)
    return SizedBody(body, exchange) if hasattr(type(body), "__len__") else Body(body, exchange)


def _file(body: Any, exchange: Exchange) -> Any:
    """Return the server's own file wrapper, which it sends without iterating it; closing it ends the request."""
    exchange.hand_over(0)
    try:
        body.close = functools.partial(_close, getattr(body, "close", None), exchange)
    except AttributeError:
        # Of an extension type: how long it takes to send is not seen.
        exchange.finish("")
    return body


def _close(original: Callable[[], Any] | None, exchange: Exchange) -> None:
    exchange.finish("")
    if original is not None:
        original()
