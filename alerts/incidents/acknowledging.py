"""Somebody looks after an incident: written down, and told to the channels that heard of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from ...core.errors import StagelensError
from ...store import Store
from ...store.schema import storable
from .. import formatting
from . import journal, record
from .notification_rules import Turn
from .record import Record

MAX_NAME_CHARS = 200


class IncidentError(StagelensError):
    """Something cannot be done to an incident or a silence: it is not there, or over."""


def acknowledge(store: Store, name: str, by: str, now: datetime) -> Record:
    """Note that *by* looks after the incident *name* from *now* on; a second time by the same person changes nothing.

    Raises:
        IncidentError: There is no such incident, or it is over.
        StoreError: It cannot be written.
    """
    at, who = now.timestamp(), named(by)
    with store.transaction() as connection:
        found = known(connection, name)
        if found.resolved_at is not None:
            msg = f"{name} is over since {formatting.moment_of(found.resolved_at)}; there is nothing to look after"
            raise IncidentError(msg)
        if found.acked_by == who:
            return found
        taken = replace(found, acked_at=at, acked_by=who, sequence=found.sequence + 1)
        told = taken.heard == "open" and not taken.muted
        turn = Turn(taken, "acknowledged", told=told, note=who)
        journal.write(connection, turn, journal.hearers(connection, name), at)
    return taken


def known(connection: Connection, name: str) -> Record:
    """Return the incident *name*.

    Raises:
        IncidentError: There is none.
    """
    found = record.get(connection, name)
    if found is None:
        msg = f"there is no incident {name!r}; `stagelens alerts list` names those there are"
        raise IncidentError(msg)
    return found


def named(by: str) -> str:
    """Return who does something, as it is kept."""
    return storable(by.strip())[:MAX_NAME_CHARS] or "somebody"
