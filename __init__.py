"""Stagelens: where did the time go, and why is p99 not p50?

This module imports nothing when it is loaded; the three names a user needs come on first use (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .instrumentors import instrument, request, stage

__all__ = ["instrument", "request", "stage"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import instrumentors  # noqa: PLC0415 - see the module's docstring

        # Found once, it is a plain attribute: `stagelens.stage` stands on request paths.
        found = globals()[name] = getattr(instrumentors, name)
        return found
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
