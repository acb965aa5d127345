"""A thread that takes one step after the other, rests in between, and outlives whatever goes wrong in a step."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

from sqlalchemy.exc import SQLAlchemyError

from ...core.errors import StoreError

log = logging.getLogger(__name__)

# How long to leave a store alone that cannot be used. [seconds]
STORE_RETRY_SECONDS = 2.0


class Loop(ABC):
    """One thread, one duty.

    Args:
        name: What it does, and for whom.
        gap_seconds: The least time between two steps, news or not. [seconds]
    """

    def __init__(self, name: str, gap_seconds: float = 0.0) -> None:
        self._name = name
        self._gap_seconds = gap_seconds
        self._stopping = threading.Event()
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"stagelens-alerts-{name}", daemon=True)

    @abstractmethod
    def step(self) -> float:
        """Do what is due, and return how long to wait before the next step, in seconds.

        Raises:
            StoreError: The store cannot be used; the next step tries again.
        """

    def start(self) -> None:
        """Start to take steps."""
        self._thread.start()

    def wake(self) -> None:
        """Say that there is something new to do."""
        self._awake.set()

    def stop(self) -> None:
        """Finish the step that is being taken, then stop."""
        self._stopping.set()
        self._awake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                wait = self.step()
            except (StoreError, SQLAlchemyError) as error:
                log.warning("alerts: %s: the store cannot be used: %s", self._name, error)
                wait = STORE_RETRY_SECONDS
            except Exception:
                log.exception("alerts: %s failed in a way nobody thought of", self._name)
                wait = STORE_RETRY_SECONDS
            self._rest(wait)

    def _rest(self, seconds: float) -> None:
        """Wait; news ends the wait, but never the gap."""
        gap = min(seconds, self._gap_seconds)
        if gap:
            self._stopping.wait(gap)
        if seconds > gap and not self._stopping.is_set():
            self._awake.wait(seconds - gap)
        self._awake.clear()
