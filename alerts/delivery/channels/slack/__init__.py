"""Slack: settings of the channel, for an incoming webhook or for a bot token."""

from __future__ import annotations

import re

from .....core.settings.yaml_config import Fields, Secrets
from ...channel import ChannelKind, ParsedChannel
from .api import BASE_URL, HINTS
from .bot import SlackBot
from .webhook import SlackWebhook

# Id of a Slack channel; unlike its name it never changes.
_CHANNEL_ID = re.compile(r"[CDG][A-Z0-9]{7,}")


def _read(fields: Fields, name: str, secrets: Secrets) -> ParsedChannel:
    if not any(fields.has(key) for key in ("token", "token_env", "token_file", "channel")):
        return ParsedChannel(
            SlackWebhook(name, secrets.take("webhook_url", example="SLACK_WEBHOOK_URL", is_address=True))
        )
    token = secrets.take("token", example="SLACK_BOT_TOKEN")
    signing_secret = secrets.take("signing_secret")
    channel = fields.text("channel", example="C0123456789")
    if channel and not _CHANNEL_ID.fullmatch(channel):
        fix = "write the channel's id, such as C0123456789 (in Slack: the channel's name, About, at the bottom)"
        fields.complain(f"{fields.name('channel')} is {channel!r}; {fix}", "channel")
    base_url = fields.address("base_url") or BASE_URL
    bot = SlackBot(name, token, channel, buttons=bool(signing_secret), base_url=base_url)
    return ParsedChannel(bot, signing_secret=signing_secret)


KIND = ChannelKind(_read, HINTS)
