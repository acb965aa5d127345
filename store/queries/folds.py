"""Where values are no longer told apart, because a service has more of them than its cap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, func, or_, select

from ...core.names import STAGE_DURATION
from ...core.stages import OTHER
from .. import schema, tiers
from ..points import Question, Snapshot
from ..selection import Selection, moment
from ..series import SeriesCaps

_FINE = ("model", "model_version", "route", "device")
_BY_ITSELF = ("version", "environment", *_FINE)
_WORDS = {
    "services": "services",
    "version": "versions",
    "environment": "environments",
    "model": "models",
    "model_version": "model versions",
    "route": "routes",
    "device": "devices",
    "custom_stages": "stages of its own",
    "series": "combinations of model, route and device",
}
# A value that was folded longer ago than that is none of today's trouble. [seconds]
_RECENT_SECONDS = 86_400
_STAGES_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Fold:
    """A service that has more values of something than are told apart: new ones count as `__other__`.

    Args:
        service: Whose values; "" where it is the services themselves.
        dimension: Of what, as in `SeriesCaps`: `route`, `custom_stages`, `series`, `services`, …
        cap: How many are told apart.
    """

    service: str
    dimension: str
    cap: int

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.service or 'The store'} has more than {self.cap} {_WORDS[self.dimension]}"


def folds(snapshot: Snapshot, caps: SeriesCaps, now: int) -> list[Fold]:
    """See `Reader.folds`; *now* is in Unix seconds."""
    found = {
        *_of_series(snapshot.connection, now - _RECENT_SECONDS),
        *((service, "custom_stages") for service in _of_stages(snapshot, caps.custom_stages, now)),
    }
    return [Fold(service, dimension, getattr(caps, dimension)) for service, dimension in sorted(found)]


def _of_series(connection: Connection, since: int) -> Iterator[tuple[str, str]]:
    table = schema.series
    told = ("service", *_BY_ITSELF)
    statement = (
        select(*(table.c[name] for name in told))
        .where(table.c.last_seen >= since, or_(*(table.c[name] == OTHER for name in told)))
        .distinct()
    )
    for row in connection.execute(statement).mappings():
        if row["service"] == OTHER:
            yield "", "services"
        folded = [name for name in _BY_ITSELF if row[name] == OTHER]
        if set(_FINE) <= set(folded):
            # All at once: it is their combinations that are too many.
            yield row["service"], "series"
            folded = [name for name in folded if name not in _FINE]
        yield from ((row["service"], name) for name in folded)


def _of_stages(snapshot: Snapshot, cap: int, now: int) -> Iterator[str]:
    """Yield the services that have as many stages of their own as are told apart, and others beside them."""
    stages, services = schema.stages, schema.services
    full = (
        select(services.c.name)
        .join_from(stages, services, stages.c.service_id == services.c.id)
        .group_by(services.c.name)
        .having(func.count() >= cap)
    )
    for service in snapshot.connection.scalars(full).all():
        selection = Selection(moment(now - _STAGES_SECONDS), moment(now), service=service)
        question = Question(selection, (STAGE_DURATION,))
        segments = tiers.plan(tiers.read(snapshot.connection), *selection.seconds)
        pieces = (
            piece
            for segment in segments
            for piece in snapshot.points.read(snapshot.connection, question, segment, None)
        )
        if any(OTHER in piece.stages for piece in pieces):
            yield service
