"""What Slack and PagerDuty tell when somebody pressed a button there: `POST /hooks/slack` and `/hooks/pagerduty`.

They have no account here: a signature over the body, made with a secret that only they and the SLO file know, proves them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from flask import Flask, Response, request

from ..alerts.delivery.actions import (
    Action,
    is_from_pagerduty,
    is_from_slack,
    parse_pagerduty_action,
    parse_slack_action,
)
from ..alerts.incidents.journal import IncidentError
from .source import Source

PATHS = SLACK, PAGERDUTY = "/hooks/slack", "/hooks/pagerduty"
# A payload of Slack carries the message that the button is in.
_MAX_BODY_BYTES = 512 * 1024

_log = logging.getLogger(__name__)


def serve(server: Flask, source: Source) -> None:
    """Answer on *server*."""

    def slack() -> Response:
        timestamp, signature = (
            request.headers.get(f"X-Slack-{name}", "") for name in ("Request-Timestamp", "Signature")
        )
        now = source.now().timestamp()
        return _answer(
            source,
            "slack",
            lambda secret, body: is_from_slack(secret, timestamp, signature, body, now),
            parse_slack_action,
        )

    def pagerduty() -> Response:
        signatures = request.headers.get("X-PagerDuty-Signature", "")
        return _answer(
            source,
            "pagerduty",
            lambda secret, body: is_from_pagerduty(secret, signatures, body),
            parse_pagerduty_action,
        )

    server.add_url_rule(SLACK, "hook of slack", slack, methods=["POST"])
    server.add_url_rule(PAGERDUTY, "hook of pagerduty", pagerduty, methods=["POST"])


def _answer(
    source: Source, kind: str, is_genuine: Callable[[str, bytes], bool], read: Callable[[bytes], Action | None]
) -> Response:
    if (request.content_length or 0) > _MAX_BODY_BYTES:
        return _said("too long", 413)
    body = request.get_data()
    if not any(is_genuine(secret, body) for secret in source.signing_secrets(kind)):
        return _said(f"no channel of kind {kind} has the secret that this is signed with", 401)
    action = read(body)
    if action is not None:
        try:
            _do(source, action)
        except IncidentError as error:
            # The sender can do nothing about it, and would send it again.
            _log.info("%s: %s", kind, error)
    return _said("", 200)


def _do(source: Source, action: Action) -> None:
    if action.verb == "acknowledge":
        source.care.acknowledge(action.incident, action.person)
        return
    if action.verb == "accept":
        source.care.accept(action.incident, action.person)
        return
    found = source.care.incident(action.incident)
    if found is not None:
        about = {"service": found.service, "slo": found.name}
        source.care.silence(about, timedelta(seconds=action.seconds), by=action.person, comment=f"from {found.id}")


def _said(text: str, status: int) -> Response:
    return Response(text, status, mimetype="text/plain")
