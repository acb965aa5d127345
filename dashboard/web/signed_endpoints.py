"""Endpoints with signed requests instead of sign-in: Slack and PagerDuty buttons, incident charts and preview images.

    POST /hooks/slack, /hooks/pagerduty           signed with the secret in the SLO file
    GET  /charts/<incident>/<signature>.png       signed by this dashboard (`alerts.delivery.chart`)
    GET  /previews/<signature>.png                signed by this dashboard (`previews`)

Clients of these endpoints have no account in the dashboard.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from threading import Thread
from typing import TYPE_CHECKING, Literal

from flask import Flask, Response, request

from ...alerts.delivery.actions import (
    Action,
    is_from_pagerduty,
    is_from_slack,
    parse_pagerduty_action,
    parse_slack_action,
)
from ...alerts.delivery.channel import post_json
from ...alerts.delivery.channels.slack.blocks import escape_mrkdwn
from ...alerts.delivery.chart import CHART_PATH
from ...alerts.incidents.journal import IncidentError
from ...core.errors import ChannelError
from ...store.audit import AuditEntry
from ..access import EVERYTHING, ForbiddenError, LiveAccess, ReaderAccess
from ..incident_actions import IncidentActions
from ..source import Source
from .audit_log import AuditLog

if TYPE_CHECKING:
    from .previews import PreviewLinks

PREVIEW_PATH = "/previews"
IMAGE_ENDPOINTS = CHART_ENDPOINT, PREVIEW_ENDPOINT = "chart of an incident", "preview of a view"
# Cache time of an image; short, because an open incident changes. [seconds]
_CACHE_SECONDS = 60
HOOK_PATHS = SLACK, PAGERDUTY = "/hooks/slack", "/hooks/pagerduty"
# Maximum body size; a Slack payload includes the message of the button.
_MAX_BODY_BYTES = 512 * 1024
_ACTIONS = {"acknowledge": "acknowledge", "accept": "accept as baseline", "silence": "silence"}
_log = logging.getLogger(__name__)


def add_hook_routes(server: Flask, source: Source, access: LiveAccess, audit_log: AuditLog) -> None:
    """Add the Slack and PagerDuty webhooks to *server*.

    Users of Slack need the rights that *access* gives them. In PagerDuty, its own permissions apply.
    """

    def slack() -> Response:
        timestamp, signature = (
            request.headers.get(f"X-Slack-{name}", "") for name in ("Request-Timestamp", "Signature")
        )
        now = source.now().timestamp()
        return _respond(
            source,
            audit_log,
            "slack",
            lambda secret, body: is_from_slack(secret, timestamp, signature, body, now),
            parse_slack_action,
            access_of=lambda action: access.of_slack(action.member),
        )

    def pagerduty() -> Response:
        signatures = request.headers.get("X-PagerDuty-Signature", "")
        return _respond(
            source,
            audit_log,
            "pagerduty",
            lambda secret, body: is_from_pagerduty(secret, signatures, body),
            parse_pagerduty_action,
            access_of=lambda _action: EVERYTHING,
        )

    server.add_url_rule(SLACK, "hook of slack", slack, methods=["POST"])
    server.add_url_rule(PAGERDUTY, "hook of pagerduty", pagerduty, methods=["POST"])


def _respond(
    source: Source,
    audit_log: AuditLog,
    kind: Literal["slack", "pagerduty"],
    is_genuine: Callable[[str, bytes], bool],
    read: Callable[[bytes], Action | None],
    *,
    access_of: Callable[[Action], ReaderAccess],
) -> Response:
    if (request.content_length or 0) > _MAX_BODY_BYTES:
        return _text_response("too long", 413)
    body = request.get_data()
    if not any(is_genuine(secret, body) for secret in source.signing_secrets(kind)):
        return _text_response(f"no channel of kind {kind} has the secret of this signature", 401)
    action = read(body)
    if action is not None:
        found = source.incident_actions.incident(action.incident)
        about = (found.service, found.where.get("environment", "")) if found else ("", "")
        entry = AuditEntry(source.now(), action.person, kind, _ACTIONS[action.verb], action.incident, *about)
        try:
            source.of_reader(access_of(action)).require(*about, "responder")
            _apply(source, action)
        except ForbiddenError as error:
            entry = replace(entry, outcome="refused", reason=str(error))
            # Slack waits three seconds for a response.
            Thread(target=_refuse, args=(action, str(error)), daemon=True).start()
        except IncidentError as error:
            # An error status would only make the sender retry.
            _log.info("%s: %s", kind, error)
            entry = replace(entry, outcome="failed", reason=str(error))
        audit_log.acted(entry)
    return _text_response("", 200)


def _apply(source: Source, action: Action) -> None:
    if action.verb == "acknowledge":
        source.incident_actions.acknowledge(action.incident, action.person)
        return
    if action.verb == "accept":
        source.incident_actions.accept(action.incident, action.person)
        return
    found = source.incident_actions.incident(action.incident)
    if found is not None:
        about = {"service": found.service, "slo": found.name}
        about |= {key: name for key, name in found.where.items() if key == "environment"}
        source.incident_actions.silence(
            about, timedelta(seconds=action.seconds), by=action.person, comment=f"from {found.id}"
        )


def _refuse(action: Action, reason: str) -> None:
    """Show the *reason* of a refused *action* to its user in Slack.

    https://docs.slack.dev/interactivity/handling-user-interaction#message_responses
    """
    text = f"Stagelens did not {action.verb} this incident: {reason}. Your Slack member ID is {action.member}."
    body = {"response_type": "ephemeral", "replace_original": False, "text": escape_mrkdwn(text)}
    try:
        post_json(action.response_url, json.dumps(body).encode(), {}, receiver="Slack")
    except ChannelError as error:
        _log.warning("dashboard: slack: %s does not see why an action was refused: %s", action.person, error)


def _text_response(text: str, status: int) -> Response:
    return Response(text, status, mimetype="text/plain")


def add_image_routes(server: Flask, actions: IncidentActions, links: PreviewLinks) -> None:
    """Add incident charts and preview images to *server*; the response is 404 for an invalid signature or without data."""

    def chart(incident: str, signature: str) -> Response:
        return image(actions.signed_chart(incident, signature))

    def preview(signature: str) -> Response:
        given = request.args
        return image(links.image(signature, given.get("path", ""), given.get("until", ""), given.getlist("env")))

    def image(png: bytes | None) -> Response:
        if png is None:
            return Response("not found", 404, mimetype="text/plain", headers={"Cache-Control": "no-store"})
        headers = {
            "Cache-Control": f"private, max-age={_CACHE_SECONDS}",
            "Cross-Origin-Resource-Policy": "cross-origin",
        }
        return Response(png, mimetype="image/png", headers=headers)

    server.add_url_rule(f"{CHART_PATH}/<incident>/<signature>.png", CHART_ENDPOINT, chart)
    server.add_url_rule(f"{PREVIEW_PATH}/<signature>.png", PREVIEW_ENDPOINT, preview)
