"""What is done about incidents from a page or a program: looking after one, accepting, silencing, ending a silence.

    POST /api/v1/incidents/<id>/acknowledge
    POST /api/v1/incidents/<id>/accept         {"why": …}
    POST /api/v1/silences                      {"service": …, "for": "1h", "comment": …}
    POST /api/v1/silences/<id>/end

Taken as `writing` takes events: from our own pages, which prove it, and from programs that show the token.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, cast

from flask import Flask, Response, request

from ..alerts.incidents.journal import IncidentError
from ..alerts.incidents.silences import MATCHERS
from ..core.errors import ConfigError
from ..core.settings.values import parse_duration
from . import guard
from .events_api import check_proof, kept
from .incident_actions import Care
from .query_params import NOT_FOUND, AskError
from .replies import PREFIX, answer_json, explained

INCIDENTS, SILENCES = f"{PREFIX}v1/incidents", f"{PREFIX}v1/silences"
LONGEST = timedelta(days=395)
_DEFAULT = "1h"


def serve(server: Flask, care: Care) -> None:
    """Answer on *server*."""

    def acknowledge(name: str) -> Response:
        check_proof()
        with kept("stagelens alerts ack"):
            _known(lambda: care.acknowledge(name, asker()))
        return answer_json({"id": name, "acked_by": asker()})

    def accept(name: str) -> Response:
        check_proof()
        why = _given("why").get("why", "")
        with kept("stagelens alerts accept"):
            status = NOT_FOUND if care.incident(name) is None else 409
            by = _known(lambda: care.accept(name, asker(), why), status=status)
        return answer_json({"id": name, "acked_by": by})

    def silence() -> Response:
        check_proof()
        given = _given(*MATCHERS, "for", "comment")
        length = _length(given.pop("for", _DEFAULT))
        comment = given.pop("comment", "")
        with kept("stagelens alerts silence"):
            made = _known(lambda: care.silence(given, length, by=asker(), comment=comment), status=400)
        return answer_json(made, 201)

    def end(name: str) -> Response:
        check_proof()
        with kept("stagelens alerts unsilence"):
            _known(lambda: care.unsilence(name))
        return answer_json({"id": name})

    server.add_url_rule(f"{INCIDENTS}/<name>/acknowledge", "api acknowledge", explained(acknowledge), methods=["POST"])
    server.add_url_rule(f"{INCIDENTS}/<name>/accept", "api accept", explained(accept), methods=["POST"])
    server.add_url_rule(SILENCES, "api silence", explained(silence), methods=["POST"])
    server.add_url_rule(f"{SILENCES}/<name>/end", "api unsilence", explained(end), methods=["POST"])


def asker() -> str:
    """Return who asks, as far as the dashboard knows its readers by name."""
    return "".join(each for each in guard.asker().name if each.isprintable()) or "somebody at the dashboard"


def _known(act: Any, status: int = NOT_FOUND) -> Any:
    try:
        return act()
    except IncidentError as error:
        what, _, cure = str(error).partition("; ")
        raise AskError(what, cure=cure, status=status) from error


def _given(*fields: str) -> dict[str, str]:
    try:
        given = json.loads(request.get_data())
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        msg = "the body is no JSON object"
        raise AskError(msg, cure=f"an object with some of {', '.join(fields)}")
    for key, value in cast("dict[str, object]", given).items():
        if key not in fields or not isinstance(value, str):
            msg = f"{key[:60]} is no field here, or no text"
            raise AskError(msg, key=key[:60], cure=f"texts for some of {', '.join(fields)}")
    return cast("dict[str, str]", given)


def _length(text: str) -> timedelta:
    try:
        length = parse_duration(text, "for")
    except ConfigError as error:
        raise AskError(str(error), key="for", cure="such as 1h") from error
    if not timedelta(0) < length <= LONGEST:
        msg = f"for is {text[:60]!r}"
        raise AskError(msg, key="for", cure=f"more than 0s and at most {LONGEST.days}d")
    return length
