"""Writes incident updates: the record, its history and the messages, in one transaction of the caller.

`acknowledge` records that a person handles an incident, and notifies the channels that know of it.
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
    """Write *turn*: the record, its history, and the messages to *channels*.

    Args:
        connection: An open write transaction.
        turn: The update.
        channels: All configured channels; an end goes only to those that were notified of the opening.
        now: Current time. [Unix seconds]
    """
    save_incident(connection, turn.record)
    if not turn.event:
        return
    message = message_for(turn, now)
    outbox.record_transition(connection, message, _recipients(connection, turn, channels) if turn.told else ())
    if turn.note or turn.event != message.transition:
        here = (transitions.c.incident == message.incident) & (transitions.c.sequence == message.sequence)
        connection.execute(update(transitions).where(here).values(transition=turn.event, note=turn.note))


def message_for(turn: IncidentUpdate, now: float) -> Message:
    """Return the message of *turn*, including one that is not notified."""
    if turn.event == "accepted":
        return replace(build_message(turn.record, "resolved", now), note=turn.note)
    transition: Transition = "updated" if turn.event in ("", "muted", "unmuted") else turn.event
    return build_message(turn.record, transition, now, also=turn.also)


def build_message(
    record: IncidentRecord, transition: Transition, now: float, also: Sequence[IncidentRecord] = ()
) -> Message:
    """Build a message about *record*; that of a resolved incident has its highest burn rate."""
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
    """Return the channels notified of *incident*, or with a message waiting, and not of its end since."""
    mine = deliveries.c.incident == incident
    last = select(func.max(deliveries.c.sequence)).where(mine).group_by(deliveries.c.channel)
    found = select(deliveries.c.channel).where(
        mine, deliveries.c.sequence.in_(last), deliveries.c.transition != "resolved"
    )
    return sorted(set(connection.scalars(found)))


def _recipients(connection: Connection, turn: IncidentUpdate, channels: Sequence[str]) -> Sequence[str]:
    if turn.event not in ("resolved", "accepted", "acknowledged"):
        return channels
    heard = notified_channels(connection, turn.record.id)
    return [channel for channel in heard if channel in channels]


class IncidentError(StagelensError):
    """An incident or silence does not exist, or has ended."""


def acknowledge(store: Store, name: str, by: str, now: datetime) -> IncidentRecord:
    """Acknowledge the incident *name* as *by*; repeating it has no effect.

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
        told = taken.heard == "open" and not taken.muted
        turn = IncidentUpdate(taken, "acknowledged", told=told, note=who)
        write_update(connection, turn, notified_channels(connection, name), at)
    return taken


def require_incident(connection: Connection, name: str) -> IncidentRecord:
    """Return the incident *name*.

    Raises:
        IncidentError: It does not exist.
    """
    found = get_incident(connection, name)
    if found is None:
        msg = f"there is no incident {name!r}; `stagelens alerts list` lists open incidents"
        raise IncidentError(msg)
    return found


def person_name(by: str) -> str:
    """Return the name of a person as it is stored."""
    return storable(by.strip())[:MAX_NAME_CHARS] or "somebody"
