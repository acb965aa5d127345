"""What is told as one: the incidents of one service, and those of many services that began together.

A story keeps the incidents it has: once in it, an incident stays until it is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .policy import Fleet
from .record import Record


def urgency(record: Record) -> tuple[bool, float, float, str]:
    """Order incidents: pages first, then the oldest, then the worst."""
    return record.finding.severity != "page", record.opened_at, -record.finding.size, record.cause


def place(records: Sequence[Record], fleet: Fleet, now: float) -> list[Record]:
    """Give every open incident its story.

    Args:
        records: All open incidents; those that have just begun belong to no story yet.
        fleet: When many services are one story.
        now: The time. [Unix seconds]
    """
    known = sorted((record for record in records if record.story), key=lambda record: record.opened_at)
    begun = sorted((record for record in records if not record.story), key=urgency)
    placed = list(known)
    for record in begun:
        kin = next((other for other in placed if _related(other, record)), None)
        placed.append(replace(record, story=kin.story if kin else record.id))
    return _together(placed, len(known), fleet, now)


def _together(placed: list[Record], known: int, fleet: Fleet, now: float) -> list[Record]:
    """Make one story of what began together in many services, if anything began now; the first *known* did not."""
    earliest = now - fleet.within.total_seconds()
    recent = [record for at, record in enumerate(placed) if at >= known or record.opened_at >= earliest]
    if known == len(placed) or len({record.finding.service for record in recent}) < fleet.services:
        return placed
    first, merged = recent[0].story, {record.story for record in recent}
    return [replace(record, story=first) if record.story in merged else record for record in placed]


def _related(one: Record, other: Record) -> bool:
    """Say whether both are about one service and environment; what names no environment is about all of them."""
    here, there = one.finding.where.get("environment"), other.finding.where.get("environment")
    return one.finding.service == other.finding.service and (not here or not there or here == there)
