"""Actions of users in Slack and PagerDuty: signature checks and parsing of webhook requests.

Both vendors sign the raw body. Callers check the signature first and do not parse a body with an invalid one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import parse_qs

from ..formatting import line
from .channels.slack.blocks import ACCEPT, ACKNOWLEDGE, SILENCE

Verb = Literal["acknowledge", "accept", "silence"]
# https://docs.slack.dev/authentication/verifying-requests-from-slack: older requests may be replayed ones. [seconds]
MAX_AGE_SECONDS = 300.0
# Length of the database column.
MAX_PERSON_CHARS = 200
_SILENCE_SECONDS = 3600.0
_VERBS: Mapping[str, Verb] = {ACKNOWLEDGE: "acknowledge", ACCEPT: "accept", SILENCE: "silence"}
_MOMENT = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class Action:
    """Action of a user on an incident; *delivery*: id that is equal in all attempts to deliver it, "" if unknown."""

    verb: Verb
    incident: str
    person: str
    seconds: float = 0.0
    member: str = ""
    response_url: str = field(default="", repr=False)
    delivery: str = ""


def is_from_slack(secret: str, timestamp: str, signature: str, body: bytes, now: float) -> bool:
    if not secret or not _MOMENT.fullmatch(timestamp) or abs(now - int(timestamp)) > MAX_AGE_SECONDS:
        return False
    signed = b"v0:" + timestamp.encode() + b":" + body
    return _equal_signatures("v0=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest(), signature)


def is_from_pagerduty(secret: str, signatures: str, body: bytes) -> bool:
    if not secret:
        return False
    wanted = "v1=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return any(_equal_signatures(wanted, signature.strip()) for signature in signatures.split(","))


def parse_slack_action(body: bytes) -> Action | None:
    """Parse the click on a Slack button; None for a button without action, such as a link, and for an invalid body.

    The body is a form whose `payload` is JSON: https://docs.slack.dev/reference/interaction-payloads/block_actions-payload
    """
    payloads = parse_qs(body.decode("utf-8", "replace")).get("payload", [""])
    payload = _json(payloads[0])
    if payload.get("type") != "block_actions":
        return None
    user = _mapping(payload.get("user"))
    person = _person(user.get("name") or user.get("username") or user.get("id"))
    member, click = _text(user.get("id")), _text(payload.get("trigger_id"))
    for pressed in _list(payload.get("actions")):
        incident, action = pressed.get("value"), pressed.get("action_id")
        if isinstance(incident, str) and incident and isinstance(action, str) and action in _VERBS:
            verb = _VERBS[action]
            seconds = _SILENCE_SECONDS if verb == "silence" else 0.0
            return Action(verb, incident, person, seconds, member, _text(payload.get("response_url")), click)
    return None


def parse_pagerduty_action(body: bytes) -> Action | None:
    """Parse a PagerDuty V3 webhook; None for all events except an acknowledgement by a user.

    `incident_key` is the deduplication key of the event: https://developer.pagerduty.com/docs/webhooks-overview
    """
    event = _mapping(_json(body.decode("utf-8", "replace")).get("event"))
    incident = _mapping(event.get("data")).get("incident_key")
    agent = _mapping(event.get("agent"))
    # An acknowledge event sent by Stagelens returns with the integration as agent, and must not acknowledge again.
    is_by_person = event.get("event_type") == "incident.acknowledged" and agent.get("type") == "user_reference"
    if not (is_by_person and isinstance(incident, str) and incident):
        return None
    return Action("acknowledge", incident, _person(agent.get("summary")), delivery=_text(event.get("id")))


def _equal_signatures(wanted: str, given: str) -> bool:
    return hmac.compare_digest(wanted.encode(), given.encode("utf-8", "replace"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _person(name: object) -> str:
    return line(_text(name), MAX_PERSON_CHARS) or "somebody"


def _json(text: str) -> Mapping[str, Any]:
    try:
        return _mapping(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Mapping[str, Any]]:
    return [_mapping(entry) for entry in cast("list[object]", value)] if isinstance(value, list) else []
