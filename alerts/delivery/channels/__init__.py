"""Notification channels: the registry of channel kinds, and the parser of a channel entry in the SLO file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....core.settings.yaml_config import Document, Fields, Place, Secrets
from ..channel import Channel, ChannelKind, HeartbeatReceiver
from . import alertmanager, email, heartbeat, pagerduty, slack, webhook

MAX_NAME_CHARS = 64
# A new kind of channel is registered here.
KINDS: dict[str, ChannelKind] = {
    "slack": slack.KIND,
    "pagerduty": pagerduty.KIND,
    "alertmanager": alertmanager.KIND,
    "email": email.KIND,
    "webhook": webhook.KIND,
    "heartbeat": heartbeat.KIND,
}


@dataclass(frozen=True, slots=True)
class ChannelEntry:
    """A channel entry of the SLO file.

    Args:
        name: Name of the channel; by default the kind.
        kind: Kind of the channel, a key of `KINDS`.
        channel: The channel; None for a heartbeat, and while a secret is missing (messages wait in the outbox).
        lacking: Missing environment variable or file; empty for none.
        heartbeat: Receiver of heartbeats; None for all other kinds.
        signing_secret: Secret that verifies the requests of the receiver for user actions; empty for none.
        secret_files: Files that contain the secrets of the channel.
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
        """Whether the channel receives messages about incidents; heartbeats do not."""
        return self.kind != "heartbeat"


def read_channel(
    document: Document, place: Place, item: Any, env: Mapping[str, str], held: dict[str, str]
) -> ChannelEntry | None:
    """Parse one channel entry, and add its errors to the document's problems.

    The argument *held* contains earlier secrets of files, as in `Secrets`.
    """
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
