"""requests: times each complete call as `dependency`, including redirects.

The [urllib3](urllib3.md) module times headers and body separately, and sends `traceparent`.
If the called server reports its times, these times become stages: see [server-reported times](../reported.md).
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
        {
            "dependency": "the call with its redirects, authentication, hooks and body. With `stream=True`, only [urllib3](urllib3.md) times the body.",
        }
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
