"""Notification rules: silences, maintenance windows and grouped incidents.

A muted incident is recorded, evaluated and shown with the reason, but not notified. A channel is notified of the end only if
the channel was notified of the opening. If the incident continues after the reason for muting ended, channels are notified of the
opening then, so openings and ends alternate in each channel. Incidents of one service form a group, and so do incidents that
started together in many services; an incident stays in its group until it ends. All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...analysis.policies import Fleet
from .lifecycle import ChannelState, IncidentRecord, Step

# Older stores have `told with sl-1`.
_OLD_PREFIX = "told with "
_GROUPED = re.compile(rf"(?:{_OLD_PREFIX}|notified together with .*\()(?P<lead>[^()\s]+)\)?")


def urgency_key(record: IncidentRecord) -> tuple[bool, float, float, str]:
    """Return the sort key of an incident: pages first, then the oldest, then the worst."""
    return record.finding.severity != "page", record.opened_at, -record.finding.size, record.cause


def assign_groups(records: Sequence[IncidentRecord], fleet: Fleet, now: float) -> list[IncidentRecord]:
    by_age = sorted((record for record in records if record.story), key=lambda record: record.opened_at)
    new = sorted((record for record in records if not record.story), key=urgency_key)
    placed = list(by_age)
    for record in new:
        kin = next((other for other in placed if _is_same_service(other, record)), None)
        placed.append(replace(record, story=kin.story if kin else record.id))
    return _merge_fleet_groups(placed, len(by_age), fleet, now)


def _merge_fleet_groups(placed: list[IncidentRecord], grouped: int, fleet: Fleet, now: float) -> list[IncidentRecord]:
    earliest = now - fleet.within.total_seconds()
    recent = [record for at, record in enumerate(placed) if at >= grouped or record.opened_at >= earliest]
    if grouped == len(placed) or len({record.finding.service for record in recent}) < fleet.services:
        return placed
    first, merged = recent[0].story, {record.story for record in recent}
    return [replace(record, story=first) if record.story in merged else record for record in placed]


def _is_same_service(one: IncidentRecord, other: IncidentRecord) -> bool:
    here, there = one.finding.where.get("environment"), other.finding.where.get("environment")
    return one.finding.service == other.finding.service and (not here or not there or here == there)


# Events in the history; the last three are never notified. An accepted incident is notified as resolved.
_Notified = Literal["", "opened", "updated", "acknowledged", "unacknowledged", "resolved", "reopened", "accepted"]
Event = Literal[_Notified, "muted", "unmuted", "note"]


@dataclass(frozen=True, slots=True)
class IncidentUpdate:
    record: IncidentRecord
    event: Event = ""
    notifies: bool = False
    also: tuple[IncidentRecord, ...] = ()
    note: str = ""
    text: str = ""


def decide_notifications(
    steps: Sequence[Step], excuses: Mapping[str, str], fleet: Fleet, now: float
) -> list[IncidentUpdate]:
    open_now = assign_groups([step.record for step in steps if step.record.is_open], fleet, now)
    reasons = _mute_reasons(open_now, excuses, now)
    standing = {record.id: record for record in open_now}
    with_it = {record.id: _grouped_incidents(record, open_now, reasons) for record in open_now}
    updates: list[IncidentUpdate] = []
    for step in steps:
        record = standing.get(step.record.id)
        if record is None:
            updates.append(_end_update(step))
        elif reasons[record.id]:
            updates.append(_muted_update(replace(step, record=record), reasons[record.id]))
        else:
            updates.append(_notified_update(replace(step, record=record), with_it[record.id], now))
    return updates


def grouped_reason(lead: str, service: str) -> str:
    return f"notified together with {service} ({lead})"


def group_lead(reason: str) -> str:
    """Return the id of the incident that is notified for the group, from the reason for muting; "" for other reasons.

    >>> group_lead(grouped_reason("sl-1", "shop")), group_lead(_OLD_PREFIX + "sl-1"), group_lead("maintenance window")
    ('sl-1', 'sl-1', '')
    """
    match = _GROUPED.fullmatch(reason)
    return match["lead"] if match else ""


def _mute_reasons(records: Sequence[IncidentRecord], excuses: Mapping[str, str], now: float) -> dict[str, str]:
    reasons = {record.id: excuses.get(record.id, "") for record in records}
    leads = [record for record in records if record.heard == "open" and not reasons[record.id]]
    for record in sorted(records, key=urgency_key):
        if reasons[record.id] or record.heard == "open":
            continue
        lead = _lead_of(record, leads)
        if lead is not None:
            reasons[record.id] = grouped_reason(lead.id, lead.finding.service)
        elif record.quiet_since is None and record.seen_at == now:
            leads.append(record)
        else:
            # The incident may end soon, so it stays muted until its rule fires again.
            reasons[record.id] = record.muted
    return reasons


def _lead_of(record: IncidentRecord, leads: Sequence[IncidentRecord]) -> IncidentRecord | None:
    """Return the notified incident of the group of *record*, preferably of the same service; for a page, only a page."""
    fitting = [
        lead
        for lead in leads
        if lead.story == record.story and (lead.finding.severity == "page" or record.finding.severity == "ticket")
    ]
    return min(
        fitting, key=lambda lead: (lead.finding.service != record.finding.service, urgency_key(lead)), default=None
    )


def _grouped_incidents(
    lead: IncidentRecord, records: Sequence[IncidentRecord], reasons: Mapping[str, str]
) -> tuple[IncidentRecord, ...]:
    return tuple(sorted((record for record in records if group_lead(reasons[record.id]) == lead.id), key=urgency_key))


def _end_update(step: Step) -> IncidentUpdate:
    notifies = step.record.heard == "open"
    return _update(
        step.record, "resolved", "over" if notifies else step.record.heard, notifies=notifies, note=step.record.muted
    )


def _muted_update(step: Step, reason: str) -> IncidentUpdate:
    record = replace(step.record, muted=reason)
    if step.happening in ("opened", "reopened"):
        return _update(record, step.happening, record.heard, note=reason)
    if not step.record.muted:
        return _update(record, "muted", record.heard, note=reason)
    return IncidentUpdate(record)


def _notified_update(step: Step, also: tuple[IncidentRecord, ...], now: float) -> IncidentUpdate:
    record = replace(step.record, muted="")
    if record.heard != "open":
        opening: Event = "reopened" if record.heard == "over" else "opened"
        return _update(replace(record, notified_at=now), opening, "open", notifies=True, also=also)
    # After an acknowledgement only another page is notified.
    news = [other for other in also if group_lead(other.muted) != record.id]
    joined = any(record.acked_at is None or new.finding.severity == "page" for new in news)
    if step.happening == "updated" or joined:
        return _update(replace(record, notified_at=now), "updated", "open", notifies=True, also=also)
    return _update(record, "unmuted", "open") if step.record.muted else IncidentUpdate(record)


def _update(
    record: IncidentRecord,
    event: Event,
    state: ChannelState,
    *,
    notifies: bool = False,
    also: tuple[IncidentRecord, ...] = (),
    note: str = "",
) -> IncidentUpdate:
    return IncidentUpdate(replace(record, heard=state, sequence=record.sequence + 1), event, notifies, also, note)
