"""Phases of the cold starts of replicas: what each loaded and warmed up, in requests and outside, and how long that took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, insert, select

from . import schema
from .texts import name as storable_name

# A fleet of hundreds that is rolled out every hour; beyond, the oldest go first. [count]
MAX_KEPT = 50_000
_TEXTS = ("service", "version", "environment", "instance", "place", "model", "shape")


@dataclass(frozen=True, slots=True)
class Load:
    """One phase.

    Args:
        service: Whose.
        version: Of which version.
        environment: Where.
        instance: `service.instance.id` of the replica, "" where it has none.
        place: Where it runs, as `core.hardware.place` writes it.
        phase: A key of `core.stages.LOAD_PHASES`.
        model: Of which model, "" where nobody said.
        shape: What shapes a first run was given, "" elsewhere.
        started: [Unix nanoseconds]
        ended: [Unix nanoseconds]
        own: What of it was spent in no other phase. [nanoseconds]
    """

    service: str
    version: str
    environment: str
    instance: str
    place: str
    phase: str
    model: str
    shape: str
    started: int
    ended: int
    own: int


def put(connection: Connection, loads: Sequence[Load]) -> None:
    """Write *loads*."""
    if loads:
        connection.execute(insert(schema.loads), [_row(load) for load in loads])


def forget(connection: Connection, before: int) -> None:
    """Delete what ended before *before*, in Unix seconds, and the oldest where there are too many."""
    table = schema.loads
    connection.execute(delete(table).where(table.c.ended < before * 1_000_000_000))
    newest = select(table.c.ended).order_by(table.c.ended.desc()).offset(MAX_KEPT).limit(1)
    surplus = connection.execute(newest).scalar()
    if surplus is not None:
        connection.execute(delete(table).where(table.c.ended <= surplus))


def _row(load: Load) -> dict[str, str | int]:
    row: dict[str, str | int] = asdict(load)
    return row | {key: storable_name(str(row[key])) for key in _TEXTS}
