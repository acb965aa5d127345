"""Slack, by an incoming webhook: one message for each transition, as blocks, with the sentence as the notification.

Slack's webhook has no way to recognise a message it has seen. Losing a page is worse than seeing it twice, so a message
whose fate is unknown (the process died while it was being sent, or no answer came) is sent again and says that it may
be a repeat; its block ids, made of the incident and the transition, are those of the first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import ChannelError
from . import words
from .channel import post
from .message import Message, basis, cause, facts, headline, impact, table

# https://docs.slack.dev/reference/block-kit/blocks
MAX_HEADER_CHARS = 150
MAX_SECTION_CHARS = 3000
MAX_FIELD_CHARS = 2000
MAX_BLOCK_ID_CHARS = 255
# https://docs.slack.dev/reference/methods/chat.postMessage: recommended length of `text`
MAX_TEXT_CHARS = 4000
# Undocumented: past 13.2 kB of blocks Slack answers msg_blocks_too_long (slackapi/bolt-js#2509).
MAX_BLOCKS_BYTES = 10_000

_ICONS = {"page": "🔴", "ticket": "🟠"}


@dataclass(frozen=True, slots=True)
class Slack:
    """A Slack channel.

    Args:
        name: Its name in the outbox.
        webhook_url: The address Slack gave; a secret.
    """

    name: str
    webhook_url: str = field(repr=False)
    # https://docs.slack.dev/apis/web-api/rate-limits: one message per second and channel
    gap_seconds: float = 1.0

    def send(self, message: Message) -> None:
        """Post *message*; Slack says `ok` when it took it."""
        body = json.dumps(payload(message), ensure_ascii=False).encode()
        answer = post(self.webhook_url, body, {}, receiver="Slack")
        if answer.text.strip() != "ok":
            msg = f"Slack answered {answer.status_code} without its ok; is the address that of an incoming webhook?"
            raise ChannelError(msg, permanent=False)


def payload(message: Message) -> dict[str, Any]:
    """Return what is posted."""
    blocks = _blocks(message)
    while len(json.dumps(blocks, ensure_ascii=False).encode()) > MAX_BLOCKS_BYTES:
        # What matters most stands first: headline, cause, numbers.
        del blocks[-1]
    return {"text": cut(escape(_notification(message)), MAX_TEXT_CHARS), "blocks": blocks}


def escape(text: str) -> str:
    """Return *text* so that Slack shows it as it is.

    https://docs.slack.dev/messaging/formatting-message-text#escaping

    >>> escape("a<b & c")
    'a&lt;b &amp; c'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def cut(text: str, limit: int) -> str:
    """Return *text* with at most *limit* characters, never ending within an escape such as `&amp;`."""
    if len(text) <= limit:
        return text
    kept = text[: limit - 1]
    start = kept.rfind("&")
    if start != -1 and ";" not in kept[start:]:
        kept = kept[:start]
    return kept + "…"


def _notification(message: Message) -> str:
    return f"{_icon(message)} {headline(message)}"


def _icon(message: Message) -> str:
    if message.ending not in ("", "recovered"):
        return "⚪"
    return "🟢" if message.resolved else _ICONS[message.finding.severity]


def _blocks(message: Message) -> list[dict[str, Any]]:
    finding = message.finding
    blocks = [
        {
            "type": "header",
            "block_id": _block_id(message, "headline"),
            "text": {"type": "plain_text", "text": cut(_title(message), MAX_HEADER_CHARS), "emoji": True},
        },
        _section(message, "cause", _story(message)),
        {
            "type": "section",
            "block_id": _block_id(message, "numbers"),
            "fields": [
                _mrkdwn(f"*{escape(name)}*\n{escape(value)}", MAX_FIELD_CHARS) for name, value in facts(message)
            ],
        },
    ]
    if finding.growth and not message.resolved:
        blocks.append(_section(message, "stages", _stage_table(message)))
    blocks.append(_section(message, "links", _links(message)))
    blocks.append(
        {
            "type": "context",
            "block_id": _block_id(message, "promise"),
            "elements": [_mrkdwn(line, MAX_FIELD_CHARS) for line in _small_print(message)],
        }
    )
    return blocks


def _title(message: Message) -> str:
    """Return the headline without its cause, which follows in full below it."""
    return f"{_icon(message)} {headline(message).split(' — ')[0]}"


def _story(message: Message) -> str:
    finding = message.finding
    why = cause(message)
    lines = [f"*{escape(why[0].upper() + why[1:])}.*"]
    if not message.resolved:
        lines.append(escape(impact(finding)))
    if finding.description:
        lines.append(f"_{escape(finding.description)}_")
    return "\n".join(lines)


def _stage_table(message: Message) -> str:
    rows = table(message.finding)
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{stage:<{widths[0]}}  {growth:>{widths[1]}}  {share:>{widths[2]}}" for stage, growth, share in rows]
    return f"What grew, {escape(basis(message.finding))}:\n```{escape(chr(10).join(lines))}```"


def _links(message: Message) -> str:
    finding = message.finding
    links = [f"<{escape(finding.link)}|Where the time goes>"] if finding.link else []
    if finding.runbook:
        links.append(f"<{escape(finding.runbook)}|Runbook>")
    return "   ·   ".join(links) or "No dashboard address is set (dashboard_url in slo.yaml)."


def _small_print(message: Message) -> list[str]:
    finding = message.finding
    promise = f"{escape(finding.slo)}: {escape(finding.promise)}"
    lines = [promise, f"Incident {escape(message.incident)}, opened {_clock(message.opened_at)}"]
    if message.repeat:
        lines.append(
            "This may be a repeat: an earlier try was cut off, and Slack could not be asked whether it arrived."
        )
    return lines


def _clock(at: float) -> str:
    """Return a time Slack shows in the reader's zone; elsewhere the text after the bar is shown."""
    return f"<!date^{int(at)}^{{date_short_pretty}} {{time}}|{words.moment_of(at)}>"


def _section(message: Message, part: str, text: str) -> dict[str, Any]:
    return {"type": "section", "block_id": _block_id(message, part), "text": _mrkdwn(text, MAX_SECTION_CHARS)}


def _mrkdwn(text: str, limit: int) -> dict[str, str]:
    return {"type": "mrkdwn", "text": cut(text, limit)}


def _block_id(message: Message, part: str) -> str:
    return f"{message.key}:{part}"[:MAX_BLOCK_ID_CHARS]
