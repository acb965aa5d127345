"""A thread of the alerts, which leaves a store that cannot be used alone for a while."""

from __future__ import annotations

import logging

from sqlalchemy.exc import SQLAlchemyError

from ...core import periodic_thread
from ...core.errors import StoreError
from ...core.periodic_thread import RETRY_SECONDS

__all__ = ["RETRY_SECONDS", "Loop"]

_log = logging.getLogger(__name__)


class Loop(periodic_thread.PeriodicThread):
    """One thread, one duty.

    Args:
        name: For whom: a channel, a heartbeat.
        gap_seconds: The least time between two steps, news or not. [seconds]
    """

    def __init__(self, name: str, gap_seconds: float = 0.0) -> None:
        super().__init__(f"alerts-{name}", gap_seconds)
        self._name = name

    def failed(self, error: Exception) -> float:
        """Tell of *error*; one of the store needs no traceback."""
        if not isinstance(error, StoreError | SQLAlchemyError):
            return super().failed(error)
        _log.warning("alerts: %s: the store cannot be used: %s", self._name, error)
        return RETRY_SECONDS
