"""A thread that takes one step after the other, rests in between, and outlives whatever goes wrong in a step."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

_log = logging.getLogger(__name__)

# How long to leave what failed alone. [seconds]
RETRY_SECONDS = 2.0


class PeriodicThread(ABC):
    """One thread, one duty.

    Args:
        name: What it does, and for whom; the thread is called so, too.
        gap_seconds: The least time between two steps, news or not. [seconds]
        rest_seconds: How long to rest before the first step. [seconds]

    Attributes:
        thread: Lives until it is stopped.
    """

    def __init__(self, name: str, gap_seconds: float = 0.0, *, rest_seconds: float = 0.0) -> None:
        self._gap_seconds, self._rest_seconds = gap_seconds, rest_seconds
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"stagelens-{name}", daemon=True)

    @abstractmethod
    def step(self) -> float:
        """Do what is due, and return how long to wait before the next step, in seconds; what it raises goes to `failed`."""

    def failed(self, error: Exception) -> float:
        """Tell of *error*, which a step raised and is being handled, and return how long to wait, in seconds."""
        _log.exception("%s failed in a way nobody thought of: %s", self.thread.name, type(error).__name__)
        return RETRY_SECONDS

    @property
    def is_stopping(self) -> bool:
        """Whether no further step will be taken."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Start to take steps."""
        self.thread.start()

    def wake(self) -> None:
        """Say that there is something new to do."""
        self._awake.set()

    def stop(self) -> None:
        """Finish the step that is being taken, then stop; without `start` it does nothing."""
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
        """Wait; news ends the wait, but never the gap."""
        gap = min(seconds, self._gap_seconds)
        if gap:
            self._stopping.wait(gap)
        if seconds > gap and not self._stopping.is_set():
            self._awake.wait(seconds - gap)
        self._awake.clear()
