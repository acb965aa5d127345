"""aiohttp client: times outgoing calls as `dependency` and sends `traceparent`.

If the called server reports its times, these times become stages: see [server-reported times](../reported.md).
"""
# `StreamReader._wait` reads all bodies and runs only while no data is available. Request bodies of the aiohttp server use
# it too; they are recognized by their protocol, and the server instrumentation records them.

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any, Final

from ..instrumentor import Hook, Instrumentor, log_failure
from ..records import Marks, clock, current
from .client_common import TRACEPARENT, LineStream, attach_call, call_of, record_read, record_wait, with_traceparent

# Attribute with which a response refers to its `LineStream`, and its connection weakly to the same.
LINES: Final = "_stagelens_lines"


class AiohttpClientInstrumentor(Instrumentor):
    """Instrumentor of `aiohttp.ClientSession` and of the bodies of its responses."""

    library = "aiohttp"
    title = "aiohttp (client)"
    stages = MappingProxyType(
        {
            "dependency": "the time from the call until the response headers, including redirects and the wait for a "
            "connection; and each wait for body data",
        }
    )
    not_timed = ("the messages of a websocket. Stagelens times only the handshake.",)
    tested = MappingProxyType({"aiohttp": "3.14.5"})

    def hooks(self) -> Mapping[str, Hook]:
        """Return the patch functions by module."""
        return {"aiohttp.client": self._session, "aiohttp.client_proto": self._reader}

    def _session(self, module: ModuleType) -> None:
        self.replace(module.ClientSession, "_request", lambda original: _request(original, module.CIMultiDict))
        self.replace(module.ClientResponse, "read", _read)

    def _reader(self, module: ModuleType) -> None:
        self.replace(module.StreamReader, "_wait", lambda original: _wait(original, module.ResponseHandler))
        self.replace(module.StreamReader, "readuntil", _readuntil)


def _request(original: Any, headers_class: Any) -> Any:
    async def _request(self: Any, method: Any, str_or_url: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None:
            return await original(self, method, str_or_url, **options)
        _add_trace(options, headers_class, self, marks, str_or_url)
        started = clock()
        response = None
        try:
            response = await original(self, method, str_or_url, **options)
            return response
        finally:
            record_wait(marks, started)
            # After a redirect the server reports only the last call.
            if response is not None and not getattr(response, "history", ()):
                attach_call(response, response, marks, started)
                _watch(response)

    return _request


def _watch(response: Any) -> None:
    """Let the connection of *response* refer to the stream of its lines for as long as *response* exists."""
    try:
        call = call_of(response)
        if call is not None:
            stream = LineStream(call)
            setattr(response, LINES, stream)
            setattr(response.content._protocol, LINES, weakref.ref(stream))  # noqa: SLF001 - there is no public name for it
    except Exception:
        log_failure("reading the lines of a response")


def _no_stream() -> None:
    """Return None, like a dead weak reference."""


def _add_trace(options: dict[str, Any], headers_class: Any, session: Any, marks: Marks, str_or_url: Any) -> None:
    try:
        if TRACEPARENT not in session.headers:
            # A copy, because an iterable may be readable only once.
            headers = headers_class(options.get("headers") or ())
            options["headers"] = with_traceparent(headers, marks, _host(session, str_or_url))
    except Exception:
        log_failure("propagating a trace")


def _host(session: Any, str_or_url: Any) -> str:
    """Return the called host."""
    try:
        return session._build_url(str_or_url).host or ""  # noqa: SLF001 - there is no public name for it
    except Exception:
        # The library reports an invalid address better.
        return ""


def _read(original: Any) -> Any:
    async def read(self: Any) -> Any:
        call = call_of(self) if getattr(self, "_body", None) is None else None
        body = await original(self)
        if call is not None:
            call.ended = clock()
            call.read(body)
        return body

    return read


def _readuntil(original: Any) -> Any:
    async def readuntil(self: Any, *args: Any, **options: Any) -> Any:
        line = await original(self, *args, **options)
        # Request bodies of the server have no such stream.
        stream = getattr(self._protocol, LINES, _no_stream)()
        if stream is not None:
            if line:
                stream.line(line)
            else:
                stream.end()
        return line

    return readuntil


def _wait(original: Any, of_a_client: type) -> Any:
    async def _wait(self: Any, func_name: str) -> Any:
        marks = current.get()
        if marks is None or not isinstance(self._protocol, of_a_client):
            return await original(self, func_name)
        started = clock()
        try:
            return await original(self, func_name)
        finally:
            record_read(marks, started)

    return _wait
