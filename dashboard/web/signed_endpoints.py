"""Endpoints with signed requests instead of sign-in: Slack, PagerDuty buttons, incident charts and preview images.

    POST /hooks/slack, /hooks/pagerduty           signed with the secret in the SLO file
    GET  /charts/<incident>/<signature>.png       signed by this dashboard (`alerts.delivery.chart`)
    GET  /previews/<signature>.png                signed by this dashboard (`previews`)

Clients of these endpoints have no account in the dashboard.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import BoundedSemaphore, Lock, Thread
from typing import TYPE_CHECKING, Literal

from flask import Flask, Response, abort, request
from werkzeug.exceptions import ServiceUnavailable
from werkzeug.wrappers import Request

from ...alerts import lease
from ...alerts.delivery.actions import (
    MAX_AGE_SECONDS,
    Action,
    SharedLinks,
    is_from_pagerduty,
    is_from_slack,
    parse_pagerduty_action,
    parse_slack_action,
    parse_slack_event,
)
from ...alerts.delivery.channel import find_hint, post_json
from ...alerts.delivery.channels import ChannelEntry
from ...alerts.delivery.channels.slack import SlackBot
from ...alerts.delivery.channels.slack.api import HINTS
from ...alerts.delivery.channels.slack.blocks import escape_mrkdwn
from ...alerts.delivery.chart import CHART_PATH, draw_chart
from ...alerts.incidents.journal import IncidentError
from ...core.errors import ChannelError
from ...store.audit import KEPT, AuditEntry
from ...store.query_cache import QueryCache
from ..access import EVERYTHING, ForbiddenError, LiveAccess, ReaderAccess
from ..incident_actions import IncidentActions
from ..source import Source
from .audit_log import AuditLog

if TYPE_CHECKING:
    from .previews import PreviewLinks

PREVIEW_PATH = "/previews"
SIGNED_PATHS = ("/hooks/", f"{CHART_PATH}/", f"{PREVIEW_PATH}/")
# Key of the WSGI environ for `give_way`.
GIVE_WAY = "stagelens.give_way"
IMAGE_ENDPOINTS = CHART_ENDPOINT, PREVIEW_ENDPOINT = "chart of an incident", "preview of a view"
# The cache time is short, because an open incident changes.
_IMAGE_HEADERS = {"Cache-Control": "private, max-age=60", "Cross-Origin-Resource-Policy": "cross-origin"}
_KEPT_BYTES = 32_000_000
# Number of images that are drawn or wait to be drawn, and the retry time of further ones. [seconds]
_MOST_WAITING, _BUSY_SECONDS = 16, 5
HOOK_PATHS = SLACK, PAGERDUTY = "/hooks/slack", "/hooks/pagerduty"
# Maximum body size; a Slack payload includes the message of the button.
_MAX_BODY_BYTES = 512 * 1024
# Number of messages whose previews are prepared at once (further ones have none), and of remembered events. [count]
_MOST_UNFURLS, _MAX_HANDLED = 4, 1000
# Prefix of the leases that remember executed requests, and their time. Slack's signatures expire, but clocks of dashboards may
# differ; those of PagerDuty do not expire. [seconds]
_EXECUTED, _REMEMBERED = "executed:", {"slack": 12 * MAX_AGE_SECONDS, "pagerduty": KEPT.total_seconds()}
Kind = Literal["slack", "pagerduty"]
_log = logging.getLogger(__name__)


def give_way(waiting: Request) -> None:
    """Let a further request run in the threads of `wsgi_front` from now on, because the request *waiting* is about to wait."""
    waiting.environ.get(GIVE_WAY, lambda: None)()


@dataclass(frozen=True, slots=True)
class SignedImage:
    """Image with a valid URL; *version*: value that differs if the image may differ."""

    key: Hashable
    version: object
    draw: Callable[[], bytes | None]


def add_hook_routes(
    server: Flask, source: Source, access: LiveAccess, audit_log: AuditLog, links: PreviewLinks
) -> None:
    """Add the Slack and PagerDuty webhooks to *server*."""
    unfurler = _Unfurler(source, access, links)

    def slack() -> Response:
        timestamp, signature = (
            request.headers.get(f"X-Slack-{name}", "") for name in ("Request-Timestamp", "Signature")
        )
        now, body = source.now().timestamp(), _body()
        channels = _signing_channels(
            source, "slack", lambda secret: is_from_slack(secret, timestamp, signature, body, now)
        )
        # Buttons send forms; the Events API sends JSON.
        if request.is_json:
            return _text_response(unfurler.respond(parse_slack_event(body), channels), 200)
        action = parse_slack_action(body)
        return _respond(
            source, audit_log, "slack", action, lambda action: access.of_slack(action.member), content=signature
        )

    def pagerduty() -> Response:
        signatures, body = request.headers.get("X-PagerDuty-Signature", ""), _body()
        _signing_channels(source, "pagerduty", lambda secret: is_from_pagerduty(secret, signatures, body))
        action, content = parse_pagerduty_action(body), body.decode(errors="replace")
        return _respond(source, audit_log, "pagerduty", action, lambda _action: EVERYTHING, content=content)

    server.add_url_rule(SLACK, "hook of slack", slack, methods=["POST"])
    server.add_url_rule(PAGERDUTY, "hook of pagerduty", pagerduty, methods=["POST"])


class _Unfurler:
    """Adds previews to links to the dashboard in Slack, limited by the rights of the member who shared the link."""

    def __init__(self, source: Source, access: LiveAccess, links: PreviewLinks) -> None:
        self._source, self._access, self._links = source, access, links
        self._free = BoundedSemaphore(_MOST_UNFURLS)
        # In this process only: a preview that is added again stays the same.
        self._handled: deque[str] = deque(maxlen=_MAX_HANDLED)

    def respond(self, event: str | SharedLinks | None, channels: Sequence[ChannelEntry]) -> str:
        if event is None or isinstance(event, str):
            return event or ""
        if event.delivery and event.delivery in self._handled:
            return ""
        self._handled.append(event.delivery)
        bots = [each.channel for each in channels if isinstance(each.channel, SlackBot) and each.channel.unfurls]
        reader = self._source.of_reader(self._access.of_slack(event.member))
        if bots and reader.access.grants and self._free.acquire(blocking=False):
            Thread(target=self._unfurl, args=(bots[0], reader, event, self._links.base_urls()), daemon=True).start()
        return ""

    def _unfurl(self, bot: SlackBot, reader: Source, event: SharedLinks, bases: Sequence[str]) -> None:
        try:
            found = self._links.unfurls(reader, event.urls, bases)
            if found:
                bot.unfurl(event.place, found)
        except ChannelError as error:
            _log.warning("dashboard: slack: a link has no preview: %s. %s", error, find_hint(str(error), HINTS))
        except Exception:  # noqa: BLE001 - the message has no preview
            _log.exception("dashboard: slack: a link has no preview")
        finally:
            self._free.release()


def _body() -> bytes:
    if (request.content_length or 0) > _MAX_BODY_BYTES:
        abort(_text_response("too long", 413))
    return request.get_data()


def _signing_channels(source: Source, kind: str, is_genuine: Callable[[str], bool]) -> list[ChannelEntry]:
    found = [each for each in source.signing_channels(kind) if is_genuine(each.signing_secret)]
    if not found:
        abort(_text_response(f"no channel of kind {kind} has the secret of this signature", 401))
    return found


def _respond(
    source: Source,
    audit_log: AuditLog,
    kind: Kind,
    action: Action | None,
    access_of: Callable[[Action], ReaderAccess],
    *,
    content: str,
) -> Response:
    """Execute *action* once, and remember it in the same transaction; *content* identifies a request without a delivery id."""
    if action is None:
        return _text_response("", 200)
    delivery = f"{action.delivery} {action.verb} {action.incident}" if action.delivery else content
    with source.store.transaction() as connection:
        memory = f"{kind} {delivery}".encode(), source.clock(), _REMEMBERED[kind]
        if lease.remember(connection, _EXECUTED, *memory):
            _execute(source, audit_log, kind, action, access_of(action))
    return _text_response("", 200)


def _execute(source: Source, audit_log: AuditLog, kind: Kind, action: Action, access: ReaderAccess) -> None:
    found = source.incident_actions.incident(action.incident)
    about = (found.service, found.where.get("environment", "")) if found else ("", "")
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
    elif (found := actions.incident(action.incident)) is not None:
        about = {"service": found.service, "slo": found.name}
        about |= {key: name for key, name in found.where.items() if key == "environment"}
        actions.silence(about, timedelta(seconds=action.seconds), by=action.person, comment=f"from {found.id}")


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


class _Images:
    """Images of valid URLs: each is drawn once and kept, and one is drawn at a time. Thread-safe."""

    def __init__(self) -> None:
        self._kept = QueryCache(_KEPT_BYTES)
        self._pen, self._free = Lock(), BoundedSemaphore(_MOST_WAITING)

    def get(self, image: SignedImage) -> bytes | None:
        """Return *image* as PNG; None without data."""
        known = self._kept.known(image.key, image.version)
        if known is None:
            give_way(request)
            known = self._kept.get(image.key, image.version, lambda: self._drawn(image))
        return known

    def _drawn(self, image: SignedImage) -> bytes | None:
        if not self._free.acquire(blocking=False):
            raise ServiceUnavailable(retry_after=_BUSY_SECONDS)
        try:
            with self._pen:
                return image.draw()
        finally:
            self._free.release()


def add_image_routes(server: Flask, actions: IncidentActions, links: PreviewLinks) -> None:
    """Add incident charts and preview images to *server*; the response is 404 for an invalid signature or without data."""
    images = _Images()

    def chart(incident: str, signature: str) -> Response:
        finding = actions.signed_finding(incident, signature)
        return respond(finding and SignedImage(("chart", incident), finding, lambda: draw_chart(finding)))

    def preview(signature: str) -> Response:
        given = request.args
        return respond(links.image(signature, given.get("path", ""), given.get("until", ""), given.getlist("env")))

    def respond(image: SignedImage | None) -> Response:
        png = None if image is None else images.get(image)
        if png is None:
            return Response("not found", 404, mimetype="text/plain", headers={"Cache-Control": "no-store"})
        response = Response(png, mimetype="image/png", headers=_IMAGE_HEADERS)
        response.add_etag()
        response.make_conditional(request)
        return response

    server.add_url_rule(f"{CHART_PATH}/<incident>/<signature>.png", CHART_ENDPOINT, chart)
    server.add_url_rule(f"{PREVIEW_PATH}/<signature>.png", PREVIEW_ENDPOINT, preview)
