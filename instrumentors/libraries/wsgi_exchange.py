"""What happens to one HTTP request of a WSGI application; `wsgi.py` says when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from contextvars import ContextVar
from typing import Any, TypeAlias

from ..instrumentor import report
from ..recorder import finish
from ..records import MAX_MARKS, Marks, clock
from .server_common import FAILED, UNMATCHED, describe, proxy_wait_ns
from .stream import MIN_CHUNK_NS, Stream

Environ: TypeAlias = MutableMapping[str, Any]
StartResponse: TypeAlias = Callable[..., Any]

# How long the request that comes next in this context has waited for its thread, where the server tells. [nanoseconds]
waited_ns: ContextVar[int] = ContextVar("stagelens_waited", default=0)


class Exchange:
    """What happens to one request; finishes the record exactly once.

    Args:
        environ: The WSGI environment.
        start_response: The server's.
        marks: The request's record.
    """

    __slots__ = (
        "_headers",
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
        # The class of an exception that the framework has answered itself.
        self.error_type = ""
        self._start_response = start_response
        self._status = 0
        self._headers: Iterable[tuple[str, str]] = ()
        self._stream: Stream | None = None
        # Since when the server has been writing, 0 while it is not.
        self._written = 0
        self._start = describe(
            marks,
            environ.get("REQUEST_METHOD", ""),
            environ.get("HTTP_TRACEPARENT", ""),
            environ.get("HTTP_X_FORCE_TRACE", ""),
            # The proxy's clock runs on while the server lets the request wait.
            max(proxy_wait_ns(environ.get("HTTP_X_REQUEST_START", "")), _waited_here()),
        )

    def name(self, template: str) -> None:
        """Take the route's template."""
        self.route = template

    def start_response(self, status: str, headers: Any, *exc_info: Any) -> Any:
        """Start the response for the application."""
        try:
            self._status, self._headers = int(status[:3]), headers
        except Exception:
            report("reading a status")
        return self._start_response(status, headers, *exc_info)

    def wrote(self, now: int) -> None:
        """Note that the server has written what it was given, and wants more or is done."""
        begun, self._written = self._written, 0
        if begun and now - begun > MIN_CHUNK_NS and len(self.marks) < MAX_MARKS:
            self.marks.extend(("network", begun, now))

    def hand_over(self, size: int) -> None:
        """Note that the server was given a part of *size* bytes."""
        self._written = now = clock()
        if not size:
            return
        if self._stream is None:
            self._stream = Stream(now)
        else:
            self._stream.add(now)

    def finish(self, error_type: str) -> None:
        """Finish the record, if it is not yet."""
        if self.finished:
            return
        self.finished = True
        ended = clock()
        try:
            self.wrote(ended)
            self.marks.extend(self._stream_facts())
        except Exception:
            report("describing a request")
        # The server answers for an application that does not.
        status = self._status or FAILED
        finish(self.marks, self._start, ended, self.route, error_type or self._answered(status), status)

    def _answered(self, status: int) -> str:
        return self.error_type if status >= FAILED else ""

    def _stream_facts(self) -> Marks:
        if self._stream is None or any(name.lower() == "content-length" for name, _ in self._headers):
            return []
        return self._stream.facts()


def _waited_here() -> int:
    waited = waited_ns.get()
    if waited:
        # Not the next request's, which shares the connection and its thread.
        waited_ns.set(0)
    return waited
