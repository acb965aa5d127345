"""Instrumentation of the user's process: times requests, and exports the times to the collector.

Importing this package loads the request path and connects it to the agent (`bootstrap`). The agent, the public functions and
the instrumented libraries are loaded on first use: most processes of a `stagelens run` serve no request.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core.import_lock import import_lock
from . import bootstrap as bootstrap

if TYPE_CHECKING:
    from .api import attribute, request, stage
    from .bootstrap import instrument
    from .recorder import flush
    from .tickets import batch, ticket

__all__ = ["attribute", "batch", "flush", "instrument", "request", "stage", "ticket"]

_MODULES = {
    "attribute": "api",
    "batch": "tickets",
    "flush": "recorder",
    "instrument": "bootstrap",
    "request": "api",
    "stage": "api",
    "ticket": "tickets",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        with import_lock:
            attribute = getattr(import_module(f".{_MODULES[name]}", __name__), name)
        # Stored as a plain attribute, because `stagelens.stage` is used on request paths.
        globals()[name] = attribute
        return attribute
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
