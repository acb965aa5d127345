"""The life of an incident: opened, resolved with hysteresis, reopened when it comes back soon. Values in, values out.

What happens to it is decided here; whether anybody is told is decided in `telling`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Literal

from ..delivery.message import Ending, Finding
from ..policies import Hysteresis
from .record import IncidentRecord

LifecycleEvent = Literal["", "opened", "updated", "resolved", "reopened"]


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of an incident.

    Args:
        record: How it stands from now on.
        happening: What happened to it; empty when nothing did that is worth a word.
    """

    record: IncidentRecord
    happening: LifecycleEvent = ""


def next_step(
    record: IncidentRecord | None,
    finding: Finding | None,
    *,
    cause: str,
    now: float,
    has_data: bool,
    patience: Hysteresis,
) -> Step | None:
    """Return the next step of a cause, or None when there is nothing to do.

    Args:
        record: Its last incident, if it ever had one.
        finding: What fires now, or None when nothing does.
        cause: The cause.
        now: The time. [Unix seconds]
        has_data: Whether there were requests to judge by; without them nothing is good and nothing is bad.
        patience: How long things must hold.
    """
    if record is None or not record.is_open:
        return None if finding is None else _open(record, finding, cause, now, patience)
    if finding is not None:
        return _continue_open(record, finding, now, patience)
    if not has_data:
        return (
            close_incident(record, "no_data", now) if now - record.seen_at >= patience.abandon.total_seconds() else None
        )
    quiet_since = record.quiet_since if record.quiet_since is not None else now
    if now - quiet_since >= patience.quiet.total_seconds():
        return close_incident(record, "recovered", now)
    return Step(replace(record, quiet_since=quiet_since, seen_at=now))


def close_incident(record: IncidentRecord, ending: Ending, now: float) -> Step:
    """Return the step that ends an incident."""
    return Step(replace(record, resolved_at=now, ending=ending, quiet_since=None), "resolved")


def _open(last: IncidentRecord | None, finding: Finding, cause: str, now: float, patience: Hysteresis) -> Step:
    reopen_seconds = patience.reopen.total_seconds()
    # What was accepted is normal: what comes after it is something new.
    ended_at = None if last is None or last.ending == "accepted" else last.resolved_at
    if last is not None and ended_at is not None and now - ended_at <= reopen_seconds:
        return Step(_reopen(last, finding, now), "reopened")
    fresh = IncidentRecord(
        id=f"sl-{secrets.token_hex(10)}",
        cause=cause,
        finding=finding,
        opened_at=now,
        seen_at=now,
        told_at=now,
        peak=finding.size,
    )
    return Step(fresh, "opened")


def _reopen(last: IncidentRecord, finding: Finding, now: float) -> IncidentRecord:
    return replace(
        last,
        finding=finding,
        seen_at=now,
        quiet_since=None,
        resolved_at=None,
        ending="",
        peak=max(last.peak, finding.size),
        # Whoever looked after it thought it was over, and it may be part of another story.
        acked_at=None,
        acked_by="",
        muted="",
        story="",
    )


def _continue_open(record: IncidentRecord, finding: Finding, now: float, patience: Hysteresis) -> Step:
    before = record.finding
    escalated = before.severity == "ticket" and finding.severity == "page"
    # A page that calms down to a ticket stays the page it was until it is over.
    severity = "page" if "page" in (before.severity, finding.severity) else "ticket"
    blames_another = finding.blamed is not None and (
        before.blamed is None or finding.blamed.stage != before.blamed.stage
    )
    # Whoever looks after it finds the cause on the page; they are disturbed only when it gets urgent.
    patient = record.acked_at is not None or now - record.told_at < patience.update.total_seconds()
    # With the first requests of a release nobody can say that it is slower: once it can be said, that is worth a word.
    names_release = bool(finding.version) and not before.version and record.acked_at is None
    tell = escalated or names_release or (blames_another and not patient)
    # The stage and the release in the record are those people were told of, until they are told of others.
    forgets_release = bool(before.version) and not finding.version
    growth = finding if tell or not (blames_another or forgets_release) else before
    merged = replace(
        finding,
        severity=severity,
        since=before.since,
        between=before.between,
        growth=growth.growth,
        version=growth.version,
    )
    record = replace(record, finding=merged, seen_at=now, quiet_since=None, peak=max(record.peak, finding.size))
    return Step(record, "updated" if tell else "")
