"""A thread that repeats one step, waits in between, and survives exceptions of a step."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

_log = logging.getLogger(__name__)

# Delay after a failed step. [seconds]
RETRY_SECONDS = 2.0


class PeriodicThread(ABC):
    """A daemon thread that repeats one task until it is stopped.

    Args:
        name: Task, and for whom it runs; part of the thread's name.
        gap_seconds: Minimum time between two steps, also after `wake`. [seconds]
        rest_seconds: Delay before the first step. [seconds]

    Attributes:
        thread: Lives until `stop`.
    """

    def __init__(self, name: str, gap_seconds: float = 0.0, *, rest_seconds: float = 0.0) -> None:
        self._gap_seconds, self._rest_seconds = gap_seconds, rest_seconds
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"stagelens-{name}", daemon=True)

    @abstractmethod
    def step(self) -> float:
        """Do the work that is due, and return the delay before the next step, in seconds; exceptions go to `failed`."""

    def failed(self, error: Exception) -> float:
        """Log *error*, raised by a step and being handled, and return the delay before the next step, in seconds."""
        _log.exception("%s failed in a way nobody thought of: %s", self.thread.name, type(error).__name__)
        return RETRY_SECONDS

    @property
    def is_stopping(self) -> bool:
        """Whether no further step will run."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def wake(self) -> None:
        """End the current wait early: there is new work."""
        self._awake.set()

    def stop(self) -> None:
        """Finish the running step, then stop; does nothing before `start`."""
        self._stopping.set()
        self._awake.set()
        if self.thread.ident is not None:
            self.thread.join()

    def _run(self) -> None:
        self._rest(self._rest_seconds)
        while not self._stopping.is_set():
            try:
                seconds = self.step()
            except Exception as error:  # noqa: BLE001 - nothing must end the thread
                seconds = self.failed(error)
            self._rest(seconds)

    def _rest(self, seconds: float) -> None:
        """Wait; `wake` ends the wait, but never before the minimum gap."""
        gap = min(seconds, self._gap_seconds)
        if gap:
            self._stopping.wait(gap)
        if seconds > gap and not self._stopping.is_set():
            self._awake.wait(seconds - gap)
        self._awake.clear()
