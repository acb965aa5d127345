"""requests: times each complete call as `dependency`, including redirects.

The [urllib3](urllib3.md) module times headers and body separately, and sends `traceparent`.
If the called server reports its times, these times become stages: see [server-reported times](../reported.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from ..instrumentor import Hook, Instrumentor, timed
from .client_common import DEPENDENCY, RespondedCall, body_probe, call_of, noted_lines


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
        return {"requests.sessions": self._sessions, "requests.models": self._models}

    def _sessions(self, module: ModuleType) -> None:
        # `resolve_redirects` calls this method for each further hop: those intervals lie inside this one.
        self.replace(module.Session, "send", timed(DEPENDENCY))

    def _models(self, module: ModuleType) -> None:
        self.replace(module.Response, "content", body_probe(_call_of))
        self.replace(module.Response, "iter_lines", _iter_lines)


def _call_of(response: Any) -> RespondedCall | None:
    return call_of(getattr(response, "raw", None))


def _iter_lines(original: Any) -> Any:
    def iter_lines(self: Any, *args: Any, **options: Any) -> Any:
        return noted_lines(original(self, *args, **options), _call_of(self))

    return iter_lines
