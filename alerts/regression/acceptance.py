"""Somebody takes a slower tail for the new normal: its incident is over, and only what is slower still is told again.

Of a service it is taken of its routes, models and versions too; of a route or a model of that alone, and of what was told
with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from ...store import Group, Store
from ...store.schema import storable
from .. import formatting
from ..delivery.message import Finding
from ..incidents import journal, lifecycle, record
from ..incidents.acknowledging import IncidentError, known, named
from ..incidents.notification_rules import Turn, lead_in
from ..incidents.record import Record
from . import state_store
from .canaries import cause_of_pair
from .state_store import Accepted
from .watching_policy import default_watching

MAX_WHY_CHARS = 2000


def accept(store: Store, name: str, by: str, now: datetime, why: str = "") -> Record:
    """Take what the incident *name* is about for normal from *now* on; what was accepted before stays as it is.

    Raises:
        IncidentError: There is no such incident, it is over, or it is about something else than a slower tail.
        StoreError: It cannot be written.
    """
    who, said = named(by), storable(why.strip())[:MAX_WHY_CHARS]
    with store.transaction() as connection:
        found = known(connection, name)
        if found.ending == "accepted":
            return found
        _check(found)
        for each in [found, *_others(connection, found)]:
            _remember(connection, each.finding, each.cause, now)
            _end(connection, each, who, f"{who}: {said}" if said else who, now.timestamp())
        return known(connection, name)


def _check(found: Record) -> None:
    finding = found.finding
    if found.resolved_at is not None:
        msg = f"{found.id} is over since {formatting.moment_of(found.resolved_at)}; there is nothing to accept"
        raise IncidentError(msg)
    silence = f"silence it (`stagelens alerts silence --service {finding.service} --slo {finding.name} --for 8h`)"
    if finding.burn is not None:
        msg = (
            f"{found.id} is about the objective {finding.name}, and what was promised is not the less so; "
            f"write another objective or threshold into the SLO file, or {silence}"
        )
        raise IncidentError(msg)
    if finding.absence is not None:
        msg = f"{found.id} is about requests that do not come, and only a slower tail can be accepted; {silence}"
        raise IncidentError(msg)


def _others(connection: Connection, found: Record) -> Iterator[Record]:
    """Yield what else became slower in the service: all of it where *found* is of the whole, else what is told with it."""
    whole = not set(found.finding.where) - {"environment"}
    for other in record.find_open(connection):
        if other.id == found.id or other.finding.shift is None or _place(other.finding) != _place(found.finding):
            continue
        if whole or lead_in(other.muted) == found.id:
            yield other


def _place(finding: Finding) -> tuple[str, str]:
    return finding.service, finding.where.get("environment", "")


def _remember(connection: Connection, finding: Finding, cause: str, now: datetime) -> None:
    at = int(now.timestamp()) // 60 + 1
    longest = round(default_watching().accepted_over / timedelta(minutes=1))
    accepted = Accepted(max(int(finding.since) // 60, at - longest), at)
    if finding.shift is not None and finding.shift.against:
        service, environment = _place(finding)
        whole = Group(service, environment=environment)
        cause = cause_of_pair(whole, finding.shift.against, finding.where.get("version", ""))
    state_store.save_accepted(connection, cause, accepted)


def _end(connection: Connection, found: Record, who: str, note: str, at: float) -> None:
    taken = replace(found, acked_at=at, acked_by=who, sequence=found.sequence + 1)
    told = found.heard == "open"
    ended = lifecycle.close(replace(taken, heard="over" if told else found.heard), "accepted", at).record
    journal.write(connection, Turn(ended, "accepted", told=told, note=note), journal.hearers(connection, found.id), at)
