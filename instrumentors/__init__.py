"""Inside the user's process: what times a request, and what carries the times to the collector.

This package loads nothing of itself when it is loaded: `stagelens run` puts it into every Python process of a command, and most
of them serve no request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import importing

if TYPE_CHECKING:
    from .manual import request, stage
    from .registry import instrument
    from .tickets import batch, ticket

__all__ = ["batch", "instrument", "request", "stage", "ticket"]

_HOME = {"batch": "tickets", "instrument": "registry", "request": "manual", "stage": "manual", "ticket": "tickets"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        with importing:
            from importlib import import_module  # noqa: PLC0415 - see the module's docstring

            found = getattr(import_module(f".{_HOME[name]}", __name__), name)
        # Kept, so that `stagelens.stage(…)` on a request's path does not come here again.
        globals()[name] = found
        return found
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
