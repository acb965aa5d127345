"""Stagelens: where did the time go, and why is p99 not p50?

This module imports nothing of ours when it is loaded; the names a user needs come on first use (PEP 562).
"""

from __future__ import annotations

import logging  # noqa: F401 # pyright: ignore[reportUnusedImport] - see `importing`
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .instrumentors import batch, instrument, request, stage, ticket

__all__ = ["batch", "instrument", "request", "stage", "ticket"]
__version__ = "0.1.0"

# Held where we load modules of ours while the host is running, and by whoever forks: a child of a half done import would
# wait for a thread that it does not have. Who forks waits for us first and takes logging's lock then, which our modules
# need when they are loaded: what was registered last is called first, so logging has to be there already.
importing = threading.RLock()
os.register_at_fork(before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release)


def __getattr__(name: str) -> Any:
    if name in __all__:
        with importing:
            from . import instrumentors  # noqa: PLC0415 - see the module's docstring

            # Found once, it is a plain attribute: `stagelens.stage` stands on request paths.
            found = globals()[name] = getattr(instrumentors, name)
        return found
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
