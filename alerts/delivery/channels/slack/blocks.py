"""Block Kit layout of Slack messages, within Slack's size limits; headline and link are always included."""

from __future__ import annotations

from typing import Any

from .... import formatting
from ....formatting import cut, line
from ... import message_text
from ...channel import encode_json
from ...message import Message

# Maximum length of one line.
MAX_ROW_CHARS = 400
# Replacements for mrkdwn marks by similar characters, because Slack has no escape for them.
_HARMLESS = str.maketrans({"*": "\N{ASTERISK OPERATOR}", "~": "\N{TILDE OPERATOR}", "`": "'"})
# https://docs.slack.dev/reference/block-kit/blocks
MAX_HEADER_CHARS = 150
MAX_SECTION_CHARS = 3000
MAX_FIELD_CHARS = 2000
MAX_ALT_CHARS = 2000
MAX_BLOCK_ID_CHARS = 255
# https://docs.slack.dev/reference/block-kit/block-elements/button-element
MAX_URL_CHARS = 3000
# https://docs.slack.dev/reference/methods/chat.postMessage: recommended length of `notification_text`
MAX_TEXT_CHARS = 4000
# Undocumented: above 13.2 kB of blocks Slack responds msg_blocks_too_long (slackapi/bolt-js#2509).
MAX_BLOCKS_BYTES = 10_000
# Size limit of one section, so that the headline and the link fit into the message.
MAX_CAUSE_CHARS = 1200
MAX_ALSO = 5
ACKNOWLEDGE, SILENCE, ACCEPT, OPEN = "acknowledge", "silence_1h", "accept", "open"
_REPEAT_NOTE = (
    "This may be a duplicate: an earlier attempt was interrupted, and Slack could not confirm whether it arrived."
)
# Order in which blocks are dropped from a long message; headline, cause and link are never dropped.
_DROP_ORDER = ("promise", "examples", "stages", "also", "numbers")


def escape_entities(raw: str) -> str:
    """Return *raw* with Slack's control characters escaped.

    https://docs.slack.dev/messaging/formatting-message-text#escaping

    >>> escape_entities("a<b & c")
    'a&lt;b &amp; c'
    """
    return raw.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escape_mrkdwn(raw: str, limit: int = MAX_ROW_CHARS) -> str:
    """Return *raw* as one line without mrkdwn marks, so that the text cannot change the formatting around it.

    >>> escape_mrkdwn("a`b` <!channel>")
    "a'b' &lt;!channel&gt;"
    """
    return escape_entities(line(raw, limit).translate(_HARMLESS))


def mrkdwn_sentence(text: str) -> str:
    """Return *text* as an escaped sentence that starts with a capital and ends with a full stop.

    >>> mrkdwn_sentence("queue grew")
    'Queue grew.'
    """
    text = line(text, MAX_ROW_CHARS)
    return escape_mrkdwn(text[:1].upper() + text[1:] + ".")


def notification_text(message: Message) -> str:
    return cut(
        escape_mrkdwn(f"{message_text.icon(message)} {message_text.headline(message)}", MAX_TEXT_CHARS), MAX_TEXT_CHARS
    )


def plain_text(message: Message) -> str:
    link = f"\n{_links(message)}" if message.finding.link or message.finding.runbook else ""
    return cut(f"{notification_text(message)}\n{escape_entities(_impact(message))}", MAX_TEXT_CHARS - len(link)) + link


def incident_blocks(message: Message, *, buttons: bool = False, file: str = "") -> list[dict[str, Any]]:
    blocks = [
        block
        for block in _all_blocks(message, buttons=buttons, file=file if message_text.sparkline_of(message) else "")
        if block
    ]
    for part in _DROP_ORDER:
        if len(encode_json(blocks)) <= MAX_BLOCKS_BYTES:
            break
        blocks = [block for block in blocks if block["block_id"] != _block_id(message, part)]
    return blocks


def reply_blocks(message: Message) -> list[dict[str, Any]]:
    """Return the blocks for one transition in the incident's thread."""
    headline_text = f"{message_text.icon(message)} *{escape_mrkdwn(message_text.title(message))}*"
    if message.transition in ("acknowledged", "unacknowledged"):
        return [_section(message, "turn", headline_text)]
    why = mrkdwn_sentence(message_text.cause_text(message))
    lines = [headline_text, why] if message.resolved else [headline_text, why, escape_entities(_impact(message))]
    lines += [f"{escape_mrkdwn(name)}: {escape_mrkdwn(value)}" for name, value in message_text.message_facts(message)]
    if message.repeat:
        lines.append(_REPEAT_NOTE)
    return [_section(message, "turn", "\n".join(lines))]


def _all_blocks(message: Message, *, buttons: bool, file: str) -> list[dict[str, Any]]:
    heading = line(f"{message_text.icon(message)} {message_text.title(message)}", MAX_HEADER_CHARS)
    also = message.also[:MAX_ALSO]
    shown = line(message_text.chart_in_words(message.finding), MAX_ALT_CHARS)
    return [
        _block(message, "headline", "header", text={"type": "plain_text", "text": heading, "emoji": True}),
        _section(message, "cause", _cause_and_impact(message, bars=not file), MAX_CAUSE_CHARS),
        _block(message, "chart", "image", slack_file={"id": file}, alt_text=shown) if file else {},
        _block(message, "numbers", "section", fields=_fields(message)),
        _section(
            message,
            "also",
            "\n".join(["Also:", *(f"• {escape_mrkdwn(incident_title)}" for incident_title in also)]) if also else "",
        ),
        _section(message, "stages", _stage_table(message)),
        _section(message, "examples", _examples(message)),
        _buttons(message) if buttons else _section(message, "links", _links(message)),
        _block(message, "promise", "context", elements=_context(message)),
    ]


def _cause_and_impact(message: Message, *, bars: bool) -> str:
    finding = message.finding
    why = mrkdwn_sentence(message_text.cause_text(message))
    lines = [f"~{why}~" if message.resolved else f"*{why}*"]
    if not message.resolved:
        lines.append(escape_entities(_impact(message)))
        lines += [f"`{shape}` {escape_mrkdwn(about)}" for shape, about in message_text.sparkline_of(message) if bars]
    if finding.description:
        lines.append(f"_{escape_mrkdwn(finding.description)}_")
    return "\n".join(lines)


def _fields(message: Message) -> list[dict[str, str]]:
    return [
        _mrkdwn(f"*{escape_mrkdwn(name)}*\n{escape_mrkdwn(value)}", MAX_FIELD_CHARS)
        for name, value in message_text.message_facts(message)
    ]


def _stage_table(message: Message) -> str:
    if message.resolved or not message.finding.growth:
        return ""
    rows = [[line(cell, MAX_ROW_CHARS) for cell in row] for row in message_text.stage_table(message.finding)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{stage:<{widths[0]}}  {growth:>{widths[1]}}  {share:>{widths[2]}}" for stage, growth, share in rows]
    body = cut(escape_entities("\n".join(lines)).replace("`", "'"), MAX_SECTION_CHARS // 2)
    return f"Stages that grew ({escape_mrkdwn(message_text.comparison_basis(message.finding))}):\n```{body}```"


def _examples(message: Message) -> str:
    if message.resolved:
        return ""
    rows = [
        f"• <{escape_entities(link)}|{escape_mrkdwn(what)}>" if link else f"• {escape_mrkdwn(what)}"
        for what, link in message_text.slow_requests(message.finding)
    ]
    title = message_text.exemplars_title([exemplar.failed for exemplar in message.finding.exemplars])
    return "\n".join([f"{title}:", *rows]) if rows else ""


def _links(message: Message) -> str:
    finding = message.finding
    links = [(finding.link, message_text.link_title(finding)), (finding.runbook, "Runbook")]
    shown = [
        f"<{escape_entities(href)}|{name}>"
        for href, name in links
        if href and len(escape_entities(href)) < MAX_SECTION_CHARS // 2
    ]
    return "   ·   ".join(shown) or "No dashboard address is set (dashboard_url in slo.yaml)."


def _buttons(message: Message) -> dict[str, Any]:
    finding = message.finding
    elements = [
        _link_button(OPEN, message_text.link_title(finding), finding.link),
        _link_button("runbook", "Runbook", finding.runbook),
    ]
    if not message.resolved:
        elements.append(_button(SILENCE, "Silence 1 h", message))
        if finding.shift is not None:
            elements.append(_button(ACCEPT, "Accept as baseline", message))
        if not message.acked_by:
            elements.insert(0, {**_button(ACKNOWLEDGE, "Acknowledge", message), "style": "primary"})
    shown = [element for element in elements if element]
    return _block(message, "actions", "actions", elements=shown) if shown else {}


def _button(action: str, name: str, message: Message) -> dict[str, Any]:
    return {
        "type": "button",
        "action_id": action,
        "text": {"type": "plain_text", "text": name},
        "value": message.incident,
    }


def _link_button(action: str, name: str, href: str) -> dict[str, Any]:
    if not href or len(href) > MAX_URL_CHARS:
        return {}
    return {"type": "button", "action_id": action, "text": {"type": "plain_text", "text": name}, "url": href}


def _context(message: Message) -> list[dict[str, str]]:
    lines = [escape_mrkdwn(note) for note in message_text.small_print(message)]
    # Slack shows the time in the reader's time zone; other clients show the text after the bar.
    at = f"<!date^{int(message.opened_at)}^{{date_short_pretty}} {{time}}|{formatting.moment_of(message.opened_at)}>"
    lines.append(f"Incident {escape_mrkdwn(message.incident)}, opened {at}")
    if message.repeat:
        lines.append(_REPEAT_NOTE)
    return [_mrkdwn(line, MAX_FIELD_CHARS) for line in lines]


def _impact(message: Message) -> str:
    return line(message_text.impact_text(message.finding), MAX_ROW_CHARS)


def _section(message: Message, part: str, text: str, limit: int = MAX_SECTION_CHARS) -> dict[str, Any]:
    return _block(message, part, "section", text=_mrkdwn(text, limit)) if text else {}


def _mrkdwn(text: str, limit: int) -> dict[str, str]:
    return {"type": "mrkdwn", "text": cut(text, limit)}


def _block(message: Message, part: str, kind: str, **content: Any) -> dict[str, Any]:
    return {"type": kind, "block_id": _block_id(message, part), **content}


def _block_id(message: Message, part: str) -> str:
    return f"{message.key}:{part}"[:MAX_BLOCK_ID_CHARS]
