"""Persistent state of the regression search: learnt baselines, alarm states, and accepted latency levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from ..schema import tail_accepted, tail_progress, tail_references
from .reference import Reference
from .scoring import AlarmState
from .stage_attribution import StageBaseline


@dataclass(frozen=True, slots=True)
class LearntBaseline:
    """Learnt baseline of one series.

    Args:
        at: Time of learning. [minutes since the epoch]
        reference: Reference of latencies.
        habits: Baseline of stages.
    """

    at: int
    reference: Reference
    habits: StageBaseline


@dataclass(frozen=True, slots=True)
class Accepted:
    """An accepted latency level. Times are minutes since the epoch.

    Args:
        since: First minute with that level.
        at: First minute after its acceptance.
    """

    since: int
    at: int


def last_evaluated_minute(connection: Connection) -> int | None:
    """Return the last evaluated minute of any process; None for never."""
    return connection.execute(select(func.max(tail_progress.c.at))).scalar()


def load_learnt(connection: Connection) -> dict[str, LearntBaseline]:
    """Return all learnt baselines by cause."""
    return {
        row.cause: LearntBaseline(
            row.learnt_at, Reference.from_json(row.reference), StageBaseline.from_json(row.habits)
        )
        for row in connection.execute(select(tail_references))
    }


def load_progress(connection: Connection) -> dict[str, AlarmState]:
    """Return all alarm states by cause."""
    rows = connection.execute(select(tail_progress.c.cause, tail_progress.c.progress))
    return {row.cause: AlarmState.from_json(row.progress) for row in rows}


def load_accepted(connection: Connection) -> dict[str, Accepted]:
    """Return all accepted levels by cause, those of version pairs by their key."""
    return {row.cause: Accepted(row.since, row.at) for row in connection.execute(select(tail_accepted))}


def save_accepted(connection: Connection, cause: str, accepted: Accepted) -> None:
    """Replace the accepted level of *cause*."""
    connection.execute(delete(tail_accepted).where(tail_accepted.c.cause == cause))
    connection.execute(insert(tail_accepted).values(cause=cause, since=accepted.since, at=accepted.at))


def save_learnt(connection: Connection, cause: str, learnt: LearntBaseline) -> None:
    """Insert or update the baseline of *cause*."""
    values = {
        "learnt_at": learnt.at,
        "reference": learnt.reference.to_json(),
        "habits": learnt.habits.to_json(),
    }
    known = connection.execute(update(tail_references).where(tail_references.c.cause == cause).values(**values))
    if not known.rowcount:
        connection.execute(insert(tail_references).values(cause=cause, **values))


def save_progress(connection: Connection, standing: Mapping[str, AlarmState], at: int) -> None:
    """Write alarm states as of minute *at*; newer states of another process are kept."""
    table = tail_progress
    known = {row.cause: row.at for row in connection.execute(select(table.c.cause, table.c.at))}
    rows = [{"cause": cause, "at": at, "progress": each.to_json()} for cause, each in standing.items()]
    ours = [row for row in rows if known.get(str(row["cause"]), at) <= at]
    if ours:
        connection.execute(delete(table).where(table.c.cause.in_([row["cause"] for row in ours])))
        connection.execute(insert(table), ours)


def delete_stale(connection: Connection, before: int) -> None:
    """Delete the state of series not evaluated since minute *before*."""
    kept = select(tail_progress.c.cause).where(tail_progress.c.at >= before)
    for table, written in ((tail_references, tail_references.c.learnt_at), (tail_accepted, tail_accepted.c.at)):
        connection.execute(delete(table).where(written < before, table.c.cause.not_in(kept)))
    connection.execute(delete(tail_progress).where(tail_progress.c.at < before))
