"""What happens to one HTTP request of an aiohttp server; `aiohttp_server.py` says when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from ..instrumentor import report
from ..recorder import finish
from ..records import MAX_MARKS, Marks, clock
from .server_common import FAILED, UNMATCHED, describe, proxy_wait_ns
from .stream import Stream

Handler: TypeAlias = Callable[[Any], Awaitable[Any]]


class Exchange:
    """What happens to one request; finishes the record exactly once.

    Args:
        request: It.
        handler: What aiohttp calls with it.
        marks: Its record.
    """

    __slots__ = ("_ended", "_error_type", "_handler", "_request", "_start", "_stream", "_streamed", "marks")

    def __init__(self, request: Any, handler: Handler, marks: Marks) -> None:
        self.marks = marks
        self._request = request
        self._handler = handler
        self._ended = 0
        self._error_type = ""
        self._stream: Stream | None = None
        self._streamed: Any = None
        headers = request.headers
        self._start = describe(
            marks,
            request.method,
            headers.get("traceparent", ""),
            headers.get("X-Force-Trace", ""),
            proxy_wait_ns(headers.get("X-Request-Start", "")),
        )

    async def handle(self, request: Any) -> Any:
        """Call the handler; aiohttp answers for one that raises."""
        try:
            return await self._handler(request)
        except BaseException as error:
            self._error_type = type(error).__qualname__
            raise

    def reads(self, stream: Any) -> bool:
        """Say whether *stream* is the body of this request, and not of one that the handler sends."""
        return stream is self._request.content

    def hand_over(self, response: Any, size: int) -> None:
        """Note that *response* gets a part of *size* bytes to send."""
        self._streamed = response
        if not size:
            return
        if self._stream is None:
            self._stream = Stream(clock())
        else:
            self._stream.add(clock())

    def mark_network(self, begun: int, ended: int) -> None:
        """Note that the connection was waited for."""
        if len(self.marks) < MAX_MARKS:
            self.marks.extend(("network", begun, ended))

    def last_byte(self, begun: int) -> None:
        """Note that all is written, the last part since *begun*."""
        self._ended = clock()
        self.mark_network(begun, self._ended)

    def finish(self, response: Any) -> None:
        """Finish the record: *response* was sent, or, if None, none to its end."""
        ended = self._ended or clock()
        route, error_type, status = UNMATCHED, self._error_type, FAILED
        try:
            route = self._template()
            error_type, status = self._outcome(response)
            if self._stream is not None and "Content-Length" not in self._streamed.headers:
                self.marks.extend(self._stream.facts())
        except Exception:
            report("describing a request")
        finish(self.marks, self._start, ended, route, error_type, status)

    def _outcome(self, response: Any) -> tuple[str, int]:
        if response is not None:
            # A handler may raise its answer, such as "not found".
            return self._error_type if response.status >= FAILED else "", response.status
        cancelled = self._error_type == "CancelledError"
        status = 0 if self._streamed is None else self._streamed.status
        if self._request.transport is None:
            # The client has gone: nothing failed here.
            return self._error_type if cancelled else "", status
        return self._error_type, status or FAILED

    def _template(self) -> str:
        match = getattr(self._request, "_match_info", None)
        resource = None if match is None else match.route.resource
        return UNMATCHED if resource is None else resource.canonical
