"""aiohttp client: times outgoing calls as `dependency` and sends `traceparent`.

If the called server reports its times, these times become stages: see [server-reported times](../reported.md).
"""
# `StreamReader._wait` reads all bodies and runs only while no data is available. Request bodies of the aiohttp server use
# it too; they are recognized by their protocol, and the server instrumentation records them.

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from ..instrumentor import Instrumentor, Probed, Target, end, log_failure
from ..probes import Probe
from ..records import Marks, clock, current
from .client_common import LineStream, Read, RespondedCall, attach_call, call_of, record_wait, trace_headers

# By the response. What reads a body only knows its connection, which lives as long as the response.
_lines: WeakKeyDictionary[Any, LineStream] = WeakKeyDictionary()
_by_connection: WeakValueDictionary[int, LineStream] = WeakValueDictionary()


class AiohttpClientInstrumentor(Instrumentor):
    library = "aiohttp"
    title = "aiohttp (client)"
    stages = {
        "dependency": "the time from the call until the response headers, including redirects and the wait for a "
        "connection; and each wait for body data"
    }
    not_timed = ("the messages of a websocket. Stagelens times only the handshake.",)
    tested = {"aiohttp": "3.14.5"}

    def targets(self) -> Iterable[Target]:
        return (
            # Its warnings name the line of its caller. It prepares headers first, before it lets another task run.
            ("aiohttp.client:ClientSession", Probed(Probe(_begin, _answered, end, parameters=3)), "_request"),
            ("aiohttp.client:ClientSession", _prepare_headers, "_prepare_headers"),
            ("aiohttp.client:ClientResponse", Probed(Probe(_unread, _note_body, parameters=1)), "read"),
            ("aiohttp.client_proto:StreamReader", Probed.until_end(_waiting, 1), "_wait"),
            ("aiohttp.client_proto:StreamReader", _readuntil, "readuntil"),
        )


class _StartedCall(threading.local):
    """The call of this thread whose headers are not prepared yet: its marks, its address and itself."""

    call: tuple[Marks, Any, _Call] | None = None


_started_call: Final = _StartedCall()


class _Call:
    __slots__ = ("_marks", "_started", "host")

    def __init__(self, marks: Marks, str_or_url: Any) -> None:
        _started_call.call = marks, str_or_url, self
        self.host = ""
        self._marks: Marks | None = marks
        self._started = clock()

    def end(self) -> None:
        _started_call.call = None
        self.answered(None)

    def answered(self, response: Any) -> None:
        marks, self._marks = self._marks, None
        if marks is None:
            return
        record_wait(marks, self._started, self.host)
        # After a redirect the server reports only the last call.
        if response is not None and not getattr(response, "history", ()):
            attach_call(response, response, marks, self._started)
            _watch(response)


def _begin(_session: Any, _method: Any, str_or_url: Any) -> _Call | None:
    _started_call.call = None
    marks = current.get()
    return None if marks is None else _Call(marks, str_or_url)


def _answered(call: _Call | None, response: Any) -> None:
    if call is not None:
        call.answered(response)


def _prepare_headers(original: Any) -> Any:
    def prepare(self: Any, headers: Any) -> Any:
        prepared = original(self, headers)
        call, _started_call.call = _started_call.call, None
        if call is None:
            return prepared
        marks, str_or_url, started_call = call
        started_call.host = _host(self, str_or_url)
        # A new object for each call.
        prepared.update(trace_headers(prepared, marks, started_call.host))
        return prepared

    return prepare


def _watch(response: Any) -> None:
    try:
        call = call_of(response)
        if call is not None:
            _lines[response] = stream = LineStream(call)
            _by_connection[id(response.content._protocol)] = stream  # noqa: SLF001 - there is no public name for it
    except Exception:
        log_failure("reading the lines of a response")


def _host(session: Any, str_or_url: Any) -> str:
    try:
        return session._build_url(str_or_url).host or ""  # noqa: SLF001 - there is no public name for it
    except Exception:
        # The library reports an invalid address better.
        return ""


def _unread(response: Any) -> RespondedCall | None:
    return call_of(response) if getattr(response, "_body", None) is None else None


def _note_body(call: RespondedCall | None, body: Any) -> None:
    if call is not None:
        call.ended = clock()
        call.read(body)


def _readuntil(original: Any) -> Any:
    async def readuntil(self: Any, *args: Any, **options: Any) -> Any:
        line = await original(self, *args, **options)
        # Request bodies of the server have no such stream.
        stream = _by_connection.get(id(self._protocol))
        if stream is not None:
            if line:
                stream.line(line)
            else:
                stream.end()
        return line

    return readuntil


def _waiting(reader: Any) -> Read | None:
    marks = current.get()
    if marks is None or not isinstance(reader._protocol, sys.modules["aiohttp.client_proto"].ResponseHandler):  # noqa: SLF001 - there is no public name for it
        return None
    return Read(marks)
