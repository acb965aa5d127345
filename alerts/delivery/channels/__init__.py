"""Channels of the SLO file: the registry of their kinds, and reading one entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....core.settings.yaml_document import Document, Place
from ....core.settings.yaml_fields import Fields, Secrets
from ..channel import Channel, ChannelKind, HeartbeatReceiver
from . import alertmanager, email, heartbeat, pagerduty, slack, webhook

MAX_NAME_CHARS = 64


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
    heartbeat: HeartbeatReceiver | None = None
    signing_secret: str = field(default="", repr=False)
    secret_files: tuple[Path, ...] = field(default=(), repr=False)

    @property
    def takes_messages(self) -> bool:
        """Whether it is told of incidents."""
        return self.kind != "heartbeat"


KINDS: dict[str, ChannelKind] = {
    "slack": slack.KIND,
    "pagerduty": pagerduty.KIND,
    "alertmanager": alertmanager.KIND,
    "email": email.KIND,
    "webhook": webhook.KIND,
    "heartbeat": heartbeat.KIND,
}


def read_channel(
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
    found = KINDS[kind].read(fields, name, secrets)
    fields.finish()
    files = tuple(secrets.files)
    if secrets.lacking:
        return ChannelEntry(name, kind, None, secrets.lacking, secret_files=files)
    return ChannelEntry(name, kind, found.channel, "", found.heartbeat, found.signing_secret, files)
