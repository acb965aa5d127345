"""The kinds of channels, one entry each, and reading them from the SLO file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....core.settings.yaml_document import Document, Place
from ....core.settings.yaml_fields import Fields, Secrets
from ...config import MAX_PORT
from ..channel import Channel
from . import pagerduty
from .alertmanager import Alertmanager
from .email.channel import PORTS, Mail, is_address
from .heartbeat import Heartbeat
from .slack import api
from .slack.bot import SlackBot
from .slack.webhook import Slack
from .webhook import Webhook

MAX_NAME_CHARS = 64
# What a channel of Slack is called by programs; its #name may change.
_SLACK_CHANNEL = re.compile(r"[CDG][A-Z0-9]{7,}")


@dataclass(frozen=True, slots=True)
class ChannelEntry:
    """A channel of the SLO file.

    Args:
        name: Its name; the kind when the file gives none.
        kind: One of `KINDS`.
        channel: The channel, or None when a secret is not there (its messages wait), and of a heartbeat.
        lacking: The environment variable, or the file, that is missing.
        heartbeat: Of a heartbeat, whom to ping.
        signing_secret: What the receiver signs with what people do there; empty when they can do nothing.
        secret_files: The files its secrets are in.
    """

    name: str
    kind: str
    channel: Channel | None
    lacking: str = ""
    heartbeat: Heartbeat | None = None
    signing_secret: str = field(default="", repr=False)
    secret_files: tuple[Path, ...] = field(default=(), repr=False)

    @property
    def takes_messages(self) -> bool:
        """Whether it is told of incidents."""
        return self.kind != "heartbeat"


@dataclass(frozen=True, slots=True)
class _Read:
    """What a kind made of its settings."""

    channel: Channel | None = None
    heartbeat: Heartbeat | None = None
    signing_secret: str = field(default="", repr=False)


def _slack(fields: Fields, name: str, secrets: Secrets) -> _Read:
    if not any(fields.has(key) for key in ("token", "token_env", "token_file", "channel")):
        return _Read(Slack(name, secrets.take("webhook_url", example="SLACK_WEBHOOK_URL", is_address=True)))
    token = secrets.take("token", example="SLACK_BOT_TOKEN")
    signing_secret = secrets.take("signing_secret")
    channel = fields.text("channel", example="C0123456789")
    if channel and not _SLACK_CHANNEL.fullmatch(channel):
        cure = "write the channel's id, such as C0123456789 (in Slack: the channel's name, About, at the bottom)"
        fields.complain(f"{fields.name('channel')} is {channel!r}; {cure}", "channel")
    base_url = fields.address("base_url") or api.BASE_URL
    bot = SlackBot(name, token, channel, buttons=bool(signing_secret), base_url=base_url)
    return _Read(bot, signing_secret=signing_secret)


def _pagerduty(fields: Fields, name: str, secrets: Secrets) -> _Read:
    key = secrets.take("routing_key", example="PAGERDUTY_ROUTING_KEY")
    base_url = fields.address("base_url") or pagerduty.BASE_URL
    return _Read(pagerduty.PagerDuty(name, key, base_url), signing_secret=secrets.take("webhook_secret"))


def _alertmanager(fields: Fields, name: str, secrets: Secrets) -> _Read:
    del fields
    return _Read(Alertmanager(name, secrets.take("url", example="ALERTMANAGER_URL", is_address=True)))


def _email(fields: Fields, name: str, secrets: Secrets) -> _Read:
    recipients = tuple(fields.texts("to", example="oncall@example.com"))
    sender = fields.text("from", example="stagelens@example.com")
    for key, addresses in (("to", recipients), ("from", (sender,) if sender else ())):
        for wrong in (each for each in addresses if not is_address(each)):
            cure = "write a mail address, such as oncall@example.com"
            fields.complain(f"{fields.name(key)} has {wrong!r}; {cure}", key)
    security = fields.one_of("security", tuple(PORTS)) if fields.has("security") else "starttls"
    port = int(fields.amount("port", example="587", whole=True) or 0)
    if port > MAX_PORT:
        fields.complain(f"{fields.name('port')} is {port}; write a port, such as 587", "port")
    user = fields.text("user")
    password = secrets.take("password", example="SMTP_PASSWORD" if user else "")
    if not (user + password).isascii():
        cure = "signing in to a mail server can carry ASCII alone; set another one there"
        fields.complain(f"{fields.name('user')} or its password has a letter such as ü; {cure}", "user")
    mail = Mail(
        name,
        host=fields.text("host", example="smtp.example.com"),
        sender=sender,
        recipients=recipients,
        security="tls" if security == "tls" else "none" if security == "none" else "starttls",
        port=port,
        user=user,
        password=password,
    )
    return _Read(mail)


def _webhook(fields: Fields, name: str, secrets: Secrets) -> _Read:
    del fields
    url = secrets.take("url", example="ALERTS_URL", is_address=True)
    return _Read(Webhook(name, url, secrets.take("secret")))


def _heartbeat(fields: Fields, name: str, secrets: Secrets) -> _Read:
    del fields
    return _Read(heartbeat=Heartbeat(name, secrets.take("url", example="HEARTBEAT_URL", is_address=True)))


KINDS: dict[str, Callable[[Fields, str, Secrets], _Read]] = {
    "slack": _slack,
    "pagerduty": _pagerduty,
    "alertmanager": _alertmanager,
    "email": _email,
    "webhook": _webhook,
    "heartbeat": _heartbeat,
}


def read(
    document: Document, place: Place, item: Any, env: Mapping[str, str], held: dict[str, str]
) -> ChannelEntry | None:
    """Read one channel; what is wrong with it is added to the document's problems. Of *held* see `Secrets`."""
    fields = Fields(document, place, item, example="kind: slack")
    if fields.broken:
        return None
    kind = fields.one_of("kind", tuple(KINDS))
    if not kind:
        return None
    name = fields.text("name", default=kind)
    if len(name) > MAX_NAME_CHARS:
        fields.complain(f"{fields.name('name')} has {len(name)} characters; {MAX_NAME_CHARS} are the most", "name")
    secrets = Secrets(document, fields, env, held)
    found = KINDS[kind](fields, name, secrets)
    fields.finish()
    files = tuple(secrets.files)
    if secrets.lacking:
        return ChannelEntry(name, kind, None, secrets.lacking, secret_files=files)
    return ChannelEntry(name, kind, found.channel, "", found.heartbeat, found.signing_secret, files)
