"""Inside the user's process: what times a request, and what carries the times to the collector.

This package imports nothing when it is loaded: `stagelens run` puts it into every Python process of a command, and most
of them serve no request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .manual import request, stage
    from .registry import instrument

__all__ = ["instrument", "request", "stage"]

_HOME = {"instrument": "registry", "request": "manual", "stage": "manual"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module  # noqa: PLC0415 - see the module's docstring

        found = getattr(import_module(f".{_HOME[name]}", __name__), name)
        # Kept, so that `stagelens.stage(…)` on a request's path does not come here again.
        globals()[name] = found
        return found
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
