"""httpx: times sync and async calls as `dependency` and sends `traceparent`.

- Stagelens times the calls of all transports, including custom transports.
- Each redirect and each authentication step is a separate HTTP request of the same call, and sends its own `traceparent`.
- If the called server reports its times, these times become stages: see [server-reported times](../reported.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from contextlib import aclosing
from typing import Any, Final

from ..instrumentor import Instrumentor, Probed, Target, end, log_failure
from ..probes import Probe
from ..records import Marks, clock, current
from .client_common import (
    HeadersWait,
    RespondedCall,
    attach_call,
    body_probe,
    call_of,
    noted_lines,
    record_read,
    trace_headers,
)
from .server_common import relayed


class HttpxInstrumentor(Instrumentor):
    library = "httpx"
    title = "httpx"
    stages = {
        "dependency": "the time from the call until the response headers, with redirects and authentication; and "
        "each read of the body. Without streaming, the call includes these reads."
    }
    not_timed = (
        "the creation of a client. It takes about 20 ms, because the client loads certificates. `httpx.get` creates a client for each call. To save this time, reuse one client.",
    )
    tested = {"httpx": "0.28.1", "httpx2": "2.16.2"}

    def targets(self) -> Iterable[Target]:
        for module in ("httpx._client", "httpx2._client"):
            yield f"{module}:Client AsyncClient", _CALLS, "send"
            yield f"{module}:Client AsyncClient", _SENDING, "_send_single_request"
            yield f"{module}:BoundSyncStream", _iter, "__iter__"
            yield f"{module}:BoundAsyncStream", _iter, "__aiter__"
            yield f"{module}:Response", body_probe(_call_of), "read aread"
            yield f"{module}:Response", _iter_lines, "iter_lines"
            yield f"{module}:Response", _aiter_lines, "aiter_lines"


def _call(_client: Any, request: Any) -> HeadersWait | None:
    marks = current.get()
    if marks is None:
        return None
    try:
        return HeadersWait(marks, request.url.host)
    except Exception:
        # The library reports an invalid request better.
        return HeadersWait(marks)


_CALLS: Final = Probed.until_end(_call, parameters=2)


class _Sent:
    """A request on its way, which has the headers of the trace until its end."""

    __slots__ = ("_added", "_marks", "_request", "_started")

    def __init__(self, request: Any, marks: Marks) -> None:
        self._request, self._marks = request, marks
        headers = request.headers
        self._added = trace_headers(headers, marks, request.url.host) if isinstance(headers, MutableMapping) else {}
        for name, value in self._added.items():
            headers[name] = value
        self._started = clock()

    def end(self) -> None:
        try:
            headers = self._request.headers
            for name, value in self._added.items():
                # A transport may have set its own.
                if headers.get(name) == value:
                    del headers[name]
        except Exception:
            log_failure("propagating a trace")

    def responded(self, response: Any) -> None:
        attach_call(_stream_of(response), response, self._marks, self._started)


def _send(_client: Any, request: Any) -> _Sent | None:
    marks = current.get()
    try:
        return None if marks is None else _Sent(request, marks)
    except Exception:
        log_failure("propagating a trace")
        return None


def _responded(sent: _Sent | None, response: Any) -> None:
    if sent is not None:
        sent.end()
        sent.responded(response)


_SENDING: Final = Probed(Probe(_send, _responded, end, parameters=2))


def _stream_of(response: Any) -> Any:
    # The stream refers to the call, not the response, because pickling a response would include the call.
    return getattr(response, "stream", None)


def _call_of(response: Any) -> RespondedCall | None:
    return call_of(_stream_of(response))


def _iter_lines(original: Any) -> Any:
    def iter_lines(self: Any) -> Any:
        yield from noted_lines(original(self), _call_of(self))

    return iter_lines


def _aiter_lines(original: Any) -> Any:
    async def aiter_lines(self: Any) -> Any:
        async with aclosing(noted_lines(original(self), _call_of(self))) as lines:
            async for line in lines:
                yield line

    return aiter_lines


def _iter(original: Any) -> Any:
    # Of both kinds of streams: the iterator of either is a generator.
    def iterator(self: Any) -> Any:
        marks, parts = current.get(), original(self)
        return parts if marks is None else relayed(parts, _recorder_of(marks, call_of(self)))

    return iterator


def _recorder_of(marks: Marks, call: RespondedCall | None) -> Callable[[int, Any], None]:
    def read(started: int, _: Any) -> None:
        if started:
            record_read(marks, started)
            if call is not None:
                call.ended = clock()

    return read
