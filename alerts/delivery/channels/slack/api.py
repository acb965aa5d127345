"""Client of the Slack Web API: calls, their errors, and chart uploads. `ok: false` in a 200 response is an error.

A chart is optional. It is added to a message that Slack has accepted, and a failed upload leaves that message unchanged.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from .....core.errors import ChannelError
from ....formatting import cut
from ...channel import OutcomeUnknownError, encode_json, find_hint, post_json, redact

BASE_URL = "https://slack.com/api"
# Error responses of the receiver, and their fixes.
HINTS = (
    ("invalid_auth", "The token belongs to another workspace: copy the Bot User OAuth Token (xoxb-…) of the app."),
    ("not_authed", "The token is empty: set the variable that token_env names."),
    ("token_revoked", "The token was revoked: reinstall the app and copy its Bot User OAuth Token (xoxb-…)."),
    ("account_inactive", "The token was revoked: reinstall the app and copy its Bot User OAuth Token (xoxb-…)."),
    ("missing_scope", "The app lacks a scope: add it under OAuth & Permissions, then reinstall the app."),
    ("not_in_channel", "The bot is not in the channel: write /invite @<its name> there."),
    (
        "channel_not_found",
        "The bot does not see this channel: use the channel's ID, and invite the bot if it is private.",
    ),
    ("is_archived", "The channel is archived: use another channel."),
    ("no_service", "The webhook was deleted: add a new one to the app, under Incoming Webhooks."),
    ("no_team", "The webhook URL is incomplete: copy it again, under Incoming Webhooks."),
    ("invalid_token", "The webhook URL is incomplete: copy it again, under Incoming Webhooks."),
    ("without its ok", "The server at that URL is not Slack: copy the URL again, under Incoming Webhooks."),
)
# https://docs.slack.dev/reference/methods/chat.postMessage#errors: temporary errors; all others are permanent.
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
# Methods that accept only form-encoded arguments.
_FORMS = ("conversations.", "files.getUploadURLExternal")
log = logging.getLogger(__name__)
# https://docs.slack.dev/reference/methods/files.getUploadURLExternal#errors: alt_txt_too_large
MAX_ALT_CHARS = 1000
# Slack processes a file before a message may show it, and reports the block as invalid until then
# (slackapi/python-slack-sdk#1521): waits between attempts. [seconds]
WAITS_SECONDS = (1.0, 1.0, 2.0)
# Time limit of one upload, because other messages wait for it. [seconds]
UPLOAD_TIMEOUT_SECONDS = 10.0
# Time without uploads after an error. [seconds]
REST_SECONDS = 600.0
_NOT_READY = frozenset({"invalid_blocks", "invalid_blocks_format"})


class SlackError(ChannelError):
    def __init__(self, word: str, message: str) -> None:
        super().__init__(message, permanent=word not in TRANSIENT_ERRORS)
        self.word = word


def call_slack(base_url: str, token: str, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    url = f"{base_url.rstrip('/')}/{method}"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json; charset=utf-8"}
    body = encode_json(arguments)
    if method.startswith(_FORMS):
        headers["Content-Type"], body = "application/x-www-form-urlencoded", urlencode(arguments).encode()
    response = post_json(url, body, headers, receiver="Slack", secrets=[token])
    try:
        result = json.loads(response.body)
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, dict) or not isinstance(result.get("ok"), bool):
        msg = f"Slack responded {response.status} with a body that is not a Slack API response: {redact(response.text, [token])}"
        raise OutcomeUnknownError(msg)
    if not result["ok"]:
        word = redact(str(result.get("error", "no reason")), [token])
        raise SlackError(word, f"Slack responded {word} to {method}{_needed(result, token)}")
    return result


def _needed(result: Mapping[str, Any], token: str) -> str:
    """Return the scope that the token lacks as text; "" if the response does not name it."""
    needed = result.get("needed")
    return f" (needs {redact(needed, [token])})" if isinstance(needed, str) and needed else ""


class ChartUploads:
    """Uploader of charts for the messages of one channel; errors are logged once and do not affect messages."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._rests_until = clock()
        self._is_troubled = False

    def put(self, channel: str, upload: Callable[[], str], show: Callable[[str], object]) -> str:
        """Upload a chart and add it to the message; return the file id; "" if the message has no chart."""
        began = self._clock()
        if began < self._rests_until:
            return ""
        try:
            file = upload()
            self._show(file, show, began + UPLOAD_TIMEOUT_SECONDS)
        except ChannelError as trouble:
            self._rests_until = self._clock() + (trouble.retry_after_seconds or REST_SECONDS)
            if not self._is_troubled:
                reason = f"{trouble}. {find_hint(str(trouble), HINTS)}".strip()
                log.warning("alerts: %s: messages are sent without their chart: %s", channel, reason)
            self._is_troubled = True
            return ""
        self._is_troubled = False
        return file

    def _show(self, file: str, show: Callable[[str], object], end: float) -> None:
        for wait in WAITS_SECONDS:
            try:
                show(file)
            except SlackError as refused:
                if refused.word not in _NOT_READY or self._clock() + wait > end:
                    raise
                self._sleep(wait)
            else:
                return
        show(file)


def upload_file(base_url: str, token: str, png: bytes, name: str, alt: str) -> str:
    """Upload *png* as the file *name* and return the file id; users see the file only in a message that shows it.

    https://docs.slack.dev/messaging/working-with-files#uploading_files
    """
    wanted = {"filename": name, "length": len(png), "alt_txt": cut(alt, MAX_ALT_CHARS)}
    offered = call_slack(base_url, token, "files.getUploadURLExternal", wanted)
    file = str(offered.get("file_id", ""))
    post_json(str(offered.get("upload_url", "")), png, {"Content-Type": "image/png"}, receiver="Slack", secrets=[token])
    call_slack(base_url, token, "files.completeUploadExternal", {"files": [{"id": file, "title": name}]})
    return file
