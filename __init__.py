"""Stagelens: latency of inference requests by stage, and the reasons why p99 differs from p50.

The names below are loaded on first use (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.import_lock import import_lock
from .core.version import __version__

if TYPE_CHECKING:
    from .instrumentors import attribute, batch, flush, instrument, request, stage, ticket

__all__ = ["__version__", "attribute", "batch", "flush", "instrument", "request", "stage", "ticket"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        with import_lock:
            # Stored as a plain attribute, because `stagelens.stage` is used on request paths.
            found = globals()[name] = getattr(import_module(".instrumentors", __name__), name)
        return found
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
