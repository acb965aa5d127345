"""Streams that the user's own code reads line by line: of Ollama, and of chats without the client of OpenAI."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
import pytest
import requests

from stagelens.core.names import BY_CLIENT_CONTENT
from stagelens.core.partition import partition
from stagelens.instrumentors import records
from stagelens.instrumentors.libraries import client_common
from stagelens.instrumentors.libraries.client_common import LineStream, RespondedCall
from stagelens.instrumentors.request_marks import read_marks
from tests.support.http_server import http_server

if TYPE_CHECKING:
    from conftest import Running

pytestmark = pytest.mark.usefixtures("clients")

HEAD = {"model": "llama3.2", "created_at": "2026-11-01T10:00:00Z"}


def ollama(text: str, **more: Any) -> str:
    return json.dumps({**HEAD, "response": text, "done": bool(more), **more})


def event(delta: dict[str, Any] | None, **more: Any) -> str:
    """Return an event of a chat, and the empty line that ends it."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
    return "data: " + json.dumps({"id": "1", "object": "chat.completion.chunk", "choices": choices, **more}) + "\n"


# https://docs.ollama.com/api/generate: the last object of a stream.
DONE = {
    "done_reason": "stop",
    "context": [1, 2, 3],
    "total_duration": 14_500_000,
    "load_duration": 1_500_000,
    "prompt_eval_count": 26,
    "prompt_eval_duration": 3_000_000,
    "eval_count": 4,
    "eval_duration": 8_000_000,
}
USAGE = {"prompt_tokens": 26, "completion_tokens": 4, "total_tokens": 30}
STREAMS: dict[str, tuple[str, ...]] = {
    "ollama, generate": (ollama("a"), ollama(" b"), ollama(" c"), ollama("", **DONE)),
    # https://docs.ollama.com/api/chat
    "ollama, chat": tuple(
        json.dumps({**HEAD, "message": {"role": "assistant", "content": text}, "done": bool(more), **more})
        for text, more in (("a", {}), ("b", {}), ("", DONE))
    ),
    # https://docs.vllm.ai/en/stable/features/per_request_metrics/
    "vllm": (
        event({"role": "assistant", "content": ""}),
        event({"content": "a"}),
        event({"content": "b"}),
        event(
            None,
            usage=USAGE,
            metrics={"queue_time_ms": 1.5, "time_to_first_token_ms": 3.0, "generation_time_ms": 8.0},
        ),
        "data: [DONE]\n",
    ),
    # groq-python, types/chat/chat_completion_chunk.py
    "groq": (
        event({"role": "assistant", "content": ""}),
        event({"content": "a"}),
        event({"content": "b"}),
        event(
            {},
            x_groq={
                "id": "r",
                "usage": {**USAGE, "queue_time": 0.0015, "prompt_time": 0.003, "completion_time": 0.008},
            },
        ),
    ),
    # llama.cpp's own /completion, tools/server/README.md; with `timings_per_token` every part has them, and the last counts.
    "llama.cpp": (
        'data: {"content":"a","stop":false,"timings":{"prompt_ms":3.0,"predicted_ms":0.1}}\n',
        'data: {"content":"b","stop":true,"timings":{"prompt_ms":3.0,"predicted_ms":8.0}}\n',
    ),
}
STAGES = {
    "ollama, generate": {"queue": 1.5, "prefill": 3.0, "decode": 8.0, "dependency": 2.0},
    "ollama, chat": {"queue": 1.5, "prefill": 3.0, "decode": 8.0, "dependency": 2.0},
    "vllm": {"queue": 1.5, "prefill": 3.0, "decode": 8.0},
    "groq": {"queue": 1.5, "prefill": 3.0, "decode": 8.0},
    "llama.cpp": {"prefill": 3.0, "decode": 8.0},
}


@pytest.fixture(scope="module")
def streaming() -> Generator[Callable[[Iterable[str]], str]]:
    """Have a server stream lines, after 20 ms before the first and before the last; returns its address."""
    response_lines: list[str] = []
    never = threading.Event()

    def stream() -> Iterator[bytes]:
        for number, line in enumerate(response_lines):
            if number in {0, len(response_lines) - 1}:
                never.wait(0.02)
            yield line.encode() + b"\n"

    with http_server(lambda _: (200, {}, stream())) as server:

        def say(lines: Iterable[str]) -> str:
            response_lines[:] = lines
            return server.url

        yield say


def _httpx(url: str) -> list[str]:
    with httpx.stream("GET", url, timeout=60) as response:
        return list(response.iter_lines())


def _httpx_async(url: str) -> list[str]:
    async def go() -> list[str]:
        async with httpx.AsyncClient(timeout=60) as client, client.stream("GET", url) as response:
            return [line async for line in response.aiter_lines()]

    return asyncio.run(go())


def _requests(url: str) -> list[str]:
    return [line.decode() for line in requests.get(url, timeout=30, stream=True).iter_lines()]


def _aiohttp(url: str) -> list[str]:
    async def go() -> list[str]:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return [line.decode().removesuffix("\n") async for line in response.content]

    return asyncio.run(go())


READ: dict[str, Callable[[str], list[str]]] = {
    "httpx": _httpx,
    "httpx, async": _httpx_async,
    "requests": _requests,
    "aiohttp": _aiohttp,
}


@pytest.mark.parametrize("client", READ)
@pytest.mark.parametrize("server", STREAMS)
def test_the_last_line_of_a_stream_has_the_server_stages(
    in_a_request: Running, streaming: Callable[[Iterable[str]], str], server: str, client: str
) -> None:
    started = records.clock()
    lines = READ[client](streaming(STREAMS[server]))
    marks = in_a_request.marks
    own = partition(read_marks(marks).intervals, started, records.clock())
    lengths: dict[str, float] = {}
    for key, start, end in in_a_request.stages():
        if key.endswith("@reported"):
            stage = key.removesuffix("@reported")
            lengths[stage] = lengths.get(stage, 0) + (end - start) / 1e6

    assert "\n".join(lines).split() == "\n".join(STREAMS[server]).split()
    assert lengths == pytest.approx(STAGES[server])
    # However many reads of the body they lie in.
    assert {stage: own[stage] / 1e6 for stage in lengths if stage != "dependency"} == pytest.approx(
        {stage: length for stage, length in lengths.items() if stage != "dependency"}
    )
    assert marks[marks.index("@first_token") + 2] == BY_CLIENT_CONTENT
    assert marks[marks.index("@tokens_out") + 1] == (0 if server == "llama.cpp" else 4)
    assert "@suspect" not in marks


def test_a_stream_whose_reader_stops_at_its_last_event_has_the_server_stages(
    in_a_request: Running, streaming: Callable[[Iterable[str]], str]
) -> None:
    async def go() -> set[str]:
        async with (
            httpx.AsyncClient(timeout=60) as client,
            client.stream("GET", streaming(STREAMS["vllm"])) as response,
        ):
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    break
            return {key for key, _, _ in in_a_request.stages() if key.endswith("@reported")}

    assert asyncio.run(go()) == {"queue@reported", "prefill@reported", "decode@reported"}


def played(
    monkeypatch: pytest.MonkeyPatch, lines: Iterable[str | bytes], wait: int = 10_000_000
) -> dict[str, list[tuple[Any, Any]]]:
    """Return what is noted of *lines* that come each *wait* nanoseconds after the last."""
    marks: records.Marks = [records.OPEN, 0, 0]
    call = RespondedCall(marks, 0, {})
    monkeypatch.setattr(client_common, "clock", itertools.count(wait, wait).__next__)
    stream = LineStream(call)
    for line in lines:
        stream.line(line)
    stream.end()
    stream.end()
    found: dict[str, list[tuple[Any, Any]]] = {}
    for key, first, second in zip(marks[3::3], marks[4::3], marks[5::3], strict=True):
        if key.startswith("@"):
            found.setdefault(key, []).append((first, second))
    return found


@pytest.mark.parametrize("as_bytes", [False, True])
def test_tokens_are_counted_from_the_first_with_content_to_the_last(
    monkeypatch: pytest.MonkeyPatch, *, as_bytes: bool
) -> None:
    lines = [ollama(""), ollama("a"), ollama("b"), ollama(""), ollama("c"), ollama("", **DONE)]
    noted = played(monkeypatch, [line.encode() if as_bytes else line for line in lines])

    assert noted == {
        "@first_token": [(20_000_000, BY_CLIENT_CONTENT)],
        "@gap": [(20_000_000, BY_CLIENT_CONTENT)],
        "@tokens_in": [(26, 0)],
        "@tokens_out": [(4, 0)],
        "@per_token": [(30_000_000, (3, BY_CLIENT_CONTENT))],
    }


@pytest.mark.parametrize(
    ("lines", "over"),
    [
        # Thought out of sight, before the first line.
        ((event({"content": "a"}), event({"content": "b"})), [3]),
        # Thought in sight.
        ((event({"reasoning_content": "a"}), event({"content": "b"})), [103]),
        # Two answers at once.
        ((event({"content": "a"}), event({"content": "b"}).replace('"index": 0', '"index": 1')), []),
    ],
)
def test_hidden_reasoning_is_excluded_from_time_per_token(
    monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], over: list[int]
) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 104, "completion_tokens_details": {"reasoning_tokens": 100}}
    noted = played(monkeypatch, [*lines, event(None, usage=usage, metrics={"queue_time_ms": 1.0})])

    assert [tokens for _, (tokens, _) in noted.get("@per_token", [])] == over


@pytest.mark.parametrize(
    "lines",
    [
        # A stream of the service's own, with texts in it.
        ['{"text": "a"}', '{"text": "b"}', '{"done": true}'],
        # What a model writes about numbers is a text.
        [ollama('{"load_duration": 5, "total_duration": 6}'), ollama("b")],
        ['{"load_duration": 5', "x"],
        ['["load_duration", 5]'],
        ['{"log": [{"load_duration": 5}], "text": "a"}'],
        [],
    ],
)
def test_lines_of_another_format_are_ignored(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> None:
    assert played(monkeypatch, lines) == {}


def test_impossible_times_are_dropped_and_tokens_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = played(monkeypatch, [ollama("a"), ollama("b"), ollama("", **{**DONE, "eval_duration": 8e12})])

    assert [dialect for dialect, _ in noted["@suspect"]] == ["ollama"]
    assert noted["@per_token"] == [(10_000_000, (3, BY_CLIENT_CONTENT))]
