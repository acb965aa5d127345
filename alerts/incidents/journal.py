"""Writing of incident updates: the record, its history and the messages, in one transaction of the caller.

`acknowledge` records that a person handles an incident, and notifies the channels that were notified of the incident.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, func, select, update

from ...core.errors import StagelensError
from ...store import Store
from ...store.schema import storable
from .. import formatting
from ..delivery import outbox
from ..delivery.message import Message, Transition
from ..delivery.message_text import title
from ..schema import outbox as deliveries
from ..schema import transitions
from .lifecycle import IncidentRecord, get_incident, save_incident
from .notification_rules import IncidentUpdate

MAX_NAME_CHARS = 200


def write_update(connection: Connection, turn: IncidentUpdate, channels: Sequence[str], now: float) -> None:
    """Write the incident update *turn*: the record, its history, and the messages to *channels*.

    Args:
        connection: An open write transaction.
        turn: The update.
        channels: All configured channels; the end of an incident is sent only to channels that were notified of its opening.
        now: Current time. [Unix seconds]
    """
    save_incident(connection, turn.record)
    if not turn.event:
        return
    message = message_for(turn, now)
    outbox.record_transition(connection, message, _recipients(connection, turn, channels) if turn.notifies else ())
    if turn.note or turn.event != message.transition:
        here = (transitions.c.incident == message.incident) & (transitions.c.sequence == message.sequence)
        connection.execute(update(transitions).where(here).values(transition=turn.event, note=turn.note))


def message_for(turn: IncidentUpdate, now: float) -> Message:
    """Return the message for the update *turn*, even if no channel is notified."""
    if turn.event == "accepted":
        return replace(build_message(turn.record, "resolved", now), note=turn.note)
    transition: Transition = "updated" if turn.event in ("", "muted", "unmuted") else turn.event
    return build_message(turn.record, transition, now, also=turn.also)


def build_message(
    record: IncidentRecord, transition: Transition, now: float, also: Sequence[IncidentRecord] = ()
) -> Message:
    """Return a message about *record*; the message of a resolved incident contains its highest burn rate."""
    finding = record.finding
    if transition == "resolved" and finding.burn is not None:
        finding = replace(finding, burn=replace(finding.burn, rate=record.peak))
    return Message(
        incident=record.id,
        sequence=record.sequence,
        transition=transition,
        at=now,
        opened_at=record.opened_at,
        finding=finding,
        ending=record.ending,
        acked_by=record.acked_by,
        also=tuple(title(build_message(each, "opened", now)) for each in also),
    )


def notified_channels(connection: Connection, incident: str) -> list[str]:
    """Return the channels whose last message of *incident*, sent or waiting, is not about its end."""
    mine = deliveries.c.incident == incident
    last = select(func.max(deliveries.c.sequence)).where(mine).group_by(deliveries.c.channel)
    found = select(deliveries.c.channel).where(
        mine, deliveries.c.sequence.in_(last), deliveries.c.transition != "resolved"
    )
    return sorted(set(connection.scalars(found)))


def _recipients(connection: Connection, turn: IncidentUpdate, channels: Sequence[str]) -> Sequence[str]:
    if turn.event not in ("resolved", "accepted", "acknowledged"):
        return channels
    notified = notified_channels(connection, turn.record.id)
    return [channel for channel in notified if channel in channels]


class IncidentError(StagelensError):
    """An incident or silence does not exist, or has ended."""


def acknowledge(store: Store, name: str, by: str, now: datetime) -> IncidentRecord:
    """Acknowledge the incident *name* as the person *by*; a repeated call has no effect.

    Raises:
        IncidentError: The incident does not exist, or has ended.
        StoreError: The store failed.
    """
    at, who = now.timestamp(), person_name(by)
    with store.transaction() as connection:
        found = require_incident(connection, name)
        if found.resolved_at is not None:
            msg = f"{name} was resolved at {formatting.moment_of(found.resolved_at)}; it cannot be acknowledged"
            raise IncidentError(msg)
        if found.acked_by == who:
            return found
        taken = replace(found, acked_at=at, acked_by=who, sequence=found.sequence + 1)
        notifies = taken.heard == "open" and not taken.muted
        turn = IncidentUpdate(taken, "acknowledged", notifies=notifies, note=who)
        write_update(connection, turn, notified_channels(connection, name), at)
    return taken


def require_incident(connection: Connection, name: str) -> IncidentRecord:
    """Return the incident *name*.

    Raises:
        IncidentError: The incident does not exist.
    """
    found = get_incident(connection, name)
    if found is None:
        msg = f"there is no incident {name!r}; `stagelens alerts list` lists open incidents"
        raise IncidentError(msg)
    return found


def person_name(by: str) -> str:
    """Return the name of a person in the form in which the store contains it; a placeholder if *by* is empty."""
    return storable(by.strip())[:MAX_NAME_CHARS] or "somebody"
