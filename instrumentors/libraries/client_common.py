"""Shared by the HTTP and gRPC clients: recording of calls, propagation of the trace, server reports, and token streams.

A call is one `dependency` from its start to the headers of the response. Reading the body is a `dependency` of its own,
even if the call itself reads the body. The time of the caller between two reads does not belong to the dependency.

Servers report their own times in headers or at the end of a body (`server_reports.py`). A body is parsed only if its
end contains the known fields; only these numbers are read, and the parsed object is dropped.

For a streamed response of a model server the time to first token, the gaps and the number of tokens are recorded.
Content is only tested for presence.

- `TokenStream` gets the chunks that the client of an OpenAI-compatible API returns. The first token arrives with the first
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final
from weakref import ref

from ...core.names import BY_CLIENT_CONTENT
from .. import records, trace_context
from ..instrumentor import Probed, TimedCall, log_failure
from ..probes import Probe
from ..records import CALLED, OPEN, STATE, Marks, clock, has_capacity
from ..trace_context import TRACESTATE, tracestate_to
from .server_common import ENDED, relayed
from .server_reports import BODIES, HEADERS, SERVER_TIMING, ReportDialect, Wait, parse_server_timing, record_report
from .streams import CONTENT_PATTERN, REASONING_PATTERN

_KNOWN: Final = frozenset(dialect.known_by for dialect in HEADERS)
_FIELDS: Final = _KNOWN | {
    field.name for dialect in HEADERS if dialect is not SERVER_TIMING for field in dialect.fields
}
_KEYS: Final = frozenset(path[0] if path else dialect.known_by for dialect in BODIES for path in dialect.places)
# Every dialect has its numbers at the end of the body. Longer bodies are not read, because parsing takes milliseconds.
_TAIL: Final = 2048
_MAX_BODY: Final = 1 << 18
_NUMBERS: Final = tuple({f'"{dialect.known_by}"' for dialect in BODIES})
DEPENDENCY: Final = "dependency"
# Mark of the response body, after the headers.
BODY: Final = f"{DEPENDENCY}@{records.BODY}"
# https://www.w3.org/TR/trace-context/#traceparent-header
TRACEPARENT: Final = "traceparent"
# Reads with a shorter gap are merged, so that a download of many small parts does not fill the list.
MAX_GAP_NS: Final = 50_000
# Fields with tokens in a part of a chat; reasoning under the names of vLLM, DeepSeek and others.
_CONTENT: Final = ("content", "tool_calls", "refusal", "function_call", "audio")
_REASONING: Final = ("reasoning_content", "reasoning")
# Fields with token counts: of a chat, of the Responses API, of Ollama.
_TAKEN_IN: Final = ("prompt_tokens", "input_tokens", "prompt_eval_count")
_PUT_OUT: Final = ("completion_tokens", "output_tokens", "eval_count")
_DETAILS: Final = ("completion_tokens_details", "output_tokens_details")
# More than the context of any model.
_MAX_TOKENS: Final = 10**8
# Several choices or tool calls at once: the token counts cannot be attributed to one.
_SEVERAL: Final = re.compile(r'"index"\s*:\s*[1-9]')
# A line whose content starts later is not a part of a response.
_HEAD: Final = 1024
# https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
_EVENT: Final = "data:"
# https://platform.openai.com/docs/api-reference/completions/create: the last event of a stream. Code that stops reading there leaves
# an async generator, which the event loop closes only after the request.
_DONE: Final = f"{_EVENT} [DONE]"


class RespondedCall:
    __slots__ = ("_headers", "_is_reported", "_started", "ended", "marks")

    def __init__(self, marks: Marks, started: int, headers: Any) -> None:
        self.marks = marks
        self._started = started
        # End of the wait: arrival of the headers, later of the body.
        self.ended = self._headers = clock()
        self._is_reported = record_headers(headers, marks, Wait(started, self.ended))

    def may_report_in(self, part: Any) -> bool:
        """Return whether *part* of a stream, a pydantic model, may hold a report that the headers did not contain."""
        if self._is_reported:
            return False
        usage = getattr(part, "usage", None)
        return any(not _KEYS.isdisjoint(getattr(holder, "model_extra", None) or ()) for holder in (part, usage))

    def streamed(self, part: Any, first: int, ended: int) -> None:
        """Record the server's report in the last *part* of a stream whose tokens arrived from *first* to *ended*."""
        if not self._is_reported:
            self._is_reported = record_report(
                reports_in_body(part), self.marks, Wait(self._started, ended or self.ended, first)
            )

    def read(self, body: Any) -> None:
        """Record the server's report in the complete *body*, at most once; never raises."""
        try:
            if self._is_reported or not body or self.marks[STATE] != OPEN or not has_report(body):
                return
            # Recorded once, even if the body is read again.
            self._is_reported = True
            record_report(
                reports_in_body(parse_object(body)), self.marks, Wait(self._started, self.ended, headers=self._headers)
            )
        except Exception:
            log_failure("reading server timings of a call")


def has_report(body: str | bytes) -> bool:
    if len(body) > _MAX_BODY:
        return False
    end = body[-_TAIL:]
    tail = end if isinstance(end, str) else end.decode("latin-1")
    return any(name in tail for name in _NUMBERS)


def parse_object(body: str | bytes) -> dict[str, Any] | None:
    try:
        parsed: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


# By the response, or by the object that reads its body.
_calls: dict[ref[Any], RespondedCall] = {}


def attach_call(holder: Any, response: Any, marks: Marks, started: int) -> None:
    """Store the call of *response* for *holder*, and record the report in its headers; never raises."""
    try:
        # A callback in C: what a signal handler raises in one of Python would be lost.
        _calls[ref(holder, _calls.pop)] = RespondedCall(marks, started, response.headers)
    except Exception:
        log_failure("reading server timings of a call")


def call_of(holder: Any) -> RespondedCall | None:
    try:
        return _calls.get(ref(holder))
    except TypeError:
        # No object that a client has made, such as None.
        return None


def body_probe(call: Callable[[Any], RespondedCall | None]) -> Probed:
    """Return what records the server's report in the body that a method returns; *call* gets the response."""
    return Probed(Probe(call, _note_body, parameters=1))


def _note_body(call: RespondedCall | None, body: Any) -> None:
    if call is not None:
        call.read(body)


def record_headers(headers: Any, marks: Marks, wait: Wait) -> bool:
    """Record the server's report in *headers* and return whether there is one; never raises."""
    try:
        # Nearly all responses return here.
        return not _KNOWN.isdisjoint(map(str.lower, headers)) and record_report(
            _reports_in_headers(headers), marks, wait
        )
    except Exception:
        log_failure("reading server timings of a call")
        return False


def _reports_in_headers(headers: Any) -> Iterator[tuple[ReportDialect, Mapping[str, Any]]]:
    report_headers: dict[str, str] = {}
    for name, value in headers.items():
        if (name := name.lower()) in _FIELDS:
            report_headers[name] = f"{report_headers[name]}, {value}" if name in report_headers else value
    for dialect in HEADERS:
        if dialect.known_by in report_headers:
            values = (
                parse_server_timing(report_headers[dialect.known_by]) if dialect is SERVER_TIMING else report_headers
            )
            if values:
                yield dialect, values


def reports_in_body(body: Any) -> Iterator[tuple[ReportDialect, Mapping[str, Any]]]:
    for dialect in BODIES:
        for path in dialect.places:
            at = body
            for key in path:
                at = get_item(at, key)
            if get_item(at, dialect.known_by) is not None:
                yield dialect, {field.name: get_item(at, field.name) for field in dialect.fields}


def get_item(holder: Any, key: str) -> Any:
    return holder.get(key) if isinstance(holder, dict) else getattr(holder, key, None)


def record_wait(marks: Marks, started: int, called: Any = "") -> None:
    """Record the wait for the headers since *started* by `clock`, whether or not they arrived; *called* is host or address."""
    if has_capacity(marks):
        marks.extend((DEPENDENCY, started, clock(), CALLED, called, 0))


def record_read(marks: Marks, started: int) -> None:
    """Record the wait for a part of a body since *started* by `clock`, whether or not it arrived."""
    ended = clock()
    # A fixed index, so that concurrent appends of other threads are not overwritten.
    size = len(marks)
    try:
        if marks[size - 3] == BODY and marks[size - 2] <= started < marks[size - 1] + MAX_GAP_NS:
            marks[size - 1] = ended
            return
    except IndexError:
        # Another thread has compacted a full list meanwhile.
        pass
    if has_capacity(marks):
        marks.extend((BODY, started, ended))


class HeadersWait(TimedCall):
    """A wait for the headers of a response of *host*."""

    __slots__ = ("_host",)

    def __init__(self, marks: Marks, host: str = "") -> None:
        super().__init__(marks, DEPENDENCY)
        self._host = host

    def end(self) -> None:
        record_wait(self.marks, self.started, self._host)


class Read(TimedCall):
    """A wait for a part of a body, whose end is that of *call* so far."""

    __slots__ = ("_call",)

    def __init__(self, marks: Marks, call: RespondedCall | None = None) -> None:
        super().__init__(marks, BODY)
        self._call = call

    def end(self) -> None:
        record_read(self.marks, self.started)
        if self._call is not None:
            self._call.ended = clock()


def trace_headers(present: Iterable[Any], marks: Marks, host: str) -> dict[str, str]:
    """Return the headers that a call adds to those with the names *present*; never raises.

    They are the request's `traceparent`, and the service as `tracestate`, unless there is one, or *host* does not get it.
    """
    try:
        names = {name.lower() for name in present if isinstance(name, (str, bytes))}
        value = "" if TRACEPARENT in names or b"traceparent" in names else trace_context.traceparent(marks)
        if not value:
            return {}
        added = {TRACEPARENT: value}
        if TRACESTATE not in names and b"tracestate" not in names and (state := tracestate_to(host)):
            added[TRACESTATE] = state
    except Exception:
        log_failure("propagating a trace")
        return {}
    return added


class TokenStream:
    __slots__ = ("_call", "_first", "_gap", "_item", "_last", "_marks", "_reasoned", "_report", "_several", "_usage")

    def __init__(self, marks: Marks, call: RespondedCall | None) -> None:
        self._marks = marks
        self._call = call
        # Arrival of the first and last content by `clock`, and the longest gap between two parts.
        self._first = self._last = self._gap = 0
        # Item of the response to which the last content belonged.
        self._item: Any = None
        # Whether the content had reasoning, and whether there were several choices.
        self._reasoned = self._several = False
        # The last parts with token counts and with times: some servers report them in every part.
        self._usage: Any = None
        self._report: Any = None

    def part(self, part: Any) -> None:
        """Record a *part* that has just arrived: of a chat or a completion, or an event of the other APIs."""
        now = clock()
        choices = getattr(part, "choices", None)
        if choices is not None:
            came, holder = self._has_content(choices), part
        else:
            came, holder = self._is_delta(part), getattr(part, "response", None) or getattr(part, "data", None)
        if came:
            self._came(now)
        self._usage = getattr(holder, "usage", None) or self._usage
        if self._call is not None and self._call.may_report_in(part):
            self._report = part

    def end(self) -> None:
        """Record the end of the stream; repeated calls have no effect."""
        usage, report, self._usage, self._report = self._usage, self._report, None, None
        if not self._has_capacity():
            return
        if usage is not None:
            spent = 0 if self._several else self._last - self._first
            record_tokens(self._marks, usage, spent, reasoned=self._reasoned)
        if report is not None and self._call is not None:
            self._call.streamed(report, self._first, self._last)

    def _has_capacity(self) -> bool:
        return has_capacity(self._marks) and self._marks[STATE] == OPEN

    def _is_delta(self, event: Any) -> bool:
        kind = getattr(event, "type", None) or getattr(event, "event", None)
        if not isinstance(kind, str) or not kind.endswith(".delta"):
            return False
        # Reasoning is distinguished; the number of tokens of a reasoning summary is unknown.
        if ".reasoning" in kind:
            self._reasoned = True
            self._several = self._several or "summary" in kind
        else:
            # Between two items the server may have run a tool.
            output_index = getattr(event, "output_index", None)
            self._several = self._several or (self._item is not None and output_index != self._item)
            self._item = output_index
        return bool(getattr(event, "delta", None) or getattr(event, "data", None))

    def _has_content(self, choices: Any) -> bool:
        has_content = False
        # The client also passes on values that are not choices.
        for choice in choices if isinstance(choices, list) else ():
            self._several = self._several or bool(getattr(choice, "index", 0))
            delta = getattr(choice, "delta", None)
            if delta is None:
                # A chat has deltas, a completion has texts.
                has_content = has_content or bool(getattr(choice, "text", None))
                continue
            # Not by attribute: a missing attribute costs pydantic a microsecond.
            more = getattr(delta, "model_extra", None) or {}
            reasoning = any(more.get(name) for name in _REASONING)
            self._reasoned = self._reasoned or reasoning
            has_content = has_content or reasoning or any(getattr(delta, name, None) for name in _CONTENT)
        return has_content

    def _came(self, now: int) -> None:
        gap = now - self._last
        if self._has_capacity():
            if not self._first:
                self._marks.extend(("@first_token", now, BY_CLIENT_CONTENT))
            elif gap > self._gap:
                # Only the longest gap counts; the shorter ones before it cost a few triples per stream.
                self._gap = gap
                self._marks.extend(("@gap", gap, BY_CLIENT_CONTENT))
        self._first = self._first or now
        self._last = now


def record_tokens(marks: Marks, usage: Any, spent: int, *, reasoned: bool = True) -> None:
    """Record the numbers of tokens and the time per token.

    Args:
        usage: Object or dictionary with the token counts, under the names of any server.
        spent: Time from the first to the last token; 0 for unknown. [nanoseconds]
        reasoned: Whether *spent* includes the reasoning tokens.
    """
    put_out = _usage_count(usage, *_PUT_OUT)
    marks.extend(("@tokens_in", _usage_count(usage, *_TAKEN_IN), 0, "@tokens_out", put_out, 0))
    if not reasoned:
        # The reasoning happened before the first part arrived.
        put_out -= max(_usage_count(get_item(usage, details), "reasoning_tokens") for details in _DETAILS)
    if put_out > 1 and spent > 0:
        marks.extend(("@per_token", spent, (put_out - 1, BY_CLIENT_CONTENT)))


def _usage_count(holder: Any, *names: str) -> int:
    values = (get_item(holder, name) for name in names)
    return next((value for value in values if type(value) is int and 0 <= value <= _MAX_TOKENS), 0)


class LineStream:
    """Recorder of the lines of one response; no method raises."""

    __slots__ = ("__weakref__", "_call", "_first", "_gap", "_last", "_reasoned", "_report", "_reported_at", "_several")

    def __init__(self, call: RespondedCall) -> None:
        self._call = call
        # Arrival of the first and last content by `clock`, and the longest gap between two lines.
        self._first = self._last = self._gap = 0
        # Whether the content had reasoning, and whether there were several choices.
        self._reasoned = self._several = False
        # The last line with a report and its arrival: some servers report in every line.
        self._report: str | bytes = ""
        self._reported_at = 0

    def line(self, line: str | bytes) -> None:
        try:
            now, head = clock(), _decode_line(line[:_HEAD])
            if head.startswith(_DONE):
                self.end()
            if CONTENT_PATTERN.search(head):
                if self._first:
                    self._gap = max(self._gap, now - self._last)
                self._first = self._first or now
                self._last = now
                self._reasoned = self._reasoned or REASONING_PATTERN.search(head) is not None
                self._several = self._several or _SEVERAL.search(head) is not None
            if has_report(line):
                self._report, self._reported_at = line, now
        except Exception:
            log_failure("reading the lines of a response")

    def end(self) -> None:
        """Record the end of the response; repeated calls have no effect."""
        try:
            report, self._report = self._report, ""
            part = parse_object(_decode_line(report).removeprefix(_EVENT)) if report else None
            marks = self._call.marks
            if any(reports_in_body(part)) and has_capacity(marks) and marks[STATE] == OPEN:
                self._call.streamed(part, self._first, self._reported_at)
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
        # Groq reports the usage next to the times.
        usage = get_item(part, "usage") or get_item(get_item(part, "x_groq"), "usage") or part
        record_tokens(marks, usage, spent, reasoned=self._reasoned)


def _decode_line(line: str | bytes) -> str:
    return line if isinstance(line, str) else line.decode("utf-8", "replace")


def noted_lines(lines: Any, call: RespondedCall | None) -> Any:
    """Return the generator *lines*, of a sync or async client, whose lines are recorded if *call* is known."""
    if call is None:
        return lines
    stream = LineStream(call)
    return relayed(lines, lambda _, line: stream.end() if line is ENDED else stream.line(line))
