"""requests: `dependency` for a call as its caller sees it.

urllib3 does the work, and its instrumentor tells headers from body and sends `traceparent`, inside this interval. What
is added here is the rest of a call: redirects, authentication, hooks, and adapters that do not use urllib3.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from ..imports import Hook
from ..instrumentor import Instrumentor, timed
from .outgoing import DEPENDENCY


class RequestsInstrumentor(Instrumentor):
    """`requests.Session`."""

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
        """Return what to patch where."""
        return {"requests.sessions": self._sessions}

    def _sessions(self, module: ModuleType) -> None:
        # `resolve_redirects` calls it for each further hop: intervals inside this one.
        self.replace(module.Session, "send", timed(DEPENDENCY))
