"""What it costs to look at what a server says of its own time: microseconds an answer, the best of several rounds.

    python benchmarks/reported.py [--rounds N]

CPU time of the thread, by a loop around the function that a client's module calls; the call itself is not made.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import multidict
import urllib3
from openai.types.chat import ChatCompletionChunk

from stagelens.instrumentors import records
from stagelens.instrumentors.libraries.client_common import LineStream, RespondedCall, TokenStream
from stagelens.instrumentors.libraries.server_reports import with_timing

TIMES = 20_000
# A call that took 20 ms.
WAIT_NS = 20_000_000
PLAIN = [(f"x-header-{number}", "value") for number in range(10)]
HEADERS = {
    "no header of these": PLAIN,
    "OpenAI": [*PLAIN, ("openai-processing-ms", "18")],
    "Text Generation Inference": [
        *PLAIN,
        *((f"x-{name}-time", value) for name, value in (("validation", "1"), ("queue", "4"), ("inference", "12"))),
    ],
    "Server-Timing": [*PLAIN, ("server-timing", "queue;dur=2.5, forward;dur=12, total;dur=18")],
}
CLIENTS: dict[str, Callable[[Any], Any]] = {
    "httpx": httpx.Headers,
    "urllib3": urllib3.HTTPHeaderDict,
    "aiohttp": lambda headers: multidict.CIMultiDictProxy(multidict.CIMultiDict(headers)),
}
VLLM = {"queue_time_ms": 1.3, "time_to_first_token_ms": 3.2, "generation_time_ms": 10.5}
BODIES = {
    "a body without, 10 kB": {"data": [{"id": number, "name": "x", "score": 1.5} for number in range(300)]},
    "a body of OpenAI": {"choices": [], "usage": {"prompt_tokens": 4}},
    "a body of vLLM": {"choices": [], "usage": {"prompt_tokens": 4}, "metrics": VLLM},
    "a body of vLLM, 10 kB": {"choices": ["a" * 10_000], "usage": {"prompt_tokens": 4}, "metrics": VLLM},
}

PART = {
    "id": "1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "a"}}],
}


def cost_us(once: Callable[[], object], rounds: int) -> float:
    """Return the CPU time of *once* in the best round, in microseconds."""
    best = float("inf")
    for _ in range(rounds):
        started = time.thread_time_ns()
        for _ in range(TIMES):
            once()
        best = min(best, (time.thread_time_ns() - started) / TIMES / 1000)
    return best


def looked_at() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what is looked at, and what does it once."""
    for name, pairs in HEADERS.items():
        for client, make in CLIENTS.items():
            yield f"{name}, {client}", partial(_answered, make(pairs))
    for name, body in BODIES.items():
        yield name, partial(_read, json.dumps(body).encode())
    stream = TokenStream([records.OPEN, 0, 0], _answered({}))
    yield "a part of a stream of openai", partial(stream.part, ChatCompletionChunk.model_validate(PART))
    lines = LineStream(_answered({}))
    yield "a line of Ollama", partial(lines.line, '{"model": "m", "response": "a", "done": false}')
    marks: records.Marks = [records.OPEN, 0, 0]
    for number in range(6):
        marks += ["forward" if number % 2 else "queue", number * 100, number * 100 + 90]
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    yield "telling it: Server-Timing of six stages", partial(with_timing, start, marks, 0, 700)


def _answered(headers: Any) -> RespondedCall:
    return RespondedCall([records.OPEN, 0, 0], records.clock() - WAIT_NS, headers)


def _read(body: bytes) -> None:
    _answered({}).read(body)


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="of %(default)s the best counts")
    rounds = parser.parse_args().rounds
    for name, once in looked_at():
        print(f"{name:<42} {cost_us(once, rounds):6.2f} µs")


if __name__ == "__main__":
    main()
