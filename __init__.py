"""Stagelens: latency of inference requests by stage, and the reasons why p99 differs from p50.

Importing this package loads none of its modules; the names below are loaded on first use (PEP 562).
"""

from __future__ import annotations

import logging  # noqa: F401 # pyright: ignore[reportUnusedImport] - see `import_lock`
import os
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .instrumentors import attribute, batch, flush, instrument, request, stage, ticket

__all__ = ["attribute", "batch", "flush", "instrument", "request", "stage", "ticket"]
__version__ = "0.2.0"

# Held during imports of our modules while the host is running, and by a forking thread: the child of an unfinished import
# would wait for a thread that does not exist there. A forking thread takes this lock first and the lock of `logging`, which our
# modules need at import, second. Fork handlers run in reverse order of registration, so `logging` is imported before.
import_lock = threading.RLock()
os.register_at_fork(before=import_lock.acquire, after_in_parent=import_lock.release, after_in_child=import_lock.release)


def __getattr__(name: str) -> Any:
    if name in __all__:
        with import_lock:
            # Stored as a plain attribute, because `stagelens.stage` is used on request paths.
            found = globals()[name] = getattr(import_module(".instrumentors", __name__), name)
        return found
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
