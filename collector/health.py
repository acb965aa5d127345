"""Health of the parts of the collector, for /livez and /readyz."""

from __future__ import annotations

import logging
import threading

_log = logging.getLogger(__name__)


class Health:
    """Failing parts and ended threads. Thread-safe; each change of state is logged once, not with every report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing: dict[str, str] = {}
        self._threads: list[threading.Thread] = []

    def watch(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads.append(thread)

    @property
    def dead(self) -> list[str]:
        """Threads that have ended, one line for each; the collector then needs a restart."""
        with self._lock:
            ended = [thread.name for thread in self._threads if not thread.is_alive()]
        return [f"the thread {name} has stopped; see the log and restart the collector" for name in ended]

    def failed(self, part: str, reason: str) -> None:
        with self._lock:
            news = part not in self._failing
            self._failing[part] = reason
        if news:
            _log.error("%s failed: %s", part, reason)

    def succeeded(self, part: str) -> None:
        with self._lock:
            news = self._failing.pop(part, None) is not None
        if news:
            _log.warning("%s works again", part)

    @property
    def reasons(self) -> list[str]:
        with self._lock:
            return [f"{part} failed: {reason}" for part, reason in self._failing.items()]

    @property
    def failing(self) -> dict[str, str]:
        with self._lock:
            return dict(self._failing)

    def is_failing(self, part: str) -> bool:
        with self._lock:
            return part in self._failing
