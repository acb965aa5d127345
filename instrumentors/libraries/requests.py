"""requests: `dependency` for a complete call, including redirects.

requests uses urllib3, whose instrumentation separates headers from body and sends `traceparent`, inside this interval.
This module adds the rest of a call: redirects, authentication, hooks, and adapters without urllib3; and the times that
a model server reports in a body or in its lines: [reported.md](../reported.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from ..instrumentor import Hook, Instrumentor, timed
from .client_common import DEPENDENCY, call_of, note_lines


class RequestsInstrumentor(Instrumentor):
    """Instrumentor of `requests.Session`."""

    library = "requests"
    title = "requests"
    stages = MappingProxyType(
        {"dependency": "a call with its redirects, authentication and hooks; without `stream=True` also its body"}
    )
    not_timed = (
        "a body read after `stream=True`, and `traceparent`: both belong to urllib3, whose instrumentor adds them",
    )
    tested = MappingProxyType({"requests": "2.34.2"})

    def hooks(self) -> Mapping[str, Hook]:
        """Return the patch functions by module."""
        return {"requests.sessions": self._sessions, "requests.models": self._models}

    def _sessions(self, module: ModuleType) -> None:
        # `resolve_redirects` calls this method for each further hop: those intervals lie inside this one.
        self.replace(module.Session, "send", timed(DEPENDENCY))

    def _models(self, module: ModuleType) -> None:
        self.replace(module.Response, "content", _content)
        self.replace(module.Response, "iter_lines", _iter_lines)


def _content(original: Any) -> Any:
    def content(self: Any) -> Any:
        body, call = original(self), call_of(getattr(self, "raw", None))
        if call is not None:
            call.read(body)
        return body

    return content


def _iter_lines(original: Any) -> Any:
    def iter_lines(self: Any, *args: Any, **options: Any) -> Any:
        lines, call = original(self, *args, **options), call_of(getattr(self, "raw", None))
        yield from lines if call is None else note_lines(lines, call)

    return iter_lines
