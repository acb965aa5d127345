"""Streamed responses: times of their chunks, and which of those have content.

The first chunk with content and the longest gap between two of them are recorded, because the duration of a stream depends on its
length. Nothing of a chunk is kept but the start of an incomplete event, until its rest comes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from ...core.names import BY_FIRST_CHUNK
from ..records import Marks

# Ollama's `response`, `content` and `thinking` (https://docs.ollama.com/api/streaming), llama.cpp's `content`, and the deltas of
# an OpenAI chat: a non-empty text, or a tool call.
REASONING_PATTERN: Final = re.compile(r'"(?:thinking|reasoning|reasoning_content)"\s*:\s*"[^"]')
CONTENT_PATTERN: Final = re.compile(
    rf'{REASONING_PATTERN.pattern}|"(?:content|response|text|refusal)"\s*:\s*"[^"]|"tool_calls"\s*:\s*\[\s*\{{'
    r'|"(?:audio|function_call)"\s*:\s*\{'
)
# Most chunks of a stream: a text, or the JSON of a chat with text.
_TOKEN: Final = re.compile(rb'data: ?(?:[^\s{[]|\{[^\n]*?"content": ?"[^"])')
_TYPE: Final = re.compile(r'"type"\s*:\s*"([^"]*)"')
# Events that keep the connection open, and those of Anthropic, the AI SDK of Vercel and LangServe around their content.
_NO_CONTENT: Final = re.compile(
    r"content_block_(?:start|stop)|heartbeat|keep-?alive|message_(?:start|delta|stop)|metadata|ping|(?:reasoning-|text-)?start(?:-step)?"
)
# Longer ones are not searched: they have content. [bytes]
MAX_EVENT: Final = 65_536
# The content of a JSON event starts in so much of it. [bytes]
_JSON_HEAD: Final = 4096


class ResponseStream:
    """Times of the chunks of one streamed body that have content; white space, comments and keep-alives have none.

    A body with a declared length is no stream.
    """

    __slots__ = ("_chunks", "_event", "_first", "_has_events", "_is_sized", "_last", "_longest")

    def __init__(self, headers: Iterable[tuple[bytes | str, bytes | str]] = ()) -> None:
        named = {_text(name).lower(): _text(value) for name, value in headers}
        self._is_sized = "content-length" in named
        is_plain = named.get("content-encoding", "identity") == "identity"
        self._has_events = is_plain and named.get("content-type", "").lower().startswith("text/event-stream")
        # Start of an event without content so far, the rest of which comes with the next chunk.
        self._event = b""
        self._chunks = self._first = self._last = 0
        # Negative before the second chunk with content.
        self._longest = -1

    def add(self, at: int, part: Any) -> None:
        if not part:
            return
        self._chunks += 1
        if not (self._has_content(bytes(part)) if self._has_events else _is_visible(part)):
            return
        if self._first:
            self._longest = max(self._longest, at - self._last)
        self._first = self._first or at
        self._last = at

    def facts(self) -> Marks:
        # A single chunk, such as a response passed on by a middleware, is no stream.
        if self._is_sized or self._chunks < 2 or not self._first:  # noqa: PLR2004
            return []
        facts = ["@first_token", self._first, BY_FIRST_CHUNK]
        return facts if self._longest < 0 else [*facts, "@gap", self._longest, BY_FIRST_CHUNK]

    def _has_content(self, part: bytes) -> bool:
        if not self._event and _TOKEN.match(part):
            return True
        # https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
        if b"\r" in part:
            part = part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._event += part
        has_content = len(self._event) > MAX_EVENT
        if not has_content:
            *events, self._event = self._event.split(b"\n\n")
            has_content = any(map(event_has_content, events)) or event_has_content(self._event)
            # Comments may come for hours without an empty line.
            *lines, rest = self._event.split(b"\n")
            self._event = b"\n".join([*(line for line in lines if not line.startswith(b":")), rest])
        if has_content:
            self._event = b""
        return has_content


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _is_visible(part: Any) -> bool:
    return not (isinstance(part, (bytes, bytearray)) and part.isspace())


def event_has_content(event: bytes) -> bool:
    r"""Return whether an event of a stream brings something new: no comment, no keep-alive, no part of a chat without text.

    >>> event_has_content(b"event: delta\ndata: Hello"), event_has_content(b": ping"), event_has_content(b"retry: 100")
    (True, False, False)
    >>> event_has_content(b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}')
    False
    """
    name = data = b""
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            data = data or line[5:].removeprefix(b" ")
        elif line.startswith(b"event:"):
            name = line[6:]
    if not data or (name and _is_around(name.decode("latin-1"))):
        return False
    head = data[:_JSON_HEAD].decode("latin-1")
    if not head.startswith("{"):
        return head != "[DONE]"
    if '"choices"' in head:
        return CONTENT_PATTERN.search(head) is not None
    kind = _TYPE.search(head)
    return kind is None or not _is_around(kind[1])


def _is_around(kind: str) -> bool:
    # https://platform.openai.com/docs/api-reference/responses-streaming
    is_state = kind.startswith("response.") and not kind.endswith(".delta")
    return is_state or _NO_CONTENT.fullmatch(kind.strip().lower()) is not None
