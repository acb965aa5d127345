"""Stagelens: where did the time go, and why is p99 not p50?

Importing this package loads one small module of it; the names below are loaded on first use (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .core.package import __version__ as __version__
from .core.package import import_lock

if TYPE_CHECKING:
    from .instrumentors import batch, instrument, request, stage, ticket

__all__ = ["batch", "instrument", "request", "stage", "ticket"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        with import_lock:
            from . import instrumentors  # noqa: PLC0415 - see the module docstring

            # Stored as a plain attribute, because `stagelens.stage` is used on request paths.
            found = globals()[name] = getattr(instrumentors, name)
        return found
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
