"""Delivery threads: one per channel, so that a slow receiver delays no other channel.

The lease is taken before a message is sent and the outcome is written afterwards; after a crash in between it is sent again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ...core.background_tasks import RETRY_SECONDS, PeriodicThread
from ...core.errors import ChannelError, StoreError
from ...store import Store
from . import outbox
from .channel import Channel

log = logging.getLogger(__name__)
# Longer than the longest send, or two processes would send the same message.
LEASE_SECONDS = 60.0
# Poll interval of an idle thread. [seconds]
POLL_SECONDS = 2.0
# Wait while another process sends an earlier message of the same incident. [seconds]
OTHERS_SECONDS = 0.5


class AlertsThread(PeriodicThread):
    """Thread of the alerts; it pauses after an error of the store.

    Args:
        name: Name of the channel.
        gap_seconds: Minimum time between two steps. [seconds]
    """

    def __init__(self, name: str, gap_seconds: float = 0.0) -> None:
        super().__init__(f"alerts-{name}", gap_seconds)
        self._name = name

    def failed(self, error: Exception) -> float:
        """Log *error*; an error of the store without traceback."""
        if not isinstance(error, StoreError | SQLAlchemyError):
            return super().failed(error)
        log.warning("alerts: %s: the store cannot be used: %s", self._name, error)
        return RETRY_SECONDS


class DeliveryWorker(AlertsThread):
    """Sends the outbox messages of one channel.

    Args:
        store: The store with the outbox.
        channel: The channel.
        holder: Holder name of this process for leases.
        lease_seconds: Lease of a row while it is being sent. [seconds]
        clock: Returns the time. [Unix seconds]
        rng: Random source of the jitter.
    """

    def __init__(
        self,
        store: Store,
        channel: Channel,
        holder: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(channel.name, channel.gap_seconds)
        self._store = store
        self._channel = channel
        self._holder = holder
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._paused_until = 0.0

    def step(self) -> float:
        """Send the most urgent due message, if any.

        Returns:
            Wait before the next step. [seconds]

        Raises:
            StoreError: The store failed.
        """
        now = self._clock()
        if now < self._paused_until:
            return min(self._paused_until - now, POLL_SECONDS)
        with self._store.engine.connect() as connection:
            due = outbox.due_at(connection, self._channel.name)
        if due is None or due > now:
            return POLL_SECONDS if due is None else min(due - now, POLL_SECONDS)
        with self._store.transaction() as connection:
            claimed = outbox.claim_message(connection, self._channel.name, self._holder, now, self._lease_seconds)
        if claimed is None:
            return OTHERS_SECONDS
        self._deliver(claimed)
        return self._channel.gap_seconds

    def _deliver(self, claimed: outbox.Claim) -> None:
        reference, error = "", None
        try:
            reference = self._channel.send(claimed.message)
        except ChannelError as refused:
            error = refused
        except Exception as broken:  # a bug in a channel must not stop other messages
            log.exception("alerts: the channel %s cannot make its message", self._channel.name)
            # Only its type: the text is shown to people and may contain a secret.
            error = ChannelError(f"the message could not be made: {type(broken).__name__}", permanent=True)
        if error is not None and error.retry_after_seconds is not None:
            self._paused_until = self._clock() + min(error.retry_after_seconds, outbox.MAX_RETRY_AFTER_SECONDS)
        self._settle(claimed, reference, error)

    def _settle(self, claimed: outbox.Claim, reference: str, error: ChannelError | None) -> None:
        """Write the outcome, retrying while the store fails: a duplicate message is worse than waiting."""
        while True:
            try:
                with self._store.transaction() as connection:
                    self._write(connection, claimed, reference, error)
            except (StoreError, SQLAlchemyError) as trouble:
                log.warning("alerts: the outcome of %s cannot be written yet: %s", claimed.message.key, trouble)
                if self._stopping.wait(RETRY_SECONDS):
                    return
            else:
                return

    def _write(self, connection: Connection, claimed: outbox.Claim, reference: str, error: ChannelError | None) -> None:
        now = self._clock()
        name, key = self._channel.name, claimed.message.key
        if error is not None:
            outbox.mark_failed(connection, claimed, error, now, self._rng)
            log.warning("alerts: %s did not accept %s (attempt %d): %s", name, key, claimed.attempts, error)
            return
        outbox.mark_sent(connection, claimed, now, reference, self._channel.refresh)
        if not claimed.reminder:
            log.info("alerts: %s accepted %s after %d attempts", name, key, claimed.attempts)
