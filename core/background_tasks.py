"""Background thread that repeats one step, and survives its exceptions; and the signals that stop a process."""

from __future__ import annotations

import logging
import signal
import threading
from abc import ABC, abstractmethod
from types import FrameType

_log = logging.getLogger(__name__)

# Delay after a failed step. [seconds]
RETRY_SECONDS = 2.0


class PeriodicThread(ABC):
    """A daemon thread that repeats one task until it is stopped: first after *rest_seconds*, then not before *gap_seconds*."""

    def __init__(self, name: str, gap_seconds: float = 0.0, *, rest_seconds: float = 0.0) -> None:
        self._gap_seconds, self._rest_seconds = gap_seconds, rest_seconds
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"stagelens-{name}", daemon=True)

    @abstractmethod
    def step(self) -> float:
        """Run the task once, and return the delay before the next step, in seconds; exceptions are passed to `failed`."""

    def failed(self, error: Exception) -> float:
        _log.exception("%s failed with an unexpected error and is retried: %s", self.thread.name, type(error).__name__)
        return RETRY_SECONDS

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self.thread.start()

    def wake(self) -> None:
        self._awake.set()

    def stop(self) -> None:
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
        gap = min(seconds, self._gap_seconds)
        if gap:
            self._stopping.wait(gap)
        if seconds > gap and not self._stopping.is_set():
            self._awake.wait(seconds - gap)
        self._awake.clear()


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and the first Ctrl-C set; a second Ctrl-C ends the process immediately."""
    stopped = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        stopped.set()
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stopped
