"""Shared by the HTTP and gRPC clients: recording of calls, propagation of the trace, server reports, and token streams.

A call is one `dependency` from its start to the headers of the response. Reading the body is a `dependency` of its own,
also if the call itself reads it. The time of the caller between two reads does not belong to the dependency.

Servers report their own times in headers or at the end of a body (`server_reports.py`). A body is parsed only if its
end contains the known fields; only these numbers are read, and the parsed object is dropped.

Of the streamed response of a model server the time to the first token, the gaps and the number of tokens are recorded.
Content is only tested for presence.

- `TokenStream` gets the chunks that the client of an OpenAI-compatible API returns. The first token is that of the first
  chunk with content; before it there are chunks with nothing but a role. A chunk may hold several tokens, so the time per
  token needs the number of tokens, which the server only reports for `stream_options={"include_usage": True}`; without
  it no time per token is recorded.
- `LineStream` gets the lines of a response that the user's own code reads: objects of Ollama, or events of a chat. Only
  the last line shows, by the fields of a dialect in it, that the stream is that of a model. Only that line is parsed, and
  only then the times before it are recorded.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Any, Final

from ...core.names import BY_CLIENT_CONTENT
from .. import records, trace_context
from ..instrumentor import log_failure
from ..records import MAX_MARKS, OPEN, Marks, clock
from .server_reports import BODIES, HEADERS, SERVER_TIMING, ReportDialect, Wait, record_report

# Where an answer, or what its body comes from, keeps the call it answers.
CALL: Final = "_stagelens_call"

_KNOWN: Final = frozenset(dialect.known_by for dialect in HEADERS)
_FIELDS: Final = _KNOWN | {
    field.name for dialect in HEADERS if dialect is not SERVER_TIMING for field in dialect.fields
}
_KEYS: Final = frozenset(place[0] if place else dialect.known_by for dialect in BODIES for place in dialect.places)
# Every dialect says it at the end of a body, after the text; a longer one is left alone, for to parse it takes milliseconds.
_TAIL: Final = 2048
_MAX_BODY: Final = 1 << 18
_NUMBERS: Final = tuple({f'"{dialect.known_by}"' for dialect in BODIES})
# https://www.w3.org/TR/server-timing/: commas part metrics, semicolons their parameters, and a description in quotes may
# hold either.
_METRIC: Final = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+')
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')


class AnsweredCall:
    """A call with its response headers.

    Args:
        marks: Those of the request that waits for it.
        begun: When it was made, by `clock`.
        headers: A mapping of names, in any case, whose `items` yields every value.
    """

    __slots__ = ("_begun", "_headers", "_is_told", "ended", "marks")

    def __init__(self, marks: Marks, begun: int, headers: Any) -> None:
        self.marks = marks
        self._begun = begun
        # Until when it was waited for: the headers, later the body.
        self.ended = self._headers = clock()
        self._is_told = record_headers(headers, marks, Wait(begun, self.ended))

    def is_said_in(self, part: Any) -> bool:
        """Return whether a *part* of a stream, a pydantic model, may hold a report that the headers did not have."""
        if self._is_told:
            return False
        usage = getattr(part, "usage", None)
        return any(not _KEYS.isdisjoint(getattr(holder, "model_extra", None) or ()) for holder in (part, usage))

    def streamed(self, part: Any, first: int, ended: int) -> None:
        """Record the report in the last *part* of a stream, whose tokens came from *first* to *ended*."""
        if not self._is_told:
            self._is_told = record_report(
                reports_in_body(part), self.marks, Wait(self._begun, ended or self.ended, first)
            )

    def read(self, body: Any) -> None:
        """Record the report in the complete *body*, once; never raises."""
        try:
            if self._is_told or not body or self.marks[0] != OPEN or not has_report(body):
                return
            # However often it is read.
            self._is_told = True
            record_report(
                reports_in_body(parse_object(body)), self.marks, Wait(self._begun, self.ended, headers=self._headers)
            )
        except Exception:
            log_failure("reading server timings of a call")


def has_report(body: str | bytes) -> bool:
    """Return whether *body* ends with numbers of a dialect."""
    if len(body) > _MAX_BODY:
        return False
    end = body[-_TAIL:]
    tail = end if isinstance(end, str) else end.decode("latin-1")
    return any(name in tail for name in _NUMBERS)


def parse_object(body: str | bytes) -> dict[str, Any] | None:
    """Return the object that *body* is, None where it is none."""
    try:
        parsed: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def attach_call(holder: Any, response: Any, marks: Marks, begun: int) -> None:
    """Store the call of *response* on *holder*, and record the report in its headers; never raises."""
    try:
        setattr(holder, CALL, AnsweredCall(marks, begun, response.headers))
    except Exception:
        log_failure("reading server timings of a call")


def call_of(holder: Any) -> AnsweredCall | None:
    """Return the call that is stored on *holder*."""
    return getattr(holder, CALL, None)


def record_headers(headers: Any, marks: Marks, wait: Wait) -> bool:
    """Record the server's report in *headers* and return whether there is one; never raises."""
    try:
        # Nearly all answers end here.
        return not _KNOWN.isdisjoint(map(str.lower, headers)) and record_report(
            _reports_in_headers(headers), marks, wait
        )
    except Exception:
        log_failure("reading server timings of a call")
        return False


def _reports_in_headers(headers: Any) -> Iterator[tuple[ReportDialect, Mapping[str, Any]]]:
    found: dict[str, str] = {}
    for name, value in headers.items():
        if (name := name.lower()) in _FIELDS:
            found[name] = f"{found[name]}, {value}" if name in found else value
    for dialect in HEADERS:
        if dialect.known_by in found:
            values = parse_server_timing(found[dialect.known_by]) if dialect is SERVER_TIMING else found
            if values:
                yield dialect, values


def parse_server_timing(header: str) -> dict[str, str]:
    """Return the known metrics of a `Server-Timing` header with their durations, unparsed.

    >>> parse_server_timing('cache;desc="hit, or not", Queue;dur=12.5, total;desc=all;dur=80')
    {'queue': '12.5', 'total': '80'}
    """
    known = {field.name for field in SERVER_TIMING.fields}
    found: dict[str, str] = {}
    for metric in _METRIC.findall(header):
        name, *parameters = (part.strip() for part in _QUOTED.sub("", metric).split(";"))
        name = name.lower()
        pairs = [(key.strip().lower(), value.strip()) for key, _, value in (each.partition("=") for each in parameters)]
        duration = next((value for key, value in pairs if key == "dur"), None)
        if name in known and duration is not None:
            # Two servers, one behind the other, that both tell of theirs: nobody knows whose the stages are.
            found[name] = duration if name not in found else "twice"
    return found


def reports_in_body(body: Any) -> Iterator[tuple[ReportDialect, Mapping[str, Any]]]:
    """Yield the reports in *body*, a dictionary or a pydantic model, by dialect."""
    for dialect in BODIES:
        for place in dialect.places:
            at = body
            for key in place:
                at = get_item(at, key)
            if get_item(at, dialect.known_by) is not None:
                yield dialect, {field.name: get_item(at, field.name) for field in dialect.fields}


def get_item(holder: Any, key: str) -> Any:
    """Return the value of *key* in *holder*, a dictionary or a pydantic model; None for none."""
    return holder.get(key) if isinstance(holder, dict) else getattr(holder, key, None)


DEPENDENCY: Final = "dependency"
# What came after the headers.
BODY: Final = f"{DEPENDENCY}@{records.BODY}"

# https://www.w3.org/TR/trace-context/#traceparent-header
TRACEPARENT: Final = "traceparent"

# Reads that follow each other sooner are one: a download of many small parts must not fill the list.
MAX_GAP_NS: Final = 50_000


def record_wait(marks: Marks, begun: int) -> None:
    """Record the wait for the headers since *begun* by `clock`, whether or not they arrived."""
    if len(marks) < MAX_MARKS:
        marks.extend((DEPENDENCY, begun, clock()))


def record_read(marks: Marks, begun: int) -> None:
    """Record the wait for a part of a body since *begun* by `clock`, whether or not it arrived."""
    ended = clock()
    # A fixed place: whatever another thread appends meanwhile, it is not overwritten.
    size = len(marks)
    try:
        if marks[size - 3] == BODY and marks[size - 2] <= begun < marks[size - 1] + MAX_GAP_NS:
            marks[size - 1] = ended
            return
    except IndexError:
        # Another thread has made room in a full list meanwhile.
        pass
    if size < MAX_MARKS:
        marks.extend((BODY, begun, ended))


def traceparent(marks: Marks) -> str:
    """Return the header for a call out of this request, "" for none; never raises."""
    try:
        return trace_context.traceparent(marks)
    except Exception:
        log_failure("naming the trace of a call")
        return ""


def with_traceparent(headers: Any, marks: Marks) -> Any:
    """Return a copy of *headers* with the request's `traceparent`, or the very same where they have one already.

    Args:
        headers: A mapping from names to values that has `copy`; it is not changed.
        marks: The request's.
    """
    try:
        if any(name.lower() in {TRACEPARENT, b"traceparent"} for name in headers):
            return headers
        value = traceparent(marks)
        if not value:
            return headers
        carrier = headers.copy()
        carrier[TRACEPARENT] = value
    except Exception:
        log_failure("propagating a trace")
        return headers
    return carrier


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
    """The parts of one response.

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
    put_out = _usage_count(usage, *_PUT_OUT)
    marks.extend(("@tokens_in", _usage_count(usage, *_TAKEN_IN), 0, "@tokens_out", put_out, 0))
    if not reasoned:
        # It was thought before the first part came.
        put_out -= max(_usage_count(get_item(usage, details), "reasoning_tokens") for details in _DETAILS)
    if put_out > 1 and spent > 0:
        marks.extend(("@per_token", spent, (put_out - 1, BY_CLIENT_CONTENT)))


def _usage_count(holder: Any, *names: str) -> int:
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
    """The lines of one response; no method raises.

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
            now, head = clock(), _decode_line(line[:_HEAD])
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
            log_failure("reading the lines of a response")

    def end(self) -> None:
        """Note that there are no more; calling it again changes nothing."""
        try:
            saying, self._saying = self._saying, ""
            part = parse_object(_decode_line(saying).removeprefix(_EVENT)) if saying else None
            marks = self._call.marks
            if any(reports_in_body(part)) and len(marks) < MAX_MARKS and marks[0] == OPEN:
                self._call.streamed(part, self._first, self._told_at)
                self._count(part)
        except Exception:
            log_failure("reading the lines of a response")

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


def _decode_line(line: str | bytes) -> str:
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
