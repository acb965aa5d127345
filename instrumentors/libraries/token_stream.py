"""An answer that comes token by token, as the client of an OpenAI-compatible API hands it on: when its tokens came.

The first token is in the first part with content: before it there are parts with nothing but a role. Of content it is only
looked at whether there is any. A part may hold several tokens, so the time from one token to the next needs to know how many
there were, which the server only says where `stream_options={"include_usage": True}` asked for it; without that there is
none, rather than a wrong one.
"""

from __future__ import annotations

from typing import Any, Final

from ...core.names import BY_CLIENT_CONTENT
from ..records import MAX_MARKS, OPEN, Marks, clock
from .answers import Call, item

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

    def __init__(self, marks: Marks, call: Call | None) -> None:
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
            count(self._marks, usage, spent, reasoned=self._reasoned)
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


def count(marks: Marks, usage: Any, spent: int, *, reasoned: bool = True) -> None:
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
        put_out -= max(_number(item(usage, details), "reasoning_tokens") for details in _DETAILS)
    if put_out > 1 and spent > 0:
        marks.extend(("@per_token", spent, (put_out - 1, BY_CLIENT_CONTENT)))


def _number(holder: Any, *names: str) -> int:
    """Return the first of them that is a number of tokens."""
    values = (item(holder, name) for name in names)
    return next((value for value in values if type(value) is int and 0 <= value <= _MAX_TOKENS), 0)
