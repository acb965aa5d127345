"""Writing down what happened to an incident, and what is to be told: in the caller's one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, func, select, update

from ..delivery import outbox
from ..delivery.message import Message, Transition
from ..delivery.message_text import title
from ..schema import outbox as deliveries
from ..schema import transitions
from .notification_rules import Turn
from .record import Record, save


def write(connection: Connection, turn: Turn, channels: Sequence[str], now: float) -> None:
    """Write *turn*: the incident, its history, and the messages to *channels*.

    Args:
        connection: An open write transaction.
        turn: What happened.
        channels: The channels there are; the end is told to those of them that heard of the incident.
        now: The time. [Unix seconds]
    """
    save(connection, turn.record)
    if not turn.event:
        return
    message = told(turn, now)
    outbox.record(connection, message, _hearers(connection, turn, channels) if turn.told else ())
    if turn.note or turn.event != message.transition:
        here = (transitions.c.incident == message.incident) & (transitions.c.sequence == message.sequence)
        connection.execute(update(transitions).where(here).values(transition=turn.event, note=turn.note))


def told(turn: Turn, now: float) -> Message:
    """Return what is told of *turn*; of one nobody is told of, what would have been."""
    if turn.event == "accepted":
        return replace(message_of(turn.record, "resolved", now), note=turn.note)
    transition: Transition = "updated" if turn.event in ("", "muted", "unmuted") else turn.event
    return message_of(turn.record, transition, now, also=turn.also)


def message_of(record: Record, transition: Transition, now: float, also: Sequence[Record] = ()) -> Message:
    """Return what is to be told; of an incident that is over, its worst burn rate."""
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
        also=tuple(title(message_of(each, "opened", now)) for each in also),
    )


def hearers(connection: Connection, incident: str) -> list[str]:
    """Return the channels that heard of *incident*, or will, and not of its end since."""
    mine = deliveries.c.incident == incident
    last = select(func.max(deliveries.c.sequence)).where(mine).group_by(deliveries.c.channel)
    found = select(deliveries.c.channel).where(
        mine, deliveries.c.sequence.in_(last), deliveries.c.transition != "resolved"
    )
    return sorted(set(connection.scalars(found)))


def _hearers(connection: Connection, turn: Turn, channels: Sequence[str]) -> Sequence[str]:
    if turn.event not in ("resolved", "accepted", "acknowledged"):
        return channels
    heard = hearers(connection, turn.record.id)
    return [channel for channel in heard if channel in channels]
