"""Events such as deployments, phases of cold starts, and processes that stopped: validation, writing, and deletion of the oldest."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from sqlalchemy import Connection, delete, func, insert, select, update

from . import schema
from .schema import MAX_NAME_BYTES, storable_name

EVENT_KINDS = ("deploy", "config", "advice", "note")
EVENT_COLUMNS = ("at", "service", "kind", "key", "text", "link", "environment")
MAX_KEY, MAX_TEXT, MAX_LINK = 200, 500, 1000
# Size limit of an event in JSON: with every character escaped, all fields take 24 kB; parsing takes many times its length.
MAX_BODY_BYTES = 32_768
# Maximum number of events, so that a faulty pipeline cannot fill the store; the oldest events are deleted first. [count]
MAX_EVENTS = 20_000
# Maximum time of an event in the future: allows for clock differences, and for events planned for the next day.
_MAX_AHEAD = timedelta(days=1)
# Earliest valid time: times in seconds instead of milliseconds would be in the 1970s.
_MAX_AGE = timedelta(days=400)
_MINUTE_MS = 60_000
# Maximum number of loads, enough for hundreds of replicas deployed every hour; the oldest loads are deleted first. [count]
MAX_LOADS = 50_000
_TEXTS = ("service", "version", "environment", "instance", "place", "model", "shape")
# Phase of a process that stopped sending although requests were open: from the start of the oldest one, whose route is `model`,
# to the last report; `own` is the number of open requests. Deleted if the process reports again.
STOPPED = "stopped"
# Maximum number of stopped processes of a service. [count]
MAX_STOPPED = 100
# Bodies of the last report may arrive so much later; the next report is later. [seconds]
_SAME_REPORT_SECONDS = 5
# Time in which each collector looks for reports of processes that had stopped. [seconds]
_RETURNED_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Event:
    """Event such as a deployment.

    Args:
        at: Time of the event, timezone-aware.
        service: Service; "" for all services. At most 256 bytes.
        kind: Kind of the event, one of `EVENT_KINDS`.
        key: Subject of the event, such as a version or the key of an advice. At most 200 characters.
        text: Description, one line of at most 500 characters.
        link: Address with details: a path of the dashboard that starts with "/", or an http URL; "" for none.
        environment: Environment; "" for all. At most 256 bytes.

    Raises:
        ValueError: A field is invalid; the message names the field and the fix.
    """

    at: datetime
    service: str
    kind: str
    key: str
    text: str
    link: str = ""
    environment: str = ""

    def __post_init__(self) -> None:
        if self.at.tzinfo is None:
            msg = f"at must be aware, got {self.at!r}; write datetime.now(UTC)"
            raise ValueError(msg)
        if self.kind not in EVENT_KINDS:
            msg = f"kind is {self.kind[:40]!r}; write one of {', '.join(EVENT_KINDS)}"
            raise ValueError(msg)
        if not self.text.strip():
            msg = "text is empty; describe the event in a few words"
            raise ValueError(msg)
        for name, sent in (("service", "service.name"), ("environment", "deployment.environment.name")):
            if len(getattr(self, name).encode(errors="replace")) > MAX_NAME_BYTES:
                msg = f"{name} is longer than {MAX_NAME_BYTES} bytes; give the name it sends as {sent}"
                raise ValueError(msg)
        names = (("service", MAX_NAME_BYTES), ("environment", MAX_NAME_BYTES))
        for name, most in (*names, ("key", MAX_KEY), ("text", MAX_TEXT), ("link", MAX_LINK)):
            _check_line(name, getattr(self, name), most)
        if self.link and not self.link.startswith(("https://", "http://")) and not _is_dashboard_path(self.link):
            msg = f"link is {self.link[:60]!r}; write an address that begins with https://, http:// or one /"
            raise ValueError(msg)


def event_from_json(body: bytes | str | Mapping[str, Any], now: datetime) -> Event:
    """Parse an event in its wire format: `{"text": …, "service": …, "kind": …, "key": …, "at": …, "link": …, "environment": …}`.

    Only `text` is required; the default of `kind` is `note`, and that of `at` is *now*. `at` is an ISO 8601 time (UTC by default)
    or milliseconds since the epoch.

    Raises:
        ValueError: The event is invalid; the message names the error and the fix.
    """
    document = body if isinstance(body, Mapping) else _parse_body(body)
    unknown = sorted(set(document) - set(EVENT_COLUMNS))
    if unknown:
        msg = f"there is no field {unknown[0][:40]!r}; an event has {', '.join(EVENT_COLUMNS)}"
        raise ValueError(msg)
    texts = {name: document.get(name, "") for name in EVENT_COLUMNS if name != "at"}
    for name, value in texts.items():
        if not isinstance(value, str):
            msg = f"{name} is {json.dumps(value)[:40]}; write a text"
            raise ValueError(msg)  # noqa: TRY004 - for the sender a wrong type is an invalid value
    return Event(_parse_time(document.get("at"), now), **(texts | {"kind": texts["kind"] or "note"}))


def add_event(connection: Connection, event: Event) -> None:
    """Write *event*; equal events within the same minute are stored once, with the later time."""
    table = schema.events
    at = int(event.at.timestamp() * 1000)
    minute = at // _MINUTE_MS * _MINUTE_MS
    names = {"service": storable_name(event.service), "environment": storable_name(event.environment)}
    same = {**names, "kind": event.kind, "key": event.key, "text": event.text}
    existing = connection.execute(
        select(table.c.id, table.c.at)
        .where(*(table.c[name] == value for name, value in same.items()))
        .where(table.c.at >= minute, table.c.at < minute + _MINUTE_MS)
    ).first()
    if existing is None:
        connection.execute(insert(table).values(at=at, link=event.link, **same))
    else:
        connection.execute(
            update(table).where(table.c.id == existing.id).values(at=max(at, existing.at), link=event.link)
        )
    _bump_revision(connection, same["service"])


def forget_events(connection: Connection, before: int) -> None:
    """Delete events older than *before*, in Unix seconds, and the oldest events beyond `MAX_EVENTS`."""
    table = schema.events
    connection.execute(delete(table).where(table.c.at < before * 1000))
    surplus = select(table.c.id).order_by(table.c.at.desc(), table.c.id.desc()).offset(MAX_EVENTS).limit(MAX_EVENTS)
    gone = connection.scalars(surplus).all()
    if gone:
        connection.execute(delete(table).where(table.c.id.in_(gone)))


def _bump_revision(connection: Connection, service: str) -> None:
    """Increase the revision of *service* (of all services if the service is unknown), so that pages refresh."""
    table, part = schema.services, schema.take_part(connection)
    grown = connection.execute(update(table).where(table.c.name == service).values(revision=part))
    if not grown.rowcount:
        connection.execute(update(table).values(revision=part))


def _check_line(name: str, text: str, most: int) -> None:
    if len(text) > most:
        msg = f"{name} has {len(text)} characters; use at most {most}, and a link for the rest"
        raise ValueError(msg)
    # Cc: line breaks, tabs, NUL and escapes; Zl, Zp: other line breaks; Cs: unpaired surrogates, which databases reject.
    wrong = next((character for character in text if unicodedata.category(character) in {"Cc", "Zl", "Zp", "Cs"}), None)
    if wrong is not None:
        msg = f"{name} contains the control character {wrong!a}; write one line of plain text"
        raise ValueError(msg)


def _is_dashboard_path(link: str) -> bool:
    return link.startswith("/") and not link.startswith(("//", "/\\"))


def _parse_body(body: bytes | str) -> Mapping[str, Any]:
    if len(body) > MAX_BODY_BYTES:
        msg = f"the body has {len(body)} bytes; {MAX_BODY_BYTES} is the limit; use a link for the rest"
        raise ValueError(msg)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        msg = f'the body is not valid JSON ({error}); send an object such as {{"text": "…"}}'
        raise ValueError(msg) from error
    if not isinstance(document, dict):
        msg = f'the body is {json.dumps(document)[:40]}, not an object; send one such as {{"text": "…"}}'
        raise ValueError(msg)  # noqa: TRY004 - for the sender a wrong type is an invalid value
    return cast("Mapping[str, Any]", document)


def _parse_time(value: Any, now: datetime) -> datetime:
    if value is None or value == "":
        return now
    shown = json.dumps(value)[:40]
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            at = datetime.fromtimestamp(value / 1000, UTC)
        else:
            at = datetime.fromisoformat(cast("str", value))
        at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        msg = f"at is {shown}; write ISO 8601, such as 2026-11-20T12:00Z, or milliseconds of the epoch"
        raise ValueError(msg) from error
    if not now - _MAX_AGE <= at <= now + _MAX_AHEAD:
        msg = (
            f"at is {shown}, which is {at:%Y-%m-%d %H:%M} UTC; it must lie within the last {_MAX_AGE.days} days "
            "(numbers are milliseconds of the epoch)"
        )
        raise ValueError(msg)
    return at


@dataclass(frozen=True, slots=True)
class StoredLoad:
    service: str  # Service of the replica
    version: str
    environment: str
    instance: str  # `service.instance.id` of the replica; "" if unknown
    place: str  # Host and process, in the format of `core.hardware.place`
    phase: str  # Phase, a key of `core.stages.LOAD_PHASES`; or `STOPPED`
    model: str  # Model; "" if unknown
    shape: str  # Input shapes of a first run; "" for other phases
    started: int  # Start of the phase. [Unix nanoseconds]
    ended: int  # End of the phase. [Unix nanoseconds]
    own: int  # Time outside of other phases. [nanoseconds]


def write_loads(connection: Connection, loads: Sequence[StoredLoad]) -> None:
    connection.execute(insert(schema.loads), [_load_row(load) for load in loads])


def forget_loads(connection: Connection, before: int) -> None:
    """Delete loads that ended before *before*, in Unix seconds, and the oldest loads beyond `MAX_LOADS`."""
    table = schema.loads
    connection.execute(delete(table).where(table.c.ended < before * 1_000_000_000))
    newest = select(table.c.ended).order_by(table.c.ended.desc()).offset(MAX_LOADS).limit(1)
    surplus = connection.execute(newest).scalar()
    if surplus is not None:
        connection.execute(delete(table).where(table.c.ended <= surplus))


def write_stopped(connection: Connection, stopped: Sequence[StoredLoad]) -> list[StoredLoad]:
    """Write the processes *stopped*, except those that have reported to another collector since; return those written, the last first."""
    since = min((_last_report(load.ended) for load in stopped), default=0)
    last_batch = _last_batches(connection, [load.instance for load in stopped], since)
    silent = [load for load in stopped if last_batch.get(load.instance, 0) <= _last_report(load.ended)]
    if not silent:
        return []
    write_loads(connection, silent)
    table = schema.loads
    for service in {storable_name(load.service) for load in silent}:
        of_service = (table.c.service == service) & (table.c.phase == STOPPED)
        surplus = (
            select(table.c.id).where(of_service).order_by(table.c.ended.desc(), table.c.id.desc()).offset(MAX_STOPPED)
        )
        connection.execute(delete(table).where(table.c.id.in_(connection.scalars(surplus.limit(MAX_LOADS // 2)).all())))
        _bump_revision(connection, service)
    return sorted(silent, key=lambda load: load.ended, reverse=True)


def forget_returned(connection: Connection, now: int) -> None:
    """Delete the stopped processes that have reported again shortly before *now*, in Unix seconds."""
    table = schema.loads
    stopped = select(table.c.id, table.c.service, table.c.instance, table.c.ended).where(table.c.phase == STOPPED)
    rows = connection.execute(stopped).all()
    last_batch = _last_batches(connection, [row.instance for row in rows], now - _RETURNED_SECONDS)
    returned = [row for row in rows if last_batch.get(row.instance, 0) > _last_report(row.ended)]
    for row in returned:
        connection.execute(delete(table).where(table.c.id == row.id))
    for service in {row.service for row in returned}:
        _bump_revision(connection, service)


def _last_report(ended: int) -> int:
    return ended // 1_000_000_000 + _SAME_REPORT_SECONDS


def _last_batches(connection: Connection, instances: Sequence[str], since: int) -> dict[str, int]:
    """Return the time of the last batch since *since* of each of *instances* with one, in Unix seconds."""
    if not instances:
        return {}
    table = schema.batches
    recent = select(table.c.instance, func.max(table.c.received)).where(table.c.received >= since)
    rows = connection.execute(recent.where(table.c.instance != "").group_by(table.c.instance))
    wanted = {*map(storable_name, instances)}
    return {instance: at for instance, at in rows if instance in wanted}


def _load_row(load: StoredLoad) -> dict[str, str | int]:
    row: dict[str, str | int] = asdict(load)
    return row | {key: storable_name(str(row[key])) for key in _TEXTS}
