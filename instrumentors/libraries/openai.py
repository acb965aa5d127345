"""OpenAI client: times streamed responses of all servers with the OpenAI API, in the sync and async client.

- The [httpx](httpx.md) module times the call. The OpenAI module of Stagelens records the token times of `create(stream=True)`.
- The first token is the first chunk with content.
- The time per token needs the number of tokens. For a chat, set `stream_options={"include_usage": True}`. The APIs
  for responses and assistants always report the number of tokens.
- vLLM, Groq, Cerebras, Fireworks and llama.cpp report times in the last chunk. These times become
  stages: see [server-reported times](../reported.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from ..instrumentor import Instrumentor, Target, log_failure
from ..records import Marks, current
from .client_common import TokenStream, call_of
from .server_common import ENDED, relayed


class OpenAIInstrumentor(Instrumentor):
    library = "openai"
    title = "OpenAI (client)"
    stages = {
        "queue": "the time in the queue of the server, if the server reports it",
        "prefill": "the prefill time, if the server reports it",
        "decode": "the decoding time, if the server reports it",
        "network": "the rest of the wait for the first token, if the server reports its times",
    }
    facts = ("first_token", "time_per_token", "gap", "tokens")
    not_timed = (
        "token counts of calls without `stream=True`",
        "the time per token, if `include_usage` is not set or if a response has several choices (`n` above 1)",
        "the time per token of a response that has a reasoning summary or several items",
        "token counts and server-reported times of a stream that your code does not read to its end",
    )
    tested = {"openai": "3.54.0"}

    def targets(self) -> Iterable[Target]:
        return (
            # Called once by the constructor, in the context of the call.
            ("openai._streaming:Stream AsyncStream", _parts, "__stream__"),
        )


def _parts(original: Any) -> Any:
    def __stream__(self: Any) -> Any:  # noqa: N807 - shown in tracebacks
        parts, marks = original(self), current.get()
        return parts if marks is None else relayed(parts, partial(_note, _stream(self, marks)))

    return __stream__


def _stream(owner: Any, marks: Marks) -> TokenStream:
    return TokenStream(marks, call_of(getattr(getattr(owner, "response", None), "stream", None)))


def _note(stream: TokenStream, _: int, part: Any) -> None:
    try:
        if part is ENDED:
            stream.end()
        else:
            stream.part(part)
    except Exception:
        log_failure("timing a stream of openai")
