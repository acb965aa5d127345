"""Notification channels: the registry of channel kinds, and the parser of a channel entry in the SLO file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from ....core.settings.field_types import one_of
from ....core.settings.section import Section, read_section
from ....core.settings.yaml_config import Document, Place
from ..channel import Channel, ChannelKind, HeartbeatReceiver, SigningSecret
from . import alertmanager, email, heartbeat, pagerduty, slack, webhook

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


class _Kind(Section):
    model_config = ConfigDict(extra="ignore")
    example = "kind: slack"

    kind: Annotated[str, one_of(KINDS)] = Field(examples=["slack"])


def read_channel(
    document: Document, location: Place, item: Any, env: Mapping[str, str], held: dict[str, str]
) -> ChannelEntry | None:
    """Parse one channel entry, and add its errors to the document's problems; None if it is invalid.

    The argument *held* contains earlier secrets of files, as in `Secret`.
    """
    selected = read_section(_Kind, document, location, item)
    if selected is None:
        return None
    kind = KINDS[selected.kind]
    section = next((kind.variants[key] for key in kind.variants if item.get(key) is not None), kind.section)
    channel_section = read_section(section, document, location, item, {"env": env, "held": held})
    if channel_section is None:
        return None
    name, secrets = channel_section.name or selected.kind, channel_section.secrets()
    files = tuple(secret.file for secret in secrets if secret.file)
    lacking = [secret.lacking for secret in secrets if secret.lacking]
    if lacking:
        return ChannelEntry(name, selected.kind, None, lacking[-1], secret_files=files)
    signing = next((secret.value for secret in secrets if isinstance(secret, SigningSecret)), "")
    built = channel_section.build(name)
    channel, heartbeat = (None, built) if isinstance(built, HeartbeatReceiver) else (built, None)
    return ChannelEntry(name, selected.kind, channel, "", heartbeat, signing, files)
