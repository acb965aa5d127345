"""An answer that the user's own code reads line by line: Ollama's objects, or the events of a chat.

Before a line there is no telling whether a stream is a model's: its last one says it, by the numbers of a dialect in it.
That line alone is parsed, and only then does what came before it count: when its first content came, the longest pause
between two lines with content, and how many tokens there were. Of content it is only looked at whether there is any.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, Final

from ...core.names import BY_CLIENT_CONTENT
from ..instrumentor import report
from ..records import MAX_MARKS, OPEN, clock
from .answers import Call, in_body, item, numbers_in, parse
from .token_stream import count

# Ollama's `response`, `content` and `thinking` (https://docs.ollama.com/api/streaming), llama.cpp's `content`, and the deltas of a
# chat of OpenAI's: a text that is not empty, or a call of a tool.
_REASONING: Final = re.compile(r'"(?:thinking|reasoning|reasoning_content)"\s*:\s*"[^"]')
_CONTENT: Final = re.compile(
    rf'{_REASONING.pattern}|"(?:content|response|text)"\s*:\s*"[^"]|"tool_calls"\s*:\s*\[\s*\{{'
)
# Of several choices at once, or calls of tools: whose the tokens are is not told.
_SEVERAL: Final = re.compile(r'"index"\s*:\s*[1-9]')
# A line with more before its content is no part of an answer.
_HEAD: Final = 1024
# https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
_EVENT: Final = "data:"


class LineStream:
    """The lines of one answer; no method raises.

    Args:
        call: The call it answers.
    """

    __slots__ = ("__weakref__", "_call", "_first", "_gap", "_last", "_reasoned", "_saying", "_several", "_told_at")

    def __init__(self, call: Call) -> None:
        self._call = call
        # When content came, by `clock`, and the longest time between two lines of it.
        self._first = self._last = self._gap = 0
        # Whether there was reasoning among it, and whether there was more than one answer.
        self._reasoned = self._several = False
        # The last line with numbers of a dialect, and when it came: some servers have them in every line.
        self._saying: str | bytes = ""
        self._told_at = 0

    def line(self, line: str | bytes) -> None:
        """Note a *line* that has just come."""
        try:
            now, head = clock(), _text(line[:_HEAD])
            if _CONTENT.search(head):
                if self._first:
                    self._gap = max(self._gap, now - self._last)
                self._first = self._first or now
                self._last = now
                self._reasoned = self._reasoned or _REASONING.search(head) is not None
                self._several = self._several or _SEVERAL.search(head) is not None
            if numbers_in(line):
                self._saying, self._told_at = line, now
        except Exception:
            report("reading the lines of an answer")

    def end(self) -> None:
        """Note that there are no more; calling it again changes nothing."""
        try:
            saying, self._saying = self._saying, ""
            part = parse(_text(saying).removeprefix(_EVENT)) if saying else None
            marks = self._call.marks
            if any(in_body(part)) and len(marks) < MAX_MARKS and marks[0] == OPEN:
                self._call.streamed(part, self._first, self._told_at)
                self._count(part)
        except Exception:
            report("reading the lines of an answer")

    def _count(self, part: Any) -> None:
        marks = self._call.marks
        if self._first:
            marks.extend(("@first_token", self._first, BY_CLIENT_CONTENT))
        if self._gap:
            marks.extend(("@gap", self._gap, BY_CLIENT_CONTENT))
        spent = 0 if self._several else self._last - self._first
        # Groq's stands where its times are.
        usage = item(part, "usage") or item(item(part, "x_groq"), "usage") or part
        count(marks, usage, spent, reasoned=self._reasoned)


def _text(line: str | bytes) -> str:
    return line if isinstance(line, str) else line.decode("utf-8", "replace")


def watched(lines: Iterator[Any], call: Call) -> Iterator[Any]:
    """Yield *lines*, each noted as it passes."""
    stream = LineStream(call)
    try:
        for line in lines:
            stream.line(line)
            yield line
    finally:
        stream.end()


async def watched_async(lines: AsyncIterator[Any], call: Call) -> AsyncGenerator[Any]:
    """Yield the same of an async client."""
    stream = LineStream(call)
    try:
        async for line in lines:
            stream.line(line)
            yield line
    finally:
        stream.end()
