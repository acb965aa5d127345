"""Channels for Slack: an incoming webhook (`SlackWebhook`) or a bot token (`SlackBot`).

The webhook posts one message per transition, as blocks, with the headline as the notification. A webhook cannot detect whether
Slack already has a message. A lost posted is worse than a duplicate, so a message with an unknown outcome (the process died, or no
response arrived) is sent again with the same block ids and a note that it may be a repeat.

The bot maintains one message per incident that shows the current state, with the transitions in a thread. Before the bot sends a
message with an unknown outcome again, it searches the channel for the key in the message's metadata. A duplicate remains
possible only if Slack processes the first request after the search. A bot without permission to read the channel
(`channels:history`, for private ones `groups:history`) adds a note that the message may be a repeat. The chart (`files:write`) is
added after Slack accepted the message, so that no posted waits for an image, and each accepted message uploads at most one chart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import Field, field_validator

from .....core.errors import ChannelError
from .....core.settings.field_types import Secret, SecretAddress, Text, WebAddress, reject
from ...channel import (
    ChannelKind,
    ChannelSection,
    OutcomeUnknownError,
    ReceiverResponse,
    Refresh,
    SigningSecret,
    encode_json,
    post_json,
)
from ...chart import message_chart
from ...message import Message
from ...message_text import chart_in_words
from .api import BASE_URL, HINTS, ChartUploads, SlackError, call_slack, upload_file
from .blocks import incident_blocks, notification_text, plain_text, reply_blocks

# Errors about blocks, after which the message is sent again without blocks.
WEBHOOK_BLOCK_ERRORS = frozenset({"invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long", "invalid_payload"})
EVENT_TYPE = "stagelens_incident"
# https://docs.slack.dev/reference/methods/chat.update#errors: the message does not exist, or the bot may not change it.
_GONE = frozenset({"message_not_found", "cant_update_message", "edit_window_closed", "is_inactive"})
_BOT_BLOCK_ERRORS = frozenset({"invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long", "msg_too_long"})
# Errors of a bot without permission to read, after which the message contains a note that it may be a repeat.
_NO_READ_ACCESS = frozenset(
    {
        "missing_scope",
        "not_in_channel",
        "channel_not_found",
        "no_permission",
        "not_allowed_token_type",
        "thread_not_found",
    }
)
# Search margin before the opening, for clock differences. [seconds]
_SEARCH_MARGIN_SECONDS = 120.0
# Id of a Slack channel, which never changes, unlike the name.
_CHANNEL_ID = re.compile(r"[CDG][A-Z0-9]{7,}")


@dataclass(frozen=True, slots=True)
class SlackWebhook:
    name: str
    webhook_url: str = field(repr=False)
    # https://docs.slack.dev/apis/web-api/rate-limits: one message per second and channel
    gap_seconds: float = 1.0
    refresh: Refresh | None = None

    def send(self, message: Message) -> str:
        """Post *message* and return no reference, because a webhook responds only `ok`."""
        try:
            response = self._post(webhook_payload(message))
        except ChannelError as refused:
            if not (refused.permanent and any(word in str(refused) for word in WEBHOOK_BLOCK_ERRORS)):
                raise
            response = self._post({"text": plain_text(message)})
        if response.text.strip() != "ok":
            msg = f"Slack responded {response.status} without its ok; check that the URL is an incoming webhook"
            raise ChannelError(msg, permanent=False)
        return ""

    def _post(self, payload: dict[str, Any]) -> ReceiverResponse:
        return post_json(self.webhook_url, encode_json(payload), {}, receiver="Slack")


def webhook_payload(message: Message) -> dict[str, Any]:
    return {"text": notification_text(message), "blocks": incident_blocks(message)}


_PAGE, _MAX_PAGES = 100, 5


@dataclass(frozen=True, slots=True)
class _MessageRef:
    channel: str
    stamp: str
    file: str = ""

    @classmethod
    def of(cls, reference: str) -> _MessageRef:
        channel, stamp, file = [*reference.split(":"), "", ""][:3]
        return cls(channel, stamp, file)

    def __str__(self) -> str:
        return ":".join(part for part in (self.channel, self.stamp, self.file) if part)


@dataclass(frozen=True, slots=True)
class SlackBot:
    name: str
    token: str = field(repr=False)
    channel: str
    buttons: bool = False
    base_url: str = BASE_URL
    # https://docs.slack.dev/apis/web-api/rate-limits: one message per second and channel
    gap_seconds: float = 1.0
    refresh: Refresh | None = None
    pictures: ChartUploads = field(default_factory=ChartUploads, repr=False, compare=False)

    def send(self, message: Message) -> str:
        """Post *message*, or update the incident's message and add a reply to its thread; then add the chart.

        Returns:
            Text of a `_MessageRef`: channel, timestamp and chart of the message.
        """
        parent = message.reference
        if not parent and (message.repeat or message.sequence > 1):
            try:
                posted = self._find_message(message)
            except SlackError as refused:
                if refused.word not in _NO_READ_ACCESS:
                    raise
            else:
                message = replace(message, repeat=False)
                if posted is not None and posted.key == message.key:
                    return self._illustrated(posted.reference, message)
                parent = posted.reference if posted is not None else ""
        return self._follow(parent, message) if parent else self._begin(message)

    def _begin(self, message: Message) -> str:
        return self._illustrated(self._post(message, self._blocks(message)), message)

    def _follow(self, parent: str, message: Message) -> str:
        reference, update = _MessageRef.of(parent), replace(message, repeat=False)
        # First with the current chart, then without it, in case Slack no longer has the file.
        shown = [self._blocks(update, file) for file in dict.fromkeys((reference.file, ""))]
        try:
            self._send_blocks("chat.update", message, *shown, channel=reference.channel, ts=reference.stamp)
        except SlackError as refused:
            if refused.word not in _GONE:
                raise
            return self._begin(message)
        replied = self._replied(reference, message) if message.repeat else False
        if not replied:
            # The note about a repeat is needed only if the thread could not be read.
            turn = replace(message, repeat=replied is None)
            self._post(turn, reply_blocks(turn), thread_ts=reference.stamp)
        return self._illustrated(parent, update)

    def _illustrated(self, reference: str, message: Message) -> str:
        parent = _MessageRef.of(reference)
        png = None if parent.file and message.transition == "acknowledged" else message_chart(message)
        if png is None or not reference:
            return reference
        file = self.pictures.put(
            self.name,
            lambda: upload_file(
                self.base_url, self.token, png, f"{message.incident}.png", chart_in_words(message.finding)
            ),
            lambda file: self._call(
                "chat.update",
                channel=parent.channel,
                ts=parent.stamp,
                text=notification_text(message),
                blocks=self._blocks(message, file),
            ),
        )
        return str(replace(parent, file=file or parent.file))

    def _blocks(self, message: Message, file: str = "") -> list[dict[str, Any]]:
        return incident_blocks(message, buttons=self.buttons, file=file)

    def _post(self, message: Message, shown: list[dict[str, Any]], **where: str) -> str:
        payload = {"incident": message.incident, "key": message.key}
        metadata = {"event_type": EVENT_TYPE, "event_payload": payload}
        response = self._send_blocks(
            "chat.postMessage", message, shown, channel=self.channel, metadata=metadata, unfurl_links=False, **where
        )
        return f"{response.get('channel', self.channel)}:{response['ts']}" if response.get("ts") else ""

    def _send_blocks(
        self, method: str, message: Message, *ways: list[dict[str, Any]], **arguments: Any
    ) -> dict[str, Any]:
        for shown in ways:
            try:
                return self._call(method, text=notification_text(message), blocks=shown, **arguments)
            except SlackError as refused:
                if refused.word not in _BOT_BLOCK_ERRORS:
                    raise
        return self._call(method, text=plain_text(message), **arguments)

    def _find_message(self, message: Message) -> _OwnMessage | None:
        oldest = f"{message.opened_at - _SEARCH_MARGIN_SECONDS:.6f}"
        return next(
            (
                posted
                for posted in self._pages("conversations.history", channel=self.channel, oldest=oldest)
                if posted.incident == message.incident and not posted.is_reply
            ),
            None,
        )

    def _replied(self, reference: _MessageRef, message: Message) -> bool | None:
        try:
            return any(
                posted.key == message.key and posted.is_reply
                for posted in self._pages("conversations.replies", channel=reference.channel, ts=reference.stamp)
            )
        except SlackError as refused:
            if refused.word not in _NO_READ_ACCESS:
                raise
            return None

    def _pages(self, method: str, **arguments: str) -> Iterator[_OwnMessage]:
        cursor = ""
        for _ in range(_MAX_PAGES):
            response = self._call(method, limit=_PAGE, include_all_metadata="true", cursor=cursor, **arguments)
            yield from _own_messages(response, arguments["channel"])
            cursor = str((response.get("response_metadata") or {}).get("next_cursor") or "")
            if not cursor:
                return

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        try:
            return call_slack(self.base_url, self.token, method, arguments)
        except OutcomeUnknownError as error:
            if method == "chat.postMessage":
                raise
            # Reading and updating are idempotent, so a retry needs no search.
            raise ChannelError(str(error), permanent=False) from error


@dataclass(frozen=True, slots=True)
class _OwnMessage:
    incident: str
    key: str
    reference: str
    is_reply: bool


def _own_messages(response: dict[str, Any], channel: str) -> Iterator[_OwnMessage]:
    for posted in response.get("messages") or ():
        metadata = posted.get("metadata") or {}
        if metadata.get("event_type") != EVENT_TYPE:
            continue
        payload, stamp = metadata.get("event_payload") or {}, str(posted.get("ts", ""))
        is_reply = str(posted.get("thread_ts", stamp)) != stamp
        yield _OwnMessage(str(payload.get("incident", "")), str(payload.get("key", "")), f"{channel}:{stamp}", is_reply)


class _WebhookSection(ChannelSection):
    webhook_url: SecretAddress = Field(examples=["SLACK_WEBHOOK_URL"])

    def build(self, name: str) -> SlackWebhook:
        return SlackWebhook(name, self.webhook_url.value)


class _BotSection(ChannelSection):
    token: Secret = Field(examples=["SLACK_BOT_TOKEN"])
    signing_secret: SigningSecret = SigningSecret()
    channel: Text = Field(examples=["C0123456789"])
    base_url: WebAddress = BASE_URL

    @field_validator("channel")
    @classmethod
    def _is_id(cls, channel: str) -> str:
        if not _CHANNEL_ID.fullmatch(channel):
            fix = "write the channel's id, such as C0123456789 (in Slack: the channel's name, About, at the bottom)"
            reject(f"is {channel!r}; {fix}")
        return channel

    def build(self, name: str) -> SlackBot:
        buttons = bool(self.signing_secret.value)
        return SlackBot(name, self.token.value, self.channel, buttons=buttons, base_url=self.base_url)


KIND = ChannelKind(_WebhookSection, HINTS, dict.fromkeys(("token", "token_env", "token_file", "channel"), _BotSection))
