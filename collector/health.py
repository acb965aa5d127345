"""Whether the collector can do its work, and the reason when it cannot: for /livez, /readyz, /metrics and the log."""

from __future__ import annotations

import logging
import threading

_log = logging.getLogger(__name__)


class Health:
    """The parts of the collector that can fail, and what each last said.

    Thread-safe. A change of state is logged once, not each time it is reported.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing: dict[str, str] = {}
        self._threads: list[threading.Thread] = []

    def watch(self, thread: threading.Thread) -> None:
        """Count on *thread*, which was started, to live as long as the collector does."""
        with self._lock:
            self._threads.append(thread)

    @property
    def dead(self) -> list[str]:
        """Which of the threads have ended, one line for each: nothing but a restart helps then."""
        with self._lock:
            ended = [thread.name for thread in self._threads if not thread.is_alive()]
        return [f"the thread {name} has ended; restart the collector, its log says more" for name in ended]

    def failed(self, part: str, reason: str) -> None:
        """Note that *part* cannot do its work, because of *reason*."""
        with self._lock:
            news = part not in self._failing
            self._failing[part] = reason
        if news:
            _log.error("%s failed: %s", part, reason)

    def succeeded(self, part: str) -> None:
        """Note that *part* has just done its work."""
        with self._lock:
            news = self._failing.pop(part, None) is not None
        if news:
            _log.warning("%s works again", part)

    @property
    def reasons(self) -> list[str]:
        """What fails now, one line for each part; empty when all is well."""
        with self._lock:
            return [f"{part} failed: {reason}" for part, reason in self._failing.items()]

    @property
    def failing(self) -> dict[str, str]:
        """What fails now, and why."""
        with self._lock:
            return dict(self._failing)

    def is_failing(self, part: str) -> bool:
        """Say whether *part* failed when it last tried."""
        with self._lock:
            return part in self._failing
