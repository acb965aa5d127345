"""Endpoints with signed requests instead of sign-in: buttons of Slack and PagerDuty, and charts of incidents.

    POST /hooks/slack, /hooks/pagerduty           signed with the secret in the SLO file
    GET  /charts/<incident>/<signature>.png       signed by this dashboard (`alerts.delivery.chart`)

Clients of these endpoints have no account in the dashboard.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from threading import BoundedSemaphore, Lock, Thread
from typing import Literal

from flask import Flask, Response, abort, request
from werkzeug.exceptions import ServiceUnavailable
from werkzeug.wrappers import Request

from ...alerts.delivery.actions import (
    MAX_AGE_SECONDS,
    Action,
    is_from_pagerduty,
    is_from_slack,
    parse_pagerduty_action,
    parse_slack_action,
)
from ...alerts.delivery.channel import post_json
from ...alerts.delivery.channels.slack.blocks import escape_mrkdwn
from ...alerts.delivery.chart import CHART_PATH, draw_chart
from ...alerts.delivery.message import Finding
from ...alerts.incidents.journal import IncidentError
from ...core.errors import ChannelError
from ...store import lease
from ...store.audit import AUDIT_RETENTION, AuditEntry
from ...store.query_cache import QueryCache
from ..access import EVERYTHING, ForbiddenError, LiveAccess, ReaderAccess
from ..incident_actions import IncidentActions
from ..source import Source
from .audit_log import AuditLog

SIGNED_PATHS = ("/hooks/", f"{CHART_PATH}/")
# Key of the WSGI environ for `give_way`.
GIVE_WAY = "stagelens.give_way"
CHART_ENDPOINT = "chart of an incident"
# The cache time is short, because an open incident changes.
_CHART_HEADERS = {"Cache-Control": "private, max-age=60", "Cross-Origin-Resource-Policy": "cross-origin"}
_CACHE_BYTES = 32_000_000
# Number of charts that are drawn or wait to be drawn, and the retry time of further ones. [seconds]
_MOST_WAITING, _BUSY_SECONDS = 16, 5
HOOK_PATHS = SLACK, PAGERDUTY = "/hooks/slack", "/hooks/pagerduty"
# Maximum body size; a Slack payload includes the message of the button.
_MAX_BODY_BYTES = 512 * 1024
# Prefix of the leases that remember executed requests, and their time. Slack's signatures expire, but clocks of dashboards may
# differ; those of PagerDuty do not expire. [seconds]
_EXECUTED, _REMEMBERED = "executed:", {"slack": 12 * MAX_AGE_SECONDS, "pagerduty": AUDIT_RETENTION.total_seconds()}
Kind = Literal["slack", "pagerduty"]
_log = logging.getLogger(__name__)


def give_way(waiting: Request) -> None:
    """Let a further request run in the threads of `wsgi_front` from now on, because the request *waiting* is about to wait."""
    waiting.environ.get(GIVE_WAY, lambda: None)()


def add_hook_routes(server: Flask, source: Source, access: LiveAccess, audit_log: AuditLog) -> None:
    def slack() -> Response:
        timestamp, signature = (
            request.headers.get(f"X-Slack-{name}", "") for name in ("Request-Timestamp", "Signature")
        )
        now, body = source.now().timestamp(), _body()
        _require_signature(source, "slack", lambda secret: is_from_slack(secret, timestamp, signature, body, now))
        action = parse_slack_action(body)
        return _respond(
            source, audit_log, "slack", action, lambda action: access.of_slack(action.member), content=signature
        )

    def pagerduty() -> Response:
        signatures, body = request.headers.get("X-PagerDuty-Signature", ""), _body()
        _require_signature(source, "pagerduty", lambda secret: is_from_pagerduty(secret, signatures, body))
        action, content = parse_pagerduty_action(body), body.decode(errors="replace")
        return _respond(source, audit_log, "pagerduty", action, lambda _action: EVERYTHING, content=content)

    server.add_url_rule(SLACK, "hook of slack", slack, methods=["POST"])
    server.add_url_rule(PAGERDUTY, "hook of pagerduty", pagerduty, methods=["POST"])


def _body() -> bytes:
    if (request.content_length or 0) > _MAX_BODY_BYTES:
        abort(_text_response("too long", 413))
    return request.get_data()


def _require_signature(source: Source, kind: Kind, is_genuine: Callable[[str], bool]) -> None:
    if not any(is_genuine(channel.signing_secret) for channel in source.signing_channels(kind)):
        abort(_text_response(f"no channel of kind {kind} has the secret of this signature", 401))


def _respond(
    source: Source,
    audit_log: AuditLog,
    kind: Kind,
    action: Action | None,
    access_of: Callable[[Action], ReaderAccess],
    *,
    content: str,
) -> Response:
    if action is None:
        return _text_response("", 200)
    delivery = f"{action.delivery} {action.verb} {action.incident}" if action.delivery else content
    with source.store.transaction() as connection:
        memory = f"{kind} {delivery}".encode(), source.clock(), _REMEMBERED[kind]
        if lease.remember(connection, _EXECUTED, *memory):
            _execute(source, audit_log, kind, action, access_of(action))
    return _text_response("", 200)


def _execute(source: Source, audit_log: AuditLog, kind: Kind, action: Action, access: ReaderAccess) -> None:
    incident = source.incident_actions.incident(action.incident)
    about = (incident.service, incident.where.get("environment", "")) if incident else ("", "")
    verb = "accept as baseline" if action.verb == "accept" else action.verb
    entry = AuditEntry(source.now(), action.person, kind, verb, action.incident, *about)
    try:
        source.of_reader(access).require(*about, "responder")
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


def _apply(source: Source, action: Action) -> None:
    actions = source.incident_actions
    if action.verb == "acknowledge":
        actions.acknowledge(action.incident, action.person)
    elif action.verb == "accept":
        actions.accept(action.incident, action.person)
    elif (incident := actions.incident(action.incident)) is not None:
        about = {"service": incident.service, "slo": incident.name}
        about |= {key: name for key, name in incident.where.items() if key == "environment"}
        actions.silence(about, timedelta(seconds=action.seconds), by=action.person, comment=f"from {incident.id}")


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


class _Charts:
    """Charts of incidents: each is drawn once and cached, and one is drawn at a time. Thread-safe."""

    def __init__(self) -> None:
        self._cache = QueryCache(_CACHE_BYTES)
        self._pen, self._free = Lock(), BoundedSemaphore(_MOST_WAITING)

    def get(self, incident: str, finding: Finding) -> bytes | None:
        png = self._cache.known(incident, finding)
        if png is None:
            give_way(request)
            png = self._cache.get(incident, finding, lambda: self._draw(finding))
        return png

    def _draw(self, finding: Finding) -> bytes | None:
        if not self._free.acquire(blocking=False):
            raise ServiceUnavailable(retry_after=_BUSY_SECONDS)
        try:
            with self._pen:
                return draw_chart(finding)
        finally:
            self._free.release()


def add_chart_route(server: Flask, actions: IncidentActions) -> None:
    charts = _Charts()

    def chart(incident: str, signature: str) -> Response:
        finding = actions.signed_finding(incident, signature)
        png = finding and charts.get(incident, finding)
        if png is None:
            return Response("not found", 404, mimetype="text/plain", headers={"Cache-Control": "no-store"})
        response = Response(png, mimetype="image/png", headers=_CHART_HEADERS)
        response.add_etag()
        response.make_conditional(request)
        return response

    server.add_url_rule(f"{CHART_PATH}/<incident>/<signature>.png", CHART_ENDPOINT, chart)
