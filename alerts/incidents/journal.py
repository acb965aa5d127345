"""Writing of incident updates: the record, its history and the messages, in one transaction of the caller.

`acknowledge` records that a person handles an incident, or no longer does, and notifies the channels that were notified of it.
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

MAX_NAME_CHARS, MAX_NOTE_CHARS = 200, 2000


def write_update(connection: Connection, turn: IncidentUpdate, channels: Sequence[str], now: float) -> None:
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
    transition: Transition = "updated" if turn.event in ("", "muted", "unmuted", "note") else turn.event
    note = turn.note if turn.event == "unacknowledged" else turn.text
    return replace(build_message(turn.record, transition, now, also=turn.also), note=note)


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
        also=tuple(title(build_message(record, "opened", now)) for record in also),
    )


def notified_channels(connection: Connection, incident: str) -> list[str]:
    mine = deliveries.c.incident == incident
    last = select(func.max(deliveries.c.sequence)).where(mine).group_by(deliveries.c.channel)
    query = select(deliveries.c.channel).where(
        mine, deliveries.c.sequence.in_(last), deliveries.c.transition != "resolved"
    )
    return sorted(set(connection.scalars(query)))


def _recipients(connection: Connection, turn: IncidentUpdate, channels: Sequence[str]) -> Sequence[str]:
    if turn.event not in ("resolved", "accepted", "acknowledged", "unacknowledged"):
        return channels
    notified = notified_channels(connection, turn.record.id)
    return [channel for channel in notified if channel in channels]


class IncidentError(StagelensError):
    """An incident or silence does not exist, or has ended."""


def acknowledge(store: Store, name: str, by: str, now: datetime, *, undo: bool = False) -> IncidentRecord:
    at, who = now.timestamp(), person_name(by)
    with store.transaction() as connection:
        record = require_incident(connection, name)
        if record.resolved_at is not None:
            what = "its acknowledgement cannot be undone" if undo else "it cannot be acknowledged"
            msg = f"{name} was resolved at {formatting.moment_of(record.resolved_at)}; {what}"
            raise IncidentError(msg)
        if record.acked_by == ("" if undo else who):
            return record
        updated = replace(
            record, acked_at=None if undo else at, acked_by="" if undo else who, sequence=record.sequence + 1
        )
        notifies = updated.heard == "open" and not updated.muted
        event = "unacknowledged" if undo else "acknowledged"
        turn = IncidentUpdate(updated, event, notifies=notifies, note=who)
        write_update(connection, turn, notified_channels(connection, name), at)
    return updated


def add_note(store: Store, name: str, by: str, text: str, now: datetime) -> IncidentRecord:
    words = storable(text.strip())[:MAX_NOTE_CHARS]
    if not words:
        msg = "the note is empty; write a text"
        raise IncidentError(msg)
    with store.transaction() as connection:
        record = require_incident(connection, name)
        noted = replace(record, sequence=record.sequence + 1)
        turn = IncidentUpdate(noted, "note", note=person_name(by), text=words)
        write_update(connection, turn, (), now.timestamp())
    return noted


def require_incident(connection: Connection, name: str) -> IncidentRecord:
    record = get_incident(connection, name)
    if record is None:
        msg = f"there is no incident {name!r}; `stagelens alerts list` lists open incidents"
        raise IncidentError(msg)
    return record


def person_name(by: str) -> str:
    """Return the name of a person in the form in which the store contains it; a placeholder if *by* is empty."""
    return storable(by.strip())[:MAX_NAME_CHARS] or "somebody"
