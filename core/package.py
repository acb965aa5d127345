"""Version of the package, and the lock that its lazy imports hold; the root package re-exports both."""

from __future__ import annotations

import logging  # noqa: F401 # pyright: ignore[reportUnusedImport] - see `import_lock`
import os
import threading

__version__ = "0.1.0"

# Held during imports of our modules while the host is running, and by a forking thread: the child of a half-finished import
# would wait for a thread that it does not have. A forking thread takes this lock first and the lock of `logging`, which our
# modules need at import, after it. Fork handlers run in reverse order of registration, so `logging` is imported before.
import_lock = threading.RLock()
os.register_at_fork(before=import_lock.acquire, after_in_parent=import_lock.release, after_in_child=import_lock.release)
