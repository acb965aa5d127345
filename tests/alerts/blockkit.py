"""Block Kit: its limits, and an HTML page that renders blocks similarly to Slack, for screenshots."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_CSS = """
body { margin: 0; padding: 20px; background: #fff; font: 15px/1.47 Lato, system-ui, sans-serif; color: #1d1c1d; }
.message { display: flex; gap: 8px; max-width: 720px; margin-bottom: 18px; }
.reply { margin-left: 44px; border-left: 3px solid #ddd; padding-left: 10px; }
.face { width: 36px; height: 36px; border-radius: 8px; background: #1f4fa3; color: #fff; display: grid; place-items: center; flex: none; }
.who { font-weight: 900; } .app { background: #e8e8e8; font-size: 10px; padding: 1px 3px; border-radius: 2px; margin: 0 6px; }
.at, .context { color: #616061; font-size: 12px; } .header { font-weight: 900; font-size: 18px; margin: 4px 0; }
.fields { display: grid; grid-template-columns: 1fr 1fr; gap: 8px 16px; } .block { margin: 6px 0; overflow-wrap: anywhere; min-width: 0; }
pre { background: #f8f8f8; border: 1px solid #ddd; border-radius: 4px; padding: 8px; margin: 4px 0; white-space: pre-wrap; font: 12px/1.5 Menlo, 'DejaVu Sans Mono', monospace; }
code { background: #f8f8f8; border: 1px solid #ddd; border-radius: 3px; padding: 1px 3px; color: #c01343; font: 12px Menlo, 'DejaVu Sans Mono', monospace; }
a { color: #1264a3; text-decoration: none; } .actions { display: flex; flex-wrap: wrap; gap: 8px; }
.button { border: 1px solid #bbb; border-radius: 8px; padding: 4px 12px; font-weight: 700; font-size: 13px; } .primary { background: #007a5a; color: #fff; }
img { width: 360px; max-width: 100%; border-radius: 8px; display: block; }
@media (max-width: 500px) { .fields { grid-template-columns: 1fr; } }
"""


def check_blocks(blocks: list[dict[str, Any]]) -> None:
    """Raise AssertionError if *blocks* exceed a limit: https://docs.slack.dev/reference/block-kit/blocks."""
    assert 1 <= len(blocks) <= 50
    assert len(json.dumps(blocks, ensure_ascii=False).encode()) <= 13_200, "msg_blocks_too_long"
    ids = [block["block_id"] for block in blocks]
    assert len(set(ids)) == len(ids)
    assert all(len(name) <= 255 for name in ids)
    for block in blocks:
        _CHECKS[block["type"]](block)


def page(
    messages: Sequence[tuple[list[dict[str, Any]], bool]], files: Mapping[str, bytes] | None = None, at: str = "03:04"
) -> str:
    shown = "".join(_message(blocks, files or {}, at, reply=reply) for blocks, reply in messages)
    return f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Slack</title><style>{_CSS}</style></head><body><main>{shown}</main></body></html>'


def _check_header(block: dict[str, Any]) -> None:
    assert block["text"]["type"] == "plain_text"
    assert 1 <= len(block["text"]["text"]) <= 150


def _check_section(block: dict[str, Any]) -> None:
    fields = block.get("fields", [])
    assert len(fields) <= 10
    assert all(1 <= len(field["text"]) <= 2000 for field in fields)
    assert fields or 1 <= len(block["text"]["text"]) <= 3000


def _check_context(block: dict[str, Any]) -> None:
    assert 1 <= len(block["elements"]) <= 10
    assert all(element["text"] for element in block["elements"])


def _check_image(block: dict[str, Any]) -> None:
    assert ("slack_file" in block) != ("image_url" in block)
    assert "slack_file" not in block or re.fullmatch(r"F[A-Z0-9]{8,}", block["slack_file"]["id"])
    assert 1 <= len(block["alt_text"]) <= 2000


def _check_actions(block: dict[str, Any]) -> None:
    elements = block["elements"]
    assert 1 <= len(elements) <= 25
    assert len({element["action_id"] for element in elements}) == len(elements)
    for element in elements:
        assert element["type"] == "button"
        assert 1 <= len(element["text"]["text"]) <= 75
        assert len(element.get("url", "")) <= 3000
        assert len(element.get("value", "")) <= 2000


_CHECKS = {
    "header": _check_header,
    "section": _check_section,
    "context": _check_context,
    "actions": _check_actions,
    "image": _check_image,
}


def _message(blocks: list[dict[str, Any]], files: Mapping[str, bytes], at: str, *, reply: bool) -> str:
    body = "".join(f'<div class="block">{_block(block, files)}</div>' for block in blocks)
    name = f'<span class="who">Stagelens</span><span class="app">APP</span><span class="at">{at}</span>'
    return f'<div class="message{" reply" if reply else ""}"><div class="face">S</div><div style="min-width:0">{name}{body}</div></div>'


def _block(block: dict[str, Any], files: Mapping[str, bytes]) -> str:
    if block["type"] == "image":
        png = base64.b64encode(files[block["slack_file"]["id"]]).decode()
        return f'<img src="data:image/png;base64,{png}" alt="{html.escape(block["alt_text"])}">'
    if block["type"] == "header":
        return f'<div class="header">{html.escape(block["text"]["text"])}</div>'
    if block["type"] == "context":
        return '<div class="context">' + "<br>".join(_mrkdwn(each["text"]) for each in block["elements"]) + "</div>"
    if block["type"] == "actions":
        return '<div class="actions">' + "".join(map(_button, block["elements"])) + "</div>"
    if "fields" in block:
        return (
            '<div class="fields">'
            + "".join(f"<div>{_mrkdwn(each['text'])}</div>" for each in block["fields"])
            + "</div>"
        )
    return _mrkdwn(block["text"]["text"])


def _button(element: dict[str, Any]) -> str:
    return f'<span class="button {element.get("style", "")}">{html.escape(element["text"]["text"])}</span>'


def _mrkdwn(text: str) -> str:
    text = re.sub(r"<!date\^\d+\^[^|]*\|([^>]*)>", r"\1", text)
    text = re.sub(r"<(https?://[^|>]+)\|([^>]*)>", r'<a href="\1">\2</a>', text)
    text = re.sub(r"```(.*?)```", lambda found: f"<pre>{found[1]}</pre>", text, flags=re.DOTALL)
    for mark, tag in (("*", "b"), ("_", "i"), ("~", "s"), ("`", "code")):
        text = re.sub(
            rf"(?<![\w{re.escape(mark)}])\{mark}([^{re.escape(mark)}\n]+)\{mark}(?!\w)", rf"<{tag}>\1</{tag}>", text
        )
    parts = re.split(r"(<pre>.*?</pre>)", text, flags=re.DOTALL)
    return "".join(part if part.startswith("<pre>") else part.replace("\n", "<br>") for part in parts)
