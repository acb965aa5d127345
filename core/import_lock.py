"""Lock of the imports of our modules while the host runs."""

from __future__ import annotations

import logging  # noqa: F401 # pyright: ignore[reportUnusedImport] - see below
import os
import threading

# A forking thread holds it, too: the child of an unfinished import would wait for a thread that does not exist there. It takes this
# lock first and the lock of `logging`, which our modules need at import, second. Fork handlers run in reverse order of
# registration, so `logging` is imported before.
import_lock = threading.RLock()
os.register_at_fork(before=import_lock.acquire, after_in_parent=import_lock.release, after_in_child=import_lock.release)
