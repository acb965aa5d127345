"""httpx: times sync and async calls as `dependency` and sends `traceparent`.

- Stagelens times the calls of all transports, including custom transports.
- Each redirect and each authentication step is a separate HTTP request of the same call, and sends its own `traceparent`.
- If the called server reports its times, these times become stages: see [server-reported times](../reported.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from types import MappingProxyType, ModuleType
from typing import Any

from ..instrumentor import Hook, Instrumentor, log_failure, timed
from ..records import Marks, clock, current
from .client_common import (
    DEPENDENCY,
    RespondedCall,
    attach_call,
    call_of,
    note_lines,
    note_lines_async,
    record_read,
    with_traceparent,
)
from .server_common import relayed


class HttpxInstrumentor(Instrumentor):
    """Instrumentor of `httpx.Client` and `httpx.AsyncClient`, also of httpx2."""

    library = "httpx"
    title = "httpx"
    stages = MappingProxyType(
        {
            "dependency": "the time from the call until the response headers, with redirects and authentication; and "
            "each read of the body. Without streaming, the call includes these reads.",
        }
    )
    not_timed = (
        "the creation of a client. It takes about 20 ms, because the client loads certificates. `httpx.get` creates a client for each call. To save this time, reuse one client.",
    )
    tested = MappingProxyType({"httpx": "0.28.1", "httpx2": "2.16.2"})

    def hooks(self) -> Mapping[str, Hook]:
        """Return the patch functions by module."""
        return {"httpx._client": self._client, "httpx2._client": self._client}

    def _client(self, module: ModuleType) -> None:
        self.replace(module.Client, "send", timed(DEPENDENCY))
        self.replace(module.Client, "_send_single_request", _send_single_request)
        self.replace(module.BoundSyncStream, "__iter__", _iter)
        self.replace(module.AsyncClient, "send", timed(DEPENDENCY))
        self.replace(module.AsyncClient, "_send_single_request", _send_single_request_async)
        self.replace(module.BoundAsyncStream, "__aiter__", _iter)
        self.replace(module.Response, "read", _read)
        self.replace(module.Response, "iter_lines", _iter_lines)
        self.replace(module.Response, "aread", _aread)
        self.replace(module.Response, "aiter_lines", _aiter_lines)


def _send_single_request(original: Any) -> Any:
    def _send_single_request(self: Any, request: Any) -> Any:
        marks = current.get()
        if marks is None:
            return original(self, request)
        sent = _with_trace(request, marks)
        started = clock()
        try:
            response = original(self, sent)
        except Exception as error:
            _give_back(error, sent, request)
            raise
        attach_call(_stream_of(response), response, marks, started)
        _give_back(response, sent, request)
        return response

    return _send_single_request


def _send_single_request_async(original: Any) -> Any:
    async def _send_single_request(self: Any, request: Any) -> Any:
        marks = current.get()
        if marks is None:
            return await original(self, request)
        sent = _with_trace(request, marks)
        started = clock()
        try:
            response = await original(self, sent)
        except Exception as error:
            _give_back(error, sent, request)
            raise
        attach_call(_stream_of(response), response, marks, started)
        _give_back(response, sent, request)
        return response

    return _send_single_request


def _with_trace(request: Any, marks: Marks) -> Any:
    """Return a copy of *request* with `traceparent`, because the user may send *request* again or concurrently."""
    headers = with_traceparent(request.headers, marks, request.url.host)
    if headers is request.headers:
        return request
    try:
        # Not by `copy`, which omits the body and the extensions for the transport.
        twin: Any = object.__new__(type(request))
        vars(twin).update(vars(request))
        twin.headers = headers
    except Exception:
        log_failure("propagating a trace")
        return request
    return twin


def _give_back(outcome: Any, sent: Any, request: Any) -> None:
    """Copy the state of the *sent* copy to the user's *request*, and let *outcome* refer to *request*."""
    if sent is request:
        return
    try:
        vars(request).update(vars(sent) | {"headers": request.headers})
        if getattr(outcome, "_request", None) is sent:
            outcome.request = request
    except Exception:
        log_failure("propagating a trace")


def _stream_of(response: Any) -> Any:
    # The stream refers to the call, not the response, because pickling a response would include the call.
    return getattr(response, "stream", None)


def _read(original: Any) -> Any:
    def read(self: Any) -> Any:
        body, call = original(self), call_of(_stream_of(self))
        if call is not None:
            call.read(body)
        return body

    return read


def _aread(original: Any) -> Any:
    async def aread(self: Any) -> Any:
        body, call = await original(self), call_of(_stream_of(self))
        if call is not None:
            call.read(body)
        return body

    return aread


def _iter_lines(original: Any) -> Any:
    def iter_lines(self: Any) -> Any:
        lines, call = original(self), call_of(_stream_of(self))
        yield from lines if call is None else note_lines(lines, call)

    return iter_lines


def _aiter_lines(original: Any) -> Any:
    async def aiter_lines(self: Any) -> Any:
        lines, call = original(self), call_of(_stream_of(self))
        async with aclosing(lines if call is None else note_lines_async(lines, call)) as passing:
            async for line in passing:
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
