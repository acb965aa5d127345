"""Heartbeat (dead man's switch): pings an external URL while alerts work; the receiver alerts when pings stop.

A ping covers evaluation, database and delivery. The process that delivers messages sends it, and only while the last successful
evaluation is recent and no page has waited too long in the outbox. Pings stop when nothing is evaluated, the database
fails, messages are not delivered, or no process runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import Field

from ....core.errors import ChannelError
from ....core.settings.field_types import SecretAddress
from ....store import Store, lease
from .. import outbox
from ..channel import ChannelKind, ChannelSection, HeartbeatReceiver, refusal_error, secret_parts, send_request
from ..outbox import AlertsThread

log = logging.getLogger(__name__)

# Name of the lease that is held while the last successful evaluation is recent.
EVALUATED_LEASE = "evaluated"
# Heartbeat interval. [seconds]
EVERY_SECONDS = 60.0
# Check interval while alerts do not work. [seconds]
RECHECK_SECONDS = 2.0
# Time after the start during which a missing first evaluation is not logged. [seconds]
START_GRACE_SECONDS = 60.0
# Maximum age of an unsent page; an older one stops the heartbeat. [seconds]
MAX_PAGE_WAIT_SECONDS = 120.0
# Error responses of the receiver, and their fixes.
HINTS = (("responded 404", "No check exists at that URL: copy the URL again from the monitoring service."),)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    name: str
    url: str = field(repr=False)

    def ping(self) -> None:
        response = send_request("GET", self.url, b"", {}, receiver="the heartbeat's receiver")
        if not response.accepted:
            raise refusal_error(response, "the heartbeat's receiver", secret_parts(self.url))


class HeartbeatPinger(AlertsThread):
    def __init__(self, store: Store, heartbeat: HeartbeatReceiver, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(heartbeat.name)
        self._store = store
        self._heartbeat = heartbeat
        self._clock = clock
        self._next_at = 0.0
        self._grace_until = clock() + START_GRACE_SECONDS
        self._trouble = ""

    def step(self) -> float:
        """Send a heartbeat if one is due and alerts work; return the wait before the next step [seconds]."""
        now = self._clock()
        if now < self._next_at <= now + EVERY_SECONDS:
            return self._next_at - now
        trouble = self._silent(now)
        if trouble:
            if now >= self._grace_until:
                self._log_trouble(trouble)
            return RECHECK_SECONDS
        self._next_at = now + EVERY_SECONDS
        try:
            self._heartbeat.ping()
        except ChannelError as error:
            self._log_trouble(str(error))
        else:
            self._log_trouble("")
        return EVERY_SECONDS

    def _silent(self, now: float) -> str:
        with self._store.engine.connect() as connection:
            if lease.holder_of(connection, EVALUATED_LEASE, now) is None:
                return "no evaluation succeeded recently"
            waiting = outbox.oldest_waiting_page(connection)
        if waiting is not None and now - waiting > MAX_PAGE_WAIT_SECONDS:
            return "a page in the outbox cannot be delivered"
        return ""

    def _log_trouble(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("alerts: no heartbeat to %s: %s", self._heartbeat.name, trouble)
        self._trouble = trouble


class _Section(ChannelSection):
    url: SecretAddress = Field(examples=["HEARTBEAT_URL"])

    def build(self, name: str) -> Heartbeat:
        return Heartbeat(name, self.url.value)


KIND = ChannelKind(_Section, HINTS)
