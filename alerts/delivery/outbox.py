"""The outbox: messages with their delivery state, one row per transition and channel, and the threads that send them.

Delivery is at least once. Rows are written in the same transaction as the transition, so no transition lacks its messages. A row
is leased before it is sent, and the outcome is written afterwards; if the process dies in between, another process sends the row
again. Keys in the message (PagerDuty's dedup key, the webhook's idempotency key) let the receiver drop duplicates. Each channel
has a separate thread, so that a slow receiver does not delay other channels.

Messages of one incident are sent to a channel in order, and a newer transition supersedes an unsent older one: after an hour
without network, users need the current state and not the history.

Some receivers drop alerts unless they are sent again. The last message of an incident is repeated to them: such rows have the
state `sent` and the time of the next repetition in `next_at`, which is 0 in all other sent rows. The reference that a receiver
returned is stored with the row and passed to the channel with the next message of the incident.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, and_, func, insert, or_, select, update
from sqlalchemy.exc import SQLAlchemyError

from ...core.background_tasks import RETRY_SECONDS, PeriodicThread
from ...core.backoff import backoff_seconds
from ...core.errors import ChannelError, StoreError
from ...store import Store, lease
from ...store.schema import storable
from ..schema import outbox, transitions
from .channel import Channel, OutcomeUnknownError, Refresh
from .chart import chart_url
from .message import Message

FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 300.0
# Upper limit of Retry-After.
MAX_RETRY_AFTER_SECONDS = 3600.0
# Time after which an unsent message is marked dead, [seconds] and the attempts that it has had by then, whatever the clock says.
GIVE_UP_SECONDS = {"page": 24 * 3600.0, "ticket": 6 * 3600.0}
MIN_ATTEMPTS = 24

_OPEN_STATES = ("waiting", "sending")
log = logging.getLogger(__name__)
# Longer than the longest attempt, so that two processes do not send the same message. [seconds]
LEASE_SECONDS = 60.0
# Poll interval of an idle thread. [seconds]
POLL_SECONDS = 2.0
# Wait while another process sends an earlier message of the same incident. [seconds]
OTHERS_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Claim:
    """Outbox row that this process has leased for sending; a *reminder* was accepted before and is now repeated."""

    row: int
    channel: str
    holder: str
    message: Message
    attempts: int
    created_at: float
    reminder: bool = False


def record_transition(connection: Connection, message: Message, channels: Iterable[str]) -> None:
    connection.execute(
        insert(transitions).values(
            incident=message.incident,
            sequence=message.sequence,
            transition=message.transition,
            at=message.at,
            message=message.to_json(),
        )
    )
    rows = [_new_row(message, channel) for channel in channels]
    if rows:
        connection.execute(insert(outbox), rows)


def due_at(connection: Connection, channel: str, now: float, lease_seconds: float) -> float | None:
    """Return the time at which the next row of *channel* is due, in Unix seconds; None without rows."""
    return min((_due_at(row, now, lease_seconds) for row in _rows(connection, channel)), default=None)


def claim_message(connection: Connection, channel: str, holder: str, now: float, lease_seconds: float) -> Claim | None:
    """Lease the most urgent due row of *channel*, or return None if no row is due.

    Only the newest row of an incident is sent; older unsent rows are superseded. The attempt is recorded before it starts: a
    row with an expired lease was interrupted, and its outcome is unknown.
    """
    ready: list[Row[Any]] = []
    for rows in _by_incident(_rows(connection, channel)):
        if any(row.leased_until and _due_at(row, now, lease_seconds) > now for row in rows):
            continue
        _supersede(connection, [row.id for row in rows[:-1] if row.state in _OPEN_STATES], now)
        if _due_at(rows[-1], now, lease_seconds) <= now:
            ready.append(rows[-1])
    if not ready:
        return None
    row = min(ready, key=lambda row: (row.state == "sent", row.severity != "page", row.next_at, row.id))
    return _lease_row(connection, row, holder, now, lease_seconds)


def mark_sent(
    connection: Connection, claimed: Claim, now: float, reference: str = "", refresh: Refresh | None = None
) -> None:
    """Record that the receiver accepted the message, which is repeated after *refresh*; None for never."""
    at = {} if claimed.reminder else {"changed_at": now}
    again_at = _reminder_at(claimed, now, refresh) if refresh else 0.0
    _write_outcome(connection, claimed, state="sent", error="", reference=storable(reference), next_at=again_at, **at)
    _stop_older_reminders(connection, claimed)


def mark_failed(connection: Connection, claimed: Claim, error: ChannelError, now: float, rng: random.Random) -> None:
    """Record a failed attempt: schedule a retry, or mark the row dead if a retry is useless."""
    # The error may quote the response.
    text = storable(str(error))
    again = now + retry_delay(claimed.attempts, error.retry_after_seconds, rng)
    if claimed.reminder:
        _write_outcome(connection, claimed, error=text, next_at=again)
        return
    too_late = again - claimed.created_at > GIVE_UP_SECONDS[claimed.message.finding.severity]
    if error.permanent or (too_late and claimed.attempts >= MIN_ATTEMPTS):
        reason = text if error.permanent else f"dropped after {claimed.attempts} attempts; last: {text}"
        _write_outcome(connection, claimed, state="dead", changed_at=now, error=reason)
        _stop_older_reminders(connection, claimed)
        return
    unknown = isinstance(error, OutcomeUnknownError) or claimed.message.repeat
    _write_outcome(connection, claimed, state="waiting", changed_at=now, error=text, next_at=again, unknown=unknown)


def abandon_removed_channels(connection: Connection, channels: Sequence[str], now: float) -> None:
    connection.execute(
        update(outbox)
        .where(outbox.c.state == "waiting", outbox.c.channel.not_in(channels))
        .values(state="dead", changed_at=now, error="the channel was removed from the SLO file")
    )


def oldest_waiting_page(connection: Connection) -> float | None:
    """Return the creation time of the oldest unsent page in Unix seconds; None without one."""
    waits = and_(outbox.c.severity == "page", outbox.c.state.in_(_OPEN_STATES))
    return connection.execute(select(func.min(outbox.c.created_at)).where(waits)).scalar()


def retry_delay(attempts: int, retry_after_seconds: float | None, rng: random.Random) -> float:
    """Return the delay of the next attempt in seconds, at least Retry-After."""
    delay = backoff_seconds(attempts, FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS, rng)
    return max(delay, min(retry_after_seconds or 0.0, MAX_RETRY_AFTER_SECONDS))


def _due_at(row: Row[Any], now: float, lease_seconds: float) -> float:
    is_waiting = row.state == "waiting"
    longest = lease_seconds if row.leased_until else MAX_RETRY_AFTER_SECONDS if is_waiting else MAX_RETRY_SECONDS
    at = row.leased_until or row.next_at
    was_ahead = is_waiting and row.changed_at > now + lease.MAX_SKEW_SECONDS
    return now if was_ahead or at > now + longest + lease.MAX_SKEW_SECONDS else at


def _rows(connection: Connection, channel: str) -> Sequence[Row[Any]]:
    reminders = and_(outbox.c.state == "sent", outbox.c.next_at > 0)
    wanted = and_(outbox.c.channel == channel, or_(outbox.c.state.in_(_OPEN_STATES), reminders))
    return connection.execute(select(outbox).where(wanted).order_by(outbox.c.incident, outbox.c.sequence)).all()


def _reminder_at(claimed: Claim, now: float, refresh: Refresh) -> float:
    """Return the time of the next repetition in Unix seconds; 0 for none."""
    again = now + refresh.every_seconds
    over = claimed.message.resolved and again > claimed.created_at + refresh.after_end_seconds
    return 0.0 if over else again


def _stop_older_reminders(connection: Connection, claimed: Claim) -> None:
    before = and_(
        outbox.c.incident == claimed.message.incident,
        outbox.c.channel == claimed.channel,
        outbox.c.sequence < claimed.message.sequence,
        outbox.c.state == "sent",
    )
    connection.execute(update(outbox).where(before).values(next_at=0.0))


def _by_incident(rows: Iterable[Row[Any]]) -> list[list[Row[Any]]]:
    groups: dict[str, list[Row[Any]]] = {}
    for row in rows:
        groups.setdefault(row.incident, []).append(row)
    return list(groups.values())


def _supersede(connection: Connection, ids: Sequence[int], now: float) -> None:
    if ids:
        overtaken = {"state": "superseded", "changed_at": now, "leased_by": "", "leased_until": 0.0}
        connection.execute(update(outbox).where(outbox.c.id.in_(ids)).values(**overtaken))


def _lease_row(connection: Connection, row: Row[Any], holder: str, now: float, lease_seconds: float) -> Claim:
    reminder = row.state == "sent"
    unknown = row.unknown or row.state == "sending"
    attempts = row.attempts + 1
    leased = {"leased_by": holder, "leased_until": now + lease_seconds}
    if not reminder:
        leased |= {"state": "sending", "attempts": attempts, "unknown": unknown, "changed_at": now}
    connection.execute(update(outbox).where(outbox.c.id == row.id).values(**leased))
    references = _references(connection, row)
    reference = next((reference for reference in references if reference), "")
    message = _message(connection, row)
    chart = chart_url(connection, message)
    message = replace(message, first=not references, repeat=unknown, reference=reference, chart=chart)
    return Claim(row.id, row.channel, holder, message, attempts, row.created_at, reminder)


def _references(connection: Connection, row: Row[Any]) -> Sequence[str]:
    took = and_(outbox.c.incident == row.incident, outbox.c.channel == row.channel, outbox.c.state == "sent")
    return connection.execute(select(outbox.c.reference).where(took).order_by(outbox.c.sequence.desc())).scalars().all()


def _message(connection: Connection, row: Row[Any]) -> Message:
    raw = connection.execute(
        select(transitions.c.message).where(
            transitions.c.incident == row.incident, transitions.c.sequence == row.sequence
        )
    ).scalar_one()
    return Message.from_json(raw)


def _write_outcome(connection: Connection, claimed: Claim, **values: Any) -> None:
    """Write the outcome and end the lease, unless another process has leased the row."""
    mine = and_(outbox.c.id == claimed.row, outbox.c.leased_by == claimed.holder)
    connection.execute(update(outbox).where(mine).values(leased_by="", leased_until=0.0, **values))


def _new_row(message: Message, channel: str) -> dict[str, Any]:
    return {
        "incident": message.incident,
        "sequence": message.sequence,
        "channel": channel,
        "severity": message.finding.severity,
        "transition": message.transition,
        "state": "waiting",
        "attempts": 0,
        "next_at": message.at,
        "leased_by": "",
        "leased_until": 0.0,
        "unknown": False,
        "created_at": message.at,
        "changed_at": message.at,
        "error": "",
    }


class AlertsThread(PeriodicThread):
    def __init__(self, name: str, gap_seconds: float = 0.0) -> None:
        super().__init__(f"alerts-{name}", gap_seconds)
        self._name = name

    def failed(self, error: Exception) -> float:
        """Log *error*, without a traceback if the store failed, and return the pause in seconds."""
        if not isinstance(error, StoreError | SQLAlchemyError):
            return super().failed(error)
        log.warning("alerts: %s: the store cannot be used: %s", self._name, error)
        return RETRY_SECONDS


class DeliveryWorker(AlertsThread):
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
        """Send the most urgent due message, if one is due; return the wait before the next step [seconds]."""
        now = self._clock()
        if now < self._paused_until <= now + MAX_RETRY_AFTER_SECONDS:
            return min(self._paused_until - now, POLL_SECONDS)
        with self._store.engine.connect() as connection:
            due = due_at(connection, self._channel.name, now, self._lease_seconds)
        if due is None or due > now:
            return POLL_SECONDS if due is None else min(due - now, POLL_SECONDS)
        with self._store.transaction() as connection:
            claimed = claim_message(connection, self._channel.name, self._holder, now, self._lease_seconds)
        if claimed is None:
            return OTHERS_SECONDS
        self._deliver(claimed)
        return self._channel.gap_seconds

    def _deliver(self, claimed: Claim) -> None:
        reference, error = "", None
        try:
            reference = self._channel.send(claimed.message)
        except ChannelError as refused:
            error = refused
        except Exception as broken:  # a bug in a channel must not stop other messages
            log.exception("alerts: channel %s cannot format its message; it is not sent", self._channel.name)
            # Only the type of the exception: its text may contain a secret, and the error is shown to users.
            error = ChannelError(f"the message could not be formatted: {type(broken).__name__}", permanent=True)
        if error is not None and error.retry_after_seconds is not None:
            self._paused_until = self._clock() + min(error.retry_after_seconds, MAX_RETRY_AFTER_SECONDS)
        self._record_outcome(claimed, reference, error)

    def _record_outcome(self, claimed: Claim, reference: str, error: ChannelError | None) -> None:
        """Write the outcome and retry while the store fails, because a lost outcome causes a duplicate message."""
        while True:
            try:
                with self._store.transaction() as connection:
                    self._write_result(connection, claimed, reference, error)
            except (StoreError, SQLAlchemyError) as trouble:
                log.warning(
                    "alerts: the result of %s cannot be stored yet and is retried: %s", claimed.message.key, trouble
                )
                if self._stopping.wait(RETRY_SECONDS):
                    return
            else:
                return

    def _write_result(self, connection: Connection, claimed: Claim, reference: str, error: ChannelError | None) -> None:
        now = self._clock()
        name, key = self._channel.name, claimed.message.key
        if error is not None:
            mark_failed(connection, claimed, error, now, self._rng)
            log.warning("alerts: %s did not accept %s (attempt %d): %s", name, key, claimed.attempts, error)
            return
        mark_sent(connection, claimed, now, reference, self._channel.refresh)
        if not claimed.reminder:
            log.info("alerts: %s accepted %s after %d attempts", name, key, claimed.attempts)
