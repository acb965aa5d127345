"""The kinds of channels, one line each, and reading them from the SLO file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import pagerduty, slack, webhook
from .channel import Channel
from .fields import Fields
from .yaml_lines import Document, Place

MAX_NAME_CHARS = 64


@dataclass(frozen=True, slots=True)
class Secret:
    """A setting that may stand in the environment.

    Args:
        value: What it is, or None when it is not there.
        lacking: The environment variable that should hold it and does not; empty otherwise.
    """

    value: str | None
    lacking: str = ""


@dataclass(frozen=True, slots=True)
class ChannelEntry:
    """A channel of the SLO file.

    Args:
        name: Its name; the kind when the file gives none.
        kind: One of `KINDS`.
        channel: The channel, or None when a secret is not in the environment: its messages wait.
        lacking: The environment variable that is missing.
    """

    name: str
    kind: str
    channel: Channel | None
    lacking: str = ""


def _slack(fields: Fields, name: str, env: Mapping[str, str]) -> tuple[Channel | None, str]:
    url = _secret(fields, "webhook_url", env, example="SLACK_WEBHOOK_URL", is_address=True)
    return (slack.Slack(name, url.value) if url.value else None), url.lacking


def _pagerduty(fields: Fields, name: str, env: Mapping[str, str]) -> tuple[Channel | None, str]:
    key = _secret(fields, "routing_key", env, example="PAGERDUTY_ROUTING_KEY")
    base_url = fields.address("base_url") or pagerduty.BASE_URL
    return (pagerduty.PagerDuty(name, key.value, base_url) if key.value else None), key.lacking


def _webhook(fields: Fields, name: str, env: Mapping[str, str]) -> tuple[Channel | None, str]:
    url = _secret(fields, "url", env, example="ALERTS_URL", is_address=True)
    key = _secret(fields, "secret", env, example="ALERTS_SECRET", required=False)
    lacking = url.lacking or key.lacking
    return (webhook.Webhook(name, url.value, key.value or "") if url.value and not lacking else None), lacking


KINDS: dict[str, Callable[[Fields, str, Mapping[str, str]], tuple[Channel | None, str]]] = {
    "slack": _slack,
    "pagerduty": _pagerduty,
    "webhook": _webhook,
}


def read(document: Document, place: Place, item: Any, env: Mapping[str, str]) -> ChannelEntry | None:
    """Read one channel; what is wrong with it is added to the document's problems."""
    fields = Fields(document, place, item)
    if fields.broken:
        return None
    kind = fields.one_of("kind", tuple(KINDS))
    if not kind:
        return None
    name = fields.text("name", default=kind)
    if len(name) > MAX_NAME_CHARS:
        fields.complain(f"{fields.name('name')} has {len(name)} characters; {MAX_NAME_CHARS} are the most", "name")
    channel, lacking = KINDS[kind](fields, name, env)
    fields.finish()
    return ChannelEntry(name, kind, channel, lacking)


def _secret(
    fields: Fields, key: str, env: Mapping[str, str], *, example: str, required: bool = True, is_address: bool = False
) -> Secret:
    """Read *key*, or the environment variable that `<key>_env` names."""
    here = fields.address(key) if is_address else fields.text(key)
    variable = fields.text(f"{key}_env")
    if here:
        if variable:
            fields.complain(f"{fields.name(key)} is given twice, here and as {key}_env; keep {key}_env", f"{key}_env")
        return Secret(here)
    if variable:
        value = env.get(variable, "").strip()
        return Secret(value or None, "" if value else variable)
    if required and not fields.has(key):
        fields.missing(f"{key}_env", example)
    return Secret(None)
