"""Silences: mute the notifications of matching incidents for a limited time."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from ...store.schema import storable
from .. import formatting
from ..delivery.message import Finding
from ..schema import silences
from .journal import IncidentError, person_name

# Keys of matchers, with a description.
MATCHERS: Mapping[str, str] = {
    "service": "the service",
    "slo": "the name of the SLO",
    "environment": "the environment",
    "route": "the route",
    "model": "the model",
    "version": "the version",
    "severity": "page or ticket",
}
ANY = "*"
MAX_COMMENT_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Silence:
    """Silence: mutes incidents that match all *matchers* between two times; `*` and missing keys match all values."""

    id: str
    matchers: Mapping[str, str]
    starts_at: datetime
    ends_at: datetime
    author: str
    comment: str

    def holds(self, now: datetime) -> bool:
        return self.starts_at <= now < self.ends_at

    def matches(self, finding: Finding) -> bool:
        """Return whether the silence matches *finding*.

        A silence of one route does not match a finding about all routes of a service.
        """
        return self.fits(incident_dimensions(finding))

    def fits(self, about: Mapping[str, str]) -> bool:
        """Return whether the silence matches the dimensions *about*; a missing dimension means all values."""
        return all(wanted in (ANY, about.get(key, "")) for key, wanted in self.matchers.items())

    def in_words(self) -> str:
        """Return the reason for muting, such as "silenced by ann until 04:00 UTC on 20 November: deploy"."""
        text = f"silenced by {self.author} until {formatting.moment(self.ends_at)}"
        return f"{text}: {self.comment}" if self.comment else text


def incident_dimensions(finding: Finding) -> dict[str, str]:
    """Return the dimensions of *finding*; an empty value means all values."""
    where = {key: finding.where.get(key, "") for key in ("environment", "route", "model", "version")}
    dimensions = {"service": finding.service, "slo": finding.name, "severity": finding.severity}
    # A regression that started with a release has the version of that release.
    return dimensions | where | {"version": where["version"] or finding.version}


def silence_reason(finding: Finding, among: Sequence[Silence]) -> str:
    fitting = [silence for silence in among if silence.matches(finding)]
    return max(fitting, key=lambda silence: silence.ends_at).in_words() if fitting else ""


def create_silence(
    connection: Connection,
    matchers: Mapping[str, str],
    *,
    starts_at: datetime,
    ends_at: datetime,
    author: str,
    comment: str = "",
) -> Silence:
    wanted = {key: storable(value.strip()) for key, value in matchers.items() if value.strip()}
    _check_silence(wanted, starts_at, ends_at)
    silence = Silence(
        id=f"si-{secrets.token_hex(6)}",
        matchers=wanted,
        starts_at=starts_at.astimezone(UTC),
        ends_at=ends_at.astimezone(UTC),
        author=person_name(author),
        comment=storable(comment.strip())[:MAX_COMMENT_CHARS],
    )
    times = {"starts_at": starts_at.timestamp(), "ends_at": ends_at.timestamp()}
    connection.execute(insert(silences).values(asdict(silence) | times))
    return silence


def end_silence(connection: Connection, name: str, now: datetime) -> Silence:
    row = connection.execute(select(silences).where(silences.c.id == storable(name))).first()
    if row is None:
        msg = f"there is no silence {name!r}; `stagelens alerts silences` lists all silences"
        raise IncidentError(msg)
    silence = _from_row(row)
    if silence.ends_at <= now:
        msg = f"{name} has ended already: {formatting.moment(silence.ends_at)}"
        raise IncidentError(msg)
    at = now.timestamp()
    ended = {"ends_at": at, "starts_at": min(row.starts_at, at)}
    connection.execute(update(silences).where(silences.c.id == name).values(**ended))
    return silence


def list_silences(connection: Connection, now: datetime, *, over: bool = False) -> list[Silence]:
    """Return active and future silences, sorted by descending end; *over* adds past ones."""
    query = select(silences).order_by(silences.c.ends_at.desc(), silences.c.id)
    if not over:
        query = query.where(silences.c.ends_at > now.timestamp())
    return [_from_row(row) for row in connection.execute(query)]


def active_silences(connection: Connection, now: datetime) -> list[Silence]:
    return [silence for silence in list_silences(connection, now) if silence.holds(now)]


def delete_old_silences(connection: Connection, before: float) -> None:
    """Delete the silences that ended before *before* (Unix seconds)."""
    connection.execute(delete(silences).where(silences.c.ends_at < before))


def _check_silence(matchers: Mapping[str, str], starts_at: datetime, ends_at: datetime) -> None:
    unknown = [key for key in matchers if key not in MATCHERS]
    if unknown:
        msg = f"a silence has no field {unknown[0]!r}; write one of {', '.join(MATCHERS)}"
    elif not matchers:
        msg = f"a silence needs at least one of {', '.join(MATCHERS)}; `service: {ANY}` matches every service"
    elif matchers.get("severity", ANY) not in ("page", "ticket", ANY):
        msg = f"severity is {matchers['severity']!r}; write page or ticket"
    elif ends_at - starts_at < timedelta(seconds=1):
        msg = f"the silence ends {formatting.moment(ends_at)}, which is not after its start; choose a later end"
    else:
        return
    raise IncidentError(msg)


def _from_row(row: Row[Any]) -> Silence:
    starts, ends = (datetime.fromtimestamp(at, UTC) for at in (row.starts_at, row.ends_at))
    return Silence(row.id, row.matchers, starts, ends, row.author, row.comment)
