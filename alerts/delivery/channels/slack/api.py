"""Slack's Web API: one call, and what its answers mean. `ok: false` within a 200 is a refusal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from .....core.errors import ChannelError
from ...channel import OutcomeUnknownError
from ...http import post, shown

BASE_URL = "https://slack.com/api"
# https://docs.slack.dev/reference/methods/chat.postMessage#errors: these pass; all others come back as often as we ask.
TRANSIENT_ERRORS = frozenset(
    {
        "accesslimited",
        "fatal_error",
        "internal_error",
        "rate_limited",
        "ratelimited",
        "request_timeout",
        "service_unavailable",
        "team_added_to_org",
    }
)
# Those that read take forms only, and the one that offers a place for a file took nothing else for long.
_FORMS = ("conversations.", "files.getUploadURLExternal")


class SlackError(ChannelError):
    """Slack refused a call.

    Args:
        word: Slack's own word for why, such as `channel_not_found`.
        message: The same for people.
    """

    def __init__(self, word: str, message: str) -> None:
        super().__init__(message, permanent=word not in TRANSIENT_ERRORS)
        self.word = word


def call(base_url: str, token: str, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call *method* and return the answer.

    Raises:
        SlackError: Slack refused.
        ChannelError: It could not be asked.
        OutcomeUnknownError: It answered something that is not its own; the call may have worked.
    """
    url = f"{base_url.rstrip('/')}/{method}"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json; charset=utf-8"}
    body = json.dumps(arguments, ensure_ascii=False).encode()
    if method.startswith(_FORMS):
        headers["Content-Type"], body = "application/x-www-form-urlencoded", urlencode(arguments).encode()
    answer = post(url, body, headers, receiver="Slack", secrets=[token])
    try:
        said = json.loads(answer.body)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or not isinstance(said.get("ok"), bool):
        msg = f"Slack answered {answer.status} with something that is not an answer of its API: {shown(answer.text, [token])}"
        raise OutcomeUnknownError(msg)
    if not said["ok"]:
        word = shown(str(said.get("error", "no reason")), [token])
        raise SlackError(word, f"Slack answered {word} to {method}{_needed(said, token)}")
    return said


def _needed(said: Mapping[str, Any], token: str) -> str:
    """Return what else Slack says about it, such as the scope the token lacks."""
    needed = said.get("needed")
    return f" (needs {shown(needed, [token])})" if isinstance(needed, str) and needed else ""
