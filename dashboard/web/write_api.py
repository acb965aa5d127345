"""Write API: events, and actions on incidents and silences.

    POST /api/v1/events
    POST /api/v1/incidents/<id>/acknowledge
    POST /api/v1/incidents/<id>/unacknowledge
    POST /api/v1/incidents/<id>/notes          {"text": …}
    POST /api/v1/incidents/<id>/accept         {"why": …}
    POST /api/v1/silences                      {"service": …, "for": "1h", "comment": …}
    POST /api/v1/silences/<id>/end

A write needs a CSRF token of a page (`guard.is_trusted_write`), or the token of the dashboard in the `Authorization` header.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from typing import cast

from flask import Flask, Response, request

from ...alerts.incidents.journal import IncidentError
from ...alerts.incidents.silences import MATCHERS
from ...core.errors import ConfigError, StoreError
from ...core.settings.values import parse_duration
from ...store.events import MAX_TEXT, Event, event_from_json
from ..incident_actions import silenced
from ..pages.incidents import pagerduty_note
from ..source import Source
from ..view import API_PREFIX, INCIDENTS_API, SILENCES_API
from . import guard
from .api_formats import NOT_FOUND, BadRequestError, json_response, with_json_errors
from .audit_log import about

LONGEST = timedelta(days=395)
_DEFAULT = "1h"
EVENTS_PATH = f"{API_PREFIX}v1/events"
_MAX_BODY_BYTES = 16 * 1024
_FIELDS = tuple(field.name for field in fields(Event))
# Error texts of SQLite and PostgreSQL for read-only databases.
_READ_ONLY = ("readonly", "read-only", "permission denied")


def add_event_routes(server: Flask, source: Source) -> None:
    def add() -> Response:
        check_csrf()
        event = _with_author(_read_event(source))
        event = replace(event, environment=event.environment or source.writing_environment(None))
        about(f"{event.kind} {event.key or event.text}", event.service, event.environment)
        with storing("POST /v1/events at the collector"):
            source.add_event(event)
        return json_response(event, 201)

    server.add_url_rule(EVENTS_PATH, "api events", with_json_errors(add), methods=["POST"])


def check_csrf() -> None:
    if not guard.is_trusted_write():
        msg = "this request does not come from a current page of this dashboard"
        fix = f"reload the page; a program sends Authorization: Bearer, or {guard.CSRF_HEADER} as the page has it"
        raise BadRequestError(msg, key=guard.CSRF_HEADER, fix=fix, status=403)


def _read_event(source: Source) -> Event:
    if request.mimetype != "application/json":
        msg = f"Content-Type is {request.mimetype[:60]!r}"
        raise BadRequestError(msg, key="Content-Type", fix="application/json", status=415)
    if (request.content_length or 0) > _MAX_BODY_BYTES:
        msg = f"the body has {request.content_length} bytes"
        raise BadRequestError(msg, fix=f"at most {_MAX_BODY_BYTES}", status=413)
    try:
        return event_from_json(request.get_data(), source.now())
    except ValueError as error:
        what, _, fix = str(error).partition("; ")
        named = what.partition(" ")[0]
        raise BadRequestError(what, key=named if named in _FIELDS else "", fix=fix) from error


def _with_author(event: Event) -> Event:
    name = "".join(character for character in guard.current_principal().name if character.isprintable())
    if not name or event.kind == "advice":
        return event
    by = f" (by {name})"
    return replace(event, text=event.text[: MAX_TEXT - len(by)] + by)


@contextmanager
def storing(otherwise: str, status: int = NOT_FOUND) -> Generator[None]:
    try:
        yield
    except IncidentError as error:
        what, _, fix = str(error).partition("; ")
        raise BadRequestError(what, fix=fix, status=status) from error
    except StoreError as error:
        message = f"{error} {error.__cause__}".lower()
        if any(word in message for word in _READ_ONLY):
            msg = "the dashboard has read-only access to this database"
            raise BadRequestError(msg, fix=otherwise, status=409) from error
        raise


def add_incident_routes(server: Flask, source: Source) -> None:
    def acknowledge(name: str, *, undo: bool = False) -> Response:
        check_csrf()
        _about_incident(source, name)
        with storing("stagelens alerts ack"):
            incident = source.incident_actions.acknowledge(name, author_name(), undo=undo)
        did = f"{author_name()} undid the acknowledgement of" if undo else f"{incident.acked_by} acknowledged"
        notified = incident.transitions[-1].notified
        sent = (
            ", ".join(delivery.channel for delivery in incident.deliveries[len(incident.deliveries) - notified :])
            or "no channel"
        )
        summary = f"{did} {incident.name}; notified: {sent}"
        hint = pagerduty_note(source, incident)
        acked = {"acked_by": incident.acked_by, "acked_at": incident.acked_at}
        return json_response({"id": name, **acked, "summary": f"{summary}. {hint}" if hint else summary})

    def note(name: str) -> Response:
        check_csrf()
        text = _json_fields("text").get("text", "")
        _about_incident(source, name, text)
        status = NOT_FOUND if source.incident_actions.incident(name) is None else 400
        with storing("add the note on a dashboard that may write", status):
            source.incident_actions.add_note(name, author_name(), text)
        return json_response({"id": name, "author": author_name(), "summary": "The note is in the timeline"}, 201)

    def accept(name: str) -> Response:
        check_csrf()
        _about_incident(source, name)
        why = _json_fields("why").get("why", "")
        status = NOT_FOUND if source.incident_actions.incident(name) is None else 409
        with storing("stagelens alerts accept", status):
            by = source.incident_actions.accept(name, author_name(), why)
        return json_response({"id": name, "acked_by": by, "summary": f"{by} accepted it as the new baseline"})

    def silence() -> Response:
        check_csrf()
        given = _json_fields(*MATCHERS, "for", "comment")
        length = _silence_length(given.pop("for", _DEFAULT))
        comment = given.pop("comment", "")
        about(", ".join(f"{key} {value}" for key, value in given.items()), *silenced(given))
        with storing("stagelens alerts silence", 400):
            created = source.incident_actions.silence(given, length, by=author_name(), comment=comment)
        return json_response(created, 201)

    def end(name: str) -> Response:
        check_csrf()
        ended = source.incident_actions.silence_named(name)
        if ended is not None:
            about(name, *silenced(ended.matchers))
        with storing("stagelens alerts unsilence"):
            source.incident_actions.unsilence(name)
        return json_response({"id": name})

    of_incident, of_silence = f"{INCIDENTS_API}/<name>", f"{SILENCES_API}/<name>"
    for path, endpoint, act in (
        (f"{of_incident}/acknowledge", "api acknowledge", acknowledge),
        (f"{of_incident}/unacknowledge", "api unacknowledge", partial(acknowledge, undo=True)),
        (f"{of_incident}/accept", "api accept", accept),
        (f"{of_incident}/notes", "api note", note),
        (SILENCES_API, "api silence", silence),
        (f"{of_silence}/end", "api unsilence", end),
    ):
        server.add_url_rule(path, endpoint, with_json_errors(act), methods=["POST"])


def _about_incident(source: Source, name: str, note: str = "") -> None:
    incident = source.incident_actions.incident(name)
    if incident is not None:
        about(f"{name}: {note}" if note else name, incident.service, incident.where.get("environment", ""))


def author_name() -> str:
    return (
        "".join(character for character in guard.current_principal().name if character.isprintable())
        or "a dashboard user"
    )


def _json_fields(*fields: str) -> dict[str, str]:
    try:
        given = json.loads(request.get_data())
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        msg = "the body is not a JSON object"
        raise BadRequestError(msg, fix=f"an object with some of {', '.join(fields)}")
    for key, value in cast("dict[str, object]", given).items():
        if key not in fields or not isinstance(value, str):
            msg = f"{key[:60]} is not a known field, or its value is not text"
            raise BadRequestError(msg, key=key[:60], fix=f"texts for some of {', '.join(fields)}")
    return cast("dict[str, str]", given)


def _silence_length(text: str) -> timedelta:
    try:
        length = parse_duration(text, "for")
    except ConfigError as error:
        raise BadRequestError(str(error), key="for", fix="such as 1h") from error
    if not timedelta(0) < length <= LONGEST:
        msg = f"for is {text[:60]!r}"
        raise BadRequestError(msg, key="for", fix=f"more than 0s and at most {LONGEST.days}d")
    return length
