"""aiohttp's client: `dependency`, and `traceparent` on the way out.

A body is waited for in one place, whatever reads it: `StreamReader._wait`, which does not run while data is at hand. The
server's bodies come through there too; they are told by the protocol they come from, and left to the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from ..imports import Hook
from ..instrumentor import Instrumentor, report
from ..recorder import Marks, clock, current
from .outgoing import TRACEPARENT, carrying, read, waited


class AiohttpClientInstrumentor(Instrumentor):
    """`aiohttp.ClientSession` and the bodies it receives."""

    library = "aiohttp"
    title = "aiohttp (client)"
    stages = MappingProxyType(
        {
            "dependency": "a call until its headers: the wait for a connection and redirects included; "
            "and each wait for a part of the body"
        }
    )
    not_timed = ("messages of a websocket; opening it is timed",)
    tested = MappingProxyType({"aiohttp": "3.14.5"})

    def hooks(self) -> Mapping[str, Hook]:
        """Return what to patch where."""
        return {"aiohttp.client": self._session, "aiohttp.client_proto": self._reader}

    def _session(self, module: ModuleType) -> None:
        self.replace(module.ClientSession, "_request", lambda original: _request(original, module.CIMultiDict))

    def _reader(self, module: ModuleType) -> None:
        self.replace(module.StreamReader, "_wait", lambda original: _wait(original, module.ResponseHandler))


def _request(original: Any, headers_class: Any) -> Any:
    async def _request(self: Any, method: Any, str_or_url: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None:
            return await original(self, method, str_or_url, **options)
        _add_trace(options, headers_class, self, marks)
        begun = clock()
        try:
            return await original(self, method, str_or_url, **options)
        finally:
            waited(marks, begun)

    return _request


def _add_trace(options: dict[str, Any], headers_class: Any, session: Any, marks: Marks) -> None:
    try:
        if TRACEPARENT not in session.headers:
            # A copy, also of an iterable that can be read but once.
            options["headers"] = carrying(headers_class(options.get("headers") or ()), marks)
    except Exception:
        report("handing a trace on")


def _wait(original: Any, of_a_client: type) -> Any:
    async def _wait(self: Any, func_name: str) -> Any:
        marks = current.get()
        if marks is None or not isinstance(self._protocol, of_a_client):
            return await original(self, func_name)
        begun = clock()
        try:
            return await original(self, func_name)
        finally:
            read(marks, begun)

    return _wait
