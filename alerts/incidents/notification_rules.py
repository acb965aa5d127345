"""Whether anybody is told: one rule for silences, planned work and incidents that are told with another.

An incident that is muted is kept, judged and shown with the reason, and nobody is told of it. Channels hear that it is over
if they heard that it began. When the reason goes away and it still goes on, it is opened to the channels then. So every
channel sees openings and ends in turn, whatever comes between. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .grouping import place, urgency
from .lifecycle import Step
from .policy import Fleet
from .record import Heard, Record

# What the history has; the last two are told to nobody. What is accepted is told as resolved.
Event = Literal["", "opened", "updated", "acknowledged", "resolved", "reopened", "accepted", "muted", "unmuted"]

_WITH = "told with "


@dataclass(frozen=True, slots=True)
class Turn:
    """What is written of an incident.

    Args:
        record: How it stands from now on.
        event: What the history says; empty for nothing.
        told: Whether channels hear it.
        also: The incidents that are told with it.
        note: Why nobody is told, or who did it.
    """

    record: Record
    event: Event = ""
    told: bool = False
    also: tuple[Record, ...] = ()
    note: str = ""


def turns(steps: Sequence[Step], excuses: Mapping[str, str], fleet: Fleet, now: float) -> list[Turn]:
    """Return what is to be written and told.

    Args:
        steps: One for every open incident and every one that has just ended, also where nothing happened.
        excuses: Why nobody is told of an incident whatever else goes on, such as a silence, by its id.
        fleet: When many services are one story.
        now: The time. [Unix seconds]
    """
    open_now = place([step.record for step in steps if step.record.is_open], fleet, now)
    reasons = _reasons(open_now, excuses, now)
    standing = {record.id: record for record in open_now}
    with_it = {record.id: _told_with(record, open_now, reasons) for record in open_now}
    found: list[Turn] = []
    for step in steps:
        record = standing.get(step.record.id)
        if record is None:
            found.append(_ended(step))
        elif reasons[record.id]:
            found.append(_muted(replace(step, record=record), reasons[record.id]))
        else:
            found.append(_told(replace(step, record=record), with_it[record.id], now))
    return found


def with_reason(lead: str) -> str:
    """Return why nobody is told of what is told with the incident *lead*."""
    return f"{_WITH}{lead}"


def lead_in(reason: str) -> str:
    """Return the incident that *reason* says another is told with, or nothing.

    >>> lead_in(with_reason("sl-1")), lead_in("planned work")
    ('sl-1', '')
    """
    return reason.removeprefix(_WITH) if reason.startswith(_WITH) else ""


def _reasons(records: Sequence[Record], excuses: Mapping[str, str], now: float) -> dict[str, str]:
    """Return why nobody is told of each of *records*; empty where channels are, or have been and not heard of an end."""
    reasons = {record.id: excuses.get(record.id, "") for record in records}
    leads = [record for record in records if _leads(record, reasons)]
    for record in sorted(records, key=urgency):
        if reasons[record.id] or record.heard == "open":
            continue
        lead = _lead_of(record, leads)
        if lead is not None:
            reasons[record.id] = with_reason(lead.id)
        elif _fires(record, now):
            leads.append(record)
        else:
            # It may be over in a moment: nobody hears of it before it goes on.
            reasons[record.id] = record.muted
    return reasons


def _lead_of(record: Record, leads: Sequence[Record]) -> Record | None:
    """Return with which of *leads* *record* is told: of its story, of its service if there is one, never a page with a ticket."""
    fitting = [
        lead
        for lead in leads
        if lead.story == record.story and (lead.finding.severity == "page" or record.finding.severity == "ticket")
    ]
    return min(fitting, key=lambda lead: (lead.finding.service != record.finding.service, urgency(lead)), default=None)


def _leads(record: Record, reasons: Mapping[str, str]) -> bool:
    return record.heard == "open" and not reasons[record.id]


def _fires(record: Record, now: float) -> bool:
    return record.quiet_since is None and record.seen_at == now


def _told_with(lead: Record, records: Sequence[Record], reasons: Mapping[str, str]) -> tuple[Record, ...]:
    mine = with_reason(lead.id)
    return tuple(sorted((record for record in records if reasons[record.id] == mine), key=urgency))


def _ended(step: Step) -> Turn:
    """Channels that heard of it hear its end, silenced or not: else they would have it open for ever."""
    told = step.record.heard == "open"
    return _turn(step.record, "resolved", "over" if told else step.record.heard, told=told, note=step.record.muted)


def _muted(step: Step, reason: str) -> Turn:
    record = replace(step.record, muted=reason)
    if step.happening in ("opened", "reopened"):
        return _turn(record, step.happening, record.heard, note=reason)
    if not step.record.muted:
        return _turn(record, "muted", record.heard, note=reason)
    return Turn(record)


def _told(step: Step, also: tuple[Record, ...], now: float) -> Turn:
    record = replace(step.record, muted="")
    if record.heard != "open":
        opening: Event = "reopened" if record.heard == "over" else "opened"
        return _turn(replace(record, told_at=now), opening, "open", told=True, also=also)
    # Of an incident somebody looks after, only another page is news.
    news = [each for each in also if each.muted != with_reason(record.id)]
    joined = any(record.acked_at is None or each.finding.severity == "page" for each in news)
    if step.happening == "updated" or joined:
        return _turn(replace(record, told_at=now), "updated", "open", told=True, also=also)
    return _turn(record, "unmuted", "open") if step.record.muted else Turn(record)


def _turn(
    record: Record, event: Event, heard: Heard, *, told: bool = False, also: tuple[Record, ...] = (), note: str = ""
) -> Turn:
    return Turn(replace(record, heard=heard, sequence=record.sequence + 1), event, told, also, note)
