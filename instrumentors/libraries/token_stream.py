"""Streamed responses of model servers: time to first token, gaps, and number of tokens.

`TokenStream` gets the chunks that the client of an OpenAI-compatible API returns. The first token is that of the first
chunk with content; before it there are chunks with nothing but a role. A chunk may hold several tokens, so the time per
token needs the number of tokens, which the server only reports for `stream_options={"include_usage": True}`; without it
no time per token is recorded.

`LineStream` gets the lines of a response that the user's own code reads: objects of Ollama, or events of a chat. Only
the last line shows, by the fields of a dialect in it, that the stream is that of a model. Only that line is parsed, and
only then the times before it are recorded.

Content is only tested for presence.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, Final

from ...core.names import BY_CLIENT_CONTENT
from ..instrumentor import log_failure
from ..records import MAX_MARKS, OPEN, Marks, clock
from .client_common import AnsweredCall, get_item, has_report, parse_object, reports_in_body

# Of a part of a chat, where its tokens may be; reasoning under the names that vLLM, DeepSeek and others have for it.
_CONTENT: Final = ("content", "tool_calls", "refusal", "function_call", "audio")
_REASONING: Final = ("reasoning_content", "reasoning")
# How many tokens there were, as a chat says it, the Responses API, and Ollama.
_TAKEN_IN: Final = ("prompt_tokens", "input_tokens", "prompt_eval_count")
_PUT_OUT: Final = ("completion_tokens", "output_tokens", "eval_count")
_DETAILS: Final = ("completion_tokens_details", "output_tokens_details")
# More than any model takes in.
_MAX_TOKENS: Final = 10**8


class TokenStream:
    """The parts of one answer.

    Args:
        marks: Those of the request that waits for it.
        call: The call it answers, None where that is not known.
    """

    __slots__ = ("_call", "_first", "_gap", "_item", "_last", "_marks", "_reasoned", "_saying", "_several", "_usage")

    def __init__(self, marks: Marks, call: AnsweredCall | None) -> None:
        self._marks = marks
        self._call = call
        # When content came, by `clock`, and the longest time between two parts of it.
        self._first = self._last = self._gap = 0
        # Which item of a response it belonged to.
        self._item: Any = None
        # Whether there was reasoning among it, and whether there was more than one answer.
        self._reasoned = self._several = False
        # The last parts that tell of tokens and of times: some servers do it in every part.
        self._usage: Any = None
        self._saying: Any = None

    def part(self, part: Any) -> None:
        """Note a *part* that has just come: of a chat or a completion, or an event of the other APIs."""
        now = clock()
        choices = getattr(part, "choices", None)
        if choices is not None:
            came, holder = self._has_content(choices), part
        else:
            came, holder = self._is_delta(part), getattr(part, "response", None) or getattr(part, "data", None)
        if came:
            self._came(now)
        self._usage = getattr(holder, "usage", None) or self._usage
        if self._call is not None and self._call.is_said_in(part):
            self._saying = part

    def end(self) -> None:
        """Note that there is no more to come; calling it again changes nothing."""
        usage, saying, self._usage, self._saying = self._usage, self._saying, None, None
        if not self._has_room():
            return
        if usage is not None:
            spent = 0 if self._several else self._last - self._first
            record_tokens(self._marks, usage, spent, reasoned=self._reasoned)
        if saying is not None and self._call is not None:
            self._call.streamed(saying, self._first, self._last)

    def _has_room(self) -> bool:
        return len(self._marks) < MAX_MARKS and self._marks[0] == OPEN

    def _is_delta(self, event: Any) -> bool:
        kind = getattr(event, "type", None) or getattr(event, "event", None)
        if not isinstance(kind, str) or not kind.endswith(".delta"):
            return False
        # What is thought is told apart; of a summary of it nobody says how many tokens it is.
        if ".reasoning" in kind:
            self._reasoned = True
            self._several = self._several or "summary" in kind
        else:
            # Between two of them a tool of the server's may have been at work.
            place = getattr(event, "output_index", None)
            self._several = self._several or (self._item is not None and place != self._item)
            self._item = place
        return bool(getattr(event, "delta", None) or getattr(event, "data", None))

    def _has_content(self, choices: Any) -> bool:
        found = False
        # The client hands on what is none as well.
        for choice in choices if isinstance(choices, list) else ():
            self._several = self._several or bool(getattr(choice, "index", 0))
            delta = getattr(choice, "delta", None)
            if delta is None:
                # A chat has deltas, a completion texts.
                found = found or bool(getattr(choice, "text", None))
                continue
            # Not as attributes: to find that one is missing takes pydantic a microsecond.
            more = getattr(delta, "model_extra", None) or {}
            reasoning = any(more.get(name) for name in _REASONING)
            self._reasoned = self._reasoned or reasoning
            found = found or reasoning or any(getattr(delta, name, None) for name in _CONTENT)
        return found

    def _came(self, now: int) -> None:
        gap = now - self._last
        if self._has_room():
            if not self._first:
                self._marks.extend(("@first_token", now, BY_CLIENT_CONTENT))
            elif gap > self._gap:
                # The longest counts: that there are shorter ones before it costs a few triples a stream.
                self._gap = gap
                self._marks.extend(("@gap", gap, BY_CLIENT_CONTENT))
        self._first = self._first or now
        self._last = now


def record_tokens(marks: Marks, usage: Any, spent: int, *, reasoned: bool = True) -> None:
    """Mark how many tokens there were, and how long one took after another.

    Args:
        marks: The request's.
        usage: What says how many, an object or a dictionary, under the names of any server.
        spent: From the first to the last of them; 0 where nobody knows. [nanoseconds]
        reasoned: Whether what was thought is in that time, too.
    """
    put_out = _number(usage, *_PUT_OUT)
    marks.extend(("@tokens_in", _number(usage, *_TAKEN_IN), 0, "@tokens_out", put_out, 0))
    if not reasoned:
        # It was thought before the first part came.
        put_out -= max(_number(get_item(usage, details), "reasoning_tokens") for details in _DETAILS)
    if put_out > 1 and spent > 0:
        marks.extend(("@per_token", spent, (put_out - 1, BY_CLIENT_CONTENT)))


def _number(holder: Any, *names: str) -> int:
    """Return the first of them that is a number of tokens."""
    values = (get_item(holder, name) for name in names)
    return next((value for value in values if type(value) is int and 0 <= value <= _MAX_TOKENS), 0)


# Ollama's `response`, `content` and `thinking` (https://docs.ollama.com/api/streaming), llama.cpp's `content`, and the deltas of a
# chat of OpenAI's: a text that is not empty, or a call of a tool.
_REASONING_PATTERN: Final = re.compile(r'"(?:thinking|reasoning|reasoning_content)"\s*:\s*"[^"]')
_CONTENT_PATTERN: Final = re.compile(
    rf'{_REASONING_PATTERN.pattern}|"(?:content|response|text)"\s*:\s*"[^"]|"tool_calls"\s*:\s*\[\s*\{{'
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

    def __init__(self, call: AnsweredCall) -> None:
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
            if _CONTENT_PATTERN.search(head):
                if self._first:
                    self._gap = max(self._gap, now - self._last)
                self._first = self._first or now
                self._last = now
                self._reasoned = self._reasoned or _REASONING_PATTERN.search(head) is not None
                self._several = self._several or _SEVERAL.search(head) is not None
            if has_report(line):
                self._saying, self._told_at = line, now
        except Exception:
            log_failure("reading the lines of an answer")

    def end(self) -> None:
        """Note that there are no more; calling it again changes nothing."""
        try:
            saying, self._saying = self._saying, ""
            part = parse_object(_text(saying).removeprefix(_EVENT)) if saying else None
            marks = self._call.marks
            if any(reports_in_body(part)) and len(marks) < MAX_MARKS and marks[0] == OPEN:
                self._call.streamed(part, self._first, self._told_at)
                self._count(part)
        except Exception:
            log_failure("reading the lines of an answer")

    def _count(self, part: Any) -> None:
        marks = self._call.marks
        if self._first:
            marks.extend(("@first_token", self._first, BY_CLIENT_CONTENT))
        if self._gap:
            marks.extend(("@gap", self._gap, BY_CLIENT_CONTENT))
        spent = 0 if self._several else self._last - self._first
        # Groq's stands where its times are.
        usage = get_item(part, "usage") or get_item(get_item(part, "x_groq"), "usage") or part
        record_tokens(marks, usage, spent, reasoned=self._reasoned)


def _text(line: str | bytes) -> str:
    return line if isinstance(line, str) else line.decode("utf-8", "replace")


def note_lines(lines: Iterator[Any], call: AnsweredCall) -> Iterator[Any]:
    """Yield *lines*, each noted as it passes."""
    stream = LineStream(call)
    try:
        for line in lines:
            stream.line(line)
            yield line
    finally:
        stream.end()


async def note_lines_async(lines: AsyncIterator[Any], call: AnsweredCall) -> AsyncGenerator[Any]:
    """Yield the lines of an async client, each noted as it passes."""
    stream = LineStream(call)
    try:
        async for line in lines:
            stream.line(line)
            yield line
    finally:
        stream.end()
