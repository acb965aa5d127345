"""The client of OpenAI against servers that stream as vLLM, Groq, llama.cpp and OpenAI itself do."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import openai
import pytest
from openai._models import construct_type
from openai.types.beta import AssistantStreamEvent
from openai.types.chat import ChatCompletionChunk
from openai.types.completion import Completion
from openai.types.responses import ResponseStreamEvent

from stagelens.core.names import BY_CLIENT_CONTENT
from stagelens.instrumentors import records
from stagelens.instrumentors.libraries import client_common
from stagelens.instrumentors.libraries.client_common import TokenStream
from stagelens.instrumentors.libraries.httpx import HttpxInstrumentor
from stagelens.instrumentors.libraries.openai import OpenAIInstrumentor
from tests.instrumentors.libraries.drivers import instrumenting
from tests.support.http_server import http_server

if TYPE_CHECKING:
    from conftest import Running

MESSAGES: Any = [{"role": "user", "content": "hello"}]
HEAD = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def chunk(delta: dict[str, Any] | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    """Return a part of a chat: with a delta, or without any choice."""
    choices = [] if delta is None else [{"index": index, "delta": delta, "finish_reason": None}]
    return {**HEAD, "choices": choices, **more}


def usage(completion_tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": 5, "completion_tokens": completion_tokens, "total_tokens": 5 + completion_tokens, **more}


ROLE = chunk({"role": "assistant", "content": ""})
CHUNKS = (ROLE, chunk({"content": "a b"}), chunk({"content": " c"}), chunk({"content": " d e"}), chunk({}))
LAST = chunk(usage=usage(7))
# Where the dialect of each server stands in its last part.
LAST_PARTS = {
    # https://docs.vllm.ai/en/stable/features/per_request_metrics/
    "vllm": chunk(
        usage=usage(7),
        metrics={"queue_time_ms": 2.0, "time_to_first_token_ms": 5.0, "generation_time_ms": 8.0, "mean_itl_ms": 1.3},
    ),
    # llama.cpp's server, tools/server/README.md: also in every part, where `timings_per_token` asks for it.
    "llama.cpp": chunk({}, usage=usage(7), timings={"prompt_ms": 7.0, "predicted_ms": 8.0}),
    # groq-python, types/chat/chat_completion_chunk.py
    "groq": chunk(
        {}, x_groq={"id": "r", "usage": usage(7, queue_time=0.002, prompt_time=0.005, completion_time=0.008)}
    ),
}
STAGES = {
    "vllm": {"queue": 2.0, "prefill": 5.0, "decode": 8.0},
    "llama.cpp": {"prefill": 7.0, "decode": 8.0},
    "groq": {"queue": 2.0, "prefill": 5.0, "decode": 8.0},
}


class Upstream:
    """Server that streams the configured parts after some time.

    `held` is waited for before the last two parts.
    """

    def __init__(self) -> None:
        self.parts: Iterable[dict[str, Any]] = ()
        self.work_seconds = 0.0
        self.held = threading.Event()
        self.url = ""

    def stream(self) -> Iterator[bytes]:
        *before, content, last = self.parts
        for part in before:
            yield b"data: " + json.dumps(part).encode() + b"\n\n"
        self.held.wait(self.work_seconds or 30)
        for part in (content, last):
            yield b"data: " + json.dumps(part).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"


@pytest.fixture(scope="module")
def started() -> Generator[Upstream]:
    upstream = Upstream()
    headers = {"Content-Type": "text/event-stream", "Connection": "close"}
    with http_server(lambda _: (200, headers, upstream.stream())) as server:
        upstream.url = f"{server.url}/v1"
        yield upstream
        upstream.held.set()


@pytest.fixture
def upstream(started: Upstream) -> Upstream:
    started.parts, started.work_seconds = (*CHUNKS, LAST), 0.0
    started.held.set()
    return started


@pytest.fixture(autouse=True)
def instrumented() -> Generator[None]:
    with instrumenting(HttpxInstrumentor(), OpenAIInstrumentor()):
        yield


@pytest.fixture(scope="module")
def client(started: Upstream) -> Generator[openai.OpenAI]:
    """Return one client for all: to make one takes a while."""
    with openai.OpenAI(base_url=started.url, api_key="k", max_retries=0) as client:
        yield client


def open_stream(client: openai.OpenAI) -> openai.Stream[ChatCompletionChunk]:
    return client.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )


def facts(marks: records.Marks) -> dict[str, list[tuple[Any, Any]]]:
    """Return what was noted of a stream, all of each kind."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for key, first, second in zip(marks[::3], marks[1::3], marks[2::3], strict=True):
        if key.startswith("@") and key not in {records.OPEN, records.ARRIVAL, records.CALLED, "@trace"}:
            found.setdefault(key, []).append((first, second))
    return found


def test_a_stream_is_unchanged_and_its_tokens_are_counted(
    in_a_request: Running, upstream: Upstream, client: openai.OpenAI
) -> None:
    stream: Any = open_stream(client)
    assert inspect.isgenerator(stream._iterator)
    assert stream._iterator.__qualname__ == "Stream.__stream__"
    # In another context.
    with ThreadPoolExecutor(1) as pool:
        parts: list[Any] = pool.submit(list, stream).result(30)
    texts = [part.choices[0].delta.content if part.choices else "usage" for part in parts]
    noted = facts(in_a_request.marks)

    assert texts == ["", "a b", " c", " d e", None, "usage"]
    assert [definition for _, definition in noted["@first_token"]] == [BY_CLIENT_CONTENT]
    assert noted["@tokens_in"] == [(5, 0)]
    assert noted["@tokens_out"] == [(7, 0)]
    assert [over for _, over in noted["@per_token"]] == [(6, BY_CLIENT_CONTENT)]
    assert set(in_a_request.names()) == {"dependency"}
    assert upstream.held.is_set()


def test_the_tokens_of_an_async_stream_are_counted(in_a_request: Running, upstream: Upstream) -> None:
    async def go() -> int:
        async with openai.AsyncOpenAI(base_url=upstream.url, api_key="k", max_retries=0) as client:
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            return len([part async for part in stream])

    assert asyncio.run(go()) == len(CHUNKS) + 1
    assert set(facts(in_a_request.marks)) >= {"@first_token", "@tokens_in", "@tokens_out", "@per_token"}


@pytest.mark.parametrize("server", LAST_PARTS)
def test_server_times_in_the_last_part_are_split_into_stages(
    in_a_request: Running, upstream: Upstream, client: openai.OpenAI, server: str
) -> None:
    upstream.parts = (*CHUNKS, chunk({"content": "."}), LAST_PARTS[server])
    upstream.held.clear()
    upstream.work_seconds = 0.02
    list(open_stream(client))
    lengths = {
        stage.removesuffix("@reported"): (end - start) / 1e6
        for stage, start, end in in_a_request.stages()
        if stage.endswith("@reported")
    }

    assert lengths == pytest.approx(STAGES[server])


def test_after_the_request_a_stream_adds_nothing(
    in_a_request: Running, upstream: Upstream, client: openai.OpenAI
) -> None:
    stream = open_stream(client)
    in_a_request.marks[0] = records.CLOSED
    list(stream)
    in_a_request.marks[0] = records.OPEN

    assert upstream.held.is_set()
    assert set(facts(in_a_request.marks)) == set()


@pytest.mark.usefixtures("in_a_request", "upstream")
def test_an_agent_failure_is_reported_and_the_parts_are_returned(
    client: openai.OpenAI, reported: set[str], make_fail: Callable[[Any, str], None]
) -> None:
    make_fail(TokenStream, "part")

    assert len(list(open_stream(client))) == len(CHUNKS) + 1
    assert reported == {"timing a stream of openai"}


def played(monkeypatch: pytest.MonkeyPatch, parts: Iterable[Any], step: int = 10) -> dict[str, list[tuple[Any, Any]]]:
    """Return what is noted of *parts* that come each *step* nanoseconds after the last, from that on."""
    ticks: Iterator[int] = itertools.count(step, step)
    monkeypatch.setattr(client_common, "clock", ticks.__next__)
    marks: records.Marks = [records.OPEN, 0, 0]
    stream = TokenStream(marks, None)
    for part in parts:
        stream.part(part)
    stream.end()
    stream.end()
    return facts(marks)


def chat(*parts: dict[str, Any]) -> list[ChatCompletionChunk]:
    return [ChatCompletionChunk.model_validate(part) for part in parts]


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a"},
        {"reasoning_content": "a"},
        {"reasoning": "a"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
        {"refusal": "no"},
    ],
)
def test_content_of_any_kind_is_the_first_token(monkeypatch: pytest.MonkeyPatch, delta: dict[str, Any]) -> None:
    noted = played(monkeypatch, chat(ROLE, chunk({"content": ""}), chunk(delta), chunk({"content": "b"})))

    assert noted["@first_token"] == [(30, BY_CLIENT_CONTENT)]


def test_the_older_completions_are_streams_too(monkeypatch: pytest.MonkeyPatch) -> None:
    head = {"id": "1", "object": "text_completion", "created": 1, "model": "m"}
    texts = [{**head, "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]} for text in ("", "a", "b")]
    noted = played(monkeypatch, [Completion.model_validate(each) for each in texts])

    assert noted["@first_token"] == [(20, BY_CLIENT_CONTENT)]
    assert noted["@gap"] == [(10, BY_CLIENT_CONTENT)]


def test_the_longest_wait_between_two_parts_is_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    some = chunk({"content": "a"})
    noted = played(monkeypatch, chat(some, some, chunk({}), chunk({}), some, some))

    assert max(gap for gap, _ in noted["@gap"]) == 30


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        # From the first content to the last, over all tokens but the first.
        ((chunk({"content": "a"}), chunk({"content": "b"}), chunk(usage=usage(5))), [(10, 4)]),
        # Usage in every part, as of vLLM's `continuous_usage_stats`: the last counts.
        ((chunk({"content": "a"}, usage=usage(1)), chunk({"content": "b"}, usage=usage(5))), [(10, 4)]),
        # Thought out of sight, before the first part.
        (
            (
                chunk({"content": "a"}),
                chunk({"content": "b"}),
                chunk(usage=usage(105, completion_tokens_details={"reasoning_tokens": 100})),
            ),
            [(10, 4)],
        ),
        # Thought in sight.
        (
            (
                chunk({"reasoning": "a"}),
                chunk({"content": "b"}),
                chunk(usage=usage(5, completion_tokens_details={"reasoning_tokens": 2})),
            ),
            [(10, 4)],
        ),
        ((chunk({"content": "a"}), chunk({"content": "b"})), []),
        # All in one part, one token, and two answers at once: nobody knows.
        ((chunk({"content": "a b c"}), chunk(usage=usage(3))), []),
        ((chunk({"content": "a"}), chunk({"content": ""}), chunk(usage=usage(1))), []),
        ((chunk({"content": "a"}), chunk({"content": "b"}, index=1), chunk(usage=usage(5))), []),
    ],
)
def test_time_per_token_counts_tokens_not_parts(
    monkeypatch: pytest.MonkeyPatch, parts: tuple[dict[str, Any], ...], expected: list[tuple[int, int]]
) -> None:
    noted = played(monkeypatch, chat(*parts))

    assert ("@tokens_out" in noted) == any("usage" in part for part in parts)
    assert noted.get("@per_token", []) == [(spent, (over, BY_CLIENT_CONTENT)) for spent, over in expected]


def event(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "sequence_number": 0, **more}


def text(kind: str = "output_text", place: int = 0) -> dict[str, Any]:
    return event(f"{kind}.delta", delta="a", item_id="i", output_index=place, content_index=0, logprobs=[])


def completed(output_tokens: int, reasoning_tokens: int = 0) -> dict[str, Any]:
    used = {
        "input_tokens": 5,
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }
    return event("completed", response={"id": "r", "object": "response", "usage": used})


CREATED = event("created", response={"id": "r", "object": "response", "usage": None})


def responses(*parts: dict[str, Any]) -> list[Any]:
    return [construct_type(type_=ResponseStreamEvent, value=part) for part in parts]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        # Thought out of sight.
        ((CREATED, text(), text(), completed(105, 100)), [(10, 4)]),
        # Thought in sight, before the answer.
        ((text("reasoning_text"), text(place=1), text(place=1), completed(105, 100)), [(20, 104)]),
        # Of a summary nobody says how long it is; between two items a tool may have been at work.
        ((text("reasoning_summary_text"), text(place=1), completed(105, 100)), []),
        ((text(), text("function_call_arguments", 1), completed(5)), []),
    ],
)
def test_time_per_token_of_a_response_counts_visible_tokens(
    monkeypatch: pytest.MonkeyPatch, parts: tuple[dict[str, Any], ...], expected: list[tuple[int, int]]
) -> None:
    noted = played(monkeypatch, responses(*parts))

    assert noted["@first_token"][0][1] == BY_CLIENT_CONTENT
    assert noted.get("@per_token", []) == [(spent, (over, BY_CLIENT_CONTENT)) for spent, over in expected]


def test_an_assistants_api_stream_is_timed_by_its_deltas(monkeypatch: pytest.MonkeyPatch) -> None:
    delta = {"id": "m", "object": "thread.message.delta", "delta": {"content": [{"index": 0, "type": "text"}]}}
    parts = (
        {"event": "thread.run.created", "data": {"id": "r", "usage": None}},
        {"event": "thread.message.delta", "data": delta},
        {"event": "thread.message.delta", "data": delta},
        {"event": "thread.run.step.completed", "data": {"id": "s", "usage": usage(3)}},
        {"event": "thread.run.completed", "data": {"id": "r", "usage": usage(7)}},
    )
    noted = played(monkeypatch, [construct_type(type_=AssistantStreamEvent, value=part) for part in parts])

    assert noted["@first_token"] == [(20, BY_CLIENT_CONTENT)]
    assert noted["@tokens_out"] == [(7, 0)]
    assert noted["@per_token"] == [(10, (6, BY_CLIENT_CONTENT))]
