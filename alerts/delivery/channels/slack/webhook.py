"""Slack incoming webhook: one message per transition, as blocks, with the headline as the notification.

A webhook cannot find out whether Slack already has a message. Losing a page is worse than a duplicate, so a message with an
unknown outcome (the process died, or no response came) is sent again with a note that it may be a repeat; its block ids are
those of the first. A bot can do better, see `bot`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from .....core.errors import ChannelError
from ...channel import Refresh
from ...http import HttpResponse, post_json
from ...message import Message
from .blocks import incident_blocks, notification_text, plain_text

# Errors about blocks; the message is sent again without them.
BLOCK_ERRORS = frozenset({"invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long", "invalid_payload"})


@dataclass(frozen=True, slots=True)
class SlackWebhook:
    """A Slack channel with an incoming webhook.

    Args:
        name: Name in the outbox.
        webhook_url: Address of the webhook; a secret.
    """

    name: str
    webhook_url: str = field(repr=False)
    # https://docs.slack.dev/apis/web-api/rate-limits: one message per second and channel
    gap_seconds: float = 1.0
    refresh: Refresh | None = None

    def send(self, message: Message) -> str:
        """Post *message*; Slack responds `ok` on success and returns no reference."""
        try:
            answer = self._post(webhook_payload(message))
        except ChannelError as refused:
            if not (refused.permanent and any(word in str(refused) for word in BLOCK_ERRORS)):
                raise
            answer = self._post({"text": plain_text(message)})
        if answer.text.strip() != "ok":
            msg = f"Slack answered {answer.status} without its ok; is the address that of an incoming webhook?"
            raise ChannelError(msg, permanent=False)
        return ""

    def _post(self, said: dict[str, Any]) -> HttpResponse:
        return post_json(self.webhook_url, json.dumps(said, ensure_ascii=False).encode(), {}, receiver="Slack")


def webhook_payload(message: Message) -> dict[str, Any]:
    """Return the payload of *message*."""
    return {"text": notification_text(message), "blocks": incident_blocks(message)}
