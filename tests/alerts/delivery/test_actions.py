"""User actions in Slack and PagerDuty: signature checks and parsing."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.alerts.delivery.actions import (
    Action,
    is_from_pagerduty,
    is_from_slack,
    parse_pagerduty_action,
    parse_slack_action,
)
from stagelens.alerts.delivery.channels.slack import blocks as slack_blocks
from stagelens.alerts.delivery.message import Message
from tests.alerts.stored import SLOWER, about

SECRET, AT = "8f742231b10e8888abcd99yyyzzz85a5", 1_531_420_618


def signed(body: bytes, stamp: str = str(AT), secret: str = SECRET) -> str:
    base_string = f"v0:{stamp}:".encode() + body
    return "v0=" + hmac.new(secret.encode(), base_string, hashlib.sha256).hexdigest()


def pressed(element: dict[str, Any]) -> bytes:
    action = {"type": "button", "action_id": element["action_id"], "value": element.get("value")}
    user = {"id": "U1", "username": "ana", "name": "ana", "team_id": "T1"}
    return urlencode({"payload": json.dumps({"type": "block_actions", "user": user, "actions": [action]})}).encode()


def webhook(kind: str = "incident.acknowledged", agent: str = "user_reference") -> bytes:
    data = {"id": "PT4KHLK", "type": "incident", "status": "acknowledged", "incident_key": "sl-1"}
    event = {"event_type": kind, "agent": {"summary": "Ana\nAdams", "type": agent}, "data": data}
    return json.dumps({"event": event}).encode()


def test_the_slack_documentation_example_has_a_valid_signature() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&"
        b"channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&"
        b"response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&"
        b"trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"

    assert is_from_slack(SECRET, "1531420618", signature, body, AT)


@pytest.mark.parametrize(
    ("secret", "stamp", "now"),
    [
        ("", str(AT), AT),
        (SECRET, str(AT), AT + 301),
        (SECRET, str(AT), AT - 301),
        (SECRET, "yesterday", AT),
        (SECRET, "١٥٣١٤٢٠٦١٨", AT),
        (SECRET, "9" * 5000, AT),
        (SECRET, "", AT),
    ],
)
def test_an_old_timestamp_or_missing_secret_makes_a_signature_invalid(secret: str, stamp: str, now: float) -> None:
    assert not is_from_slack(secret, stamp, signed(b"x", stamp, secret), b"x", now)


@given(body=st.binary(), other=st.binary(), signature=st.text())
def test_another_body_or_signature_is_invalid(body: bytes, other: bytes, signature: str) -> None:
    assert is_from_slack(SECRET, str(AT), signed(body), body, AT)
    assert not is_from_slack(SECRET, str(AT), signature, body, AT)
    assert is_from_slack(SECRET, str(AT), signed(body), other, AT) is (body == other)


def test_clicked_buttons_become_actions(message: Message) -> None:
    # Slack accepts no button without an address, nor with a long one.
    bare = about(message, runbook="", link=f"https://x.example/{'x' * 3000}")
    asked, about_slower, about_bare = (
        [
            parse_slack_action(pressed(element))
            for block in slack_blocks.incident_blocks(each, buttons=True)
            if block["type"] == "actions"
            for element in block["elements"]
        ]
        for each in (message, about(message, **SLOWER), bare)
    )
    acknowledged = Action("acknowledge", message.incident, "ana", member="U1")
    accepted = Action("accept", message.incident, "ana", member="U1")
    silenced = Action("silence", message.incident, "ana", 3600.0, "U1")

    assert asked == [acknowledged, None, None, silenced]
    assert about_bare == [acknowledged, silenced]
    assert accepted in about_slower


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["user", "name", "value", "action_id", "type"]), inner, max_size=4)
    ),
)


@given(
    body=st.binary() | st.text().map(lambda text: urlencode({"payload": text}).encode()),
    user=json_values,
    actions=json_values,
)
def test_invalid_slack_bodies_cause_no_action(body: bytes, user: Any, actions: Any) -> None:
    shaped = urlencode({"payload": json.dumps({"type": "block_actions", "user": user, "actions": actions})}).encode()

    assert parse_slack_action(body) is None
    assert parse_slack_action(shaped) is None
    assert parse_pagerduty_action(json.dumps({"event": {"data": user, "agent": actions}}).encode()) is None


def test_pagerduty_signs_with_any_of_several_secrets() -> None:
    right = "v1=" + hmac.new(b"s", b"body", hashlib.sha256).hexdigest()

    assert is_from_pagerduty("s", f"v1=00,{right}", b"body")
    assert not is_from_pagerduty("s", right, b"other")
    assert not is_from_pagerduty("", right, b"body")
    assert not is_from_pagerduty("s", "", b"body")


def test_only_an_acknowledgement_by_a_person_in_pagerduty_is_an_action() -> None:
    resolved, by_api = webhook("incident.resolved"), webhook(agent="inbound_integration_reference")
    others = [resolved, by_api, b"", b"[]", b'{"event": 1}', b"\xff"]

    assert parse_pagerduty_action(webhook()) == Action("acknowledge", "sl-1", "Ana Adams")
    assert [parse_pagerduty_action(body) for body in others] == [None] * len(others)
