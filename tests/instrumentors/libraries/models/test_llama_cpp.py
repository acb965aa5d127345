"""llama-cpp-python: a model of random weights, written as GGUF on the spot."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import re
import threading
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from stagelens.core import names
from stagelens.core.partition import segments
from stagelens.instrumentors.api import request
from stagelens.instrumentors.libraries.llama_cpp import LlamaCppInstrumentor
from stagelens.instrumentors.libraries.starlette import StarletteInstrumentor
from stagelens.instrumentors.loads import loads
from tests.instrumentors.conftest import Service
from tests.instrumentors.libraries.drivers import instrumenting
from tests.instrumentors.libraries.models.beside import BYTE, NORMAL, SPECIAL, beside, write_llama
from tests.support.slow_replicas import wait_until_up

if TYPE_CHECKING:
    from conftest import Finished
    from starlette.requests import Request

FOLDER = Path(__file__).parents[4] / ".venv" / "llama"
pytestmark = pytest.mark.soak
CONTEXT = 256
VOCABULARY = [
    *((name, SPECIAL) for name in ("<unk>", "<s>", "</s>")),
    *((f"<0x{byte:02X}>", BYTE) for byte in range(256)),
    *((letter, NORMAL) for letter in "▁abcdefgh"),
]
PROMPT = "abc" * 20
# The beginning, a space, and the letters.
PROMPT_TOKENS = 1 + 1 + len(PROMPT)
TOKENS = 8
OPTIONS: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0}
MESSAGES = [{"role": "user", "content": PROMPT}]


def add_tokenizer(writer: Any) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_scores([0.0 for _ in VOCABULARY])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    beside("llama", "llama_cpp")
    path = tmp_path_factory.mktemp("llama") / "tiny.gguf"
    write_llama(path, VOCABULARY, CONTEXT, np.float32, add_tokenizer)
    return path


@pytest.fixture(autouse=True)
def instrumented(path: Path) -> Generator[None]:  # noqa: ARG001 - makes the library importable
    with instrumenting(LlamaCppInstrumentor()):
        yield


def load(path: Path, **options: Any) -> Any:
    return import_module("llama_cpp").Llama(
        model_path=str(path), n_ctx=CONTEXT, n_threads=1, n_threads_batch=1, verbose=False, **options
    )


@pytest.fixture
def llama(path: Path) -> Generator[Any]:
    model = load(path)
    yield model
    model.close()


CALLS: dict[str, Callable[[Any, bool], Any]] = {
    "complete": lambda llama, stream: llama.create_completion(PROMPT, stream=stream, **OPTIONS),
    "call": lambda llama, stream: llama(PROMPT, stream=stream, **OPTIONS),
    "chat": lambda llama, stream: llama.create_chat_completion(MESSAGES, stream=stream, **OPTIONS),
}
GENERATIONS = [*itertools.product(CALLS, [False, True]), ("generate", True)]


def run(llama: Any, call: str, *, stream: bool) -> list[Any]:
    """Return the parts of a response, or the tokens of `generate`."""
    if call == "generate":
        return list(itertools.islice(llama.generate(llama.tokenize(PROMPT.encode()), temp=0), TOKENS))
    result = CALLS[call](llama, stream)
    return list(result) if stream else [result]


def stages_of(finished: Finished) -> list[str]:
    """Return the stages of the only request without repetitions in a row; the tokenizer may be faster than is timed."""
    stages = [stage for stage in finished.stages() if stage != "tokenize"]
    return [stage for place, stage in enumerate(stages) if stages[place - 1 : place] != [stage]]


def test_the_creation_of_a_model_is_a_load(path: Path, finished: Finished) -> None:
    loads.take()
    with request("load"):
        load(path).close()

    assert finished.stages() == ["load"]
    assert {each.model for each in loads.take()} == {"tiny"}


@pytest.mark.parametrize(("call", "stream"), GENERATIONS)
def test_a_generation_is_prefill_and_decode(llama: Any, finished: Finished, call: str, stream: bool) -> None:
    with request("generate"):
        parts = run(llama, call, stream=stream)
    assert stages_of(finished) == ["prefill", "decode"]
    facts = finished.facts()
    assert facts["@model"] == "tiny"
    assert facts["@tokens_in"] >= PROMPT_TOKENS
    assert facts["@tokens_out"] == TOKENS
    assert facts["@per_token"] > 0
    assert facts["@first_token"] == [end for stage, _, end in finished.marks() if stage == "prefill"][-1]
    if "usage" in (usage := parts[-1] if isinstance(parts[-1], dict) else {}):
        assert usage["usage"]["prompt_tokens"] == facts["@tokens_in"]
        assert usage["usage"]["completion_tokens"] == TOKENS
    finished.clear()

    LlamaCppInstrumentor().uninstrument()
    with request("generate"):
        again = run(llama, call, stream=stream)
    assert finished.stages() == []
    assert texts(again) == texts(parts)


def texts(parts: list[Any]) -> list[Any]:
    """Return what does not change from call to call."""
    return [part["choices"] if isinstance(part, dict) else part for part in parts]


def test_a_stream_that_is_closed_early_counts_its_tokens(llama: Any, finished: Finished) -> None:
    with request("generate"):
        stream = llama.create_completion(PROMPT, stream=True, **OPTIONS)
        next(stream)
        next(stream)
        stream.close()
        with pytest.raises(StopIteration):
            next(stream)

    assert stages_of(finished) == ["prefill", "decode"]
    assert finished.facts()["@tokens_out"] == 2


def test_a_stream_that_is_dropped_after_its_request_changes_no_other(llama: Any, finished: Finished) -> None:
    with request("first"):
        stream = llama.create_completion(PROMPT, stream=True, **OPTIONS)
        next(stream)
    finished.clear()
    with request("second"):
        del stream
        gc.collect()

    assert finished.facts() == {}


def test_a_chat_of_several_completions_has_several_prefills(llama: Any, finished: Finished) -> None:
    def handler(llama: Any, **_: Any) -> list[Any]:
        return [llama.create_completion(prompt, **OPTIONS) for prompt in (PROMPT, PROMPT[::-1])]

    llama.chat_handler = handler
    with request("chat"):
        llama.create_chat_completion(MESSAGES)

    marks = finished.marks()
    start, end = next(iter(marks))[1], max(end for stage, _, end in marks if stage == "decode")
    intervals = [mark for mark in marks if mark[0] in {"prefill", "decode"}]
    assert [stage for stage, _, _ in segments(intervals, start, end)][-4:] == ["prefill", "decode", "prefill", "decode"]
    assert [value for key, value, _ in marks if key == "@tokens_out"] == [TOKENS, TOKENS]


def test_a_streamed_response_of_a_server_is_one_request(llama: Any, finished: Finished) -> None:
    def endpoint(_: Request) -> StreamingResponse:
        chunks = llama.create_completion(PROMPT, stream=True, **OPTIONS)
        return StreamingResponse(chunk["choices"][0]["text"] for chunk in chunks)

    async def send() -> str:
        transport = httpx.ASGITransport(Starlette(routes=[Route("/generate", endpoint)]))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return (await client.get("/generate")).text

    with instrumenting(StarletteInstrumentor()):
        text = asyncio.run(send())

    assert text == llama(PROMPT, **OPTIONS)["choices"][0]["text"]
    stages = finished.stages()
    assert stages.count("prefill") == 1
    assert stages.count("decode") > 1
    assert finished.facts()["@tokens_out"] == TOKENS
    assert [record[3] for record in finished] == ["/generate"]


@pytest.fixture
def server(path: Path, sink: Any) -> Generator[str]:
    """Run the server of the library under the agent; give its URL."""
    options = ["--model", str(path), "--port", "{port}", "--host", "127.0.0.1", "--n_ctx", str(CONTEXT)]
    env = sink.environment()
    env["PYTHONPATH"] = os.pathsep.join((str(FOLDER), env["PYTHONPATH"]))
    service = Service("-m", "llama_cpp.server", *options, env=env)
    url = f"http://127.0.0.1:{service.port}"
    wait_until_up(f"{url}/v1/models")
    yield url
    service.stop()


@pytest.mark.parametrize(
    ("route", "body"), [("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", {"messages": MESSAGES})]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_of_the_server_is_prefill_and_decode(  # noqa: PLR0917 - fixtures and parameters
    server: str, sink: Any, until: Callable[..., None], route: str, body: dict[str, Any], stream: bool
) -> None:
    response = httpx.post(server + route, json={**body, **OPTIONS, "stream": stream}, timeout=60)

    def found() -> list[dict[str, Any]]:
        return [span for span in sink.spans() if span["name"] == f"POST {route}"]

    until(found, "the request")
    (span,) = found()
    attributes = span["attributes"]
    stages = {key: spent for key, spent in attributes.items() if key.startswith(names.STAGE_SELF_PREFIX)}

    assert response.status_code == 200
    assert sum(stages.values()) == int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])
    assert {names.STAGE_SELF_PREFIX + stage for stage in ("prefill", "decode", "framework", "network")} <= stages.keys()
    assert attributes[names.MODEL] == "tiny"
    if stream:
        tokens = [line for line in response.text.splitlines() if re.search(r'"(text|content)": "[^"]', line)]
        assert attributes["inference.attribute.output_tokens"] == len(tokens) == TOKENS
    else:
        usage = response.json()["usage"]
        assert attributes["inference.attribute.input_tokens"] == usage["prompt_tokens"]
        assert attributes["inference.attribute.output_tokens"] == usage["completion_tokens"] == TOKENS


def test_tokens_can_be_sent_into_generate(path: Path, finished: Finished) -> None:
    llama = load(path, logits_all=True)
    prompt = llama.tokenize(PROMPT.encode())

    def generate() -> tuple[int, int]:
        steps = llama.generate(prompt, temp=0)
        next(steps)
        token = steps.send(prompt[:5])
        with pytest.raises(KeyError, match="mine"):
            steps.throw(KeyError("mine"))
        return token, llama.n_tokens

    with request("generate"):
        inside = generate()
    assert finished.facts()["@tokens_out"] == 2
    assert inside == generate()
    LlamaCppInstrumentor().uninstrument()
    assert inside == generate()
    llama.close()


def test_a_loop_of_the_users_own_is_timed(llama: Any, finished: Finished) -> None:
    with request("generate"):
        llama.eval(llama.tokenize(PROMPT.encode()))
        for _ in range(3):
            llama.eval([llama.sample(temp=0)])

    assert stages_of(finished) == ["prefill", "decode"]


def test_an_embedding_is_a_forward(path: Path, finished: Finished) -> None:
    llama = load(path, embedding=True)
    with request("embed"):
        llama.create_embedding([PROMPT, PROMPT])
    assert [stage for stage in finished.stages() if stage != "tokenize"] == ["forward"]
    assert finished.facts() == {"@model": "tiny", "@batch": 2}
    finished.clear()

    with request("embed"):
        llama.embed(PROMPT)
    assert [stage for stage in finished.stages() if stage != "tokenize"] == ["forward"]
    assert finished.facts() == {"@model": "tiny"}
    llama.close()


@pytest.mark.parametrize(("call", "stream"), GENERATIONS)
def test_a_generation_is_one_request_of_a_script(llama: Any, script: Finished, call: str, stream: bool) -> None:
    run(llama, call, stream=stream)

    assert [(record[3], record[4], record[6]) for record in script] == [("tiny", "", "internal")]
    assert stages_of(script) == ["prefill", "decode"]
    assert script.facts()["@tokens_out"] == TOKENS


def test_a_failed_call_is_a_failed_request_of_a_script(llama: Any, script: Finished) -> None:
    with pytest.raises(ValueError, match="exceed context window"):
        llama("a" * CONTEXT)
    stream = llama("a" * CONTEXT, stream=True, max_tokens=1)
    assert len(script) == 1
    with pytest.raises(ValueError, match="exceed context window"):
        next(stream)
    stream = llama(PROMPT, stream=True)
    next(stream)
    stream.close()
    del stream
    llama(PROMPT, stream=True)

    assert [(record[3], record[4]) for record in script] == [
        ("tiny", "ValueError"),
        ("tiny", "ValueError"),
        ("tiny", ""),
    ]


def test_two_threads_do_not_mix(path: Path, script: Finished) -> None:
    barrier = threading.Barrier(2)

    def generate(prompt: str) -> None:
        llama = load(path)
        for _ in llama(prompt, stream=True, **OPTIONS):
            barrier.wait(60)
        llama.close()

    threads = [threading.Thread(target=generate, args=(prompt,)) for prompt in (PROMPT, PROMPT + "abc")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    counts = {tuple(marks[marks.index(key) + 1] for key in ("@tokens_in", "@tokens_out")) for marks, *_ in script}
    assert len(script) == len(threads)
    assert counts == {(PROMPT_TOKENS, TOKENS), (PROMPT_TOKENS + 3, TOKENS)}
